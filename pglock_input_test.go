package pglock_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// attempts are the methods that acquire; each returns its error.
func attempts(locker *pglock.Locker) map[string]func(ctx context.Context, key string) error {
	fn := func(context.Context, *pglock.Lock) error { return errors.New("fn was called") }
	return map[string]func(ctx context.Context, key string) error{
		"try acquire": func(ctx context.Context, key string) error { _, err := locker.TryAcquire(ctx, key); return err },
		"acquire":     func(ctx context.Context, key string) error { _, err := locker.Acquire(ctx, key); return err },
		"do":          func(ctx context.Context, key string) error { return locker.Do(ctx, key, fn) },
		"try do":      func(ctx context.Context, key string) error { _, err := locker.TryDo(ctx, key, fn); return err },
	}
}

// requireRefused fails the test unless every way to acquire the key ends at
// once with the errors, in a LockError, and takes nothing.
func requireRefused(tb testing.TB, locker *pglock.Locker, pool *pgxpool.Pool, key string, want ...error) {
	tb.Helper()
	for op, attempt := range attempts(locker) {
		ctx, cancel := context.WithTimeout(tb.Context(), scenarioTimeout)
		err := attempt(ctx, key)
		require.NoError(tb, ctx.Err(), "%s waited for what cannot heal", op)
		cancel()
		requireErrors(tb, err, op, key, want...)
	}
	requireNothingTaken(tb, locker, pool)
}

func requireErrors(tb testing.TB, err error, op, key string, want ...error) {
	tb.Helper()
	for _, target := range want {
		require.ErrorIs(tb, err, target, op)
	}
	lockErr, ok := errors.AsType[*pglock.LockError](err)
	require.True(tb, ok, "%s: %v", op, err)
	require.Equal(tb, op, lockErr.Op)
	require.Equal(tb, key, lockErr.Key)
	require.True(tb, strings.HasPrefix(err.Error(), "pglock: "+op), err.Error())
}

func requireNothingTaken(tb testing.TB, locker *pglock.Locker, pool *pgxpool.Pool) {
	tb.Helper()
	pgtest.Eventually(tb, "sessions and connections to go", func() bool {
		return locker.Stat().Sessions == 0 && pool.Stat().AcquiredConns() == 0
	})
	require.Zero(tb, locker.Stat().Held)
	require.Zero(tb, locker.Stat().Waiters)
}

// requireUsable fails the test unless the Locker works, and no lock of an
// attempt before is in its way.
func requireUsable(tb testing.TB, locker *pglock.Locker, key string) {
	tb.Helper()
	for range 2 {
		ctx, cancel := context.WithTimeout(tb.Context(), scenarioTimeout)
		lock, err := locker.Acquire(ctx, key)
		cancel()
		require.NoError(tb, err)
		require.Positive(tb, lock.Token())
		require.NoError(tb, lock.Verify(tb.Context()))
		require.NoError(tb, lock.Release(tb.Context()))
	}
}

func TestP10_BadKey(t *testing.T) {
	t.Parallel()
	pool := newPool(t, database(t))
	locker := newLocker(t, pool, nil)
	for _, key := range []string{"", "a\x00b", "\x00", "\xff", "ok\xc3", "\xed\xa0\x80"} {
		requireRefused(t, locker, pool, key, pglock.ErrInvalidKey)
		_, err := locker.Holders(t.Context(), key)
		require.ErrorIs(t, err, pglock.ErrInvalidKey)
		_, err = locker.TryAcquireShared(t.Context(), key)
		require.ErrorIs(t, err, pglock.ErrInvalidKey)
	}
	require.Zero(t, pool.Stat().NewConnsCount(), "found without a server")
	requireUsable(t, locker, pgtest.Key(t))
}

func TestP10_BadConfig(t *testing.T) {
	t.Parallel()
	_, err := pglock.New(nil, nil)
	require.ErrorIs(t, err, pglock.ErrInvalidConfig)
	require.ErrorContains(t, err, "pool is nil")
	pool := newPool(t, database(t))
	_, err = pglock.New(pool, &pglock.Config{
		Schema: "pg_catalog", Namespace: "\xff", Lease: time.Millisecond, MaxSessions: -1,
		KeyFunc: func(string) pglock.LockID { return pglock.Int64ID(1) },
	})
	require.ErrorIs(t, err, pglock.ErrInvalidConfig)
	for _, field := range []string{"Schema", "Namespace", "Lease", "MaxSessions", "KeyFunc"} {
		require.ErrorContains(t, err, field, "every problem is listed")
	}
	t.Log(err)
	require.Zero(t, pool.Stat().NewConnsCount(), "New does no I/O")
}

