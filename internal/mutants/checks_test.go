// Package main_test has the checks that catch mutants which other tests meet by
// chance or in minutes: each brings about the one moment in which a promise
// would break.
package main_test

import (
	"context"
	"log/slog"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// patience is how long something may take that should come soon.
const patience = 15 * time.Second

func timed(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 2*patience)
	tb.Cleanup(cancel)
	return ctx
}

// newLocker is a Locker on the DSN, with a pool of its own.
func newLocker(tb testing.TB, dsn string, config pglock.Config) *pglock.Locker {
	tb.Helper()
	config.Logger = slog.New(slog.DiscardHandler)
	locker, err := pglock.New(pgtest.Pool(tb, dsn), &config)
	require.NoError(tb, err)
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(tb, locker.Close(ctx))
	})
	return locker
}

// migrated is the package's database once pglock is in it.
var migrated sync.Once

func database(tb testing.TB) string {
	tb.Helper()
	dsn := pgtest.Database(tb)
	migrated.Do(func() { require.NoError(tb, newLocker(tb, dsn, pglock.Config{}).Migrate(tb.Context())) })
	return dsn
}

// ownDatabase is a database with pglock on s.
func ownDatabase(tb testing.TB, s *pgtest.Server) (dsn, name string) {
	tb.Helper()
	dsn = pgtest.NewDatabase(tb, s)
	require.NoError(tb, newLocker(tb, dsn, pglock.Config{}).Migrate(tb.Context()))
	config, err := pgx.ParseConfig(dsn)
	require.NoError(tb, err)
	return dsn, config.Database
}

// answer is what an Acquire came to, and when.
type answer struct {
	lock *pglock.Lock
	err  error
	at   time.Time
}

func acquire(ctx context.Context, locker *pglock.Locker, key string) <-chan answer {
	answers := make(chan answer, 1)
	go func() {
		lock, err := locker.Acquire(ctx, key)
		answers <- answer{lock, err, time.Now()}
	}()
	return answers
}

// await is the next value of the channel, which should come soon.
func await[T any](tb testing.TB, what string, values <-chan T) (value T) {
	tb.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case value = <-values:
	case <-timer.C:
		require.Fail(tb, "it did not come: "+what)
	}
	return value
}

// granted awaits a lock.
func granted(tb testing.TB, answers <-chan answer) answer {
	tb.Helper()
	got := await(tb, "the lock", answers)
	require.NoError(tb, got.err)
	return got
}

// pause waits for time itself to pass.
func pause(tb testing.TB, d time.Duration) {
	tb.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-tb.Context().Done():
	}
}

func requireFree(tb testing.TB, locker *pglock.Locker, key string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	lock, err := locker.Acquire(ctx, key)
	require.NoError(tb, err, "the lock is free")
	require.NoError(tb, lock.Release(ctx))
}

// Answers take a second, the heartbeat after the last answer is lost. Counted
// from the receipt of that answer, trust would outlive the lease.
func TestP3_TrustCountsFromTheSend(t *testing.T) {
	t.Parallel()
	const lease, slow = 3 * time.Second, time.Second
	ctx, key := timed(t), pgtest.Key(t)
	dsn := database(t)
	config, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	proxy := pgtest.ProxyTo(t, pgtest.Shared(t))
	cutOff := newLocker(t, pgtest.Shared(t).Via(proxy.Addr(), config.Database), pglock.Config{Lease: lease})
	t.Cleanup(proxy.Heal)
	lock, err := cutOff.TryAcquire(ctx, key)
	require.NoError(t, err)
	ended := make(chan time.Time, 1)
	context.AfterFunc(lock.Context(), func() { ended <- time.Now() })
	proxy.Delay(pgtest.ToClient, func() time.Duration { return slow })
	cut := proxy.Set(pgtest.Trap{Type: pgtest.TypeQuery, Contains: ".work(", Skip: 1})
	acquired := acquire(ctx, newLocker(t, dsn, pglock.Config{}), key)
	await(t, "the second heartbeat", cut)
	began := time.Now()
	got := granted(t, acquired)
	require.NotEmpty(t, ended, "another holds the lock, and the holder that was cut off does not know")
	end := <-ended
	require.True(t, end.Before(got.at), "the holder knew %v late", end.Sub(got.at))
	require.ErrorIs(t, lock.Err(), pglock.ErrLost)
	t.Logf("lease %v, answers %v late: the holder knew %v after the cut, another held %v later",
		lease, slow, end.Sub(began).Round(time.Millisecond), got.at.Sub(end).Round(time.Millisecond))
	require.NoError(t, got.lock.Release(ctx))
}

