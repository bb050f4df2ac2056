package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed35111a8b/pglock/internal/faults/history"
	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// workers are the goroutines of each client.
const workers = 4

// runner is a run: the server, the clients, and what is known of them.
type runner struct {
	settings
	keys    []string
	server  *pgtest.Server
	bouncer *pgtest.PgBouncer // nil where the machine has none
	network *pgtest.Network   // nil where the machine has no namespaces
	dsn     string            // of the database, past all faults
	seats   []*seat

	mu         sync.Mutex // guards the two below
	history    history.Run
	violations []history.Violation
}

// startTimeout bounds everything before the first fault, and everything after the
// last but the clients' own end.
const startTimeout = time.Minute

func run(ctx context.Context, s settings, out io.Writer) (err error) {
	r := &runner{settings: s, keys: []string{"k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"}}
	r.history.Trust = int64(lease - margin)
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
		defer cancel()
		err = errors.Join(err, r.close(end))
	}()
	if err := r.start(ctx, out); err != nil {
		return err
	}
	if err := r.work(ctx); err != nil {
		return err
	}
	if err := r.collect(ctx); err != nil {
		return err
	}
	return r.judge(out)
}

// start brings up the server and everything in front of it.
func (r *runner) start(ctx context.Context, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	options := []pgtest.Option{pgtest.Own(), pgtest.Settings(map[string]string{
		"max_connections":    "200",
		"synchronous_commit": "on", // an acknowledged write must survive a crash
		"wal_writer_delay":   "10s",
	})}
	var err error
	if r.network, err = pgtest.NewNetwork(ctx); err != nil {
		fmt.Fprintf(out, "faults: no client sits in a network namespace: %v\n", err)
	} else {
		options = append(options, pgtest.Listen(r.network.ServerIP()))
	}
	r.server, err = pgtest.Start(ctx, options...)
	if err != nil {
		return err
	}
	if r.dsn, err = r.server.CreateDatabase(ctx); err != nil {
		return err
	}
	if err := r.migrate(ctx); err != nil {
		return err
	}
	// A backend that crashes takes the pooler's connection; it must not wait long for another.
	r.bouncer, err = pgtest.StartPgBouncer(ctx, r.server, pgtest.SessionPooling, map[string]string{"server_login_retry": "1"})
	if err != nil {
		fmt.Fprintf(out, "faults: no client goes through a pooler: %v\n", err)
	}
	for n := range r.clients {
		s, err := r.seat(ctx, n)
		if err != nil {
			return err
		}
		r.seats = append(r.seats, s)
	}
	version, err := r.server.Version(ctx)
	fmt.Fprintf(out, "faults: PostgreSQL %d, %d clients with %d goroutines each, %d keys, lease %v, trust %v\n",
		version, r.clients, workers, len(r.keys), lease, lease-margin)
	return err
}

func (r *runner) migrate(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, r.dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	locker, err := pglock.New(pool, nil)
	if err != nil {
		return err
	}
	if err := locker.Migrate(ctx); err != nil {
		return err
	}
	_, err = pool.Exec(ctx, `CREATE TABLE writes (
		seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text UNIQUE NOT NULL, key text NOT NULL, token bigint NOT NULL)`)
	return err
}

// seat makes the place of a client. Of each three one has a proxy in front of the
// server, one a network of its own, one a proxy in front of a pooler; for every
// second one locks share a session.
func (r *runner) seat(ctx context.Context, n int) (*seat, error) {
	s := &seat{run: r, number: n, sessions: r.sessions, pooler: r.bouncer != nil && n%3 == 2}
	if s.sessions == 0 {
		s.sessions = []int{1, 1000}[n%2]
	}
	var err error
	if s.link, err = r.link(ctx, n); err != nil {
		return nil, err
	}
	config, err := pgx.ParseConfig(r.dsn)
	if err != nil {
		return nil, errors.Join(err, s.link.close())
	}
	s.dsn = s.link.dsn(r, config.Database)
	return s, nil
}

