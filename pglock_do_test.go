package pglock_test

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

var errWork = errors.New("the work failed")

func TestP8_DoReleasesHoweverFnEnds(t *testing.T) {
	t.Parallel()
	ctx := timed(t)
	locker := newLocker(t, newPool(t, database(t)), nil)
	other := newLocker(t, newPool(t, database(t)), nil)
	key := pgtest.Key(t)
	type work = func(ctx context.Context, lock *pglock.Lock) error
	try := func(fn work) error {
		ran, err := locker.TryDo(ctx, key, fn)
		require.True(t, ran)
		return err
	}
	for name, do := range map[string]func(work) error{
		"Do":    func(fn work) error { return locker.Do(ctx, key, fn) },
		"TryDo": try,
	} {
		var within context.Context
		err := do(func(ctx context.Context, lock *pglock.Lock) error {
			within = ctx //nolint:fatcontext // looked at after its function has returned
			_, err := other.TryAcquire(ctx, key)
			require.ErrorIs(t, err, pglock.ErrNotAcquired)
			return lock.Verify(ctx)
		})
		require.NoError(t, err, name)
		require.Error(t, within.Err(), "fn's ctx ends with it")
		requireFree(t, other, key)

		err = do(func(context.Context, *pglock.Lock) error { return errWork })
		require.Equal(t, errWork, err, "%s: fn's own error, and nothing but it", name)
		requireFree(t, other, key)

		require.PanicsWithValue(t, errWork, func() {
			_ = do(func(context.Context, *pglock.Lock) error { panic(errWork) })
		}, name)
		requireFree(t, other, key)

		gone, returned := make(chan struct{}), false
		go func() {
			defer close(gone)
			_ = do(func(context.Context, *pglock.Lock) error { runtime.Goexit(); return nil })
			returned = true
		}()
		<-gone
		require.False(t, returned, "%s: Goexit goes on", name)
		requireFree(t, other, key)
	}
}

// requireFree fails the test unless the key can be had at once.
func requireFree(tb testing.TB, locker *pglock.Locker, key string) {
	tb.Helper()
	lock, err := locker.TryAcquire(tb.Context(), key)
	require.NoError(tb, err)
	require.NoError(tb, lock.Release(tb.Context()))
}

func TestP8_TryDoSaysWhetherFnRan(t *testing.T) {
	t.Parallel()
	ctx := timed(t)
	pool := newPool(t, database(t))
	locker := newLocker(t, pool, nil)
	key, taken := pgtest.Key(t), pgtest.Key(t)
	lock, err := newLocker(t, pool, nil).TryAcquire(ctx, taken)
	require.NoError(t, err)

	ran, err := locker.TryDo(ctx, taken, func(context.Context, *pglock.Lock) error { return errWork })
	require.NoError(t, err)
	require.False(t, ran, "held elsewhere")

	ran, err = locker.TryDo(ctx, key, func(ctx context.Context, _ *pglock.Lock) error {
		_, err := locker.TryAcquire(ctx, taken)
		return err
	})
	require.True(t, ran, "fn's own ErrNotAcquired is not a skip")
	require.ErrorIs(t, err, pglock.ErrNotAcquired)

	ended, end := context.WithCancel(ctx)
	end()
	ran, err = locker.TryDo(ended, key, func(context.Context, *pglock.Lock) error { return nil })
	require.False(t, ran)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, pglock.ErrNotAcquired)
	require.NoError(t, lock.Release(ctx))
}