// The first message of a heartbeat arrives, and nothing of what comes after it.
func TestP4_NoMomentWithoutATimer(t *testing.T) {
	t.Parallel()
	const lease = 1500 * time.Millisecond
	ctx, key := timed(t), pgtest.Key(t)
	dsn := database(t)
	config, err := pgx.ParseConfig(dsn)
	require.NoError(t, err)
	proxy := pgtest.ProxyTo(t, pgtest.Shared(t))
	cutOff := newLocker(t, pgtest.Shared(t).Via(proxy.Addr(), config.Database), pglock.Config{Lease: lease})
	t.Cleanup(proxy.Heal)
	cut := proxy.Set(pgtest.Trap{Contains: ".work(", Pass: pgtest.WholeMessage})
	_, err = cutOff.TryAcquire(ctx, key)
	require.NoError(t, err)
	await(t, "a heartbeat", cut)
	began := time.Now()
	got := granted(t, acquire(ctx, newLocker(t, dsn, pglock.Config{}), key))
	t.Logf("lease %v: another held the lock %v after the cut", lease, got.at.Sub(began).Round(time.Millisecond))
	require.Less(t, got.at.Sub(began), 3*lease)
	require.NoError(t, got.lock.Release(ctx))
}

func TestP12_HeartbeatsKeepALock(t *testing.T) {
	t.Parallel()
	const lease = 2 * time.Second
	ctx := timed(t)
	lock, err := newLocker(t, database(t), pglock.Config{Lease: lease}).TryAcquire(ctx, pgtest.Key(t))
	require.NoError(t, err)
	pause(t, 2*lease)
	require.NoError(t, lock.Err())
	require.NoError(t, lock.Verify(ctx))
	require.NoError(t, lock.Release(ctx))
}

func TestP5_HolderWhoseSessionIsEndedIsTold(t *testing.T) {
	t.Parallel()
	ctx, key := timed(t), pgtest.Key(t)
	locker := newLocker(t, database(t), pglock.Config{})
	lock, err := locker.TryAcquire(ctx, key)
	require.NoError(t, err)
	ended := lock.Context().Done()
	holders, err := locker.Holders(ctx, key)
	require.NoError(t, err)
	require.Len(t, holders, 1)
	began := time.Now()
	require.NoError(t, locker.Terminate(ctx, holders[0]))
	await(t, "the end of the lock's context", ended)
	t.Logf("told after %v", time.Since(began).Round(10*time.Microsecond))
	require.ErrorIs(t, lock.Err(), pglock.ErrLost)
	require.ErrorIs(t, lock.Release(ctx), pglock.ErrLost)
}

func TestP5_WaiterWhoseSessionIsEndedGoesOn(t *testing.T) {
	t.Parallel()
	ctx, key := timed(t), pgtest.Key(t)
	dsn, _ := ownDatabase(t, pgtest.Shared(t))
	observer := pgtest.Pool(t, dsn)
	holder, err := newLocker(t, dsn, pglock.Config{}).TryAcquire(ctx, key)
	require.NoError(t, err)
	acquired := acquire(ctx, newLocker(t, dsn, pglock.Config{MaxWaiting: 1}), key)
	require.NoError(t, pgtest.WaitForWaiters(ctx, observer, 1))
	_, err = observer.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
	require.NoError(t, err)
	require.NoError(t, holder.Release(ctx))
	require.NoError(t, granted(t, acquired).lock.Release(ctx))
}

// Something has unlocked what the session held: here the function that unlocks.
func TestP5_ReleaseOfALockThatIsGoneSaysLost(t *testing.T) {
	t.Parallel()
	ctx := timed(t)
	s := pgtest.Shared(t)
	dsn, name := ownDatabase(t, s)
	locker := newLocker(t, dsn, pglock.Config{LocksPerSession: 10})
	lock, err := locker.TryAcquire(ctx, pgtest.Key(t))
	require.NoError(t, err)
	set, err := newLocker(t, dsn, pglock.Config{LocksPerSession: 10}).AcquireAll(ctx, pgtest.Key(t)+"1", pgtest.Key(t)+"2")
	require.NoError(t, err)
	require.NoError(t, s.Exec(ctx, name, `SET allow_system_table_mods = on;
		ALTER FUNCTION pg_catalog.pg_advisory_unlock(bigint) RENAME TO pg_advisory_unlock_real;
		CREATE FUNCTION pg_catalog.pg_advisory_unlock(key bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
			PERFORM pg_advisory_unlock_all();
			RETURN pg_advisory_unlock_real(key);
		END $$;
		CREATE OR REPLACE FUNCTION pglock.unlock_one(pid integer, key bigint, clean boolean) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN
			RETURN pg_advisory_unlock(key)::integer; -- planned anew
		END $$`))
	require.ErrorIs(t, lock.Release(ctx), pglock.ErrLost)
	require.ErrorIs(t, set.Release(ctx), pglock.ErrLost)
}

