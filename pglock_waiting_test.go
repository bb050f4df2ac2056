//nolint:thelper // each and eachShape run these functions as subtests
package pglock_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

func TestP9_ThousandWaitersUseOneBackend(t *testing.T) {
	t.Parallel()
	eachShape(t, func(t *testing.T, config pglock.Config) {
		const callers = 1000
		ctx, key := timed(t), pgtest.Key(t)
		dsn := ownDatabase(t, pgtest.Shared(t))
		holder := acquired(ctx, t, newLocker(t, newPool(t, dsn), nil), key)
		pool := newPool(t, dsn)
		locker := newLocker(t, pool, &config)
		outcomes := make(chan outcome, callers)
		for range callers {
			acquireTo(ctx, locker, key, outcomes)
		}
		pgtest.Eventually(t, "the callers", func() bool { return locker.Stat().Waiters == callers })
		observer := pgtest.Pool(t, dsn)
		require.NoError(t, pgtest.WaitForWaiters(ctx, observer, 1))
		app := pool.Config().ConnConfig.RuntimeParams["application_name"]
		for range 20 {
			backends, err := pgtest.Backends(ctx, observer, app+" pglock%")
			require.NoError(t, err)
			require.Len(t, backends, 1)
			require.True(t, pause(ctx, 10*time.Millisecond))
		}
		require.Equal(t, 1, locker.Stat().Sessions)
		begin := time.Now()
		require.NoError(t, holder.Release(ctx))
		last := holder.Token()
		for range callers {
			out := await(t, "the next grant", outcomes)
			lock := out.held(t)
			require.Greater(t, lock.Token(), last)
			last = lock.Token()
			require.NoError(t, lock.Release(ctx))
		}
		t.Logf("%d grants in %v on %d sessions", callers, time.Since(begin), locker.Stat().SessionsOpened)
	})
}

// A waiter pins no snapshot for longer than a slice, so that vacuum goes on.
func TestP9_WaiterHoldsBackNoVacuum(t *testing.T) {
	t.Parallel()
	eachShape(t, func(t *testing.T, config pglock.Config) {
		ctx, key := timed(t), pgtest.Key(t)
		dsn := ownDatabase(t, pgtest.Shared(t))
		holder := acquired(ctx, t, newLocker(t, newPool(t, dsn), nil), key)
		waiting := acquire(ctx, newLocker(t, newPool(t, dsn), &config), key)
		observer := pgtest.Pool(t, dsn)
		require.NoError(t, pgtest.WaitForWaiters(ctx, observer, 1))
		var took []time.Duration
		for range 10 {
			begin := time.Now()
			require.NoError(t, xminPasses(ctx, observer))
			took = append(took, time.Since(begin))
		}
		t.Logf("backend_xmin of every session passed a new transaction: %s", percentiles(took))
		require.Less(t, sorted(took)[len(took)-1], 2*time.Second)
		require.NoError(t, holder.Release(ctx))
		require.NoError(t, await(t, "the lock", waiting).held(t).Release(ctx))
	})
}

