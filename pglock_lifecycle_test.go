//nolint:thelper // each and eachShape run these functions as subtests
package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// It runs alone, so that goroutines of other tests are not taken for ours.
func TestP8_CancelledAcquiresLeaveNothing(t *testing.T) {
	dsn := database(t)
	for _, n := range []int{1, 1000} {
		t.Run(fmt.Sprintf("LocksPerSession=%d", n), func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			t.Cleanup(func() { goleak.VerifyNone(t, before) })
			s := &cancelStorm{key: pgtest.Key(t), wanted: scaled[int64](1000, 10_000)}
			for i := range 4 { // as many services
				pool := newPool(t, dsn, func(c *pgxpool.Config) { c.MaxConns = 4 })
				locker := newLocker(t, pool, &pglock.Config{LocksPerSession: n, MaxSessions: 6, MaxIdleSessions: i})
				s.lockers = append(s.lockers, locker)
			}
			begin := time.Now()
			s.run(t.Context(), t)
			t.Logf("%d acquires cancelled, %d granted, %d refused in %v; %d releases with a ctx that had ended",
				s.cancelled.Load(), s.granted.Load(), s.refused.Load(), time.Since(begin).Round(time.Millisecond),
				s.late.Load())
			for i := range stormKeys {
				pgtest.NoAdvisoryLocks(t, pgtest.Pool(t, dsn), lockID(t, s.keyOf(i)))
			}
			for _, locker := range s.lockers {
				stat := locker.Stat()
				require.Zero(t, stat.Held)
				require.Zero(t, stat.Waiters)
				require.LessOrEqual(t, stat.Sessions, 6)
			}
		})
	}
}

// stormKeys is how many keys a storm is about.
const stormKeys = 3

// cancelStorm is contention in which most acquires are cancelled at a random moment.
type cancelStorm struct {
	key     string
	wanted  int64
	lockers []*pglock.Locker

	holders                           [stormKeys]atomic.Int32
	tokens                            [stormKeys]atomic.Int64
	cancelled, granted, refused, late atomic.Int64
}

func (s *cancelStorm) keyOf(i int) string { return fmt.Sprintf("%s-%d", s.key, i) }

func (s *cancelStorm) run(ctx context.Context, t *testing.T) {
	t.Helper()
	var all sync.WaitGroup
	errs := make(chan error, 1) // the first
	for _, locker := range s.lockers {
		for i := range 8 {
			all.Go(func() {
				for len(errs) == 0 && (s.cancelled.Load() < s.wanted || s.granted.Load() < 50) {
					if err := s.once(ctx, locker, i < 2); err != nil {
						select {
						case errs <- err:
						default:
						}
					}
				}
			})
		}
	}
	all.Wait()
	if len(errs) > 0 {
		require.NoError(t, <-errs)
	}
}

// once acquires with a ctx that ends after a time between 10 µs and 100 ms,
// whatever its order of magnitude, so that every step is hit. The patient wait
// for their turn and keep the locks moving.
func (s *cancelStorm) once(ctx context.Context, locker *pglock.Locker, patient bool) error {
	const shortest, longest = 10 * time.Microsecond, 100 * time.Millisecond
	after := scenarioTimeout
	if !patient {
		after = time.Duration(float64(shortest) * math.Pow(float64(longest/shortest), rand.Float64()))
	}
	ctx, cancel := context.WithTimeout(ctx, after)
	defer cancel()
	i := rand.IntN(stormKeys)
	take := locker.Acquire
	if !patient && rand.IntN(2) == 0 {
		take = locker.TryAcquire
	}
	lock, err := take(ctx, s.keyOf(i))
	switch {
	case err == nil:
		return s.hold(ctx, i, lock)
	case errors.Is(err, pglock.ErrNotAcquired) && errors.Is(err, context.DeadlineExceeded):
		s.cancelled.Add(1)
	case errors.Is(err, pglock.ErrNotAcquired), errors.Is(err, pglock.ErrSessionLimit):
		s.refused.Add(1)
	default:
		return err
	}
	return nil
}

