package pglock_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

const (
	// failoverDB is the database that has pglock in the tests of failover.
	failoverDB = "app"
	// lag is how many tokens a lagging standby has not heard of: more than what
	// one record of a sequence reserves, 32, so that a plain sequence goes back.
	lag = 120
)

// patient is the test's context, bounded: a test of failover starts several
// servers, each a copy of another.
func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*scenarioTimeout)
	t.Cleanup(cancel)
	return ctx
}

// newPrimary is a server with pglock, a plain sequence beside it, and a table.
func newPrimary(t *testing.T) *pgtest.Server {
	t.Helper()
	s := pgtest.New(t)
	require.NoError(t, s.Exec(t.Context(), "", "CREATE DATABASE "+failoverDB))
	require.NoError(t, migrate(s.DSN(failoverDB)))
	require.NoError(t, s.Exec(t.Context(), failoverDB, plainSequence+"; CREATE TABLE public.rows (token bigint)"))
	return s
}

// newLagging is a standby that has all that the primary wrote up to now, and
// hears nothing of what it writes from now on.
func newLagging(t *testing.T, primary *pgtest.Server) *pgtest.Standby {
	t.Helper()
	standby := pgtest.NewStandby(t, primary, pgtest.StandbyConfig{})
	require.NoError(t, standby.AwaitCaughtUp(t.Context()))
	require.NoError(t, standby.PauseReceive(t.Context()))
	return standby
}

// acquireSoon waits for the lock in a goroutine.
func acquireSoon(ctx context.Context, locker *pglock.Locker, key string) <-chan answer {
	acquired := make(chan answer, 1)
	go func() {
		lock, err := locker.Acquire(ctx, key)
		acquired <- answer{lock, err}
	}()
	return acquired
}

// hold takes the free lock and remembers its token.
func (h *histories) hold(ctx context.Context, t *testing.T, locker *pglock.Locker) *pglock.Lock {
	t.Helper()
	began := time.Now()
	lock, err := locker.TryAcquire(ctx, h.key)
	require.NoError(t, err)
	h.granted.add(began, lock.Token())
	return lock
}

// writeRow writes by the lock's token alone, as a holder does that does not know
// yet that it has lost the lock. It returns what the fence says.
func writeRow(ctx context.Context, pool *pgxpool.Pool, lock *pglock.Lock, resource string) error {
	return pglock.Fencer{}.FencedTx(ctx, pool, lock.Token(), resource, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO public.rows VALUES ($1)", lock.Token())
		return err
	})
}

// requireLostBy waits until the lock is lost and returns how long that took.
func requireLostBy(t *testing.T, lock *pglock.Lock, since time.Time) time.Duration {
	t.Helper()
	select {
	case <-lock.Context().Done():
	case <-time.After(scenarioTimeout):
		require.Fail(t, "the holder was not told")
	}
	took := time.Since(since)
	require.ErrorIs(t, context.Cause(lock.Context()), pglock.ErrLost)
	require.ErrorIs(t, lock.Err(), pglock.ErrLost)
	require.Less(t, took, pglock.DefaultLease/3, "the socket tells, not the lease")
	return took.Round(10 * time.Microsecond)
}