// xminPasses returns when no session of the database holds back what is older
// than a transaction of now.
func xminPasses(ctx context.Context, observer *pgxpool.Pool) error {
	var xid string
	if err := observer.QueryRow(ctx, "SELECT pg_current_xact_id()::text").Scan(&xid); err != nil {
		return err
	}
	const sql = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
		AND age(backend_xmin) >= age($1::text::xid)`
	var held int
	var queryErr error
	err := pgtest.Poll(ctx, "backend_xmin to move on", func() bool {
		queryErr = observer.QueryRow(ctx, sql, xid).Scan(&held)
		return queryErr != nil || held == 0
	})
	return errors.Join(err, queryErr)
}

// indexTimeout is far above what an index on an empty table takes, and a slice.
const indexTimeout = 5 * time.Second

// createIndex builds an index as migrations do, beside running transactions.
func createIndex(ctx context.Context, db *pgxpool.Pool, name string) error {
	ctx, cancel := context.WithTimeout(ctx, indexTimeout)
	defer cancel()
	_, err := db.Exec(ctx, "CREATE INDEX CONCURRENTLY "+name+" ON indexed(n)")
	return err
}

// indexable is a database with a table for createIndex.
func indexable(t *testing.T, s *pgtest.Server) string {
	t.Helper()
	dsn := ownDatabase(t, s)
	require.NoError(t, s.Exec(t.Context(), databaseName(t, dsn), "CREATE TABLE indexed AS SELECT generate_series(1, 100) AS n"))
	return dsn
}

func TestP9_CreateIndexConcurrentlyPassesWaiters(t *testing.T) {
	t.Parallel()
	eachShape(t, func(t *testing.T, config pglock.Config) {
		const waiters = 5
		ctx, key, dsn := timed(t), pgtest.Key(t), indexable(t, pgtest.Shared(t))
		pool := newPool(t, dsn)
		locker := newLocker(t, pool, &config)
		holder := acquired(ctx, t, locker, key)
		outcomes := make(chan outcome, waiters)
		for range waiters {
			acquireTo(ctx, newLocker(t, newPool(t, dsn), &config), key, outcomes)
		}
		third := pgtest.Pool(t, dsn)
		require.NoError(t, pgtest.WaitForWaiters(ctx, third, waiters))
		for i := range 3 {
			begin := time.Now()
			require.NoError(t, createIndex(ctx, third, "third_party"+strconv.Itoa(i)))
			others := time.Since(begin)
			begin = time.Now()
			require.NoError(t, createIndex(ctx, pool, "holders_own"+strconv.Itoa(i)))
			t.Logf("past %d waiters: a third party's in %v, the holder's own in %v", waiters, others, time.Since(begin))
		}
		require.NoError(t, holder.Err())
		require.NoError(t, holder.Release(ctx))
		for range waiters {
			require.NoError(t, await(t, "the lock", outcomes).held(t).Release(ctx))
		}
	})
}

// Known to bite: one plain waiter in pg_advisory_lock makes the same checks fail.
func TestP9_PlainWaiterBlocksEverything(t *testing.T) {
	t.Parallel()
	ctx, dsn := timed(t), indexable(t, pgtest.New(t)) // alone on its server: nobody else may end the waiter
	db := pgtest.Pool(t, dsn)
	holder, waiter := connected(ctx, t, dsn), connected(ctx, t, dsn)
	_, err := holder.Exec(ctx, "SELECT pg_advisory_lock(1)")
	require.NoError(t, err)
	blocked, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		_, err := waiter.Exec(blocked, "SELECT pg_advisory_lock(1)")
		done <- err
	}()
	require.NoError(t, pgtest.WaitForWaiters(ctx, db, 1))
	short, stop := context.WithTimeout(ctx, 2*time.Second)
	defer stop()
	require.ErrorIs(t, xminPasses(short, db), context.DeadlineExceeded, "it holds back vacuum")
	require.ErrorIs(t, createIndex(ctx, db, "third_party"), context.DeadlineExceeded, "it hangs a third party's index")
	_, err = holder.Exec(ctx, "CREATE INDEX CONCURRENTLY holders_own ON indexed(n)")
	var pgErr *pgconn.PgError
	require.ErrorAs(t, err, &pgErr)
	require.Equal(t, "40P01", pgErr.Code, "it deadlocks with the holder's own index")
	cancel()
	require.Error(t, await(t, "the plain waiter", done))
}

func connected(ctx context.Context, tb testing.TB, dsn string) *pgx.Conn {
	tb.Helper()
	conn, err := pgx.Connect(ctx, dsn)
	require.NoError(tb, err)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), scenarioTimeout)
		defer cancel()
		_ = conn.Close(ctx) // it may have been closed in the middle of a request
	})
	return conn
}

// Whatever the server logs, waiting is not in it. It runs alone: a machine that
// stops for longer than the slice's margin would have the server log that.
func TestP9_WaitersWriteNothingToTheServerLog(t *testing.T) {
	ctx := timed(t)
	s := pgtest.New(t, pgtest.Settings(map[string]string{
		"log_lock_waits": "on", "log_min_duration_statement": "250ms", "log_line_prefix": "%m [%p] app=%a ",
	}))
	dsn := ownDatabase(t, s)
	for _, deadlock := range []string{"1s", "200ms", "10ms"} {
		require.NoError(t, s.Reload(ctx, map[string]string{"deadlock_timeout": deadlock}))
		eachShape(t, func(t *testing.T, config pglock.Config) {
			ctx, key := timed(t), pgtest.Key(t)
			holder := acquired(ctx, t, newLocker(t, newPool(t, dsn), nil), key)
			mark, err := s.Mark(ctx)
			require.NoError(t, err)
			waiting := acquire(ctx, newLocker(t, newPool(t, dsn), &config), key)
			require.True(t, pause(ctx, 2500*time.Millisecond))
			require.Empty(t, waiting)
			begin := time.Now()
			require.NoError(t, holder.Release(ctx))
			out := await(t, "the lock", waiting)
			require.NoError(t, out.held(t).Release(ctx))
			text, err := s.LogSince(ctx, mark)
			require.NoError(t, err)
			for line := range strings.Lines(text) {
				require.NotContains(t, line, "app=t", "a line of a session of this test")
			}
			t.Logf("deadlock_timeout %s: no line in 2.5 s of waiting; handed over in %v", deadlock, out.at.Sub(begin))
		})
	}
	mark, err := s.Mark(ctx) // known to bite: a plain waiter is logged
	require.NoError(t, err)
	holder, waiter := connected(ctx, t, dsn), connected(ctx, t, dsn)
	_, err = holder.Exec(ctx, "SELECT pg_advisory_lock(1)")
	require.NoError(t, err)
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err = waiter.Exec(short, "SELECT pg_advisory_lock(1)")
	require.Error(t, err)
	_, err = s.WaitLog(ctx, mark, "still waiting for ExclusiveLock on advisory lock")
	require.NoError(t, err)
}

// Beyond MaxWaiting waiters hold no connection, and get their locks all the same.
func TestP9_WaitersBeyondMaxWaitingPoll(t *testing.T) {
	t.Parallel()
	eachShape(t, func(t *testing.T, config pglock.Config) {
		const keys, most = 20, 3
		ctx, key := timed(t), pgtest.Key(t)
		dsn := ownDatabase(t, pgtest.Shared(t))
		holding := newLocker(t, newPool(t, dsn), &pglock.Config{LocksPerSession: keys})
		config.MaxWaiting, config.MaxSessions = most, 10
		pool := newPool(t, dsn, func(c *pgxpool.Config) { c.MaxConns = 2 })
		waiting := newLocker(t, pool, &config)
		held, waits := make([]*pglock.Lock, keys), make([]<-chan outcome, keys)
		for i := range keys {
			held[i] = acquired(ctx, t, holding, key+strconv.Itoa(i))
			waits[i] = acquire(ctx, waiting, key+strconv.Itoa(i))
		}
		observer := pgtest.Pool(t, dsn)
		require.NoError(t, pgtest.WaitForWaiters(ctx, observer, most))
		for range 20 { // the service's own work goes on meanwhile
			short, cancel := context.WithTimeout(ctx, scenarioTimeout/2)
			require.NoError(t, pool.Ping(short))
			cancel()
			locks, err := pgtest.AdvisoryLocks(ctx, observer)
			require.NoError(t, err)
			blocked := 0
			for _, l := range locks {
				if !l.Granted {
					blocked++
				}
			}
			require.LessOrEqual(t, blocked, most)
			require.LessOrEqual(t, waiting.Stat().WaitingSessions, most)
			require.True(t, pause(ctx, 20*time.Millisecond))
		}
		var took []time.Duration
		for i := range keys {
			begin := time.Now()
			require.NoError(t, held[i].Release(ctx))
			out := await(t, "a lock", waits[i])
			took = append(took, out.at.Sub(begin))
			require.NoError(t, out.held(t).Release(ctx))
		}
		t.Logf("%d waiters on %d waiting sessions, handed over in %s", keys, most, percentiles(took))
	})
}

// The backend of a waiter whose ctx has ended is gone soon after.
func TestP9_CancelledWaiterLeavesTheServer(t *testing.T) {
	t.Parallel()
	eachShape(t, func(t *testing.T, config pglock.Config) {
		ctx, key := timed(t), pgtest.Key(t)
		dsn := ownDatabase(t, pgtest.Shared(t))
		holder := acquired(ctx, t, newLocker(t, newPool(t, dsn), nil), key)
		pool := newPool(t, dsn)
		config.MaxIdleSessions = 1
		locker := newLocker(t, pool, &config)
		mine, cancel := context.WithCancel(ctx)
		waiting := acquire(mine, locker, key)
		observer := pgtest.Pool(t, dsn)
		require.NoError(t, pgtest.WaitForWaiters(ctx, observer, 1))
		begin := time.Now()
		requireEnds(t, cancel, waiting)
		pgtest.Eventually(t, "the backend to stop waiting", func() bool {
			locks, err := pgtest.AdvisoryLocks(ctx, observer)
			require.NoError(t, err)
			return len(locks) == 1 && locks[0].Int64() == int64ID(t, holder)
		})
		took := time.Since(begin)
		require.Less(t, took, atOnce)
		t.Logf("the backend stopped waiting after %v", took)
		require.NoError(t, holder.Release(ctx))
	})
}

// requireEnds cancels a wait and returns how long it took to return.
func requireEnds(tb testing.TB, cancel context.CancelFunc, waiting <-chan outcome) time.Duration {
	tb.Helper()
	begin := time.Now()
	cancel()
	out := await(tb, "the end of a cancelled wait", waiting)
	require.ErrorIs(tb, out.err, pglock.ErrNotAcquired)
	require.ErrorIs(tb, out.err, context.Canceled)
	took := out.at.Sub(begin)
	require.Less(tb, took, time.Second)
	return took
}