func (s *cancelStorm) hold(ctx context.Context, i int, lock *pglock.Lock) error {
	s.granted.Add(1)
	if n := s.holders[i].Add(1); n != 1 {
		return fmt.Errorf("%d holders of one key", n)
	}
	if last := s.tokens[i].Swap(lock.Token()); last >= lock.Token() {
		return fmt.Errorf("token %d after %d", lock.Token(), last)
	}
	short, cancel := context.WithTimeout(ctx, rand.N(3*time.Millisecond))
	<-short.Done()
	cancel()
	if ctx.Err() != nil {
		s.late.Add(1)
	}
	if err := lock.Err(); err != nil {
		return err
	}
	s.holders[i].Add(-1)
	return lock.Release(ctx)
}

// lockID is the number that a key stands for.
func lockID(tb testing.TB, key string) int64 {
	tb.Helper()
	n, ok := pglock.HashID("", key).Int64()
	require.True(tb, ok)
	return n
}

// Wherever an acquire is when its ctx ends, it returns soon, and what it had
// asked for is undone once the server hears of it.
func TestP8_AcquireEndsWithItsCtxAtEveryPoint(t *testing.T) {
	t.Parallel()
	request := pgtest.Trap{Type: pgtest.TypeQuery, Contains: ".acquire("}
	half, whole, slice := request, request, pgtest.Trap{Type: pgtest.TypeFunctionCall, Pass: pgtest.WholeMessage}
	half.Pass, whole.Pass = 7, pgtest.WholeMessage
	each(t, map[string]pgtest.Trap{
		"connecting":             {Type: pgtest.TypeStartup},
		"in the handshake":       {Direction: pgtest.ToClient, Type: 'R'},
		"before the request":     request,
		"in the request":         half,
		"before the answer":      whole,
		"in a slice of the wait": slice,
	}, func(t *testing.T, trap pgtest.Trap) {
		eachShape(t, func(t *testing.T, config pglock.Config) {
			requireUndone(t, config, trap, trap == slice, false)
			requireUndone(t, config, trap, trap == slice, trap != slice)
		})
	})
}

// requireUndone cancels an acquire in the trap, which opens at once, or late.
func requireUndone(t *testing.T, config pglock.Config, trap pgtest.Trap, held, late bool) {
	t.Helper()
	ctx, dsn, key := timed(t), database(t), pgtest.Key(t)
	other := newLocker(t, newPool(t, dsn), nil)
	pool, proxy := proxied(t, pgtest.Shared(t), dsn)
	locker := newLocker(t, pool, &config)
	var locks []*pglock.Lock
	if held {
		locks = append(locks, acquired(ctx, t, other, key))
	}
	if trap.Type == pgtest.TypeQuery || trap.Type == pgtest.TypeFunctionCall {
		require.NoError(t, pool.Ping(ctx)) // the request goes by a connection that is the pool's own
	}
	sprung := proxy.Set(trap)
	mine, cancel := context.WithCancel(ctx)
	waiting := acquire(mine, locker, key)
	conn := await(t, "the trap", sprung)
	took := requireEnds(t, cancel, waiting)
	releaseAll(ctx, t, locks)
	pgtest.Eventually(t, "the session to end", func() bool { return !late || locker.Stat().Sessions == 0 })
	conn.Heal()
	pgtest.NoAdvisoryLocks(t, pgtest.Pool(t, dsn), lockID(t, key)) // without touching the Locker's own pool
	require.NoError(t, acquired(ctx, t, other, key).Release(ctx))
	t.Logf("returned %v after the end of its ctx", took)
}

