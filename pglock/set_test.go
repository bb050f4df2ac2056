package pglock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// shapes are the two ways in which sessions are used; what holds for one holds for the other.
var shapes = map[string]pglock.Config{
	"a session per lock": {},
	"shared sessions":    {LocksPerSession: 1000},
}

func keysOf(t *testing.T, n int) []string {
	t.Helper()
	prefix := pgtest.Key(t)
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s/%d", prefix, i)
	}
	return keys
}

func TestTryAcquireAllTakesAllOrNone(t *testing.T) {
	t.Parallel()
	for name, config := range shapes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours, pool := newLocker(t, &config)
			theirs, _ := newLocker(t, &config)
			keys := keysOf(t, 20)
			one, err := theirs.TryAcquire(t.Context(), keys[7])
			require.NoError(t, err)

			_, err = ours.TryAcquireAll(t.Context(), keys...)
			require.ErrorIs(t, err, pglock.ErrNotAcquired)
			for i, key := range keys {
				if i == 7 {
					continue
				}
				lock, err := theirs.TryAcquire(t.Context(), key)
				require.NoError(t, err, "a refused set has left %s locked", key)
				require.NoError(t, lock.Release(t.Context()))
			}
			require.NoError(t, one.Release(t.Context()))

			set, err := ours.TryAcquireAll(t.Context(), append(keys, keys[3], keys[3])...)
			require.NoError(t, err)
			require.ElementsMatch(t, keys, set.Keys())
			tokens := map[int64]bool{}
			for _, key := range keys {
				require.Positive(t, set.Token(key))
				tokens[set.Token(key)] = true
				_, err := theirs.TryAcquire(t.Context(), key)
				require.ErrorIs(t, err, pglock.ErrNotAcquired)
				holders, err := ours.Holders(t.Context(), key)
				require.NoError(t, err)
				require.Len(t, holders, 1)
			}
			require.Len(t, tokens, len(keys), "one token per key")
			require.Zero(t, set.Token("another"))
			require.Equal(t, 1, ours.Stat().Sessions)
			require.NoError(t, set.Verify(t.Context()))
			require.NoError(t, set.FencedTx(t.Context(), pool, func(pgx.Tx) error { return nil }))
			require.NoError(t, set.Release(t.Context()))
			require.NoError(t, set.Release(t.Context()))
			require.ErrorIs(t, set.Err(), pglock.ErrReleased)
			require.ErrorIs(t, context.Cause(set.Context()), pglock.ErrReleased)
			for _, key := range keys {
				lock, err := theirs.TryAcquire(t.Context(), key)
				require.NoError(t, err)
				require.NoError(t, lock.Release(t.Context()))
			}
		})
	}
}

func TestAcquireAllWaitsForTheOneThatIsHeld(t *testing.T) {
	t.Parallel()
	for name, config := range shapes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours, _ := newLocker(t, &config)
			theirs, _ := newLocker(t, &config)
			keys := keysOf(t, 10)
			for _, held := range []string{keys[0], keys[5], keys[9]} {
				one, err := theirs.TryAcquire(t.Context(), held)
				require.NoError(t, err)
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				_, err = ours.AcquireAll(ctx, keys...)
				cancel()
				require.ErrorIs(t, err, pglock.ErrNotAcquired)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Zero(t, ours.Stat().Held)

				got := make(chan *pglock.LockSet, 1)
				go func() {
					set, err := ours.AcquireAll(t.Context(), keys...)
					if err != nil {
						t.Error(err)
					}
					got <- set
				}()
				require.NoError(t, pgtest.Poll(t.Context(), "a waiter", func() bool { return ours.Stat().Waiters > 0 }))
				require.NoError(t, one.Release(t.Context()))
				set := <-got
				require.NoError(t, set.Verify(t.Context()))
				require.NoError(t, set.Release(t.Context()))
			}
		})
	}
}

