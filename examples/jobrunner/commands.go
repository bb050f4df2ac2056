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

// runCommand is one replica, until ctx ends.
func runCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := newFlags("run", stderr)
	name := flags.String("name", defaultName(), "the replica's name, as others see it")
	lease := flags.Duration("lease", pglock.DefaultLease, "how long a frozen or cut-off replica keeps the others waiting")
	grace := flags.Duration("grace", 5*time.Second, "how long a job may go on after SIGTERM")
	format := flags.String("log", "text", "text or json")
	careless := flags.Bool("careless", false, "do not look whether the lock is lost, as the demo wants it")
	if err := parse(flags, args); err != nil {
		return err
	}
	handler, err := logHandler(*format, stdout)
	switch {
	case err != nil:
		return err
	case *name == "" || strings.ContainsFunc(*name, func(r rune) bool { return r <= ' ' || r > '~' }):
		return fmt.Errorf("-name %q: printable ASCII without spaces is needed", *name)
	case *grace < 0:
		return fmt.Errorf("-grace %v: it cannot be negative", *grace)
	}
	jobs, err := exampleJobs()
	if err != nil {
		return err
	}
	pool, err := openPool(ctx, os.Getenv("DATABASE_URL"), *name)
	if err != nil {
		return err
	}
	defer pool.Close()
	log := slog.New(handler).With("replica", *name)
	locker, err := newLocker(pool, *lease, log)
	if err != nil {
		return err
	}
	s := &store{pool: pool}
	if err := s.check(ctx, jobs); err != nil {
		return errors.Join(err, closeLocker(ctx, locker))
	}
	r := &replica{name: *name, jobs: jobs, locker: locker, store: s, log: log, grace: *grace, careless: *careless}
	r.run(ctx)
	if err := closeLocker(ctx, locker); err != nil {
		return err
	}
	log.Info(evBye)
	return nil
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

func logHandler(format string, w io.Writer) (slog.Handler, error) {
	switch format {
	case "text":
		return slog.NewTextHandler(w, nil), nil
	case "json":
		return slog.NewJSONHandler(w, nil), nil
	}
	return nil, fmt.Errorf("-log %q: text or json", format)
}