func TestP10_ClosedLocker(t *testing.T) {
	t.Parallel()
	pool := newPool(t, database(t))
	locker := newLocker(t, pool, nil)
	key := pgtest.Key(t)
	requireUsable(t, locker, key)
	require.NoError(t, locker.Close(t.Context()))
	requireRefused(t, locker, pool, key, pglock.ErrClosed)
	require.NoError(t, locker.Close(t.Context()), "closed twice")
	requireUsable(t, newLocker(t, pool, nil), key) // the pool is as good as before
}

func TestP10_EndedContext(t *testing.T) {
	t.Parallel()
	pool := newPool(t, database(t))
	locker := newLocker(t, pool, nil)
	key := pgtest.Key(t)
	reason := errors.New("the service stops")
	cancelled, cancel := context.WithCancelCause(t.Context())
	cancel(reason)
	late, done := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer done()
	for op, attempt := range attempts(locker) {
		requireErrors(t, attempt(cancelled, key), op, key, pglock.ErrNotAcquired, context.Canceled, reason)
		requireErrors(t, attempt(late, key), op, key, pglock.ErrNotAcquired, context.DeadlineExceeded)
	}
	requireNothingTaken(t, locker, pool)
	require.Zero(t, pool.Stat().NewConnsCount())
	requireUsable(t, locker, key)
}

func TestP10_MissingMigrationAndWrongSchema(t *testing.T) {
	t.Parallel()
	ctx := timed(t)
	dsn := pgtest.NewDatabase(t, pgtest.Shared(t))
	for _, schema := range []string{"", "Nowhere"} { // by the second time the default schema is there
		pool := newPool(t, dsn)
		locker := newLocker(t, pool, &pglock.Config{Schema: schema})
		key := pgtest.Key(t)
		requireRefused(t, locker, pool, key, pglock.ErrNotMigrated)
		_, err := locker.TryAcquire(ctx, key)
		require.ErrorContains(t, err, "Migrate", "it says what to run")
		fencer := pglock.Fencer{Schema: schema}
		require.ErrorIs(t, fencer.Claim(ctx, pool, 1, "r"), pglock.ErrNotMigrated)
		t.Log(err)
		require.NoError(t, locker.Migrate(ctx))
		require.NoError(t, locker.Migrate(ctx))
		requireUsable(t, locker, key)
		require.NoError(t, fencer.Claim(ctx, pool, 1, "r"))
	}
}

func TestP10_Standby(t *testing.T) {
	t.Parallel()
	ctx := timed(t)
	primary := pgtest.New(t)
	require.NoError(t, primary.Exec(ctx, "", "CREATE DATABASE app"))
	require.NoError(t, migrate(primary.DSN("app")))
	standby := pgtest.NewStandby(t, primary, pgtest.StandbyConfig{})
	require.NoError(t, standby.AwaitCaughtUp(ctx))
	pool := newPool(t, standby.DSN("app"))
	locker := newLocker(t, pool, nil)
	key := pgtest.Key(t)
	_, err := locker.TryAcquire(ctx, key)
	requireErrors(t, err, "try acquire", key, pglock.ErrReadOnly)
	t.Log(err)
	require.ErrorIs(t, pglock.Fencer{}.Claim(ctx, pool, 1, key), pglock.ErrReadOnly)
	brief, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	_, err = locker.Acquire(brief, key)
	requireErrors(t, err, "acquire", key, pglock.ErrNotAcquired, context.DeadlineExceeded, pglock.ErrReadOnly)
	requireNothingTaken(t, locker, pool)
	require.NoError(t, pgtest.WaitForNoLocks(ctx, pool))

	// Who waits gets the lock from the server that the standby becomes.
	acquired := make(chan answer, 1)
	go func() {
		lock, err := locker.Acquire(ctx, key)
		acquired <- answer{lock, err}
	}()
	require.NoError(t, standby.Promote(ctx))
	got := <-acquired
	require.NoError(t, got.err)
	require.NoError(t, got.lock.Release(ctx))
	requireUsable(t, locker, key)
}

