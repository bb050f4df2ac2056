//nolint:thelper // each runs these functions as subtests
package pglock_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// warmed is a Locker whose pool has one connection, made ready for the next lock,
// behind a proxy: the next try is one call.
func warmed(ctx context.Context, tb testing.TB, dsn string, config pglock.Config) (*pglock.Locker, *pgxpool.Pool, *pgtest.Proxy) {
	tb.Helper()
	pool, proxy := proxied(tb, pgtest.Shared(tb), dsn)
	locker := newLocker(tb, pool, &config)
	for range 2 { // the first connection is not the refill's
		require.NoError(tb, acquired(ctx, tb, locker, "another").Release(ctx))
		pgtest.Eventually(tb, "the next connection", func() bool { return pool.Stat().IdleConns() == 1 })
	}
	return locker, pool, proxy
}

// Of the settings of a session only some are made before the lock is granted, the
// lease among them: a holder that is cut off before it has made the others blocks
// nobody for longer.
func TestP4_HolderCutOffRightAfterTheGrantBlocksForALeaseAtMost(t *testing.T) {
	t.Parallel()
	ctx, dsn, key := timed(t), database(t), pgtest.Key(t)
	locker, _, proxy := warmed(ctx, t, dsn, pglock.Config{Lease: testLease})
	settings := proxy.Set(pgtest.Trap{Type: pgtest.TypeQuery, Contains: ".acquire("})
	lock, err := locker.TryAcquire(ctx, key)
	require.NoError(t, err, "the caller does not wait for the other settings")
	await(t, "the other settings", settings)
	began := time.Now()
	next := await(t, "the lock", acquire(ctx, newLocker(t, newPool(t, dsn), nil), key)).held(t)
	took := time.Since(began)
	require.Less(t, took, testLease+time.Second)
	require.ErrorIs(t, lock.Err(), pglock.ErrLost)
	require.Greater(t, next.Token(), lock.Token())
	proxy.Heal()
	require.NoError(t, next.Release(ctx))
	t.Logf("another held the lock %v after the cut, with a lease of %v", took, testLease)
}

// However a session came to its connection it is kept alive from then on.
func TestP12_LockOutlivesTheTrustOfItsGrant(t *testing.T) {
	t.Parallel()
	ctx, dsn := timed(t), database(t)
	config := pglock.Config{Lease: testLease}
	short, _, proxy := warmed(ctx, t, dsn, config)
	unknown, _ := proxied(t, pgtest.Shared(t), dsn)
	require.NoError(t, unknown.Ping(ctx))
	before := proxy.Counts()
	locks := map[string]*pglock.Lock{}
	for name, locker := range map[string]*pglock.Locker{
		"a connection made ready":                   short,
		"a connection that was used for other work": newLocker(t, unknown, &config),
		"a new connection":                          newLocker(t, newPool(t, dsn), &config),
	} {
		lock, err := locker.TryAcquire(ctx, pgtest.Key(t))
		require.NoError(t, err, name)
		locks[name] = lock
	}
	require.Positive(t, proxy.Counts().Since(before).FromClient[pgtest.TypeFunctionCall])
	<-time.After(2 * testLease)
	for name, lock := range locks {
		require.NoError(t, lock.Err(), name)
		require.NoError(t, lock.Verify(ctx), name)
		require.NoError(t, lock.Release(ctx), name)
	}
}

// The other settings follow, and the session is then as any other. What it has
// set is written down by the function that it unlocks with.
func TestASessionOfTheShortWayHasAllSettings(t *testing.T) {
	t.Parallel()
	ctx, dsn, key := timed(t), ownDatabase(t, pgtest.Shared(t)), pgtest.Key(t)
	locker, _, proxy := warmed(ctx, t, dsn, pglock.Config{})
	require.NoError(t, pgtest.Shared(t).Exec(ctx, databaseName(t, dsn), `CREATE TABLE public.seen(settings text);
		CREATE OR REPLACE FUNCTION pglock.unlock_one(pid integer, key bigint, clean boolean) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO public.seen SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings
				WHERE source = 'session' AND name <> 'application_name' HAVING key IS NOT NULL;
			RETURN pg_advisory_unlock(key)::integer;
		END $$`))
	before := proxy.Counts()
	short, err := locker.TryAcquire(ctx, key)
	require.NoError(t, err)
	require.Positive(t, proxy.Counts().Since(before).FromClient[pgtest.TypeFunctionCall])
	require.NoError(t, short.Verify(ctx)) // comes after the settings
	require.NoError(t, short.Release(ctx))
	pool := newPool(t, dsn)
	long, err := newLocker(t, pool, nil).TryAcquire(ctx, key) // a Locker's first lock
	require.NoError(t, err)
	require.NoError(t, long.Release(ctx))
	rows, err := pool.Query(ctx, "SELECT settings FROM public.seen")
	require.NoError(t, err)
	seen, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Len(t, seen, 2)
	require.Equal(t, seen[1], seen[0])
	require.Contains(t, seen[0], "idle_session_timeout=15000")
	require.Contains(t, seen[0], "tcp_user_timeout=16000")
}

