package pglock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

func TestTryAcquireSurvivesAPoolOfDeadConnections(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	pool := pgtest.Pool(t, pgtest.NewDatabase(t, s), func(c *pgxpool.Config) {
		c.MaxConns = 4
		c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	})
	locker, err := pglock.New(pool, nil)
	require.NoError(t, err)
	defer closeLocker(t, locker)
	require.NoError(t, locker.Migrate(t.Context()))
	conns := make([]*pgxpool.Conn, 4)
	for i := range conns {
		conns[i], err = pool.Acquire(t.Context())
		require.NoError(t, err)
	}
	for _, conn := range conns {
		conn.Release()
	}
	require.NoError(t, s.Restart(t.Context()))
	lock, err := locker.TryAcquire(t.Context(), pgtest.Key(t))
	require.NoError(t, err)
	require.NoError(t, lock.Release(t.Context()))
}

// TestAWaiterDoesNotTakeTheOnlySharedSession lets one key be waited for where all locks have to share one session.
func TestAWaiterDoesNotTakeTheOnlySharedSession(t *testing.T) {
	t.Parallel()
	theirs, _ := newLocker(t, nil)
	ours, _ := newLocker(t, &pglock.Config{LocksPerSession: 1000, MaxSessions: 1})
	key := pgtest.Key(t)
	held, err := theirs.Acquire(t.Context(), key)
	require.NoError(t, err)
	waited := make(chan error, 1)
	go func() {
		lock, err := ours.Acquire(t.Context(), key)
		if err == nil {
			err = lock.Release(t.Context())
		}
		waited <- err
	}()
	require.NoError(t, pgtest.Poll(t.Context(), "a waiter", func() bool { return ours.Stat().Waiters == 1 }))
	for range 20 {
		lock, err := ours.TryAcquire(t.Context(), pgtest.Key(t))
		require.NoError(t, err)
		require.NoError(t, lock.Release(t.Context()))
	}
	require.NoError(t, held.Release(t.Context()))
	require.NoError(t, <-waited)
}

// TestAGrantThatIsOlderThanTheCallIsNotItsAnswer holds an answer of the server back until those who asked have gone, ends
// their session, and asks anew: the old grant is not theirs to give any more.
func TestAGrantThatIsOlderThanTheCallIsNotItsAnswer(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	dsn := pgtest.NewDatabase(t, s)
	config, err := pgxpool.ParseConfig(dsn)
	require.NoError(t, err)
	proxy := pgtest.ProxyTo(t, s)
	pool := pgtest.Pool(t, s.Via(proxy.Addr(), config.ConnConfig.Database))
	ours, err := pglock.New(pool, &pglock.Config{LocksPerSession: 1000})
	require.NoError(t, err)
	defer closeLocker(t, ours)
	require.NoError(t, ours.Migrate(t.Context()))
	theirs, err := pglock.New(pgtest.Pool(t, dsn), nil)
	require.NoError(t, err)
	defer closeLocker(t, theirs)
	busy, err := ours.Acquire(t.Context(), pgtest.Key(t)) // so that there is a session
	require.NoError(t, err)
	key := pgtest.Key(t)

	proxy.BlackHole(pgtest.ToClient)
	gone, cancel := context.WithCancel(t.Context())
	asked := make(chan error, 1)
	go func() { _, err := ours.TryAcquire(gone, key); asked <- err }()
	require.NoError(t, pgtest.Poll(t.Context(), "the grant", func() bool {
		holders, err := theirs.Holders(t.Context(), key)
		return err == nil && len(holders) == 1
	}))
	cancel()
	require.ErrorIs(t, <-asked, context.Canceled)
	holders, err := theirs.Holders(t.Context(), key)
	require.NoError(t, err)
	require.NoError(t, theirs.Terminate(t.Context(), holders[0]))
	next, err := theirs.Acquire(t.Context(), key)
	require.NoError(t, err)

	again := make(chan *pglock.Lock, 1)
	go func() {
		lock, err := ours.TryAcquire(t.Context(), key)
		if !errors.Is(err, pglock.ErrNotAcquired) {
			t.Errorf("TryAcquire of a lock that is held: %v", err)
		}
		again <- lock
	}()
	require.NoError(t, pgtest.Poll(t.Context(), "the call", func() bool { return ours.Stat().Waiters == 1 }))
	proxy.Heal()
	require.Nil(t, <-again)
	require.NoError(t, next.Verify(t.Context()))
	require.NoError(t, next.Release(t.Context()))
	require.ErrorIs(t, busy.Release(t.Context()), pglock.ErrLost)
}

// TestThePoolHasAConnectionAgainAfterEachLock takes the connection that a refill has just made before the refill is over.
func TestThePoolHasAConnectionAgainAfterEachLock(t *testing.T) {
	t.Parallel()
	locker, pool := newLocker(t, nil)
	for range 30 {
		require.NoError(t, pgtest.Poll(t.Context(), "a connection in the pool", func() bool { return pool.Stat().IdleConns() > 0 }))
		lock, err := locker.TryAcquire(t.Context(), pgtest.Key(t))
		require.NoError(t, err)
		require.NoError(t, lock.Release(t.Context()))
	}
}

// TestOneLockCostsOneConnectionWhereConnectingTakesLong: a pool that is asked again and again makes one each time.
func TestOneLockCostsOneConnectionWhereConnectingTakesLong(t *testing.T) {
	t.Parallel()
	newLocker(t, nil)
	pool := pgtest.Pool(t, pgtest.Database(t), func(c *pgxpool.Config) {
		c.BeforeConnect = func(ctx context.Context, _ *pgx.ConnConfig) error {
			select {
			case <-time.After(600 * time.Millisecond):
			case <-ctx.Done():
			}
			return ctx.Err()
		}
	})
	locker, err := pglock.New(pool, nil)
	require.NoError(t, err)
	defer closeLocker(t, locker)
	lock, err := locker.TryAcquire(t.Context(), pgtest.Key(t))
	require.NoError(t, err)
	require.LessOrEqual(t, pool.Stat().NewConnsCount(), int64(2), "the lock's, and the one that takes its place in the pool")
	require.NoError(t, lock.Release(t.Context()))
}