func TestTenThousandKeysInFewRoundTrips(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t, pgtest.Setting("max_locks_per_transaction", "1024"))
	dsn := pgtest.NewDatabase(t, s)
	proxy := pgtest.ProxyTo(t, s)
	pool := pgtest.Pool(t, dsn, func(c *pgxpool.Config) {
		via, err := pgxpool.ParseConfig(s.Via(proxy.Addr(), c.ConnConfig.Database))
		require.NoError(t, err)
		c.ConnConfig = via.ConnConfig
	})
	locker, err := pglock.New(pool, nil)
	require.NoError(t, err)
	defer closeLocker(t, locker)
	require.NoError(t, locker.Migrate(t.Context()))
	keys := keysOf(t, 10_000)
	warm := pool.AcquireAllIdle(t.Context())
	another, err := pool.Acquire(t.Context()) // so that the pool need not replace the one that the set takes
	require.NoError(t, err)
	for _, conn := range append(warm, another) {
		conn.Release()
	}
	before := proxy.Counts()
	start := time.Now()
	set, err := locker.AcquireAll(t.Context(), keys...)
	require.NoError(t, err)
	trips := proxy.Counts().Since(before).RoundTrips()
	t.Logf("10,000 keys in %v and %d round trips", time.Since(start).Round(time.Millisecond), trips)
	require.LessOrEqual(t, trips, 4)
	require.NoError(t, set.Release(t.Context()))

	_, err = locker.TryAcquireAll(t.Context(), keysOf(t, 200_000)...)
	require.ErrorIs(t, err, pglock.ErrTooManyLocks)
}

func TestTryAcquireSomeTakesFreeShards(t *testing.T) {
	t.Parallel()
	for name, config := range shapes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			shards := keysOf(t, 100)
			held := map[string]bool{}
			for range 4 {
				worker, _ := newLocker(t, &config)
				locks, err := worker.TryAcquireSome(t.Context(), 30, shards...)
				require.NoError(t, err)
				for _, lock := range locks {
					require.False(t, held[lock.Key()], "%s is held twice", lock.Key())
					held[lock.Key()] = true
				}
				require.Equal(t, 1, worker.Stat().Sessions)
				require.Equal(t, len(locks), worker.Stat().Held)
			}
			require.Len(t, held, 100, "30, 30, 30 and the last 10")
			_, err := func() ([]*pglock.Lock, error) {
				worker, _ := newLocker(t, &config)
				locks, err := worker.TryAcquireSome(t.Context(), 1, shards...)
				require.Empty(t, locks)
				return locks, err
			}()
			require.NoError(t, err)
		})
	}
}

func TestSetsRefuseBadInput(t *testing.T) {
	t.Parallel()
	locker, _ := newLocker(t, nil)
	_, err := locker.AcquireAll(t.Context())
	require.ErrorIs(t, err, pglock.ErrInvalidKey)
	_, err = locker.TryAcquireAll(t.Context(), "good", "")
	require.ErrorIs(t, err, pglock.ErrInvalidKey)
	_, err = locker.TryAcquireSome(t.Context(), 0, "good")
	require.ErrorContains(t, err, "positive")
	require.Zero(t, locker.Stat().Held)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = locker.AcquireAll(ended, "good")
	require.ErrorIs(t, err, context.Canceled)
	err = locker.Do(t.Context(), pgtest.Key(t), func(ctx context.Context, lock *pglock.Lock) error {
		_, err := locker.AcquireAll(ctx, "another", lock.Key())
		return err
	})
	require.ErrorIs(t, err, pglock.ErrDeadlock)
}

// overlap is how much is asked of TestOverlappingSetsDoNotDeadlock.
type overlap struct {
	workers, keys     int
	smallest, largest int // set
	sets              int // of each worker, or
	lasts             time.Duration
	patience          time.Duration // for one set
}

func overlapWanted() overlap {
	if os.Getenv("PGLOCK_TEST_FULL") == "1" {
		return overlap{workers: 32, keys: 40, smallest: 1, largest: 20, lasts: time.Minute, patience: time.Minute}
	}
	return overlap{workers: 8, keys: 8, smallest: 3, largest: 7, sets: 10, patience: 10 * time.Second}
}

