package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

func init() {
	roles = append(roles, pgtest.Role{Name: "contender", Run: contender})
}

// contender tries once from a barrier, says what came of it, and holds what it
// got until it is told to go.
func contender(ctx context.Context, self *pgtest.Self) error {
	locker, _, err := open(ctx, self, nil)
	if err != nil {
		return err
	}
	if err := self.Barrier(); err != nil {
		return err
	}
	lock, err := locker.TryAcquire(ctx, self.Arg("KEY"))
	switch {
	case errors.Is(err, pglock.ErrNotAcquired):
		self.Say("answer", "refused")
	case err != nil:
		return err
	default:
		self.Say("answer", "won", lock.Token())
	}
	if _, err := self.Hear(); err != nil || lock == nil {
		return err
	}
	return lock.Release(ctx)
}

// answer is what a try came to.
type answer struct {
	lock *pglock.Lock
	err  error
}

// contend has as many goroutines as there are Lockers try for the key at once,
// the winner holding until all have their answer, and returns its lock.
func contend(t *testing.T, key string, lockers []*pglock.Locker) *pglock.Lock {
	t.Helper()
	start := make(chan struct{})
	answers := make(chan answer)
	for _, locker := range lockers {
		go func() {
			<-start
			lock, err := locker.TryAcquire(t.Context(), key)
			answers <- answer{lock, err}
		}()
	}
	close(start)
	var winners []*pglock.Lock
	for range lockers {
		a := <-answers
		if a.err == nil {
			winners = append(winners, a.lock)
			continue
		}
		require.ErrorIs(t, a.err, pglock.ErrNotAcquired)
	}
	require.Len(t, winners, 1)
	require.NoError(t, winners[0].Verify(t.Context()))
	return winners[0]
}

func TestP1_OneWinnerAmong20Goroutines(t *testing.T) {
	t.Parallel()
	const contenders, rounds = 20, 5
	shared := newLocker(t, newPool(t, database(t)), nil)
	for _, kind := range []string{"of one Locker", "of as many Lockers"} {
		lockers := make([]*pglock.Locker, contenders)
		pool := newPool(t, database(t))
		for i := range lockers {
			lockers[i] = shared
			if kind != "of one Locker" {
				lockers[i] = newLocker(t, pool, &pglock.Config{MaxSessions: 2})
			}
		}
		key := pgtest.Key(t)
		for range rounds {
			require.NoError(t, contend(t, key, lockers).Release(t.Context()))
		}
		t.Logf("%d goroutines %s, %d rounds: 1 winner in each", contenders, kind, rounds)
	}
}

func TestP1_OneWinnerAmong8Processes(t *testing.T) {
	t.Parallel()
	const contenders = 8
	ctx := timed(t)
	dsn, key := database(t), pgtest.Key(t)
	processes := make([]*pgtest.Process, contenders)
	for i := range processes {
		processes[i] = process(t, "contender", dsn, key)
	}
	require.NoError(t, pgtest.Release(ctx, processes...))
	var won []string
	for _, p := range processes {
		said, err := p.Expect(ctx, "answer")
		require.NoError(t, err)
		if token, ok := strings.CutPrefix(said, "won "); ok {
			won = append(won, token)
		} else {
			require.Equal(t, "refused", said)
		}
	}
	require.Len(t, won, 1)
	token, err := strconv.ParseInt(won[0], 10, 64)
	require.NoError(t, err)
	for _, p := range processes {
		require.NoError(t, p.Tell("go"))
		require.NoError(t, p.Wait(ctx))
	}
	after, err := newLocker(t, newPool(t, dsn), nil).TryAcquire(ctx, key)
	require.NoError(t, err)
	require.Greater(t, after.Token(), token)
	require.NoError(t, after.Release(ctx))
	t.Logf("%d processes: 1 winner, token %d; after it had ended another got token %d", contenders, token, after.Token())
}

func TestP1_NeverTwoInside(t *testing.T) {
	t.Parallel()
	const lockers, workers, rounds = 3, 4, 15
	ctx := timed(t)
	key := pgtest.Key(t)
	var inside, crowded, grants atomic.Int64
	failures := make(chan error, lockers*workers)
	var all sync.WaitGroup
	for i := range lockers {
		// With and without a session kept, and with sessions that are shared.
		config := &pglock.Config{MaxIdleSessions: i % 2, LocksPerSession: 1 + 3*(i/2)}
		locker := newLocker(t, newPool(t, database(t)), config)
		for range workers {
			all.Go(func() {
				for range rounds {
					failures <- locker.Do(ctx, key, func(ctx context.Context, lock *pglock.Lock) error {
						if inside.Add(1) > 1 {
							crowded.Add(1)
						}
						defer inside.Add(-1)
						grants.Add(1)
						return lock.Verify(ctx) // long enough for another to come in
					})
				}
			})
		}
	}
	for range lockers * workers * rounds {
		require.NoError(t, <-failures)
	}
	all.Wait()
	require.Zero(t, crowded.Load(), "times that somebody came in while another was inside")
	t.Logf("%d grants to %d goroutines of %d Lockers, never two inside", grants.Load(), lockers*workers, lockers)
}

