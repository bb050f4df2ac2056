//nolint:thelper // each and eachShape run these functions as subtests
package pglock_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// line is how a holder reaches the server: how it connects, and how the line is
// cut without a word to either end.
type line struct {
	pool     *pgxpool.Pool
	observer *pgxpool.Pool // which stays connected
	cut      func(context.Context) error
	heal     func(context.Context) error
}

// partition is what came of one cut. Times count from the last request of the
// holder that the server received: its send, within a millisecond or so.
type partition struct {
	cut, ended, granted time.Duration
}

func TestP3_CutOffHolderKnowsBeforeAnotherHolds(t *testing.T) {
	t.Parallel()
	proxy := func(t *testing.T) {
		eachShape(t, func(t *testing.T, config pglock.Config) {
			dsn := database(t)
			testPartitions(t, dsn, config, func(t *testing.T) line {
				t.Helper()
				pool, proxy := proxied(t, pgtest.Shared(t), dsn)
				return line{
					pool: pool,
					cut:  func(context.Context) error { proxy.BlackHole(); return nil },
					heal: func(context.Context) error { proxy.Heal(); return nil },
				}
			})
		})
	}
	namespaces := func(t *testing.T) {
		if err := pgtest.NetnsAvailable(t.Context()); err != nil {
			t.Logf("the proxy has shown it alone: %v", err)
			return
		}
		network, err := pgtest.NewNetwork(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, network.Close()) })
		s := pgtest.New(t, pgtest.Listen(network.ServerIP()))
		dsn := ownDatabase(t, s)
		testPartitions(t, dsn, pglock.Config{}, func(t *testing.T) line {
			t.Helper()
			host, err := network.NewHost(t.Context())
			require.NoError(t, err)
			inside := s.ViaHost(network.ServerIP(), databaseName(t, dsn))
			pool := newPool(t, inside, func(c *pgxpool.Config) { c.ConnConfig.DialFunc = host.Dial })
			return line{pool: pool, cut: func(ctx context.Context) error { return host.BlackHole(ctx) }, heal: host.Heal}
		})
	}
	together(t, map[string]func(*testing.T){"proxy": proxy, "network namespaces": namespaces})
}

// testPartitions cuts holders off, several at once and each at a random moment
// between two heartbeats, and prints when they knew and when others held.
func testPartitions(t *testing.T, dsn string, config pglock.Config, lay func(*testing.T) line) {
	t.Helper()
	const atOnce = 5
	config.Lease = 3 * time.Second
	runs := scaled(20, 100)
	others := newLocker(t, newPool(t, dsn), &pglock.Config{Lease: config.Lease, MaxSessions: 2 * atOnce, MaxWaiting: 2 * atOnce})
	var results []partition
	var mu sync.Mutex // guards results
	holders := map[string]func(*testing.T){}
	for i := range atOnce {
		holders["holder"+strconv.Itoa(i)] = func(t *testing.T) {
			w := lay(t)
			w.observer = pgtest.Pool(t, dsn)
			locker := newLocker(t, w.pool, &config)
			t.Cleanup(func() { require.NoError(t, w.heal(context.Background())) })
			for range runs / atOnce {
				p := cutOff(t, w, locker, others, config.Lease)
				mu.Lock()
				results = append(results, p)
				mu.Unlock()
			}
		}
	}
	together(t, holders)
	require.Len(t, results, runs)
	var ended, granted, ahead []time.Duration
	for _, p := range results {
		t.Logf("cut %8v after the last request: the holder knew at %v, another held at %v: %v later",
			p.cut.Round(time.Millisecond), p.ended.Round(time.Millisecond), p.granted.Round(time.Millisecond),
			(p.granted - p.ended).Round(time.Millisecond))
		ended, granted, ahead = append(ended, p.ended), append(granted, p.granted), append(ahead, p.granted-p.ended)
	}
	t.Logf("lease %v, trust %v: the holder knew: %s", config.Lease, config.Lease*4/5, percentiles(ended))
	t.Logf("another held: %s", percentiles(granted))
	t.Logf("ahead by min=%v %s", sorted(ahead)[0].Round(time.Millisecond), percentiles(ahead))
}

