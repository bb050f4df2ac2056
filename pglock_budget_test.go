//nolint:thelper // each and eachShape run these functions as subtests
package pglock_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// atOnce is how long something may take that waits for nobody.
const atOnce = 2 * time.Second

// Workers that hold every connection of the pool do not keep it from locks.
func TestP11_TryAcquireAnswersThoughThePoolIsBusy(t *testing.T) {
	t.Parallel()
	eachShape(t, func(t *testing.T, config pglock.Config) {
		ctx, dsn, key := timed(t), database(t), pgtest.Key(t)
		pool := newPool(t, dsn, func(c *pgxpool.Config) { c.MaxConns = 4 })
		for range 4 {
			busy, err := pool.Acquire(ctx)
			require.NoError(t, err)
			defer busy.Release()
		}
		locker := newLocker(t, newPool(t, dsn), nil)
		elsewhere := acquired(ctx, t, locker, key+"-elsewhere")
		starved, err := pglock.New(pool, &config)
		require.NoError(t, err)
		begin := time.Now()
		lock, err := starved.TryAcquire(ctx, key)
		require.NoError(t, err)
		_, err = starved.TryAcquire(ctx, key+"-elsewhere")
		require.ErrorIs(t, err, pglock.ErrNotAcquired)
		took := time.Since(begin)
		require.Less(t, took, atOnce)
		waiting := acquire(ctx, starved, key+"-elsewhere")
		pgtest.Eventually(t, "the waiter", func() bool { return starved.Stat().Waiters == 1 })
		require.NoError(t, elsewhere.Release(ctx))
		require.NoError(t, await(t, "the lock", waiting).held(t).Release(ctx))
		require.NoError(t, lock.Release(ctx))
		require.NoError(t, starved.Close(ctx))
		require.EqualValues(t, 4, pool.Stat().AcquiredConns())
		t.Logf("two answers in %v", took)
	})
}

// A budget that is used up says its name at once; who waits gets the lock when
// there is room.
func TestP11_BudgetsSayTheirNames(t *testing.T) {
	t.Parallel()
	type budget struct {
		config pglock.Config
		room   int
		err    error
	}
	each(t, map[string]budget{
		"MaxSessions":                   {pglock.Config{MaxSessions: 2}, 2, pglock.ErrSessionLimit},
		"MaxSessions of shared ones":    {pglock.Config{MaxSessions: 2, LocksPerSession: 3}, 6, pglock.ErrSessionLimit},
		"MaxLocks":                      {pglock.Config{MaxLocks: 3}, 3, pglock.ErrTooManyLocks},
		"MaxLocks of shared sessions":   {pglock.Config{MaxLocks: 3, LocksPerSession: 1000}, 3, pglock.ErrTooManyLocks},
		"MaxSessions with parked ones":  {pglock.Config{MaxSessions: 2, MaxIdleSessions: 2}, 2, pglock.ErrSessionLimit},
		"MaxSessions without a waiting": {pglock.Config{MaxSessions: 2, MaxWaiting: -1}, 2, pglock.ErrSessionLimit},
	}, func(t *testing.T, c budget) {
		ctx, key := timed(t), pgtest.Key(t)
		locker := newLocker(t, newPool(t, database(t)), &c.config)
		held := make([]*pglock.Lock, c.room)
		for i := range held {
			held[i] = acquired(ctx, t, locker, key+strconv.Itoa(i))
		}
		begin := time.Now()
		_, err := locker.TryAcquire(ctx, key+"more")
		require.Less(t, time.Since(begin), atOnce)
		require.ErrorIs(t, err, c.err)
		require.NotErrorIs(t, err, pglock.ErrNotAcquired)
		require.ErrorContains(t, err, c.err.Error())
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		_, err = locker.Acquire(short, key+"more")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, c.err, "what the wait was for")

		waiting := acquire(ctx, locker, key+"more")
		pgtest.Eventually(t, "the waiter", func() bool { return locker.Stat().Waiters == 1 })
		require.Empty(t, waiting)
		require.NoError(t, held[0].Release(ctx))
		held[0] = await(t, "the lock", waiting).held(t)
		require.LessOrEqual(t, locker.Stat().Sessions, max(c.config.MaxSessions, 4))
		releaseAll(ctx, t, held)
		requireHeld(t, []*pglock.Lock{acquired(ctx, t, locker, key+"again")})
	})
}