// The primary dies, and a standby that lags by more than a hundred tokens takes
// its place. Services name both servers in their DSN.
func TestP6_FailoverWithTheOldPrimaryGone(t *testing.T) {
	t.Parallel()
	ctx := patient(t)
	primary := newPrimary(t)
	h := histories{key: pgtest.Key(t)}
	resource := h.key
	h.grow(t, primary.DSN(failoverDB), 10)
	standby := newLagging(t, primary)
	h.grow(t, primary.DSN(failoverDB), lag)

	both := pgtest.MultiHostDSN(failoverDB, "read-write", primary, standby.Server)
	pool := newPool(t, both)
	holder, next := newLocker(t, pool, nil), newLocker(t, newPool(t, both), nil)
	first := h.hold(ctx, t, holder)
	require.NoError(t, first.Claim(ctx, pool, resource)) // the standby does not hear of it
	began := time.Now()
	acquired := acquireSoon(ctx, next, h.key)
	awaitWaiter(t, next, h.key)

	killed := time.Now()
	require.NoError(t, primary.Kill(ctx))
	noticed := requireLostBy(t, first, killed)
	require.NoError(t, standby.Promote(ctx))
	promoted := time.Now()
	got := <-acquired
	require.NoError(t, got.err, "who waits goes on with the new primary")
	if got.lock.Verify(ctx) != nil { // granted by the old primary, whose processes did not all die at once
		require.ErrorIs(t, got.lock.Err(), pglock.ErrLost)
		began = time.Now()
		got = <-acquireSoon(ctx, next, h.key)
		require.NoError(t, got.err)
	}
	second := got.lock
	h.granted.add(began, second.Token())
	t.Logf("token %d was lost %v after the kill; token %d was granted %v after the promotion",
		first.Token(), noticed, second.Token(), time.Since(promoted).Round(time.Millisecond))

	// The fence of the new primary has not heard of the first, and lets it in
	// until the second has claimed.
	pool.Reset()
	require.NoError(t, writeRow(ctx, pool, first, resource))
	require.NoError(t, second.Claim(ctx, pool, resource))
	err := writeRow(ctx, pool, first, resource)
	require.ErrorIs(t, err, pglock.ErrStaleToken)
	t.Log("after the claim:", err)
	require.NoError(t, writeRow(ctx, pool, second, resource))
	require.Equal(t, 2, count(t, pool, "SELECT count(*) FROM public.rows"))

	require.ErrorIs(t, first.Release(ctx), pglock.ErrLost)
	require.NoError(t, second.Release(ctx))
	h.grow(t, standby.DSN(failoverDB), 10)
	h.requireOrder(t)
}

// The standby is promoted and nobody tells the old primary, which goes on
// answering its holder. Two hold the lock; that much a lock cannot help. The
// tokens and the fence of the database that counts decide.
func TestP6_FailoverWithTheOldPrimaryAnsweringItsHolder(t *testing.T) {
	t.Parallel()
	ctx := patient(t)
	primary := newPrimary(t)
	h := histories{key: pgtest.Key(t)}
	resource := h.key
	h.grow(t, primary.DSN(failoverDB), 10)
	standby := newLagging(t, primary)
	h.grow(t, primary.DSN(failoverDB), lag)
	oldPool, newer := newPool(t, primary.DSN(failoverDB)), newPool(t, standby.DSN(failoverDB))
	old, next := newLocker(t, oldPool, nil), newLocker(t, newer, nil)

	first := h.hold(ctx, t, old)
	require.NoError(t, first.Claim(ctx, oldPool, resource))
	_, err := next.TryAcquire(ctx, h.key)
	require.ErrorIs(t, err, pglock.ErrReadOnly, "it is a standby still")
	require.NoError(t, standby.Promote(ctx))
	second := h.hold(ctx, t, next)
	for _, lock := range []*pglock.Lock{first, second} {
		require.NoError(t, lock.Verify(ctx), "each primary has a holder")
	}
	require.Greater(t, second.Token(), first.Token())
	t.Logf("two terms at once: token %d on the old primary, %d on the new one", first.Token(), second.Token())

	require.NoError(t, writeRow(ctx, newer, first, resource), "before the claim")
	require.NoError(t, second.Claim(ctx, newer, resource))
	err = writeRow(ctx, newer, first, resource)
	require.ErrorIs(t, err, pglock.ErrStaleToken)
	t.Log("on the new primary:", err)
	require.NoError(t, writeRow(ctx, newer, second, resource))
	// What goes to the old primary is accepted there, and lost with it.
	require.NoError(t, first.FencedTx(ctx, oldPool, resource, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO public.rows VALUES ($1)", first.Token())
		return err
	}))
	require.Equal(t, 2, count(t, newer, "SELECT count(*) FROM public.rows"))

	stopped := time.Now()
	require.NoError(t, primary.Stop(ctx))
	t.Logf("the first term ended %v after the old primary was told to stop", requireLostBy(t, first, stopped))
	require.NoError(t, second.Verify(ctx))
	require.NoError(t, second.Release(ctx))
	h.grow(t, standby.DSN(failoverDB), 10)
	h.requireOrder(t)
}