func TestP1_NobodyButTheHolderReleases(t *testing.T) {
	t.Parallel()
	for _, perSession := range []int{1, 4} { // 4: the next holder may be in the same session
		t.Run(fmt.Sprintf("LocksPerSession=%d", perSession), func(t *testing.T) {
			t.Parallel()
			ctx := timed(t)
			pool := newPool(t, database(t))
			locker := newLocker(t, pool, &pglock.Config{LocksPerSession: perSession})
			other := newLocker(t, newPool(t, database(t)), nil)
			key := pgtest.Key(t)

			first, err := locker.TryAcquire(ctx, key)
			require.NoError(t, err)
			require.NoError(t, first.Release(ctx))
			second, err := locker.TryAcquire(ctx, key)
			require.NoError(t, err)

			// The handle of an earlier holder, and the other contenders.
			require.NoError(t, first.Release(ctx), "released twice")
			require.ErrorIs(t, first.Err(), pglock.ErrReleased)
			require.NoError(t, second.Verify(ctx))
			_, err = locker.TryAcquire(ctx, key)
			require.ErrorIs(t, err, pglock.ErrNotAcquired)
			_, err = other.TryAcquire(ctx, key)
			require.ErrorIs(t, err, pglock.ErrNotAcquired)

			// By hand, on another session.
			var unlocked bool
			require.NoError(t, pool.QueryRow(ctx, "SELECT pg_advisory_unlock($1)", int64ID(t, second)).Scan(&unlocked))
			require.False(t, unlocked)
			require.NoError(t, second.Verify(ctx))

			// A holder whose lock was lost does not release its successor's.
			terminateHolder(t, locker, key)
			<-second.Context().Done()
			third, err := other.Acquire(ctx, key)
			require.NoError(t, err)
			require.ErrorIs(t, second.Release(ctx), pglock.ErrLost)
			require.ErrorIs(t, second.Release(ctx), pglock.ErrLost)
			require.NoError(t, third.Verify(ctx))
			require.NoError(t, third.Release(ctx))
		})
	}
}

// terminateHolder has the server end the session that holds the key.
func terminateHolder(tb testing.TB, locker *pglock.Locker, key string) {
	tb.Helper()
	holders, err := locker.Holders(tb.Context(), key)
	require.NoError(tb, err)
	require.Len(tb, holders, 1)
	require.NoError(tb, locker.Terminate(tb.Context(), holders[0]))
}

// awaitWaiter returns when a session waits for the key.
func awaitWaiter(tb testing.TB, locker *pglock.Locker, key string) {
	tb.Helper()
	pgtest.Eventually(tb, "a session to wait for "+key, func() bool {
		holders, err := locker.Holders(tb.Context(), key)
		require.NoError(tb, err)
		return slices.ContainsFunc(holders, func(h pglock.Holder) bool { return h.Waiting })
	})
}

func TestP1_SharedExcludesExclusiveAlone(t *testing.T) {
	t.Parallel()
	ctx := timed(t)
	pool := newPool(t, database(t))
	a, b := newLocker(t, pool, nil), newLocker(t, pool, nil)
	key := pgtest.Key(t)
	first, err := a.TryAcquireShared(ctx, key)
	require.NoError(t, err)
	second, err := b.AcquireShared(ctx, key)
	require.NoError(t, err)
	require.Zero(t, first.Token())
	for _, locker := range []*pglock.Locker{a, b} {
		_, err = locker.TryAcquire(ctx, key)
		require.ErrorIs(t, err, pglock.ErrNotAcquired)
	}
	// Without a token nothing passes the fence.
	require.ErrorIs(t, first.Claim(ctx, pool, key), pglock.ErrNoToken)
	err = second.FencedTx(ctx, pool, key, func(pgx.Tx) error { return errors.New("fn was called") })
	require.ErrorIs(t, err, pglock.ErrNoToken)

	require.NoError(t, first.Release(ctx))
	_, err = a.TryAcquire(ctx, key)
	require.ErrorIs(t, err, pglock.ErrNotAcquired, "one reader is left")
	require.NoError(t, second.Release(ctx))
	alone, err := a.TryAcquire(ctx, key)
	require.NoError(t, err)
	for _, locker := range []*pglock.Locker{a, b} {
		_, err = locker.TryAcquireShared(ctx, key)
		require.ErrorIs(t, err, pglock.ErrNotAcquired)
	}
	require.NoError(t, alone.Release(ctx))
}

func TestP2_KilledHolderFreesItsLock(t *testing.T) {
	t.Parallel()
	const runs = 10
	ctx := timed(t)
	dsn, key := database(t), pgtest.Key(t)
	locker := newLocker(t, newPool(t, dsn), nil)
	took := make([]time.Duration, 0, runs)
	for range runs {
		holder := process(t, "contender", dsn, key)
		require.NoError(t, pgtest.Release(ctx, holder))
		said, err := holder.Expect(ctx, "answer")
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(said, "won "), said)
		acquired := make(chan answer, 1)
		go func() {
			lock, err := locker.Acquire(ctx, key)
			acquired <- answer{lock, err}
		}()
		awaitWaiter(t, locker, key)
		killed := time.Now()
		require.NoError(t, holder.Signal(syscall.SIGKILL))
		got := <-acquired
		took = append(took, time.Since(killed))
		require.NoError(t, got.err)
		require.NoError(t, got.lock.Release(ctx))
	}
	t.Logf("from kill -9 of the holder's process to the next grant: %s; lease %v", percentiles(took), pglock.DefaultLease)
	require.Less(t, sorted(took)[runs/2], time.Second, "median")
	require.Less(t, sorted(took)[runs-1], pglock.DefaultLease/2, "it was the kernel, not the lease")
}