func TestP1_SameKeyBelowIsADeadlockAndNotAHang(t *testing.T) {
	t.Parallel()
	ctx := timed(t)
	pool := newPool(t, database(t))
	locker, other := newLocker(t, pool, nil), newLocker(t, pool, nil)
	key := pgtest.Key(t)
	never := func(context.Context, *pglock.Lock) error { return errors.New("fn was called") }
	require.NoError(t, locker.Do(ctx, key, func(ctx context.Context, lock *pglock.Lock) error {
		below, cancel := context.WithTimeout(ctx, scenarioTimeout)
		defer cancel()
		_, err := locker.Acquire(below, key)
		require.ErrorIs(t, err, pglock.ErrDeadlock)
		_, err = locker.TryAcquire(below, key)
		require.ErrorIs(t, err, pglock.ErrDeadlock)
		_, err = locker.AcquireShared(below, key)
		require.ErrorIs(t, err, pglock.ErrDeadlock)
		require.ErrorIs(t, locker.Do(below, key, never), pglock.ErrDeadlock)
		ran, err := locker.TryDo(below, key, never)
		require.False(t, ran)
		require.ErrorIs(t, err, pglock.ErrDeadlock)
		// Another key is another matter, and below that both are known.
		require.NoError(t, locker.Do(below, key+" 2", func(ctx context.Context, _ *pglock.Lock) error {
			require.ErrorIs(t, locker.Do(ctx, key, never), pglock.ErrDeadlock)
			return nil
		}))
		// A context that is not below knows nothing: it waits, until it ends.
		waiting, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err = other.Acquire(waiting, key)
		require.ErrorIs(t, err, pglock.ErrNotAcquired)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, pglock.ErrDeadlock)
		return lock.Err()
	}))
	// The context of a lock is one below it, for as long as the lock is held.
	lock, err := locker.Acquire(ctx, key)
	require.NoError(t, err)
	below := context.WithoutCancel(lock.Context())
	_, err = locker.Acquire(below, key)
	require.ErrorIs(t, err, pglock.ErrDeadlock)
	require.NoError(t, lock.Release(ctx))
	lock, err = locker.AcquireShared(below, key)
	require.NoError(t, err)
	again, err := locker.TryAcquireShared(lock.Context(), key)
	require.NoError(t, err)
	require.NoError(t, again.Release(ctx))
	require.NoError(t, lock.Release(ctx))
	// The wait that was given up may be granted on the server in the moment before that notices.
	id, _ := pglock.HashID("", key).Int64()
	require.NoError(t, pgtest.WaitForNoLocks(ctx, pool, id))
	pgtest.Eventually(t, "the answer to the unlock", func() bool { return other.Stat().Held == 0 })
	requireFree(t, other, key)
}

func TestP5_DoJoinsErrLostIfTheLockWasLostBeforeFnReturned(t *testing.T) {
	t.Parallel()
	ctx := timed(t)
	locker := newLocker(t, newPool(t, database(t)), nil)
	key := pgtest.Key(t)
	for _, own := range []error{nil, errWork} {
		began := time.Now()
		err := locker.Do(ctx, key, func(ctx context.Context, _ *pglock.Lock) error {
			terminateHolder(t, locker, key)
			<-ctx.Done()
			t.Logf("fn's ctx ended %v after it asked for the session's end", time.Since(began))
			require.ErrorIs(t, context.Cause(ctx), pglock.ErrLost)
			return own
		})
		require.ErrorIs(t, err, pglock.ErrLost)
		if own != nil {
			require.ErrorIs(t, err, own)
		}
		require.NotErrorIs(t, err, pglock.ErrNotAcquired, "lost is never reported as not acquired")
	}
}

// lines hands on what is logged.
type lines struct {
	slog.Handler
	messages chan string
}

func (l lines) Enabled(context.Context, slog.Level) bool { return true }

func (l lines) Handle(_ context.Context, r slog.Record) error {
	l.messages <- r.Message
	return nil
}

func TestP8_DoLogsAReleaseThatFailsAfterACleanFn(t *testing.T) {
	t.Parallel()
	ctx := timed(t)
	w := newWire(t)
	logged := lines{slog.DiscardHandler, make(chan string, 10)}
	locker := newLocker(t, newPool(t, w.dsn), &pglock.Config{Logger: slog.New(logged), ReleaseTimeout: 200 * time.Millisecond})
	require.NoError(t, locker.Do(ctx, pgtest.Key(t), func(context.Context, *pglock.Lock) error {
		w.proxy.BlackHole()
		return nil
	}), "the work was done under the lock")
	require.Equal(t, "pglock: release failed", <-logged.messages)
	w.proxy.Heal()
}