func TestP10_UnreachableServer(t *testing.T) {
	t.Parallel()
	ctx := timed(t)
	w := newWire(t)
	pool := newPool(t, w.dsn)
	locker := newLocker(t, pool, nil)
	key := pgtest.Key(t)
	nobody, err := pgtest.NewProxy(ctx, "127.0.0.1:1")
	require.NoError(t, err)
	require.NoError(t, nobody.Close())
	w.proxy.SetUpstream(nobody.Addr())
	for range 2 {
		_, err = locker.TryAcquire(ctx, key)
		requireErrors(t, err, "try acquire", key, pglock.ErrUnavailable)
		require.NotErrorIs(t, err, pglock.ErrNotAcquired)
	}
	t.Log(err)
	require.ErrorIs(t, pglock.Fencer{}.Claim(ctx, pool, 1, key), pglock.ErrUnavailable)
	_, err = locker.List(ctx)
	require.ErrorIs(t, err, pglock.ErrUnavailable)
	brief, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	_, err = locker.Acquire(brief, key)
	requireErrors(t, err, "acquire", key, pglock.ErrNotAcquired, context.DeadlineExceeded, pglock.ErrUnavailable)
	requireNothingTaken(t, locker, pool)
	w.proxy.SetUpstream(pgtest.Shared(t).Addr())
	requireUsable(t, locker, key)
}

// A server on which something is not as it must be: what fails after the lock
// was taken must not leave it held.
func TestP10_WrongServer(t *testing.T) {
	t.Parallel()
	ctx := timed(t)
	s := pgtest.Shared(t)
	dsn := ownDatabase(t, s)
	for _, c := range []struct {
		what, wrong, right string
	}{
		{
			"a sequence that is exhausted", "ALTER SEQUENCE pglock.tokens MAXVALUE 1000 RESTART 1000; SELECT nextval('pglock.tokens')",
			"ALTER SEQUENCE pglock.tokens NO MAXVALUE",
		},
		{"a sequence with a cache", "ALTER SEQUENCE pglock.tokens CACHE 20", "ALTER SEQUENCE pglock.tokens CACHE 1"},
		{"a sequence that cycles", "ALTER SEQUENCE pglock.tokens CYCLE", "ALTER SEQUENCE pglock.tokens NO CYCLE"},
		{
			"advisory locks that do nothing", `SET allow_system_table_mods = on;
			ALTER FUNCTION pg_catalog.pg_try_advisory_lock(bigint) RENAME TO pg_try_advisory_lock_real;
			CREATE FUNCTION pg_catalog.pg_try_advisory_lock(bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true'`,
			`SET allow_system_table_mods = on; DROP FUNCTION pg_catalog.pg_try_advisory_lock(bigint);
			ALTER FUNCTION pg_catalog.pg_try_advisory_lock_real(bigint) RENAME TO pg_try_advisory_lock`,
		},
	} {
		require.NoError(t, s.Exec(ctx, databaseName(t, dsn), c.wrong), c.what)
		pool := newPool(t, dsn)
		locker := newLocker(t, pool, nil)
		key := pgtest.Key(t)
		requireRefused(t, locker, pool, key, pglock.ErrUnsupportedServer)
		_, err := locker.TryAcquire(ctx, key)
		t.Logf("%s: %v", c.what, err)
		require.NoError(t, pgtest.WaitForNoLocks(ctx, pool))
		require.NoError(t, s.Exec(ctx, databaseName(t, dsn), c.right), c.what)
		requireUsable(t, locker, key)
	}
	requireNoPrivilege(t, s, dsn)
}