func TestP8_WaitEndsWithItsCtxInMemory(t *testing.T) {
	t.Parallel()
	each(t, map[string]func(*pglock.Config){
		"behind a holder of this process": func(*pglock.Config) {},
		"polling":                         func(c *pglock.Config) { c.MaxWaiting = -1 },
		"over a budget":                   func(c *pglock.Config) { c.MaxLocks = 1 },
	}, func(t *testing.T, set func(*pglock.Config)) {
		eachShape(t, func(t *testing.T, config pglock.Config) {
			ctx := timed(t)
			key := pgtest.Key(t)
			set(&config)
			pool := newPool(t, database(t))
			locker := newLocker(t, pool, &config)
			holder, wanted := locker, key
			if config.MaxWaiting < 0 {
				holder = newLocker(t, newPool(t, database(t)), nil)
			} else if config.MaxLocks > 0 {
				wanted = key + "-other"
			}
			lock := acquired(ctx, t, holder, key)
			mine, cancel := context.WithCancel(ctx)
			defer cancel()
			waiting := acquire(mine, locker, wanted)
			pgtest.Eventually(t, "the waiter", func() bool { return locker.Stat().Waiters == 1 })
			requireEnds(t, cancel, waiting)
			require.Zero(t, locker.Stat().Waiters)
			require.NoError(t, lock.Release(ctx))
			require.NoError(t, acquired(ctx, t, locker, wanted).Release(ctx))
		})
	})
}

func TestP8_CloseEndsEverything(t *testing.T) {
	t.Parallel()
	eachShape(t, func(t *testing.T, config pglock.Config) {
		ctx := timed(t)
		key, dsn := pgtest.Key(t), database(t)
		other := newLocker(t, newPool(t, dsn), nil)
		elsewhere := acquired(ctx, t, other, key+"-elsewhere")
		locker := newLocker(t, newPool(t, dsn), &config)
		lock := acquired(ctx, t, locker, key+"-held")

		inside, done := make(chan struct{}), make(chan error, 1)
		var returned atomic.Bool
		go func() {
			done <- locker.Do(ctx, key+"-do", func(ctx context.Context, _ *pglock.Lock) error {
				close(inside)
				<-ctx.Done()
				returned.Store(true)
				return context.Cause(ctx)
			})
		}()
		await(t, "the function of Do", inside)
		var waiting []<-chan outcome
		for _, k := range []string{"-held", "-held", "-do", "-elsewhere", "-elsewhere"} {
			waiting = append(waiting, acquire(ctx, locker, key+k))
		}
		pgtest.Eventually(t, "the waiters", func() bool { return locker.Stat().Waiters == len(waiting) })

		require.NoError(t, locker.Close(ctx))
		require.True(t, returned.Load(), "Close waits for the functions of Do")
		require.ErrorIs(t, lock.Err(), pglock.ErrReleased)
		require.ErrorIs(t, context.Cause(lock.Context()), pglock.ErrClosed)
		for _, k := range []string{"-held", "-do"} { // Close has unlocked on the server
			taken, err := other.TryAcquire(ctx, key+k)
			require.NoError(t, err)
			require.NoError(t, taken.Release(ctx))
		}
		err := await(t, "Do", done)
		require.ErrorIs(t, err, pglock.ErrClosed)
		require.NotErrorIs(t, err, pglock.ErrLost)
		for _, w := range waiting {
			require.ErrorIs(t, await(t, "a waiter", w).err, pglock.ErrClosed)
		}
		_, err = locker.TryAcquire(ctx, key)
		require.ErrorIs(t, err, pglock.ErrClosed)
		require.NoError(t, lock.Release(ctx), "it had been released")
		require.NoError(t, locker.Close(ctx), "twice")
		require.NoError(t, elsewhere.Release(ctx))
	})
}

func TestP8_CloseLeavesFunctionsThatDoNotReturn(t *testing.T) {
	t.Parallel()
	eachShape(t, func(t *testing.T, config pglock.Config) {
		ctx := timed(t)
		key := pgtest.Key(t)
		locker := newLocker(t, newPool(t, database(t)), &config)
		inside, leave, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		go func() {
			done <- locker.Do(ctx, key, func(context.Context, *pglock.Lock) error {
				close(inside)
				<-leave
				return nil
			})
		}()
		await(t, "the function of Do", inside)
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		err := locker.Close(short)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "1 functions of Do")
		taken, err := newLocker(t, newPool(t, database(t)), nil).TryAcquire(ctx, key)
		require.NoError(t, err)
		require.NoError(t, taken.Release(ctx))
		close(leave)
		require.NoError(t, await(t, "Do", done))
	})
}