// TestOverlappingSetsDoNotDeadlock also shows that it can tell: in the order in which the keys come the workers block each
// other until their patience is over.
func TestOverlappingSetsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	for name, inOrder := range map[string]bool{"in the order of lock IDs": true, "in any order": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, pgtest.Database(t))
			o := &overlapping{overlap: overlapWanted()}
			if !inOrder {
				o.sets, o.lasts, o.patience = 2, 0, 5*time.Second
			}
			o.names = keysOf(t, o.keys)
			o.holders = make([]atomic.Int32, o.keys)
			var workers sync.WaitGroup
			for range 2 {
				locker, err := pglock.New(pool, &pglock.Config{MaxSessions: o.workers, MaxWaiting: 4})
				require.NoError(t, err)
				require.NoError(t, locker.Migrate(t.Context()))
				if !inOrder {
					pglock.Unordered(locker)
				}
				begin := time.Now()
				for range o.workers / 2 {
					workers.Go(func() {
						for n := 0; n < o.sets || time.Since(begin) < o.lasts; n++ {
							o.work(t, locker)
						}
					})
				}
				t.Cleanup(func() { require.NoError(t, locker.Close(context.Background())) })
			}
			workers.Wait()
			t.Logf("%d workers: %d sets acquired, the slowest after %v; %d waits ended by their deadline",
				o.workers, o.done.Load(), time.Duration(o.slowest.Load()).Round(time.Millisecond), o.gaveUp.Load())
			if inOrder {
				require.Zero(t, o.gaveUp.Load())
				require.GreaterOrEqual(t, int(o.done.Load()), o.workers*max(1, o.sets))
			} else {
				require.Positive(t, o.gaveUp.Load())
			}
		})
	}
}

// overlapping is workers that want sets of the same keys.
type overlapping struct {
	overlap
	names   []string
	holders []atomic.Int32

	done, gaveUp atomic.Int32
	slowest      atomic.Int64 // acquire
}

// work acquires a random set, looks whether anybody else is in it, and releases it.
func (o *overlapping) work(t *testing.T, locker *pglock.Locker) {
	t.Helper()
	indexes := rand.Perm(len(o.names))[:o.smallest+rand.N(o.largest-o.smallest+1)]
	wanted := make([]string, len(indexes))
	for i, index := range indexes {
		wanted[i] = o.names[index]
	}
	ctx, cancel := context.WithTimeout(t.Context(), o.patience)
	defer cancel()
	begin := time.Now()
	set, err := locker.AcquireAll(ctx, wanted...)
	if err != nil {
		o.gaveUp.Add(1)
		return
	}
	for took := int64(time.Since(begin)); ; {
		if slowest := o.slowest.Load(); took <= slowest || o.slowest.CompareAndSwap(slowest, took) {
			break
		}
	}
	for _, index := range indexes {
		if n := o.holders[index].Add(1); n != 1 {
			t.Errorf("%d holders of %s", n, o.names[index])
		}
	}
	for _, index := range indexes {
		o.holders[index].Add(-1)
	}
	if err := set.Release(t.Context()); err != nil {
		t.Error(err)
	}
	o.done.Add(1)
}

// TestSetThatIsStaleSaysWhichKey sets the fence of one key above its token, as a later holder would.
func TestSetThatIsStaleSaysWhichKey(t *testing.T) {
	t.Parallel()
	tracer := &staleTracer{}
	locker, pool := newLocker(t, &pglock.Config{Tracer: tracer})
	keys := keysOf(t, 3)
	set, err := locker.AcquireAll(t.Context(), keys...)
	require.NoError(t, err)
	require.NoError(t, locker.Fencer().Claim(t.Context(), pool, set.Token(keys[1])+1000, keys[1]))
	err = set.FencedTx(t.Context(), pool, func(pgx.Tx) error {
		t.Error("the fence let it pass")
		return nil
	})
	require.ErrorIs(t, err, pglock.ErrStaleToken)
	var lockErr *pglock.LockError
	require.ErrorAs(t, err, &lockErr)
	require.Equal(t, keys[1], lockErr.Key)
	require.Equal(t, []string{keys[1]}, tracer.keys)
	require.NoError(t, set.Release(t.Context()))
}

// staleTracer notes whose writes the fence refused.
type staleTracer struct{ keys []string }

func (*staleTracer) TraceAcquireStart(ctx context.Context, _ pglock.TraceAcquireStartData) context.Context {
	return ctx
}
func (*staleTracer) TraceAcquireEnd(context.Context, pglock.TraceAcquireEndData) {}
func (s *staleTracer) TraceStaleToken(_ context.Context, data pglock.TraceStaleTokenData) {
	s.keys = append(s.keys, data.Key)
}