// Two lagging standbys are promoted one after the other. One Locker that names
// all three servers lives through it.
func TestP6_FailoverTwiceUnderOneLocker(t *testing.T) {
	t.Parallel()
	ctx := patient(t)
	primary := newPrimary(t)
	h := histories{key: pgtest.Key(t)}
	h.grow(t, primary.DSN(failoverDB), 10)
	one, two := newLagging(t, primary), newLagging(t, primary)
	pool := newPool(t, pgtest.MultiHostDSN(failoverDB, "read-write", primary, one.Server, two.Server))
	locker := newLocker(t, pool, nil)

	h.grow(t, primary.DSN(failoverDB), lag)
	terms := []*pglock.Lock{h.hold(ctx, t, locker)}
	before := primary
	for _, standby := range []*pgtest.Standby{one, two} {
		killed := time.Now()
		require.NoError(t, before.Kill(ctx))
		requireLostBy(t, terms[len(terms)-1], killed)
		began := time.Now()
		acquired := acquireSoon(ctx, locker, h.key)
		h.laterReign(t, standby.DSN(failoverDB))
		require.NoError(t, standby.Promote(ctx))
		got := <-acquired
		require.NoError(t, got.err)
		h.granted.add(began, got.lock.Token())
		t.Logf("token %d %v after the kill of the server that granted %d",
			got.lock.Token(), time.Since(killed).Round(time.Millisecond), terms[len(terms)-1].Token())
		terms = append(terms, got.lock)
		require.NoError(t, h.nextPlain(ctx, newPool(t, standby.DSN(failoverDB))))
		before = standby.Server
	}
	last := terms[len(terms)-1]
	pool.Reset()
	require.NoError(t, last.Claim(ctx, pool, h.key))
	for _, lock := range terms[:len(terms)-1] {
		require.ErrorIs(t, pglock.Fencer{}.Claim(ctx, pool, lock.Token(), h.key), pglock.ErrStaleToken)
	}
	require.NoError(t, last.Release(ctx))
	h.requireOrder(t)
}

// A switchover there and back: the old primary comes back as a standby under its
// old address, and later as the primary again. Nothing lags.
func TestP6_FailoverThereAndBackOverADemotedPrimary(t *testing.T) {
	t.Parallel()
	ctx := patient(t)
	primary := newPrimary(t)
	standby := pgtest.NewStandby(t, primary, pgtest.StandbyConfig{})
	address := pgtest.ProxyTo(t, primary)
	both := strings.Replace(pgtest.MultiHostDSN(failoverDB, "read-write", primary, standby.Server),
		primary.Addr(), address.Addr(), 1)
	locker := newLocker(t, newPool(t, both), nil)
	h := histories{key: pgtest.Key(t)}
	first := h.hold(ctx, t, locker)

	stopped := time.Now()
	require.NoError(t, standby.AwaitCaughtUp(ctx))
	require.NoError(t, primary.Stop(ctx))
	lost := requireLostBy(t, first, stopped)
	require.NoError(t, standby.Promote(ctx))
	began := time.Now()
	second, err := locker.Acquire(ctx, h.key)
	require.NoError(t, err)
	h.granted.add(began, second.Token())
	t.Logf("token %d was lost %v after the primary was told to stop, token %d came %v after the promotion",
		first.Token(), lost, second.Token(), time.Since(began).Round(time.Millisecond))

	demoted := pgtest.NewStandby(t, standby.Server, pgtest.StandbyConfig{})
	address.SetUpstream(demoted.Addr())
	old := newLocker(t, newPool(t, primary.Via(address.Addr(), failoverDB)), nil)
	_, err = old.TryAcquire(ctx, h.key)
	require.ErrorIs(t, err, pglock.ErrReadOnly, "the old address leads to a standby now")
	t.Log(err)
	_, err = newLocker(t, newPool(t, both), nil).TryAcquire(ctx, h.key)
	require.ErrorIs(t, err, pglock.ErrNotAcquired, "the DSN with both finds the holder's server")

	began = time.Now()
	acquired := acquireSoon(ctx, old, h.key) // it waits for the standby to become the primary
	require.NoError(t, demoted.AwaitCaughtUp(ctx))
	stopped = time.Now()
	require.NoError(t, standby.Stop(ctx))
	requireLostBy(t, second, stopped)
	require.NoError(t, demoted.Promote(ctx))
	got := <-acquired
	require.NoError(t, got.err)
	h.granted.add(began, got.lock.Token())
	require.NoError(t, got.lock.Release(ctx))
	require.NoError(t, h.hold(ctx, t, locker).Release(ctx))
	require.NoError(t, h.granted.check())
	t.Logf("%d terms over two switchovers, tokens up to %d strictly increasing", h.granted.len(), h.granted.last())
}

