package pglock_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// TestOneSharedSessionBeatsStatementsOneAtATime measures cycles of acquire and release on one connection against the bare
// statements on one, interleaved, and compares the medians.
func TestOneSharedSessionBeatsStatementsOneAtATime(t *testing.T) {
	locker, pool := newLocker(t, &pglock.Config{LocksPerSession: 1000, MaxSessions: 1})
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	const rounds, cycles = 3, 4000
	bare := func() float64 {
		start := time.Now()
		for i := range cycles / 10 {
			_, err := conn.Conn().PgConn().Exec(t.Context(),
				"SELECT nextval('pglock.tokens') WHERE pg_try_advisory_lock("+strconv.Itoa(i)+")").ReadAll()
			require.NoError(t, err)
			_, err = conn.Conn().PgConn().Exec(t.Context(), "SELECT pg_advisory_unlock("+strconv.Itoa(i)+")").ReadAll()
			require.NoError(t, err)
		}
		return cycles / 10 / time.Since(start).Seconds()
	}
	for _, c := range []struct {
		goroutines int
		atLeast    float64
	}{{1, 0}, {8, 0}, {64, 5}, {256, 10}} {
		var ratios []float64
		for range rounds {
			reference := bare()
			ratios = append(ratios, cyclesPerSecond(t, locker, c.goroutines, cycles)/reference)
		}
		ratio := median(ratios)
		t.Logf("%3d goroutines: %.1f times the bare statements", c.goroutines, ratio)
		require.GreaterOrEqual(t, ratio, c.atLeast*raceAllowance, "%d goroutines", c.goroutines)
	}
}

// cyclesPerSecond runs about the given number of cycles on keys of their own.
func cyclesPerSecond(t *testing.T, locker *pglock.Locker, goroutines, cycles int) float64 {
	t.Helper()
	var wg sync.WaitGroup
	each := max(1, cycles/goroutines)
	start := time.Now()
	for g := range goroutines {
		wg.Go(func() {
			key := "throughput/" + strconv.Itoa(g)
			for range each {
				lock, err := locker.TryAcquire(t.Context(), key)
				if err != nil {
					t.Error(err)
					return
				}
				if err := lock.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	return float64(each*goroutines) / time.Since(start).Seconds()
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// TestHundredThousandLocks holds that many on 100 sessions: memory per lock, and the cost of one more beside them. The
// server's lock table is raised for it. A session of its own for all of them would not do: PostgreSQL looks at every lock
// of a session at the end of each of its transactions.
func TestHundredThousandLocks(t *testing.T) {
	const many = 100_000
	s := pgtest.New(t, pgtest.Setting("max_locks_per_transaction", "2048"), pgtest.Setting("max_connections", "150"))
	pool := pgtest.Pool(t, pgtest.NewDatabase(t, s))
	locker, err := pglock.New(pool, &pglock.Config{
		LocksPerSession: 1000, MaxSessions: 105, MaxLocks: 2 * many, Lease: time.Minute, ReleaseTimeout: 30 * time.Second,
	})
	require.NoError(t, err)
	defer closeLocker(t, locker)
	require.NoError(t, locker.Migrate(t.Context()))
	cost := func() float64 {
		best := 0.0
		for range 3 {
			best = max(best, cyclesPerSecond(t, locker, 64, 6400))
		}
		return best
	}
	alone := cost()
	keys := make([]string, many)
	for i := range keys {
		keys[i] = fmt.Sprintf("held/%06d", i)
	}
	before := pgtest.Heap()
	locks := make([]*pglock.Lock, 0, many)
	start := time.Now()
	for from := 0; from < many; from += 1000 {
		more, err := locker.TryAcquireSome(t.Context(), 1000, keys[from:from+1000]...)
		require.NoError(t, err)
		require.Len(t, more, 1000)
		locks = append(locks, more...)
	}
	took := time.Since(start)
	perLock := float64(pgtest.Heap()-before) / many
	beside := cost()
	t.Logf("%d locks in %v, %.0f bytes each; cycles a second alone %.0f, beside them %.0f", many, took.Round(time.Millisecond), perLock, alone, beside)
	require.LessOrEqual(t, perLock, 1000.0)
	require.Greater(t, beside/alone, 0.75*raceAllowance)
	require.Equal(t, many, locker.Stat().Held)
	require.LessOrEqual(t, locker.Stat().Sessions, 102)
	start = time.Now()
	require.NoError(t, locker.Close(context.Background()))
	t.Logf("all released in %v", time.Since(start).Round(time.Millisecond))
	require.ErrorIs(t, locks[many-1].Err(), pglock.ErrReleased)
}