// cutOff lets a holder be cut off while another waits, and compares the end of
// the one's context with the other's grant.
func cutOff(t *testing.T, w line, locker, others *pglock.Locker, lease time.Duration) partition {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), scenarioTimeout)
	defer cancel()
	heartbeat, trust := lease/5, lease*4/5
	lock := acquired(ctx, t, locker, pgtest.Key(t))
	pid := holderPID(ctx, t, others, lock)
	ended := endOf(lock.Context())
	waiting := acquire(ctx, others, lock.Key())
	require.True(t, pause(ctx, heartbeat+rand.N(heartbeat))) // any phase
	require.NoError(t, w.cut(ctx))
	cut := time.Now()
	last := lastRequest(ctx, t, w.observer, pid)

	out := await(t, "the lock", waiting)
	next := out.held(t)
	require.NotEmpty(t, ended, "another holds the lock and the holder does not know")
	end := <-ended
	require.True(t, end.Before(out.at), "the holder knew %v late", end.Sub(out.at))
	require.ErrorIs(t, lock.Err(), pglock.ErrLost)
	p := partition{cut.Sub(last), end.Sub(last), out.at.Sub(last)}
	// The last request may be one whose answer was cut off; the one before it
	// was sent a heartbeat earlier, or a little more on a busy machine.
	require.Greater(t, p.ended, trust-heartbeat-heartbeat/2, "earlier than need be")
	require.GreaterOrEqual(t, p.granted, lease-5*time.Millisecond, "the server's lease was short")
	require.Less(t, p.granted, lease+heartbeat+time.Second)
	require.NoError(t, w.heal(ctx))
	require.ErrorIs(t, lock.Release(ctx), pglock.ErrLost)
	require.NoError(t, next.Release(ctx))
	return p
}

// lastRequest is when the backend received its last request, by the clock of
// this machine, which is the server's too.
func lastRequest(ctx context.Context, tb testing.TB, observer *pgxpool.Pool, pid int) (at time.Time) {
	tb.Helper()
	const sql = "SELECT query_start FROM pg_stat_activity WHERE pid = $1"
	require.NoError(tb, observer.QueryRow(ctx, sql, pid).Scan(&at))
	return at
}

// The exception: if the server itself ends the session while the holder cannot
// hear it, another may hold at once, and the fence protects.
func TestP3_FenceProtectsWhereTheServerEndsACutOffSession(t *testing.T) {
	t.Parallel()
	eachShape(t, func(t *testing.T, config pglock.Config) {
		ctx := timed(t)
		dsn := writable(t, pgtest.Shared(t))
		pool, proxy := proxied(t, pgtest.Shared(t), dsn)
		locker := newLocker(t, pool, &config)
		healAtEnd(t, proxy, pool)
		direct := newPool(t, dsn)
		others := newLocker(t, direct, nil)
		stale := acquired(ctx, t, locker, pgtest.Key(t))
		proxy.BlackHole()
		_, err := direct.Exec(ctx, "SELECT pg_terminate_backend($1)", holderPID(ctx, t, others, stale))
		require.NoError(t, err)
		next := acquired(ctx, t, others, stale.Key())
		require.NoError(t, next.Claim(ctx, direct, "resource"))
		require.NoError(t, stale.Err(), "it cannot know")
		err = stale.FencedTx(ctx, direct, "resource", func(tx pgx.Tx) error { return write(ctx, tx, "stale") })
		require.ErrorIs(t, err, pglock.ErrStaleToken)
		require.NoError(t, next.Release(ctx))
		proxy.Heal()
		await(t, "the end of the stale holder's context", stale.Context().Done())
		require.ErrorIs(t, stale.Release(ctx), pglock.ErrLost)
	})
}