// With a synchronous standby a fenced write or a claim is on both servers when
// it returns: the fence forgets nothing in a failover.
func TestP7_FailoverToASynchronousStandbyKeepsTheFence(t *testing.T) {
	t.Parallel()
	ctx := patient(t)
	primary := newPrimary(t)
	standby := pgtest.NewStandby(t, primary, pgtest.StandbyConfig{Synchronous: true})
	pool := newPool(t, pgtest.MultiHostDSN(failoverDB, "read-write", primary, standby.Server))
	locker := newLocker(t, pool, nil)
	h := histories{key: pgtest.Key(t)}
	first := h.hold(ctx, t, locker)
	require.NoError(t, first.Claim(ctx, pool, h.key))
	terminateHolder(t, locker, h.key)
	<-first.Context().Done()
	began := time.Now()
	second, err := locker.Acquire(ctx, h.key)
	require.NoError(t, err)
	h.granted.add(began, second.Token())
	require.NoError(t, second.Claim(ctx, pool, h.key))

	killed := time.Now()
	require.NoError(t, primary.Kill(ctx))
	requireLostBy(t, second, killed)
	require.NoError(t, standby.Promote(ctx))
	pool.Reset()
	err = pglock.Fencer{}.Claim(ctx, pool, first.Token(), h.key)
	require.ErrorIs(t, err, pglock.ErrStaleToken, "with nobody having claimed on the new primary")
	t.Log(err)
	require.NoError(t, h.hold(ctx, t, locker).Release(ctx))
	require.NoError(t, h.granted.check())
}

// While the synchronous standby is away every commit that must reach it waits.
// Locks do not: not their draw, not their release, not the first one of a new
// life of the server.
func TestP6_FailoverOfASynchronousStandbyHoldsUpNoLock(t *testing.T) {
	t.Parallel()
	ctx := patient(t)
	primary := newPrimary(t)
	standby := pgtest.NewStandby(t, primary, pgtest.StandbyConfig{Synchronous: true})
	pool := newPool(t, primary.DSN(failoverDB))
	locker := newLocker(t, pool, nil)
	h := histories{key: pgtest.Key(t)}
	require.NoError(t, standby.PauseReceive(ctx))

	lock := h.hold(ctx, t, locker)
	claimed := make(chan error, 1)
	go func() { claimed <- lock.Claim(ctx, pool, h.key) }()
	pgtest.Eventually(t, "the claim to wait for the standby", func() bool {
		return count(t, pool, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == 1
	})
	other, err := locker.TryAcquire(ctx, h.key+" another")
	require.NoError(t, err)
	require.Greater(t, other.Token(), lock.Token())
	require.NoError(t, other.Release(ctx))
	require.NoError(t, lock.Verify(ctx))
	require.NoError(t, standby.ResumeReceive(ctx))
	require.NoError(t, <-claimed, "the standby has it now")

	require.NoError(t, standby.PauseReceive(ctx))
	require.NoError(t, lock.Release(ctx))
	require.NoError(t, primary.Restart(ctx))
	began := time.Now()
	lock, err = locker.Acquire(ctx, h.key)
	require.NoError(t, err)
	h.granted.add(began, lock.Token())
	t.Logf("with the standby away: token %d, in the first acquire of the server's next life, after %v",
		lock.Token(), time.Since(began).Round(time.Millisecond))
	require.NoError(t, lock.Release(ctx))
	require.NoError(t, h.granted.check())
}
