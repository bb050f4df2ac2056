//nolint:thelper // each and eachShape run these functions as subtests
package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// scaled is the first number, or the second in make faults, which sets
// PGLOCK_TEST_FULL.
func scaled[T any](usual, full T) T {
	if os.Getenv("PGLOCK_TEST_FULL") == "" {
		return usual
	}
	return full
}

// together runs subtests at the same time, whatever -parallel says: they wait
// more than they work.
func together(t *testing.T, tests map[string]func(*testing.T)) {
	t.Helper()
	var all sync.WaitGroup
	for name, test := range tests {
		all.Go(func() { t.Run(name, test) })
	}
	all.Wait()
}

// each is together for the rows of a table.
func each[T any](t *testing.T, table map[string]T, test func(*testing.T, T)) {
	t.Helper()
	tests := map[string]func(*testing.T){}
	for name, row := range table {
		tests[name] = func(t *testing.T) { test(t, row) }
	}
	together(t, tests)
}

// eachShape runs the test for locks with a session each, and for locks that
// share one.
func eachShape(t *testing.T, test func(t *testing.T, config pglock.Config)) {
	t.Helper()
	each(t, map[string]pglock.Config{
		"LocksPerSession=1":    {LocksPerSession: 1},
		"LocksPerSession=1000": {LocksPerSession: 1000},
	}, test)
}

// through makes a pool connect to another address than its DSN says.
func through(tb testing.TB, addr string) func(*pgxpool.Config) {
	tb.Helper()
	host, port, err := net.SplitHostPort(addr)
	require.NoError(tb, err)
	n, err := strconv.ParseUint(port, 10, 16)
	require.NoError(tb, err)
	return func(c *pgxpool.Config) { c.ConnConfig.Host, c.ConnConfig.Port = host, uint16(n) }
}

// proxied is a pool whose connections go through a proxy, and the proxy.
func proxied(tb testing.TB, s *pgtest.Server, dsn string) (*pgxpool.Pool, *pgtest.Proxy) {
	tb.Helper()
	proxy := pgtest.ProxyTo(tb, s)
	return newPool(tb, dsn, through(tb, proxy.Addr())), proxy
}

// healAtEnd heals the proxy before the test's Lockers are closed, and lets the
// pool take in what it was connecting meanwhile.
func healAtEnd(tb testing.TB, proxy *pgtest.Proxy, pool *pgxpool.Pool) {
	tb.Helper()
	tb.Cleanup(func() {
		proxy.Heal()
		pgtest.Eventually(tb, "the pool to settle", func() bool {
			return pool.Stat().AcquiredConns() == 0 && pool.Stat().ConstructingConns() == 0
		})
	})
}

// await receives, and fails the test if nothing comes in a minute.
func await[T any](tb testing.TB, what string, c <-chan T) T {
	tb.Helper()
	timer := time.NewTimer(scenarioTimeout)
	defer timer.Stop()
	var value T
	select {
	case value = <-c:
	case <-timer.C:
		require.Fail(tb, "nothing came", what)
	}
	return value
}

// pause waits for time itself; it reports whether ctx has not ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// acquire starts an Acquire and returns where its outcome will come.
func acquire(ctx context.Context, locker *pglock.Locker, key string) <-chan outcome {
	out := make(chan outcome, 1)
	acquireTo(ctx, locker, key, out)
	return out
}

// acquireTo is acquire for many, whose outcomes come in any order.
func acquireTo(ctx context.Context, locker *pglock.Locker, key string, out chan<- outcome) {
	go func() {
		lock, err := locker.Acquire(ctx, key)
		out <- outcome{lock, err, time.Now()}
	}()
}

// outcome is what an Acquire returned, and when.
type outcome struct {
	lock *pglock.Lock
	err  error
	at   time.Time
}

func (o outcome) held(tb testing.TB) *pglock.Lock {
	tb.Helper()
	require.NoError(tb, o.err)
	return o.lock
}

// endOf tells when a context has ended.
func endOf(ctx context.Context) <-chan time.Time {
	at := make(chan time.Time, 1)
	context.AfterFunc(ctx, func() { at <- time.Now() })
	return at
}

func TestP12_SlowNetworkCostsNoLock(t *testing.T) {
	t.Parallel()
	eachShape(t, func(t *testing.T, config pglock.Config) {
		const locks = 8
		config.Lease, config.MaxSessions = 9*time.Second, locks
		ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
		defer cancel()
		pool, proxy := proxied(t, pgtest.Shared(t), database(t))
		locker := newLocker(t, pool, &config)
		key := pgtest.Key(t)
		held := make([]*pglock.Lock, locks)
		for i := range held {
			held[i] = acquired(ctx, t, locker, key+strconv.Itoa(i))
		}
		before := proxy.Counts()
		slow(proxy, config.Lease/3)
		require.True(t, pause(ctx, scaled(time.Minute, 5*time.Minute)))
		requireHeld(t, held)
		t.Logf("%d locks, round trips up to %v: %d heartbeats, no loss", locks, config.Lease/3,
			proxy.Counts().Since(before).RoundTrips())
		slow(proxy, 0)
		releaseAll(ctx, t, held)
	})
}

