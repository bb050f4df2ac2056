package pglock_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// wire is a database of the test's own behind a proxy that counts.
type wire struct {
	proxy *pgtest.Proxy
	dsn   string // by way of the proxy
	near  string // past it
}

func newWire(tb testing.TB) *wire {
	tb.Helper()
	s := pgtest.Shared(tb)
	w := &wire{proxy: pgtest.ProxyTo(tb, s), near: ownDatabase(tb, s)}
	w.dsn = s.Via(w.proxy.Addr(), databaseName(tb, w.near))
	return w
}

// pool is a pool whose connections are warm. It does not ping those that were
// idle for a while, which would count as a round trip of ours.
func (w *wire) pool(tb testing.TB, conns int32) *pgxpool.Pool {
	tb.Helper()
	pool := newPool(tb, w.dsn, func(c *pgxpool.Config) {
		c.MaxConns = conns
		c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	})
	warm := make([]*pgxpool.Conn, conns)
	for i := range warm {
		var err error
		warm[i], err = pool.Acquire(tb.Context())
		require.NoError(tb, err)
	}
	for _, conn := range warm {
		conn.Release()
	}
	return pool
}

// during is what went through the proxy while f ran.
func (w *wire) during(f func()) pgtest.Counts {
	before := w.proxy.Counts()
	f()
	return w.proxy.Counts().Since(before)
}

// requireOne fails the test unless one message that is a request of its own was
// sent and answered, on a connection that was there.
func requireOne(tb testing.TB, seen pgtest.Counts, what string) {
	tb.Helper()
	require.Zero(tb, seen.Connections, "new connections: %s", what)
	require.Equal(tb, 1, seen.RoundTrips(), "round trips: %s", what)
	require.Equal(tb, 1, seen.FromClient[pgtest.TypeQuery]+seen.FromClient[pgtest.TypeFunctionCall], "messages: %s", what)
	for typ, n := range seen.FromClient {
		if typ != pgtest.TypeQuery && typ != pgtest.TypeFunctionCall && typ != 'X' { // X ends the connection
			require.Zero(tb, n, "messages of type %q: %s", typ, what)
		}
	}
}

func TestP8_WarmTryIsOneRoundTrip(t *testing.T) {
	t.Parallel()
	const rounds = 5
	ctx := timed(t)
	w := newWire(t)
	key := pgtest.Key(t)
	try, release := make([]time.Duration, 0, rounds), make([]time.Duration, 0, rounds)
	for range rounds {
		pool := w.pool(t, 2) // one is locked on, and closed; while there is another it is not replaced
		locker := newLocker(t, pool, nil)
		var lock *pglock.Lock
		// What the session does for itself then is kept from the server until
		// TryAcquire has returned.
		next := w.proxy.Set(pgtest.Trap{Type: pgtest.TypeFunctionCall})
		seen := w.during(func() {
			var err error
			began := time.Now()
			lock, err = locker.TryAcquire(ctx, key)
			try = append(try, time.Since(began))
			require.NoError(t, err)
		})
		require.Zero(t, seen.Connections)
		require.Equal(t, 1, seen.RoundTrips(), "TryAcquire")
		await(t, "the trap", next).Heal()
		require.NoError(t, lock.Verify(ctx)) // comes after it
		seen = w.during(func() { require.NoError(t, lock.Verify(ctx)) })
		requireOne(t, seen, "Verify")
		seen = w.during(func() {
			_, err := locker.TryAcquire(ctx, key)
			require.ErrorIs(t, err, pglock.ErrNotAcquired)
			require.NoError(t, lock.Err())
		})
		require.Zero(t, seen.RoundTrips(), "what this process knows needs no server")
		seen = w.during(func() {
			began := time.Now()
			require.NoError(t, lock.Release(ctx))
			release = append(release, time.Since(began))
		})
		requireOne(t, seen, "Release")
	}
	t.Logf("ReadyForQuery messages: TryAcquire 1, Verify 1, Release 1; TryAcquire %s; Release %s", percentiles(try), percentiles(release))
}

// awaitIdle returns when no connection of the pool is in use: a try's answer may
// come a moment before its connection is back.
func awaitIdle(tb testing.TB, pool *pgxpool.Pool) {
	tb.Helper()
	pgtest.Eventually(tb, "the pool to have its connection back", func() bool { return pool.Stat().AcquiredConns() == 0 })
}