func (r *runner) link(ctx context.Context, n int) (link, error) {
	upstream := r.server.Addr()
	switch {
	case n%3 == 1 && r.network != nil:
		host, err := r.network.NewHost(ctx)
		return hostLink{host, r.network.ServerIP()}, err
	case n%3 == 2 && r.bouncer != nil:
		upstream = r.bouncer.Addr()
	}
	proxy, err := pgtest.NewProxy(ctx, upstream)
	return proxyLink{proxy}, err
}

// work lets the clients work and the faults strike, and ends the clients.
func (r *runner) work(ctx context.Context) error {
	for _, s := range r.seats {
		if err := s.spawn(ctx, 0); err != nil {
			return err
		}
	}
	striking, cancel := context.WithTimeout(ctx, r.duration)
	defer cancel()
	errs := make([]error, len(r.seats)+1)
	var plans sync.WaitGroup
	for n, s := range r.seats {
		plans.Go(func() {
			errs[n] = s.follow(striking, clientPlan(r.seed, n, r.duration))
		})
	}
	plans.Go(func() {
		errs[len(r.seats)] = r.followServer(striking, serverPlan(r.seed, r.duration))
	})
	<-striking.Done()
	plans.Wait()
	if err := errors.Join(append(errs, ctx.Err())...); err != nil {
		return err
	}
	ends := make([]error, len(r.seats))
	for n, s := range r.seats {
		plans.Go(func() { ends[n] = s.stop(ctx) })
	}
	plans.Wait()
	return errors.Join(append(ends, ctx.Err())...)
}

// collect reads what the clients have left on the server. A lock that a client
// left ends with its lease at the latest.
func (r *runner) collect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, r.dsn)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	free, cancelFree := context.WithTimeout(ctx, 2*lease)
	defer cancelFree()
	if err := pgtest.WaitForNoLocks(free, conn); err != nil {
		r.violation("leak", "", err.Error())
	}
	rows, err := conn.Query(ctx, "SELECT seq, id, key, token FROM writes ORDER BY seq")
	if err != nil {
		return err
	}
	r.history.Rows, err = pgx.CollectRows(rows, pgx.RowToStructByPos[history.Row])
	return err
}

// judge checks the history and prints the report.
func (r *runner) judge(out io.Writer) error {
	dir, err := filepath.Abs(filepath.Join(r.dir, fmt.Sprintf("seed-%d", r.seed)))
	if err != nil {
		return err
	}
	found, err := r.history.Check(dir)
	if err != nil {
		return err
	}
	violations := slices.Concat(r.violations, found)
	if len(violations) > 0 || r.keep {
		file := filepath.Join(dir, "history.json")
		if err := r.history.Save(file); err != nil {
			return err
		}
		fmt.Fprintln(out, "faults: the history is in", file)
	}
	return report(out, &r.history, violations)
}

func (r *runner) close(ctx context.Context) error {
	var errs []error
	for _, s := range r.seats {
		if s.process != nil {
			errs = append(errs, s.process.Kill())
			s.reading.Wait()
		}
		errs = append(errs, s.link.close())
	}
	if r.bouncer != nil {
		errs = append(errs, r.bouncer.Close())
	}
	if r.network != nil {
		errs = append(errs, r.network.Close())
	}
	if r.server != nil {
		errs = append(errs, r.server.Close(ctx))
	}
	return errors.Join(errs...)
}

// disturbed writes down a fault that is over.
func (r *runner) disturbed(d history.Disturbance, ended int64) {
	d.Ended = ended
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Disturbances = append(r.history.Disturbances, d)
}

// file keeps the log of a process that has ended.
func (r *runner) file(p *history.Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history.Processes = append(r.history.Processes, p)
}

func (r *runner) violation(check, key, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.violations = append(r.violations, history.Violation{Check: check, Key: key, Text: text})
}

// say tells all clients.
func (r *runner) say(line string) {
	for _, s := range r.seats {
		s.tell(line)
	}
}