// refilled is the connection that took the place in the pool of the one that a lock, held until the test ends, took from it.
func refilled(t *testing.T, config *pglock.Config) *pgxpool.Conn {
	t.Helper()
	locker, pool := newLocker(t, config)
	lock, err := locker.Acquire(t.Context(), pgtest.Key(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lock.Release(context.Background())) })
	require.NoError(t, pgtest.Poll(t.Context(), "a connection in the pool", func() bool { return pool.Stat().IdleConns() > 0 }))
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	t.Cleanup(conn.Release)
	return conn
}

// TestAConnectionInThePoolIsReadyForTheNextLock: a new backend has compiled the functions before it is needed, and is as new
// in every other way.
func TestAConnectionInThePoolIsReadyForTheNextLock(t *testing.T) {
	t.Parallel()
	conn := refilled(t, nil)
	watcher, err := pgx.Connect(t.Context(), pgtest.Database(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, watcher.Close(t.Context())) }()
	var state, query string
	require.NoError(t, watcher.QueryRow(t.Context(), "SELECT state, query FROM pg_stat_activity WHERE pid = $1",
		conn.Conn().PgConn().PID()).Scan(&state, &query))
	require.Equal(t, "idle", state)
	require.Equal(t, "ROLLBACK", query)
	var locks int
	var lease, name string
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
		current_setting('idle_session_timeout'), current_setting('application_name')`).Scan(&locks, &lease, &name))
	require.Zero(t, locks)
	require.Equal(t, "0", lease)
	require.NotContains(t, name, "pglock")
}

// TestAConnectionInThePoolHasNoTimerOfOurs: a transaction of the service that takes longer than the lease, under a
// transaction_timeout of its own, is not ended by what warmed the connection up.
func TestAConnectionInThePoolHasNoTimerOfOurs(t *testing.T) {
	t.Parallel()
	const lease = time.Second
	conn := refilled(t, &pglock.Config{Lease: lease})
	err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `DO $$ BEGIN
			IF current_setting('transaction_timeout', true) IS NOT NULL THEN SET LOCAL transaction_timeout = '1h'; END IF; END $$`)
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), "SELECT pg_sleep($1)", 2*lease.Seconds())
		return err
	})
	require.NoError(t, err)
}

// TestAFailedTryOnAParkedSessionLeavesNothingHeld: what fails after the lock was taken is undone before the caller is told.
func TestAFailedTryOnAParkedSessionLeavesNothingHeld(t *testing.T) {
	t.Parallel()
	server := pgtest.Shared(t)
	dsn := pgtest.NewDatabase(t, server)
	pool := pgtest.Pool(t, dsn)
	locker, err := pglock.New(pool, &pglock.Config{MaxIdleSessions: 1})
	require.NoError(t, err)
	defer closeLocker(t, locker)
	require.NoError(t, locker.Migrate(t.Context()))
	key := pgtest.Key(t)
	before, err := locker.TryAcquire(t.Context(), "another")
	require.NoError(t, err)
	require.NoError(t, before.Release(t.Context()))

	_, err = pool.Exec(t.Context(), "ALTER SEQUENCE pglock.tokens MAXVALUE 1000 RESTART 1000; SELECT nextval('pglock.tokens')")
	require.NoError(t, err)
	_, err = locker.TryAcquire(t.Context(), key)
	require.ErrorIs(t, err, pglock.ErrUnsupportedServer)
	require.ErrorContains(t, err, "2200H")
	pgtest.NoAdvisoryLocks(t, pool)

	_, err = pool.Exec(t.Context(), "ALTER SEQUENCE pglock.tokens NO MAXVALUE")
	require.NoError(t, err)
	after, err := locker.TryAcquire(t.Context(), key)
	require.NoError(t, err)
	require.Greater(t, after.Token(), before.Token())
	require.EqualValues(t, 1, locker.Stat().SessionsOpened, "on the same session")
	holders, err := locker.Holders(t.Context(), key)
	require.NoError(t, err)
	require.Len(t, holders, 1)
	require.Contains(t, holders[0].ApplicationName, key, "and under the name of its own key")
	require.NoError(t, after.Release(t.Context()))
}

// TestVerifyBesideReleaseLosesNothing: a Verify that goes in the same message as the unlock of its lock says nothing of the session.
func TestVerifyBesideReleaseLosesNothing(t *testing.T) {
	t.Parallel()
	locker, _ := newLocker(t, &pglock.Config{LocksPerSession: 10})
	other, err := locker.TryAcquire(t.Context(), pgtest.Key(t))
	require.NoError(t, err)
	for range 200 {
		lock, err := locker.TryAcquire(t.Context(), pgtest.Key(t))
		require.NoError(t, err)
		verified := make(chan error, 4)
		for range cap(verified) {
			go func() { verified <- lock.Verify(t.Context()) }()
		}
		require.NoError(t, lock.Release(t.Context()))
		for range cap(verified) {
			if err := <-verified; err != nil {
				require.ErrorIs(t, err, pglock.ErrReleased)
			}
		}
	}
	require.NoError(t, other.Verify(t.Context()))
	require.EqualValues(t, 1, locker.Stat().SessionsOpened)
	require.NoError(t, other.Release(t.Context()))
}