// requireNoPrivilege is the case of a role that may take locks and draw nothing.
func requireNoPrivilege(t *testing.T, s *pgtest.Server, dsn string) {
	t.Helper()
	appDSN := appRole(t, s, dsn)
	config, err := pgx.ParseConfig(appDSN)
	require.NoError(t, err)
	pool := newPool(t, appDSN)
	locker := newLocker(t, pool, nil)
	key := pgtest.Key(t)
	privilege := fmt.Sprintf("USAGE ON SEQUENCE pglock.tokens %%s %s", config.User)
	require.NoError(t, s.Exec(t.Context(), config.Database, "REVOKE "+fmt.Sprintf(privilege, "FROM")))
	requireRefused(t, locker, pool, key)
	_, err = locker.TryAcquire(t.Context(), key)
	require.Equal(t, "42501", sqlState(err), "%v", err)
	t.Log(err)
	require.NoError(t, pgtest.WaitForNoLocks(t.Context(), pool))
	require.NoError(t, s.Exec(t.Context(), config.Database, "GRANT "+fmt.Sprintf(privilege, "TO")))
	requireUsable(t, locker, key)
}

func TestP1_KeyOf1MB(t *testing.T) {
	t.Parallel()
	ctx := timed(t)
	raw := make([]byte, 3<<18)
	_, _ = rand.Read(raw)
	key := base64.StdEncoding.EncodeToString(raw)
	require.Len(t, key, 1<<20)
	pool := newPool(t, database(t))
	locker, other := newLocker(t, pool, nil), newLocker(t, pool, nil)
	lock, err := locker.Acquire(ctx, key)
	require.NoError(t, err)
	require.Equal(t, key, lock.Key())
	_, err = other.TryAcquire(ctx, key)
	require.ErrorIs(t, err, pglock.ErrNotAcquired)
	require.Less(t, len(err.Error()), 300, "the error quotes a part of it")
	var twin int64
	require.NoError(t, pool.QueryRow(ctx, "SELECT pglock.key('', $1)", key).Scan(&twin))
	require.Equal(t, int64ID(t, lock), twin)
	holders, err := locker.Holders(ctx, key)
	require.NoError(t, err)
	require.Len(t, holders, 1)
	require.NoError(t, lock.Release(ctx))
	requireFree(t, other, key[:len(key)-1]+"!")
	requireUsable(t, other, key)
}

func TestP10_OddSchemaNamesWork(t *testing.T) {
	t.Parallel()
	ctx := timed(t)
	dsn := pgtest.NewDatabase(t, pgtest.Shared(t))
	for _, schema := range []string{"Upper Case", `quote " inside`, "apostrophe's", "größe ☃", `100% %I \ back;--`, "select", strings.Repeat("x", 63)} {
		pool := newPool(t, dsn)
		locker := newLocker(t, pool, &pglock.Config{Schema: schema})
		require.NoError(t, locker.Migrate(ctx), schema)
		require.NoError(t, locker.Migrate(ctx), schema)
		key := pgtest.Key(t)
		lock, err := locker.TryAcquire(ctx, key)
		require.NoError(t, err, schema)
		acquired := make(chan answer, 1)
		go func() { // waits on a session of its own
			lock, err := newLocker(t, pool, &pglock.Config{Schema: schema}).Acquire(ctx, key)
			acquired <- answer{lock, err}
		}()
		awaitWaiter(t, locker, key)
		require.NoError(t, lock.FencedTx(ctx, pool, key, func(pgx.Tx) error { return nil }), schema)
		require.NoError(t, lock.Release(ctx), schema)
		next := <-acquired
		require.NoError(t, next.err, schema)
		require.NoError(t, next.lock.Claim(ctx, pool, key, key+"2"), schema)
		require.ErrorIs(t, pglock.Fencer{Schema: schema}.Claim(ctx, pool, lock.Token(), key), pglock.ErrStaleToken, schema)
		rows := table(t, pool, "id int, fencing_token bigint")
		_, err = pool.Exec(ctx, "SELECT "+pgx.Identifier{schema, "fence_table"}.Sanitize()+"($1)", rows)
		require.NoError(t, err, schema)
		for token, state := range map[int]string{1: "", 0: pglock.SQLStateNoToken} {
			_, err = pool.Exec(ctx, "INSERT INTO "+rows+" VALUES (1, $1)", token)
			require.Equal(t, state, sqlState(err), "%s: %v", schema, err)
		}
		pruned, err := pglock.Fencer{Schema: schema}.Prune(ctx, pool, time.Nanosecond)
		require.NoError(t, err, schema)
		require.EqualValues(t, 2, pruned)
		require.NoError(t, next.lock.Release(ctx), schema)
		t.Logf("%q: migrated, locked, waited, fenced, guarded a table, pruned", schema)
	}
}
