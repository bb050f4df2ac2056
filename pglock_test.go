// Package pglock_test shows the promises of pglock (docs/guarantees.md), P1 to
// P12, from outside and on a real server: each test is named after the promise
// that it holds, and prints what it measured.
package pglock_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// roles are what this test binary plays as another process. A file adds its own
// in an init function.
var roles []pgtest.Role

func TestMain(m *testing.M) { pgtest.Main(m, roles...) }

// scenarioTimeout bounds a test that waits for something that should come soon.
const scenarioTimeout = time.Minute

// migrated is the package's database once pglock is in it.
var migrated struct {
	once sync.Once
	err  error
}

// database is the DSN of the package's own database, with pglock in it.
func database(tb testing.TB) string {
	tb.Helper()
	dsn := pgtest.Database(tb)
	migrated.once.Do(func() { migrated.err = migrate(dsn) })
	require.NoError(tb, migrated.err)
	return dsn
}

// ownDatabase is the DSN of a database on s for this test alone, with pglock in
// it.
func ownDatabase(tb testing.TB, s *pgtest.Server) string {
	tb.Helper()
	dsn := pgtest.NewDatabase(tb, s)
	require.NoError(tb, migrate(dsn))
	return dsn
}

// migrate migrates as a service does at its start.
func migrate(dsn string) error {
	ctx, cancel := context.WithTimeout(context.Background(), scenarioTimeout)
	defer cancel()
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	locker, err := pglock.New(pool, nil)
	if err != nil {
		return err
	}
	return locker.Migrate(ctx)
}

// newPool is a pool on the DSN whose sessions, those of its Lockers too, have an
// application name of their own. When the test ends it is closed, and none of
// these sessions may be left on the server.
func newPool(tb testing.TB, dsn string, mutators ...func(*pgxpool.Config)) *pgxpool.Pool {
	tb.Helper()
	app := "t" + strings.ToLower(rand.Text()[:10])
	tb.Cleanup(func() { // after the pool's own
		observer, err := pgx.Connect(context.Background(), dsn)
		if err != nil {
			return // the test has stopped the server
		}
		pgtest.NoBackends(tb, observer, app+"%")
		require.NoError(tb, observer.Close(context.Background()))
	})
	named := func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = app }
	return pgtest.Pool(tb, dsn, append([]func(*pgxpool.Config){named}, mutators...)...)
}

// newLocker is a Locker on the pool. When the test ends it is closed, and has
// left no session, no lock and no connection of the pool in use.
func newLocker(tb testing.TB, pool *pgxpool.Pool, config *pglock.Config) *pglock.Locker {
	tb.Helper()
	var own pglock.Config
	if config != nil {
		own = *config
	}
	if own.Logger == nil {
		own.Logger = slog.New(slog.DiscardHandler)
	}
	locker, err := pglock.New(pool, &own)
	require.NoError(tb, err)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), scenarioTimeout)
		defer cancel()
		require.NoError(tb, locker.Close(ctx))
		require.Zero(tb, locker.Stat().Sessions, "sessions after Close")
		require.Zero(tb, locker.Stat().Held, "locks after Close")
		// The pool goes on connecting for an Acquire that was given up, and counts that as in use for a moment.
		pgtest.Eventually(tb, "no connection of the pool in use", func() bool { return pool.Stat().AcquiredConns() == 0 })
		requireNoLocks(tb, pool)
	})
	return locker
}

// requireNoLocks fails the test unless no session with the pool's application
// name, or one that begins with it, has an advisory lock any more.
func requireNoLocks(tb testing.TB, pool *pgxpool.Pool) {
	tb.Helper()
	config := pool.Config().ConnConfig
	observer, err := pgx.ConnectConfig(context.Background(), config)
	if err != nil {
		return // the test has stopped the server
	}
	defer func() { require.NoError(tb, observer.Close(context.Background())) }()
	const sql = `SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
		WHERE locktype = 'advisory' AND starts_with(application_name, $1)`
	pgtest.Eventually(tb, "advisory locks of the test to go", func() bool {
		var left int
		require.NoError(tb, observer.QueryRow(context.Background(), sql, config.RuntimeParams["application_name"]).Scan(&left))
		return left == 0
	})
}

// timed is the test's context, bounded.
func timed(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), scenarioTimeout)
	tb.Cleanup(cancel)
	return ctx
}

// int64ID is the lock ID of a key in the form in which pgtest takes it.
func int64ID(tb testing.TB, lock *pglock.Lock) int64 {
	tb.Helper()
	n, ok := lock.LockID().Int64()
	require.True(tb, ok)
	return n
}

// percentiles sorts the durations and names the usual ones.
func percentiles(durations []time.Duration) string {
	at := sorted(durations)
	n := len(at)
	return fmt.Sprintf("n=%d p50=%v p90=%v max=%v", n,
		at[n/2].Round(10*time.Microsecond), at[n*9/10].Round(10*time.Microsecond), at[n-1].Round(10*time.Microsecond))
}

func sorted(durations []time.Duration) []time.Duration {
	return slices.Sorted(slices.Values(durations))
}

// process starts this test binary in a role, on the database of the DSN.
func process(tb testing.TB, role, dsn, key string, args ...string) *pgtest.Process {
	tb.Helper()
	return pgtest.SpawnRole(tb, role, append([]string{"DSN=" + dsn, "KEY=" + key}, args...)...)
}

// open is the Locker of a role's process, on the DSN that process gave it.
func open(ctx context.Context, self *pgtest.Self, config *pglock.Config) (*pglock.Locker, *pgxpool.Pool, error) {
	pool, err := pgxpool.New(ctx, self.Arg("DSN"))
	if err != nil {
		return nil, nil, err
	}
	locker, err := pglock.New(pool, config)
	return locker, pool, err
}

// databaseName is the name of the DSN's database.
func databaseName(tb testing.TB, dsn string) string {
	tb.Helper()
	config, err := pgx.ParseConfig(dsn)
	require.NoError(tb, err)
	return config.Database
}

// table makes a table for the test alone, whose name replaces % in the SQL.
func table(tb testing.TB, pool *pgxpool.Pool, columns string) string {
	tb.Helper()
	name := "t" + strings.ToLower(rand.Text()[:10])
	_, err := pool.Exec(tb.Context(), "CREATE TABLE public."+name+" ("+columns+"); GRANT ALL ON public."+name+" TO public")
	require.NoError(tb, err)
	tb.Cleanup(func() {
		_, err := pool.Exec(context.Background(), "DROP TABLE public."+name)
		require.NoError(tb, err)
	})
	return "public." + name
}

func count(tb testing.TB, pool *pgxpool.Pool, sql string, args ...any) int {
	tb.Helper()
	var n int
	require.NoError(tb, pool.QueryRow(tb.Context(), sql, args...).Scan(&n))
	return n
}