func TestP7_RaiseWaitsForAnOpenFencedTransaction(t *testing.T) {
	t.Parallel()
	ctx, resource := timed(t), pgtest.Key(t)
	pool := pgtest.Pool(t, database(t), func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = "raise" })
	fencer := pglock.Fencer{}
	require.NoError(t, fencer.Claim(ctx, pool, 5, resource))
	tx, err := pool.Begin(ctx)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	require.NoError(t, fencer.Fence(ctx, tx, 5, resource)) // equal: it writes nothing
	raised := make(chan error, 1)
	go func() { raised <- fencer.Claim(ctx, pool, 6, resource) }()
	pgtest.Eventually(t, "the higher token to wait", func() bool {
		require.Empty(t, raised, "a higher token passed while a write with the lower one was under way")
		var waiting bool
		const sql = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'raise')"
		require.NoError(t, pool.QueryRow(ctx, sql).Scan(&waiting))
		return waiting
	})
	require.NoError(t, tx.Commit(ctx))
	require.NoError(t, await(t, "the claim", raised))
}

func TestP10_PoolersAreRefused(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	_, name := ownDatabase(t, s)
	for _, mode := range []pgtest.PoolMode{pgtest.TransactionPooling, pgtest.SessionPooling} {
		bouncer := pgtest.PgBouncerTo(t, s, mode, nil)
		_, err := newLocker(t, bouncer.DSN(name), pglock.Config{}).TryAcquire(timed(t), pgtest.Key(t))
		require.ErrorIs(t, err, pglock.ErrPooler, "%s", mode)
	}
}

// race is a waiter whose slice times out in the moment in which it is granted the
// lock: its backend is stopped while the holder releases and while its time runs
// out, and finds both when it goes on.
type race struct {
	key     string
	others  *pglock.Locker
	waiter  *pglock.Locker // with room for one parked session
	giveUp  context.CancelFunc
	waiting <-chan answer
	goOn    func()
}

func newRace(t *testing.T) race {
	t.Helper()
	const slice = 400 * time.Millisecond // or less
	ctx := timed(t)
	s := pgtest.New(t)
	dsn, _ := ownDatabase(t, s)
	observer := pgtest.Pool(t, dsn)
	r := race{key: pgtest.Key(t), others: newLocker(t, dsn, pglock.Config{}), waiter: newLocker(t, dsn, pglock.Config{MaxIdleSessions: 1})}
	holder, err := r.others.TryAcquire(ctx, r.key)
	require.NoError(t, err)
	short, giveUp := context.WithCancel(ctx)
	t.Cleanup(giveUp)
	r.giveUp, r.waiting = giveUp, acquire(short, r.waiter, r.key)

	// waits reports whether a backend waits, and which.
	waits := func(sql string) (pid int, ok bool) {
		err := observer.QueryRow(ctx, "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND "+sql).Scan(&pid)
		return pid, err == nil
	}
	var pid int
	require.NoError(t, pgtest.Poll(ctx, "a backend that stops within its slice", func() (ok bool) {
		if pid, ok = waits("NOT granted"); !ok {
			return false
		}
		require.NoError(t, s.SignalBackend(ctx, pid, syscall.SIGSTOP))
		if _, ok = waits("NOT granted"); !ok {
			require.NoError(t, s.SignalBackend(ctx, pid, syscall.SIGCONT))
		}
		return ok
	}))
	r.goOn = func() { require.NoError(t, s.SignalBackend(ctx, pid, syscall.SIGCONT)) }
	require.NoError(t, holder.Release(ctx))
	pause(t, slice)
	got, ok := waits("granted")
	require.True(t, ok)
	require.Equal(t, pid, got, "it was granted the lock while it was stopped")
	return r
}

// Nobody wants the grant any more; the session that has it is parked.
func TestP8_GrantThatRacedItsSliceIsNotLeftBehind(t *testing.T) {
	t.Parallel()
	r := newRace(t)
	r.giveUp()
	require.ErrorIs(t, await(t, "the end of the wait", r.waiting).err, pglock.ErrNotAcquired)
	r.goOn()
	requireFree(t, r.others, r.key)
	pgtest.Eventually(t, "the session to be parked", func() bool { return r.waiter.Stat().IdleSessions == 1 })
}

// The server counts such a lock twice.
func TestP8_ReleaseOfAGrantThatRacedItsSliceFreesTheLock(t *testing.T) {
	t.Parallel()
	r := newRace(t)
	r.goOn()
	require.NoError(t, granted(t, r.waiting).lock.Release(t.Context()))
	require.Equal(t, 1, r.waiter.Stat().IdleSessions)
	requireFree(t, r.others, r.key)
}