// With the server out of reach Release and Close return within ReleaseTimeout,
// say so, and the server frees the lock when it hears of it.
func TestP8_ReleaseAndCloseAreBounded(t *testing.T) {
	t.Parallel()
	type ending func(context.Context, *pglock.Locker, *pglock.Lock) error
	each(t, map[string]ending{
		"Release": func(ctx context.Context, _ *pglock.Locker, lock *pglock.Lock) error { return lock.Release(ctx) },
		"Close":   func(ctx context.Context, locker *pglock.Locker, _ *pglock.Lock) error { return locker.Close(ctx) },
	}, func(t *testing.T, end ending) {
		eachShape(t, func(t *testing.T, config pglock.Config) {
			ctx := timed(t)
			config.ReleaseTimeout = 300 * time.Millisecond
			pool, proxy := proxied(t, pgtest.Shared(t), database(t))
			locker := newLocker(t, pool, &config)
			lock := acquired(ctx, t, locker, pgtest.Key(t))
			proxy.BlackHole()
			begin := time.Now()
			require.ErrorIs(t, end(ctx, locker, lock), pglock.ErrUnavailable)
			took := time.Since(begin)
			require.ErrorIs(t, lock.Err(), pglock.ErrReleased)
			proxy.Heal()
			require.GreaterOrEqual(t, took, config.ReleaseTimeout)
			require.Less(t, took, config.ReleaseTimeout+2*time.Second)
			pgtest.NoAdvisoryLocks(t, pool, int64ID(t, lock))
		})
	})
}

func init() {
	roles = append(roles, pgtest.Role{Name: "leaver", Run: leaver})
}

// leaver holds one lock, waits for another, and exits without a word to anybody.
func leaver(ctx context.Context, self *pgtest.Self) error {
	locker, _, err := open(ctx, self, nil)
	if err != nil {
		return err
	}
	if _, err := locker.Acquire(ctx, self.Arg("KEY")); err != nil {
		return err
	}
	acquire(ctx, locker, self.Arg("KEY")+"-elsewhere")
	self.Say("held")
	if _, err := self.Hear(); err != nil {
		return err
	}
	return nil
}

func TestP8_ProcessThatExitsWithoutCloseLeavesNothing(t *testing.T) {
	t.Parallel()
	each(t, map[string]func(*pgtest.Process) error{
		"exit":    func(p *pgtest.Process) error { return p.Tell("exit") },
		"SIGTERM": func(p *pgtest.Process) error { return p.Signal(syscall.SIGTERM) },
	}, func(t *testing.T, end func(*pgtest.Process) error) {
		ctx := timed(t)
		dsn, key := ownDatabase(t, pgtest.Shared(t)), pgtest.Key(t)
		locker := newLocker(t, newPool(t, dsn), nil)
		elsewhere := acquired(ctx, t, locker, key+"-elsewhere")
		p := process(t, "leaver", dsn, key)
		_, err := p.Expect(ctx, "held")
		require.NoError(t, err)
		observer := pgtest.Pool(t, dsn)
		require.NoError(t, pgtest.WaitForWaiters(ctx, observer, 1))
		waiting := acquire(ctx, locker, key)
		require.NoError(t, pgtest.WaitForWaiters(ctx, observer, 2))
		require.NoError(t, end(p))
		<-p.Done() // the race detector has a process linger for a second
		begin := time.Now()
		out := await(t, "the lock of a process that is gone", waiting)
		took := out.at.Sub(begin)
		require.Less(t, took, time.Second)
		require.NoError(t, out.held(t).Release(ctx))
		require.NoError(t, elsewhere.Release(ctx))
		pgtest.NoAdvisoryLocks(t, observer)
		t.Logf("granted %v after the end of the process", took)
	})
}