// smallTable is a server whose lock table has room for little.
func smallTable(t *testing.T) *pgtest.Server {
	t.Helper()
	return pgtest.New(t, pgtest.Settings(map[string]string{"max_connections": "30", "max_locks_per_transaction": "10"}))
}

// At its default MaxLocks a Locker leaves the server usable for others.
func TestP11_ServerStaysUsableAtMaxLocks(t *testing.T) {
	t.Parallel()
	ctx, key := timed(t), pgtest.Key(t)
	s := smallTable(t)
	dsn := ownDatabase(t, s)
	const want = 10 * 30 / 4
	for _, n := range []int{4, 1000} {
		locker := newLocker(t, newPool(t, dsn), &pglock.Config{LocksPerSession: n, MaxSessions: 20})
		var held []*pglock.Lock
		for i := 0; ; i++ {
			lock, err := locker.TryAcquire(ctx, key+strconv.Itoa(i))
			if err != nil {
				require.ErrorIs(t, err, pglock.ErrTooManyLocks)
				break
			}
			held = append(held, lock)
		}
		require.Len(t, held, want)
		require.NoError(t, s.Exec(ctx, databaseName(t, dsn), "CREATE TABLE third_party(n int primary key); DROP TABLE third_party"))
		requireHeld(t, held)
		t.Logf("%d locks on %d sessions, and a third party makes a table", len(held), locker.Stat().Sessions)
		releaseAll(ctx, t, held)
	}
}

// A table that others have filled is told by its name, and leaves nothing.
func TestP11_FullLockTableSaysItsName(t *testing.T) {
	t.Parallel()
	eachShape(t, func(t *testing.T, config pglock.Config) {
		ctx, key := timed(t), pgtest.Key(t)
		s := smallTable(t)
		dsn := ownDatabase(t, s)
		pool := newPool(t, dsn)
		locker := newLocker(t, pool, &config)
		require.NoError(t, acquired(ctx, t, locker, key).Release(ctx))
		require.NoError(t, pool.Ping(ctx)) // leaves a connection at hand: a new one is refused then
		greedy, err := pgx.Connect(ctx, dsn)
		require.NoError(t, err)
		_, err = greedy.Exec(ctx, "SELECT pg_advisory_lock(n) FROM generate_series(1, 100000) n")
		require.ErrorContains(t, err, "shared memory")
		begin := time.Now()
		_, err = locker.TryAcquire(ctx, key)
		require.Less(t, time.Since(begin), atOnce)
		require.ErrorIs(t, err, pglock.ErrTooManyLocks)
		t.Logf("with the server's table full: %v", err)
		waiting := acquire(ctx, locker, key)
		pgtest.Eventually(t, "the waiter", func() bool { return locker.Stat().Waiters == 1 })
		require.NoError(t, greedy.Close(ctx))
		require.NoError(t, await(t, "the lock", waiting).held(t).Release(ctx))
	})
}

// A server that lets nobody else in is waited for.
func TestP11_ServerOutOfConnectionsIsWaitedFor(t *testing.T) {
	t.Parallel()
	ctx, key := timed(t), pgtest.Key(t)
	s := pgtest.New(t, pgtest.Settings(map[string]string{"max_connections": "8", "superuser_reserved_connections": "2"}))
	dsn := ownDatabase(t, s)
	require.NoError(t, s.Exec(ctx, databaseName(t, dsn), `CREATE ROLE app LOGIN; GRANT ALL ON SCHEMA pglock TO app;
		GRANT ALL ON ALL TABLES IN SCHEMA pglock TO app; GRANT ALL ON ALL SEQUENCES IN SCHEMA pglock TO app`))
	app := s.UserDSN("app", "", databaseName(t, dsn))
	var others []*pgx.Conn
	for range 6 {
		conn, err := pgx.Connect(ctx, app)
		require.NoError(t, err)
		others = append(others, conn)
	}
	locker := newLocker(t, newPool(t, app), nil)
	_, err := locker.TryAcquire(ctx, key)
	require.ErrorIs(t, err, pglock.ErrUnavailable)
	waiting := acquire(ctx, locker, key)
	pgtest.Eventually(t, "the waiter", func() bool { return locker.Stat().Waiters == 1 })
	require.Empty(t, waiting)
	for _, conn := range others {
		require.NoError(t, conn.Close(ctx))
	}
	require.NoError(t, await(t, "the lock", waiting).held(t).Release(ctx))
}