// slow makes round trips take up to the given time.
func slow(proxy *pgtest.Proxy, roundTrip time.Duration) {
	for _, d := range []pgtest.Direction{pgtest.ToServer, pgtest.ToClient} {
		proxy.Delay(d, func() time.Duration { return rand.N(roundTrip/2 + 1) })
	}
}

func acquired(ctx context.Context, tb testing.TB, locker *pglock.Locker, key string) *pglock.Lock {
	tb.Helper()
	lock, err := locker.Acquire(ctx, key)
	require.NoError(tb, err)
	return lock
}

func requireHeld(tb testing.TB, locks []*pglock.Lock) {
	tb.Helper()
	for _, lock := range locks {
		require.NoError(tb, lock.Err())
		require.NoError(tb, context.Cause(lock.Context()))
	}
}

func releaseAll(ctx context.Context, tb testing.TB, locks []*pglock.Lock) {
	tb.Helper()
	var all sync.WaitGroup
	errs := make([]error, len(locks))
	for i, lock := range locks {
		all.Go(func() { errs[i] = lock.Release(ctx) })
	}
	all.Wait()
	require.NoError(tb, errors.Join(errs...))
}

// One heartbeat that goes missing, whether on the way there or on the way back,
// is made up for by the next.
func TestP12_LostHeartbeatCostsNoLock(t *testing.T) {
	t.Parallel()
	each(t, map[string]int{"request": 0, "half a request": 7, "answer": pgtest.WholeMessage}, func(t *testing.T, pass int) {
		ctx := timed(t)
		config := pglock.Config{Lease: 3 * time.Second}
		pool, proxy := proxied(t, pgtest.Shared(t), database(t))
		lock := acquired(ctx, t, newLocker(t, pool, &config), pgtest.Key(t))
		for range 3 {
			sprung := proxy.Set(pgtest.Trap{Type: pgtest.TypeQuery, Contains: ".work(", Pass: pass})
			conn := await(t, "a heartbeat", sprung)
			require.True(t, pause(ctx, config.Lease/5))
			conn.Heal()
			require.NoError(t, lock.Verify(ctx))
		}
		require.NoError(t, lock.Release(ctx))
	})
}

func init() {
	roles = append(roles, pgtest.Role{Name: "steady", Run: steady})
}

// steady holds locks until it is told to release them, and says how that went.
func steady(ctx context.Context, self *pgtest.Self) error {
	n, err := strconv.Atoi(self.Arg("LOCKS_PER_SESSION"))
	if err != nil {
		return err
	}
	locker, pool, err := open(ctx, self, &pglock.Config{LocksPerSession: n})
	if err != nil {
		return err
	}
	defer pool.Close()
	var locks [3]*pglock.Lock
	for i := range locks {
		if locks[i], err = locker.Acquire(ctx, self.Arg("KEY")+strconv.Itoa(i)); err != nil {
			return err
		}
	}
	self.Say("held")
	if _, err := self.Hear(); err != nil {
		return err
	}
	for _, lock := range locks {
		err = errors.Join(err, lock.Err(), lock.Verify(ctx), lock.Release(ctx))
	}
	self.Say("steady", err == nil, err)
	return locker.Close(ctx)
}

func TestP12_StalledProcessCostsNoLock(t *testing.T) {
	t.Parallel()
	eachShape(t, func(t *testing.T, config pglock.Config) {
		const stall = 2 * time.Second
		ctx := t.Context()
		s := pgtest.Shared(t)
		proxy := pgtest.ProxyTo(t, s)
		dsn := s.Via(proxy.Addr(), databaseName(t, database(t)))
		p := process(t, "steady", dsn, pgtest.Key(t), fmt.Sprintf("LOCKS_PER_SESSION=%d", config.LocksPerSession))
		_, err := p.Expect(ctx, "held")
		require.NoError(t, err)
		slow(proxy, pglock.DefaultLease/3)
		stalls := 0
		for end := time.Now().Add(scaled(time.Minute, 5*time.Minute)); time.Now().Before(end); stalls++ {
			require.NoError(t, p.Freeze())
			require.True(t, pause(ctx, stall))
			require.NoError(t, p.Thaw())
			// Of two stalls so far apart a heartbeat meets one at most.
			require.True(t, pause(ctx, pglock.DefaultLease*2/3+rand.N(time.Second)))
		}
		slow(proxy, 0)
		require.NoError(t, p.Tell("release"))
		said, err := p.Expect(ctx, "steady")
		require.NoError(t, err)
		require.Equal(t, "true <nil>", said)
		t.Logf("round trips up to %v and %d stalls of %v: no loss", pglock.DefaultLease/3, stalls, stall)
	})
}
