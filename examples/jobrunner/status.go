package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed35111a8b/pglock/pglock"
)

//go:embed status.html
var statusHTML string

// status is what a replica tells over HTTP.
type status struct {
	r    *replica
	page *template.Template
}

func newStatus(r *replica) *status {
	functions := template.FuncMap{"clock": clock, "ms": ms}
	return &status{r: r, page: template.Must(template.New("status").Funcs(functions).Parse(statusHTML))}
}

// serveHTTP serves until stop is called, which waits for requests under way.
func serveHTTP(ctx context.Context, addr string, s *status) (stop func(), err error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: closeTimeout}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	s.r.log.Info("listening", "addr", listener.Addr().String())
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		if err := errors.Join(server.Shutdown(ctx), <-served); !errors.Is(err, http.ErrServerClosed) {
			s.r.log.Error(evFailed, "error", err)
		}
	}, nil
}

func (s *status) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.servePage)
	mux.HandleFunc("GET /healthz", s.serveHealth)
	mux.HandleFunc("GET /metrics", s.serveMetrics)
	return mux
}

// serveHealth says whether the replica can do its work, which is so of followers too.
func (s *status) serveHealth(w http.ResponseWriter, req *http.Request) {
	ctx, cancel := context.WithTimeout(req.Context(), 2*time.Second)
	defer cancel()
	if err := s.r.store.check(ctx, s.r.jobs); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// serveMetrics writes the text format of Prometheus. It asks the database nothing: a scrape must work when that is down.
func (s *status) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	stat := s.r.locker.Stat()
	leads := 0
	if s.r.election != nil && s.r.election.IsLeader() {
		leads = 1
	}
	metric(w, "jobrunner_leader", "gauge", "1 while this replica leads.", int64(leads))
	metric(w, "jobrunner_ticks_total", "counter", "Ticks that this replica has run.", s.r.ticks.Load())
	metric(w, "jobrunner_stale_writes_rejected_total", "counter", "Writes of this replica that the fence has refused.", s.r.stale.Load())
	metric(w, "pglock_locks_held", "gauge", "Locks held.", int64(stat.Held))
	metric(w, "pglock_waiters", "gauge", "Calls that wait for a lock.", int64(stat.Waiters))
	metric(w, "pglock_sessions", "gauge", "Connections in use for locks.", int64(stat.Sessions))
	metric(w, "pglock_locks_acquired_total", "counter", "Locks acquired.", stat.Acquired)
	metric(w, "pglock_locks_lost_total", "counter", "Locks lost.", stat.Lost)
}

func metric(w io.Writer, name, kind, help string, value int64) {
	fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n%s %d\n", name, help, name, kind, name, value)
}

// page is what the status page shows, from the database: each replica shows the same.
type page struct {
	Replica, Mode string
	Now           time.Time
	Leader        *pglock.Leader
	Holders       []pglock.Holder
	Runs          []runRow
	Rejected      int
	Rejections    []rejectionRow
}

type runRow struct {
	Job, Replica string
	Tick         time.Time
	Token        int64
	Late, Took   time.Duration
}

type rejectionRow struct {
	Job, Replica   string
	Tick, At       time.Time
	Token, Highest int64
}

func (s *status) servePage(w http.ResponseWriter, req *http.Request) {
	ctx, cancel := context.WithTimeout(req.Context(), 5*time.Second)
	defer cancel()
	p, err := s.look(ctx)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if err := s.page.Execute(w, p); err != nil {
		s.r.log.Error(evFailed, "error", err)
	}
}

// look asks the database for what the page shows.
func (s *status) look(ctx context.Context) (p page, err error) {
	p = page{Replica: s.r.name, Mode: modeLock}
	if p.Now, err = s.r.store.now(ctx); err != nil {
		return p, err
	}
	if s.r.election != nil {
		p.Mode = modeLeader
		leader, err := s.r.election.Leader(ctx)
		switch {
		case err == nil:
			p.Leader = &leader
		case !errors.Is(err, pglock.ErrNoLeader):
			return p, err
		}
	}
	holders, err := s.r.locker.List(ctx)
	if err != nil {
		return p, err
	}
	for _, h := range holders {
		if !h.Waiting && h.Key != "" {
			p.Holders = append(p.Holders, h)
		}
	}
	return p, s.r.store.recent(ctx, &p)
}

// recent fills in the last runs and rejections.
func (s *store) recent(ctx context.Context, p *page) error {
	rows, err := s.pool.Query(ctx, `SELECT job, replica, scheduled_at, token, started_at - scheduled_at, finished_at - started_at
		FROM jobrunner.job_runs ORDER BY finished_at DESC LIMIT 20`)
	if err != nil {
		return err
	}
	p.Runs, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r runRow, err error) {
		return r, row.Scan(&r.Job, &r.Replica, &r.Tick, &r.Token, &r.Late, &r.Took)
	})
	if err != nil {
		return err
	}
	if rows, err = s.pool.Query(ctx, `SELECT job, replica, scheduled_at, rejected_at, token, highest
		FROM jobrunner.rejections ORDER BY rejected_at DESC LIMIT 10`); err != nil {
		return err
	}
	p.Rejections, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r rejectionRow, err error) {
		return r, row.Scan(&r.Job, &r.Replica, &r.Tick, &r.At, &r.Token, &r.Highest)
	})
	if err != nil {
		return err
	}
	return s.pool.QueryRow(ctx, "SELECT count(*) FROM jobrunner.rejections").Scan(&p.Rejected)
}
