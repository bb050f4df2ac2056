//nolint:thelper // each and eachShape run these functions as subtests
package pglock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// unheard is a config without heartbeats while a test runs, so that what is
// noticed is noticed by the read alone.
func unheard(config pglock.Config) pglock.Config {
	config.Lease, config.TrustMargin, config.HeartbeatInterval = 3*time.Minute, time.Minute, time.Minute
	return config
}

// logBuffer is a Logger's output.
type logBuffer struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// count is how many lines have the word in them.
func (b *logBuffer) count(word string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.text.String(), word)
}

func (b *logBuffer) logger() *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

func TestP5_TerminatedSessionIsNoticedAtOnce(t *testing.T) {
	t.Parallel()
	eachShape(t, func(t *testing.T, config pglock.Config) {
		const times = 200
		locks := min(config.LocksPerSession, 3) // of one session
		ctx, cancel := context.WithTimeout(t.Context(), 3*scenarioTimeout)
		defer cancel()
		var logged logBuffer
		config = unheard(config)
		config.Logger = logged.logger()
		pool := newPool(t, database(t))
		locker := newLocker(t, pool, &config)
		var took []time.Duration
		sessions := 0
		for range times {
			key := pgtest.Key(t)
			held := make([]*pglock.Lock, locks)
			victims := map[int]bool{}
			for i := range held {
				held[i] = acquired(ctx, t, locker, key+strconv.Itoa(i))
				victims[holderPID(ctx, t, locker, held[i])] = true
			}
			sessions += len(victims)
			ends := make([]<-chan time.Time, locks)
			for i, lock := range held {
				ends[i] = endOf(lock.Context())
			}
			begin := time.Now()
			for pid := range victims {
				_, err := pool.Exec(ctx, "SELECT pg_terminate_backend($1)", pid)
				require.NoError(t, err)
			}
			for i, lock := range held {
				took = append(took, await(t, "the end of a lock's context", ends[i]).Sub(begin))
				requireTerminated(ctx, t, lock)
			}
		}
		t.Log(percentiles(took))
		require.Less(t, sorted(took)[len(took)-1], time.Second)
		pgtest.Eventually(t, "the log", func() bool { return logged.count("lock lost") >= sessions })
		require.Equal(t, sessions, logged.count("lock lost"), "each loss is logged once")
		require.Equal(t, times, sessions)
		lost := func() bool { return locker.Stat().Lost >= int64(times*locks) } // counted after its context has ended
		pgtest.Eventually(t, "the count", lost)
		require.EqualValues(t, times*locks, locker.Stat().Lost)
	})
}

// holderPID is the backend that holds the lock.
func holderPID(ctx context.Context, tb testing.TB, locker *pglock.Locker, lock *pglock.Lock) int {
	tb.Helper()
	holders, err := locker.Holders(ctx, lock.Key())
	require.NoError(tb, err)
	require.NotEmpty(tb, holders)
	require.False(tb, holders[0].Waiting)
	return holders[0].PID
}

// requireTerminated fails the test unless every method says that the lock was
// lost, and why.
func requireTerminated(ctx context.Context, tb testing.TB, lock *pglock.Lock) {
	tb.Helper()
	cause := context.Cause(lock.Context())
	require.ErrorIs(tb, cause, pglock.ErrLost)
	var pgErr *pgconn.PgError
	require.ErrorAs(tb, cause, &pgErr)
	require.Equal(tb, "57P01", pgErr.Code)
	require.ErrorIs(tb, lock.Err(), pglock.ErrLost)
	require.ErrorIs(tb, lock.Verify(ctx), pglock.ErrLost)
	bound, cancel := lock.Bind(ctx)
	require.ErrorIs(tb, context.Cause(bound), pglock.ErrLost)
	cancel()
	for range 2 {
		err := lock.Release(ctx)
		require.ErrorIs(tb, err, pglock.ErrLost)
		require.NotErrorIs(tb, err, pglock.ErrNotAcquired)
	}
}

