package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

func TestMain(m *testing.M) {
	pgtest.Main(m, pgtest.Role{Name: "jobrunner", Run: playCommand})
}

// playCommand is the program itself, with the command line in ARGS.
func playCommand(ctx context.Context, self *pgtest.Self) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	if code := execute(ctx, strings.Fields(self.Arg("ARGS")), os.Stdout, os.Stderr); code != 0 {
		return fmt.Errorf("exit code %d", code)
	}
	return nil
}

// bundle is a migrated database of a test's own.
type bundle struct {
	dsn    string
	store  *store
	locker *pglock.Locker
	jobs   []job
	mode   string // of the replicas; empty: modeLock
}

func newBundle(t *testing.T, jobs ...job) *bundle {
	t.Helper()
	dsn := pgtest.NewDatabase(t, pgtest.Shared(t))
	b := &bundle{dsn: dsn, jobs: jobs}
	b.store, b.locker = b.open(t, "test")
	require.NoError(t, b.store.migrate(t.Context(), b.locker, jobs))
	return b
}

// open connects to the database as a replica does.
func (b *bundle) open(t *testing.T, name string) (*store, *pglock.Locker) {
	t.Helper()
	pool, err := openPool(context.WithoutCancel(t.Context()), b.dsn, name)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	locker, err := newLocker(pool, pglock.DefaultLease, slog.New(slog.NewTextHandler(t.Output(), nil)))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, closeLocker(context.Background(), locker)) })
	return &store{pool: pool}, locker
}

// replica starts a replica. The function ends it, also at the end of the test.
func (b *bundle) replica(t *testing.T, name string, careless bool) (stop func()) {
	t.Helper()
	s, locker := b.open(t, name)
	r := &replica{
		name: name, jobs: b.jobs, locker: locker, store: s, careless: careless, grace: 10 * time.Second,
		log: slog.New(slog.NewTextHandler(t.Output(), nil)).With("replica", name),
	}
	if b.mode == modeLeader {
		election, err := newElection(locker, name, r.grace)
		require.NoError(t, err)
		r.election = election
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.run(ctx)
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return stop
}

func (b *bundle) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	_, err := b.store.pool.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

// count is the number that a query returns.
func (b *bundle) count(t *testing.T, sql string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, b.store.pool.QueryRow(t.Context(), sql, args...).Scan(&n))
	return n
}

// audit is the audit of the ticks up to until, and what it prints.
func (b *bundle) audit(t *testing.T, until time.Time) (audit, string) {
	t.Helper()
	a, err := b.store.audit(t.Context(), b.jobs, until)
	require.NoError(t, err)
	var out bytes.Buffer
	a.print(&out)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	return a, lines[len(lines)-1]
}

// every is a schedule that is finer than cron's.
type every time.Duration

func (e every) Next(t time.Time) time.Time {
	return t.Truncate(time.Duration(e)).Add(time.Duration(e))
}

// lastHour is a schedule with one tick, an hour before it was made; the next is a century away.
func lastHour() cron.Schedule { return at(time.Now().Add(-time.Hour).Truncate(time.Second).UTC()) }

type at time.Time

func (a at) Next(t time.Time) time.Time {
	if tick := time.Time(a); tick.After(t) {
		return tick
	}
	return t.AddDate(100, 0, 0)
}
