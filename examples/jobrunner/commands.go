package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed35111a8b/pglock/pglock"
)

// closeTimeout bounds what is done after the signal that ends a program.
const closeTimeout = 10 * time.Second

// migrateCommand creates or updates the tables.
func migrateCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if err := parse(newFlags("migrate", stderr), args); err != nil {
		return err
	}
	jobs, err := exampleJobs()
	if err != nil {
		return err
	}
	pool, err := openPool(ctx, os.Getenv("DATABASE_URL"), "jobrunner migrate")
	if err != nil {
		return err
	}
	defer pool.Close()
	locker, err := newLocker(pool, pglock.DefaultLease, slog.New(slog.NewTextHandler(stderr, nil)))
	if err != nil {
		return err
	}
	s := &store{pool: pool}
	if err := errors.Join(s.migrate(ctx, locker, jobs), closeLocker(ctx, locker)); err != nil {
		return err
	}
	fmt.Fprintln(stdout, "the database is ready")
	return nil
}

// runFlags are the command line of run.
type runFlags struct {
	name, mode, format, listen string
	lease, grace               time.Duration
	migrate, careless          bool
}

// Modes of a replica. All replicas must run in the same.
const (
	modeLock   = "lock"
	modeLeader = "leader"
)

func parseRun(args []string, stderr io.Writer) (f runFlags, err error) {
	flags := newFlags("run", stderr)
	flags.StringVar(&f.name, "name", defaultName(), "the replica's name, as others see it")
	flags.StringVar(&f.mode, "mode", modeLock, "lock: a lock for each job; leader: one replica runs all jobs. The same for all replicas")
	flags.DurationVar(&f.lease, "lease", pglock.DefaultLease, "how long a frozen or cut-off replica keeps the others waiting")
	flags.DurationVar(&f.grace, "grace", 5*time.Second, "how long a job may go on after SIGTERM")
	flags.StringVar(&f.format, "log", "text", "text or json")
	flags.StringVar(&f.listen, "http", "", "where to serve /, /healthz and /metrics, such as :8080; empty: nowhere")
	flags.BoolVar(&f.migrate, "migrate", false, "create or update the tables first")
	flags.BoolVar(&f.careless, "careless", false, "do not look whether the lock is lost, as the demo wants it")
	if err := parse(flags, args); err != nil {
		return f, err
	}
	switch {
	case f.format != "text" && f.format != "json":
		err = fmt.Errorf("-log %q: text or json", f.format)
	case f.name == "" || strings.ContainsFunc(f.name, func(r rune) bool { return r <= ' ' || r > '~' }):
		err = fmt.Errorf("-name %q: printable ASCII without spaces is needed", f.name)
	case f.mode != modeLock && f.mode != modeLeader:
		err = fmt.Errorf("-mode %q: %s or %s", f.mode, modeLock, modeLeader)
	case f.grace < 0:
		err = fmt.Errorf("-grace %v: it cannot be negative", f.grace)
	}
	return f, err
}

// runCommand is one replica, until ctx ends.
func runCommand(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	f, err := parseRun(args, stderr)
	if err != nil {
		return err
	}
	jobs, err := exampleJobs()
	if err != nil {
		return err
	}
	pool, err := openPool(ctx, os.Getenv("DATABASE_URL"), f.name)
	if err != nil {
		return err
	}
	defer pool.Close()
	log := slog.New(logHandler(f.format, stdout)).With("replica", f.name)
	locker, err := newLocker(pool, f.lease, log)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, closeLocker(ctx, locker)); err == nil {
			log.Info(evBye)
		}
	}()
	s := &store{pool: pool}
	if f.migrate {
		err = s.migrate(ctx, locker, jobs)
	} else {
		err = s.check(ctx, jobs)
	}
	if err != nil {
		return err
	}
	r := &replica{name: f.name, jobs: jobs, locker: locker, store: s, log: log, grace: f.grace, careless: f.careless}
	if f.mode == modeLeader {
		if r.election, err = newElection(locker, f.name, f.grace); err != nil {
			return err
		}
	}
	if f.listen != "" {
		stop, err := serveHTTP(ctx, f.listen, newStatus(r))
		if err != nil {
			return fmt.Errorf("-http: %w", err)
		}
		defer stop()
	}
	r.run(ctx)
	return nil
}

// newElection returns the election of the leader, which gives a run that has begun the grace time, and a moment to be
// recorded, before it lets another lead.
func newElection(locker *pglock.Locker, name string, grace time.Duration) (*pglock.Election, error) {
	return pglock.NewElection(locker, "leader", &pglock.ElectionConfig{Name: name, DrainTimeout: grace + time.Second})
}

// openPool connects to the database, with name as application_name. It returns an error if that cannot be reached.
func openPool(ctx context.Context, dsn, name string) (*pgxpool.Pool, error) {
	if dsn == "" {
		return nil, errors.New("DATABASE_URL is not set: it says where the database is, " +
			"as in postgres://user:password@host:5432/database")
	}
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("DATABASE_URL: %w", err)
	}
	config.ConnConfig.RuntimeParams["application_name"] = name
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("DATABASE_URL: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("the database of DATABASE_URL: %w", err)
	}
	return pool, nil
}

// newLocker returns a Locker that can hold or await the lock of every job at once, without a new connection each time.
func newLocker(pool *pgxpool.Pool, lease time.Duration, log *slog.Logger) (*pglock.Locker, error) {
	const room = 6
	return pglock.New(pool, &pglock.Config{
		Namespace: "jobrunner", Lease: lease, MaxSessions: room, MaxWaiting: room / 2, MaxIdleSessions: room / 2, Logger: log,
	})
}

// closeLocker closes the Locker also when ctx has ended.
func closeLocker(ctx context.Context, locker *pglock.Locker) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	return locker.Close(ctx)
}

func defaultName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "jobrunner"
	}
	return fmt.Sprintf("%s-%d", host, os.Getpid())
}

func logHandler(format string, w io.Writer) slog.Handler {
	if format == "json" {
		return slog.NewJSONHandler(w, nil)
	}
	return slog.NewTextHandler(w, nil)
}