// What the caller of Do is told depends on whether the loss came before fn's end.
func TestP5_DoTellsOfALoss(t *testing.T) {
	t.Parallel()
	eachShape(t, func(t *testing.T, config pglock.Config) {
		ctx := timed(t)
		config = unheard(config)
		pool := newPool(t, database(t))
		locker := newLocker(t, pool, &config)
		mine := errors.New("fn's own")
		err := locker.Do(ctx, pgtest.Key(t), func(inner context.Context, lock *pglock.Lock) error {
			_, err := pool.Exec(ctx, "SELECT pg_terminate_backend($1)", holderPID(ctx, t, locker, lock))
			require.NoError(t, err)
			await(t, "the end of fn's ctx", inner.Done())
			require.ErrorIs(t, context.Cause(inner), pglock.ErrLost)
			require.NoError(t, ctx.Err())
			return mine
		})
		require.ErrorIs(t, err, mine)
		require.ErrorIs(t, err, pglock.ErrLost)
	})
}

// A waiter whose own session is ended goes on with another.
func TestP5_WaiterOutlivesItsSession(t *testing.T) {
	t.Parallel()
	eachShape(t, func(t *testing.T, config pglock.Config) {
		ctx := timed(t)
		dsn, key := ownDatabase(t, pgtest.Shared(t)), pgtest.Key(t)
		holder := acquired(ctx, t, newLocker(t, newPool(t, dsn), nil), key)
		config.MaxWaiting = 1
		pool := newPool(t, dsn)
		waiting := acquire(ctx, newLocker(t, pool, &config), key)
		observer := pgtest.Pool(t, dsn)
		for range 5 {
			require.NoError(t, pgtest.WaitForWaiters(ctx, observer, 1))
			_, err := observer.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
			require.NoError(t, err)
		}
		require.NoError(t, pgtest.WaitForWaiters(ctx, observer, 1))
		require.NoError(t, holder.Release(ctx))
		lock := await(t, "the lock", waiting).held(t)
		require.Greater(t, lock.Token(), holder.Token())
		require.NoError(t, lock.Release(ctx))
	})
}

func TestP5_ServerEndsAndComesBack(t *testing.T) { //nolint:tparallel // one end after the other
	t.Parallel()
	s := pgtest.New(t)
	for _, c := range []struct {
		name   string
		end    func(context.Context) error
		always bool // or in make faults alone
		shape  int
	}{
		{"postmaster killed", s.Kill, true, 1},
		{"postmaster killed", s.Kill, false, 1000},
		{"backend killed", s.CrashBackend, false, 1},
		{"backend killed", s.CrashBackend, true, 1000},
		{"fast shutdown", s.Stop, false, 1},
		{"fast shutdown", s.Stop, false, 1000},
	} {
		if c.always || scaled(false, true) {
			t.Run(fmt.Sprintf("%s/LocksPerSession=%d", c.name, c.shape), func(t *testing.T) {
				testServerEnds(t, s, unheard(pglock.Config{LocksPerSession: c.shape}), c.end)
			})
		}
	}
}

// testServerEnds lets the server end under 50 holders and 50 waiters, ten of
// which give up meanwhile.
func testServerEnds(t *testing.T, s *pgtest.Server, config pglock.Config, end func(context.Context) error) {
	const each, impatient = 50, 10
	ctx, key := timed(t), pgtest.Key(t)
	dsn := ownDatabase(t, s)
	config.MaxSessions, config.MaxWaiting = each+10, each/2 // half of the waiters poll
	small := func(c *pgxpool.Config) { c.MaxConns = 4 }
	holding := newLocker(t, newPool(t, dsn, small), &config)
	waiting := newLocker(t, newPool(t, dsn, small), &config)
	short, giveUp := context.WithCancel(ctx)
	defer giveUp()
	held, outcomes, ended := make([]*pglock.Lock, each), make([]<-chan outcome, each), make([]<-chan time.Time, each)
	for i := range held {
		held[i] = acquired(ctx, t, holding, key+strconv.Itoa(i))
		ended[i] = endOf(held[i].Context())
		mine := ctx
		if i < impatient {
			mine = short
		}
		outcomes[i] = acquire(mine, waiting, key+strconv.Itoa(i))
	}
	require.NoError(t, pgtest.WaitForWaiters(ctx, pgtest.Pool(t, dsn, small), each/2))
	begin := time.Now()
	require.NoError(t, end(ctx))
	noticed := make([]time.Duration, each)
	for i, lock := range held {
		noticed[i] = await(t, "the end of a holder's context", ended[i]).Sub(begin)
		require.ErrorIs(t, lock.Err(), pglock.ErrLost)
		require.ErrorIs(t, lock.Release(ctx), pglock.ErrLost)
	}
	giveUp()
	for i := range impatient {
		out := await(t, "an impatient waiter", outcomes[i])
		if out.err == nil { // the holder's backend ended first, or the server was back at once
			_ = out.lock.Release(ctx) // it may have been lost since
			continue
		}
		require.ErrorIs(t, out.err, pglock.ErrNotAcquired)
		require.ErrorIs(t, out.err, context.Canceled)
	}
	require.NoError(t, s.Restart(ctx))
	back := time.Now()
	granted := make([]time.Duration, 0, each)
	for i := impatient; i < each; i++ {
		out := await(t, "a waiter", outcomes[i])
		lock := out.held(t)
		granted = append(granted, out.at.Sub(back))
		require.Greater(t, lock.Token(), held[i].Token())
		_ = lock.Release(ctx) // where the server was back before Restart it was granted, and lost
	}
	t.Logf("contexts ended after the server did: %s", percentiles(noticed))
	t.Logf("waiters granted after its return: %s", percentiles(granted))
	require.NoError(t, acquired(ctx, t, holding, key+"0").Release(ctx))
}