// MaxSessions holds at every moment, also when everybody wants locks at once.
func TestP11_SessionsStayWithinTheirBudget(t *testing.T) {
	t.Parallel()
	eachShape(t, func(t *testing.T, config pglock.Config) {
		const sessions, conns, callers = 5, 3, 40
		ctx, key := timed(t), pgtest.Key(t)
		config.MaxSessions = sessions
		dsn := database(t)
		pool := newPool(t, dsn, func(c *pgxpool.Config) { c.MaxConns = conns })
		locker := newLocker(t, pool, &config)
		observer := pgtest.Pool(t, dsn)
		app := pool.Config().ConnConfig.RuntimeParams["application_name"]
		done := make(chan error, callers)
		for i := range callers {
			go func() {
				done <- locker.Do(ctx, fmt.Sprint(key, i%10), func(ctx context.Context, _ *pglock.Lock) error {
					pause(ctx, 10*time.Millisecond)
					return nil
				})
			}()
		}
		most := 0
		require.NoError(t, pgtest.Poll(ctx, "all callers", func() bool {
			backends, err := pgtest.Backends(ctx, observer, app+"%")
			require.NoError(t, err)
			most = max(most, len(backends))
			require.LessOrEqual(t, locker.Stat().Sessions, sessions)
			return len(done) == callers
		}))
		for range callers {
			require.NoError(t, <-done)
		}
		// One that was closed may show until the server has noticed.
		require.LessOrEqual(t, most, 2*sessions+conns)
		t.Logf("%d callers of 10 keys: at most %d backends at a time, pool %d, MaxSessions %d", callers, most, conns, sessions)
	})
}

// A parked session is used again, holds nothing, and is as leased as any other.
func TestP11_ParkedSessionsAreCleanLeasedAndReused(t *testing.T) {
	t.Parallel()
	eachShape(t, func(t *testing.T, config pglock.Config) {
		ctx, key := timed(t), pgtest.Key(t)
		dsn := database(t)
		config.MaxIdleSessions, config.Lease = 1, testLease
		pool, proxy := proxied(t, pgtest.Shared(t), dsn)
		locker := newLocker(t, pool, &config)
		healAtEnd(t, proxy, pool)
		others := newLocker(t, newPool(t, dsn), nil)
		observer := pgtest.Pool(t, dsn)
		var pid int
		for i := range 20 {
			lock := acquired(ctx, t, locker, key+strconv.Itoa(i))
			holder := holderPID(ctx, t, others, lock)
			require.True(t, i == 0 || pid == holder, "the parked session is used again")
			pid = holder
			require.NoError(t, lock.Release(ctx))
			require.NoError(t, pgtest.WaitForNoLocks(ctx, observer, int64ID(t, lock)))
			if i == 10 {
				require.True(t, pause(ctx, 2*testLease)) // heartbeats keep it
			}
		}
		require.Equal(t, 1, locker.Stat().IdleSessions)
		require.EqualValues(t, 1, locker.Stat().SessionsOpened)

		// Its end is found before it is used again.
		_, err := observer.Exec(ctx, "SELECT pg_terminate_backend($1)", pid)
		require.NoError(t, err)
		pgtest.Eventually(t, "the parked session to be forgotten", func() bool { return locker.Stat().Sessions == 0 })
		lock := acquired(ctx, t, locker, key)
		pid = holderPID(ctx, t, others, lock)
		require.NoError(t, lock.Release(ctx))

		// Cut off while parked, it ends by its lease, and a waiter uses another.
		proxy.BlackHole()
		begin := time.Now()
		pgtest.Eventually(t, "the server to end the parked session", func() bool {
			var left int
			require.NoError(t, observer.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid).Scan(&left))
			return left == 0
		})
		require.Less(t, time.Since(begin), testLease+time.Second)
		proxy.Heal()
		require.NoError(t, acquired(ctx, t, locker, key).Release(ctx))
	})
}