// Wherever a call that takes a lock the short way is when its ctx ends, it returns
// soon, and what it had asked for is undone.
func TestP8_TryOfTheShortWayEndsWithItsCtxAtEveryPoint(t *testing.T) {
	t.Parallel()
	each(t, map[string]pgtest.Trap{
		"before the request": {Type: pgtest.TypeFunctionCall},
		"in the request":     {Type: pgtest.TypeFunctionCall, Pass: 7},
		"before the answer":  {Direction: pgtest.ToClient, Type: 'V'},
	}, func(t *testing.T, trap pgtest.Trap) {
		ctx, dsn, key := timed(t), database(t), pgtest.Key(t)
		locker, _, proxy := warmed(ctx, t, dsn, pglock.Config{})
		sprung := proxy.Set(trap)
		mine, cancel := context.WithCancel(ctx)
		waiting := acquire(mine, locker, key)
		conn := await(t, "the trap", sprung)
		took := requireEnds(t, cancel, waiting)
		conn.Heal()
		pgtest.Eventually(t, "the session to end", func() bool { return locker.Stat().Sessions == 0 })
		pgtest.NoAdvisoryLocks(t, pgtest.Pool(t, dsn), lockID(t, key))
		require.NoError(t, acquired(ctx, t, locker, key).Release(ctx))
		t.Logf("returned %v after the end of its ctx", took)
	})
}

// What fails after the lock was taken on the short way is undone before the caller
// is told, and before the long way is tried on the same connection.
func TestP8_FailureOnTheShortWayLeavesNothingHeld(t *testing.T) {
	t.Parallel()
	ctx, s, key := timed(t), pgtest.Shared(t), pgtest.Key(t)
	dsn := ownDatabase(t, s)
	locker, _, proxy := warmed(ctx, t, dsn, pglock.Config{})
	name := databaseName(t, dsn)
	require.NoError(t, s.Exec(ctx, name, "ALTER SEQUENCE pglock.tokens MAXVALUE 1000 RESTART 1000; SELECT nextval('pglock.tokens')"))
	before := proxy.Counts()
	_, err := locker.TryAcquire(ctx, key)
	require.ErrorIs(t, err, pglock.ErrUnsupportedServer)
	require.ErrorContains(t, err, "2200H")
	require.Equal(t, 1, proxy.Counts().Since(before).FromClient[pgtest.TypeFunctionCall])
	pgtest.NoAdvisoryLocks(t, pgtest.Pool(t, dsn), lockID(t, key))
	require.NoError(t, s.Exec(ctx, name, "ALTER SEQUENCE pglock.tokens NO MAXVALUE"))
	require.NoError(t, acquired(ctx, t, locker, key).Release(ctx))
}

// A default that the short way cannot override sends each lock the long way, and
// costs no connection.
func TestP10_ReadOnlyDefaultOnTheShortWay(t *testing.T) {
	t.Parallel()
	ctx, s, key := timed(t), pgtest.Shared(t), pgtest.Key(t)
	dsn := ownDatabase(t, s)
	require.NoError(t, s.Exec(ctx, "", "ALTER DATABASE "+databaseName(t, dsn)+" SET default_transaction_read_only = on"))
	locker, pool, _ := warmed(ctx, t, dsn, pglock.Config{})
	var pid int
	require.NoError(t, pool.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid))
	lock, err := locker.TryAcquire(ctx, key)
	require.NoError(t, err)
	require.Equal(t, pid, holderPID(ctx, t, newLocker(t, newPool(t, dsn), nil), lock))
	require.NoError(t, lock.Release(ctx))
}