// A standby refuses; a waiter stays until it is promoted; the holder on the old
// primary is told.
func TestP5_FailoverEndsTheHolderAndServesTheWaiter(t *testing.T) {
	t.Parallel()
	ctx, key := timed(t), pgtest.Key(t)
	primary := pgtest.New(t)
	dsn := ownDatabase(t, primary)
	sb := pgtest.NewStandby(t, primary, pgtest.StandbyConfig{})
	require.NoError(t, sb.AwaitCaughtUp(ctx))
	name := databaseName(t, dsn)
	config := unheard(pglock.Config{})
	holder := newLocker(t, newPool(t, pgtest.MultiHostDSN(name, "read-write", primary, sb.Server)), &config)
	standby := newLocker(t, newPool(t, sb.DSN(name)), &config)
	lock := acquired(ctx, t, holder, key)

	_, err := standby.TryAcquire(ctx, key)
	require.ErrorIs(t, err, pglock.ErrReadOnly)
	waiting := acquire(ctx, standby, key)
	ended := endOf(lock.Context())
	begin := time.Now()
	require.NoError(t, primary.Kill(ctx))
	t.Logf("the holder was told after %v", await(t, "the holder's context", ended).Sub(begin))
	require.ErrorIs(t, lock.Err(), pglock.ErrLost)
	require.Empty(t, waiting)
	require.NoError(t, sb.Promote(ctx))
	promoted := time.Now()
	out := await(t, "the waiter", waiting)
	next := out.held(t)
	t.Logf("the waiter was granted %v after the promotion", out.at.Sub(promoted))
	require.Greater(t, next.Token(), lock.Token())
	pgtest.Eventually(t, "the Locker to find the new primary", func() bool { // its pool may still have a dead connection
		_, err = holder.TryAcquire(ctx, key)
		require.Error(t, err)
		return errors.Is(err, pglock.ErrNotAcquired)
	})
	require.NoError(t, next.Release(ctx))
}

// A primary that became a standby without closing its sockets, as behind some
// proxies: here the server says so of itself, in one database.
func TestP5_DemotedPrimaryIsALoss(t *testing.T) {
	t.Parallel()
	eachShape(t, func(t *testing.T, config pglock.Config) {
		ctx, key := timed(t), pgtest.Key(t)
		config = unheard(config)
		pool := newPool(t, ownDatabase(t, pgtest.Shared(t)))
		locker := newLocker(t, pool, &config)
		lock := acquired(ctx, t, locker, key)
		_, err := pool.Exec(ctx, `CREATE OR REPLACE FUNCTION pg_catalog.pg_is_in_recovery() RETURNS boolean
			LANGUAGE sql STABLE AS 'SELECT true'`)
		require.NoError(t, err)
		pool.Reset()                                             // a backend that has planned a call of the function goes on with the one before
		require.ErrorIs(t, lock.Verify(ctx), pglock.ErrReadOnly) // a heartbeat asks the same
		await(t, "the end of the holder's context", lock.Context().Done())
		require.ErrorIs(t, lock.Err(), pglock.ErrLost)
		require.ErrorIs(t, lock.Err(), pglock.ErrReadOnly)
		_, err = locker.TryAcquire(ctx, key)
		require.ErrorIs(t, err, pglock.ErrReadOnly)
		short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		defer cancel()
		_, err = locker.Acquire(short, key) // for a server may be promoted
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, pglock.ErrNotAcquired)
		require.ErrorIs(t, err, pglock.ErrReadOnly)
	})
}