func TestP8_ContendedTryOpensNothingAndBurnsNoToken(t *testing.T) {
	t.Parallel()
	const tries = 50
	ctx := timed(t)
	w := newWire(t)
	observer := newPool(t, w.near)
	key := pgtest.Key(t)
	holder, err := newLocker(t, newPool(t, w.near), nil).TryAcquire(ctx, key)
	require.NoError(t, err)
	pool := w.pool(t, 1)
	locker := newLocker(t, pool, nil)

	// session is what somebody has done to the pool's one connection.
	session := func() (state string) {
		const sql = `SELECT format('backend %s, locks %s, set by hand: %s', pg_backend_pid(),
			(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
			(SELECT string_agg(name || '=' || setting, ' ' ORDER BY name) FROM pg_settings WHERE source = 'session'))`
		require.NoError(t, pool.QueryRow(ctx, sql).Scan(&state))
		return state
	}
	// burnt is the state of the sequence of tokens.
	burnt := func() (state string) {
		require.NoError(t, observer.QueryRow(ctx, "SELECT last_value || ' ' || is_called FROM pglock.tokens").Scan(&state))
		return state
	}
	before, tokens := session(), burnt()
	took := make([]time.Duration, 0, tries)
	for range tries {
		awaitIdle(t, pool)
		seen := w.during(func() {
			began := time.Now()
			_, err := locker.TryAcquire(ctx, key)
			took = append(took, time.Since(began))
			require.ErrorIs(t, err, pglock.ErrNotAcquired)
		})
		requireOne(t, seen, "a contended TryAcquire")
	}
	require.Equal(t, before, session(), "the connection is as it was")
	require.Equal(t, tokens, burnt(), "tokens")
	require.EqualValues(t, 1, pool.Stat().NewConnsCount())
	require.NoError(t, holder.Verify(ctx))
	next, err := newLocker(t, newPool(t, w.near), nil).TryAcquire(ctx, key+" another")
	require.NoError(t, err)
	require.Equal(t, holder.Token()+1, next.Token())
	t.Logf("the connection before and after: %s", before)
	t.Logf("%d contended tries: 1 round trip each, no connection, no token; %s", tries, percentiles(took))
	require.NoError(t, next.Release(ctx))
	require.NoError(t, holder.Release(ctx))
}

func TestP8_ReleaseWorksWhenItsCtxIsOverAndTwice(t *testing.T) {
	t.Parallel()
	ctx := timed(t)
	pool := newPool(t, database(t))
	locker, other := newLocker(t, pool, nil), newLocker(t, pool, nil)
	key := pgtest.Key(t)
	ended, end := context.WithCancel(ctx)
	end()
	for range 5 {
		short, done := context.WithCancel(ctx)
		lock, err := locker.TryAcquire(short, key)
		require.NoError(t, err)
		done() // the acquire's ctx is the acquire's alone
		require.NoError(t, lock.Context().Err())
		require.NoError(t, lock.Verify(ctx))

		var all sync.WaitGroup
		failures := make(chan error, 5)
		for range cap(failures) {
			all.Go(func() { failures <- lock.Release(ended) })
		}
		all.Wait()
		for range cap(failures) {
			require.NoError(t, <-failures)
		}
		require.ErrorIs(t, context.Cause(lock.Context()), pglock.ErrReleased)
		require.ErrorIs(t, lock.Verify(ctx), pglock.ErrReleased)
		require.ErrorIs(t, lock.Claim(ctx, pool, key), pglock.ErrReleased)
		again, err := other.TryAcquire(ctx, key) // it is free when Release has returned
		require.NoError(t, err)
		require.NoError(t, lock.Release(ctx))
		require.NoError(t, again.Verify(ctx))
		require.NoError(t, again.Release(ctx))
	}
}

// Wherever an acquire on a session that is open is when its ctx ends, it
// returns soon, and the session hears the answer.
func TestP8_AcquireEndsWithItsCtxOnAParkedSession(t *testing.T) {
	t.Parallel()
	request := pgtest.Trap{Type: pgtest.TypeFunctionCall, Skip: 1} // the first is the release
	half := request
	half.Pass = 7
	each(t, map[string]pgtest.Trap{
		"before the request": request,
		"in the request":     half,
		"before the answer":  {Direction: pgtest.ToClient, Type: 'V', Skip: 1},
	}, requireHeard)
}

// requireHeard cancels an acquire in the trap, on a session that is open.
func requireHeard(t *testing.T, trap pgtest.Trap) {
	t.Helper()
	ctx, dsn, key := timed(t), database(t), pgtest.Key(t)
	pool, proxy := proxied(t, pgtest.Shared(t), dsn)
	locker := newLocker(t, pool, &pglock.Config{MaxIdleSessions: 1})
	before := acquired(ctx, t, locker, key)
	trap.PID = uint32(holderPID(ctx, t, locker, before))
	sprung := proxy.Set(trap)
	require.NoError(t, before.Release(ctx))
	mine, cancel := context.WithCancel(ctx)
	waiting := acquire(mine, locker, key)
	conn := await(t, "the trap", sprung)
	took := requireEnds(t, cancel, waiting)
	conn.Heal()
	pgtest.Eventually(t, "the session to be parked again", func() bool { return locker.Stat().IdleSessions == 1 })
	pgtest.NoAdvisoryLocks(t, pgtest.Pool(t, dsn), lockID(t, key))
	after := acquired(ctx, t, locker, key)
	require.EqualValues(t, 1, locker.Stat().SessionsOpened, "the session has heard the answer")
	require.Greater(t, after.Token(), before.Token())
	require.NoError(t, after.Release(ctx))
	t.Logf("returned %v after the end of its ctx", took)
}
