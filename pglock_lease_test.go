//nolint:thelper // each and eachShape run these functions as subtests
package pglock_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// testLease is short, so that many leases run out in a test, and long enough for
// a machine that stalls.
const testLease = 3 * time.Second

func init() {
	roles = append(roles, pgtest.Role{Name: "frozen", Run: frozen})
}

// frozen is a holder that does what it is told, one line at a time, and says
// what came of it. DIRECT is where it writes, without a proxy in between.
func frozen(ctx context.Context, self *pgtest.Self) error {
	n, err := strconv.Atoi(self.Arg("LOCKS_PER_SESSION"))
	if err != nil {
		return err
	}
	locker, _, err := open(ctx, self, &pglock.Config{Lease: testLease, LocksPerSession: n, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	db, err := pgxpool.New(ctx, self.Arg("DIRECT"))
	if err != nil {
		return err
	}
	lock, err := locker.Acquire(ctx, self.Arg("KEY"))
	if err != nil {
		return err
	}
	self.Say("held", lock.Token())
	for {
		order, err := self.Hear()
		if err != nil {
			return err
		}
		switch order {
		case "err":
			err = lock.Err()
		case "release":
			err = lock.Release(ctx)
		case "write":
			err = lock.FencedTx(ctx, db, self.Arg("KEY"), func(tx pgx.Tx) error { return write(ctx, tx, "frozen") })
		case "write late": // as if it had not looked at the clock
			err = pglock.Fencer{}.FencedTx(ctx, db, lock.Token(), self.Arg("KEY"), func(tx pgx.Tx) error { return write(ctx, tx, "frozen") })
		case "write in two steps":
			err = lock.FencedTx(ctx, db, self.Arg("KEY"), func(tx pgx.Tx) error { return writeInTwoSteps(ctx, self, tx, lock) })
		}
		self.Say(order+":", verdict(err))
	}
}

func writeInTwoSteps(ctx context.Context, self *pgtest.Self, tx pgx.Tx, lock *pglock.Lock) error {
	if err := write(ctx, tx, "frozen"); err != nil {
		return err
	}
	self.Say("inside")
	if _, err := self.Hear(); err != nil {
		return err
	}
	self.Say("err:", verdict(lock.Err()))
	return write(ctx, tx, "frozen")
}

func write(ctx context.Context, tx pgx.Tx, by string) error {
	_, err := tx.Exec(ctx, "INSERT INTO public.written(by) VALUES ($1)", by)
	return err
}

// verdict is an error in a word.
func verdict(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, pglock.ErrLost):
		return "lost"
	case errors.Is(err, pglock.ErrStaleToken):
		return "stale"
	}
	return "failed: " + err.Error()
}

// A freeze is a moment at which a holder's process is stopped, and what it says
// when it goes on.
type freeze struct {
	before   []string                                     // what it is told to do first
	trap     func(key string) *pgtest.Trap                // where its connection stops, if in the middle of a message
	until    func(context.Context, *pgtest.Process) error // when it is there, if not by the trap
	after    map[string]string                            // what it is told then, and its answer
	released string                                       // what its release returns
}

func TestP4_FrozenHolderBlocksForALeaseAtMost(t *testing.T) {
	t.Parallel()
	middle := func(contains string, pass int) func(string) *pgtest.Trap {
		return func(key string) *pgtest.Trap {
			if contains == "" { // the call that names the lock
				id := binary.BigEndian.AppendUint64(nil, uint64(lockID(t, key)))
				return &pgtest.Trap{Type: pgtest.TypeFunctionCall, Contains: string(id), Pass: pass}
			}
			return &pgtest.Trap{Type: pgtest.TypeQuery, Contains: contains, Pass: pass}
		}
	}
	lost := map[string]string{"err": "lost"}
	each(t, map[string]freeze{
		"idle":                                  {after: lost},
		"in the middle of a heartbeat":          {trap: middle(".work(", 7), after: lost},
		"before the answer to a heartbeat":      {trap: middle(".work(", pgtest.WholeMessage), after: lost},
		"in the middle of a release":            {before: []string{"release"}, trap: middle("", 7), released: "lost"},
		"before the answer to a release":        {before: []string{"release"}, trap: middle("", pgtest.WholeMessage), released: "ok"},
		"in the middle of a fenced transaction": {before: []string{"write in two steps"}, until: inside},
	}, func(t *testing.T, f freeze) {
		for _, n := range []int{1, 1000} { // one after the other, lest the machine's own pace be measured
			s := pgtest.Shared(t)
			testFrozen(t, s, writable(t, s), pglock.Config{LocksPerSession: n}, f)
		}
	})
}

func inside(ctx context.Context, p *pgtest.Process) error {
	_, err := p.Expect(ctx, "inside")
	return err
}

// writable is a database with a table for write.
func writable(t *testing.T, s *pgtest.Server) string {
	t.Helper()
	dsn := ownDatabase(t, s)
	require.NoError(t, s.Exec(t.Context(), databaseName(t, dsn), "CREATE TABLE public.written(by text)"))
	return dsn
}

// testFrozen freezes a holder as f says until another holds the lock and has
// written, wakes it, and looks at what it still believes and does.
func testFrozen(t *testing.T, s *pgtest.Server, dsn string, config pglock.Config, f freeze) {
	ctx, key := timed(t), pgtest.Key(t)
	proxy := pgtest.ProxyTo(t, s)
	p := process(t, "frozen", s.Via(proxy.Addr(), databaseName(t, dsn)), key, "DIRECT="+dsn,
		fmt.Sprintf("LOCKS_PER_SESSION=%d", config.LocksPerSession))
	token, err := p.Expect(ctx, "held")
	require.NoError(t, err)
	config.Lease = testLease
	pool := newPool(t, dsn, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["synchronous_commit"] = "local" })
	locker := newLocker(t, pool, &config)
	waiting := acquire(ctx, locker, key)
	require.NoError(t, pool.Ping(ctx)) // a connection for the successor's write

	var sprung <-chan *pgtest.ProxyConn
	if f.trap != nil {
		sprung = proxy.Set(*f.trap(key))
	}
	for _, order := range f.before {
		require.NoError(t, p.Tell(order))
	}
	switch {
	case f.trap != nil:
		await(t, "the trap", sprung)
	case f.until != nil:
		require.NoError(t, f.until(ctx, p))
	}
	require.NoError(t, p.Freeze())
	begin := time.Now()
	out := await(t, "the lock", waiting)
	lock := out.held(t)
	require.NoError(t, lock.FencedTx(ctx, pool, key, func(tx pgx.Tx) error { return write(ctx, tx, "successor") }))
	wrote := time.Since(begin)
	require.Less(t, out.at.Sub(begin), testLease+time.Second)
	require.Less(t, wrote, testLease+time.Second)
	t.Logf("frozen for %v: another held the lock after %v and had written after %v", time.Since(begin), out.at.Sub(begin), wrote)
	require.Equal(t, token, strconv.FormatInt(lock.Token()-1, 10))

	proxy.Heal()
	requireAwake(ctx, t, p, f)
	require.NoError(t, lock.Err())
	require.NoError(t, lock.Release(ctx))
	require.NoError(t, p.Kill())
	rows, err := pool.Query(ctx, "SELECT by FROM public.written")
	require.NoError(t, err)
	writers, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Equal(t, []string{"successor"}, writers, "what the frozen one wrote late was rejected")
}

// requireAwake wakes the process and fails the test unless its very next call
// says what it must. The order for that waits for it when it wakes.
func requireAwake(ctx context.Context, t *testing.T, p *pgtest.Process, f freeze) {
	t.Helper()
	heard := func(word string) string {
		said, err := p.Expect(ctx, word)
		require.NoError(t, err)
		return said
	}
	for order := range f.after {
		require.NoError(t, p.Tell(order))
	}
	if f.until != nil {
		require.NoError(t, p.Tell("go on"))
	}
	require.NoError(t, p.Thaw())
	for order, want := range f.after {
		require.Equal(t, want, heard(order+":"))
	}
	switch {
	case f.until != nil:
		require.Equal(t, "lost", heard("err:"))
		said, err := p.Expect(ctx, "write")
		require.NoError(t, err)
		require.NotContains(t, said, ": ok", "the transaction was ended by the server")
	case len(f.before) > 0:
		require.Equal(t, f.released, heard("release:"))
		return
	}
	require.NoError(t, p.Tell("write"))
	require.Equal(t, "lost", heard("write:"))
	require.NoError(t, p.Tell("write late"))
	said, err := p.Expect(ctx, "write")
	require.NoError(t, err)
	require.Equal(t, "late: stale", said)
}

// With a synchronous standby down every commit that waits for it hangs; no lock
// may hang with it.
func TestP4_FrozenHolderWithTheSynchronousStandbyDown(t *testing.T) { //nolint:tparallel // they write into one table
	t.Parallel()
	ctx := timed(t)
	primary := pgtest.New(t)
	dsn, err := primary.CreateDatabase(ctx) // not to be dropped, which would wait for the standby
	require.NoError(t, err)
	require.NoError(t, migrate(dsn))
	require.NoError(t, primary.Exec(ctx, databaseName(t, dsn), "CREATE TABLE public.written(by text)"))
	sb := pgtest.NewStandby(t, primary, pgtest.StandbyConfig{Synchronous: true})
	require.NoError(t, sb.Stop(ctx))
	hangs, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	require.Error(t, primary.Exec(hangs, databaseName(t, dsn), "INSERT INTO public.written VALUES ('nobody'); DELETE FROM public.written"))
	require.NoError(t, primary.Exec(ctx, databaseName(t, dsn), "SET synchronous_commit = local; TRUNCATE public.written"))
	for _, n := range []int{1, 1000} {
		t.Run(fmt.Sprintf("LocksPerSession=%d", n), func(t *testing.T) {
			require.NoError(t, primary.Exec(ctx, databaseName(t, dsn), "SET synchronous_commit = local; TRUNCATE public.written"))
			testFrozen(t, primary, dsn, pglock.Config{LocksPerSession: n}, freeze{after: map[string]string{"err": "lost"}})
		})
	}
	// A new life of the server has to raise the base of tokens first.
	require.NoError(t, primary.Restart(ctx))
	locker := newLocker(t, newPool(t, dsn), nil)
	begin := time.Now()
	lock := acquired(ctx, t, locker, pgtest.Key(t))
	require.NoError(t, lock.Release(ctx))
	require.Less(t, time.Since(begin), 5*time.Second)
	require.Greater(t, lock.Token(), int64(1<<20))
}

// A holder's lock is free within a lease also when its network is gone for
// good in the middle of acquiring, so that nobody knows that it has it.
func TestP4_LockOfALostAcquireIsFreeAfterALease(t *testing.T) {
	t.Parallel()
	eachShape(t, func(t *testing.T, config pglock.Config) {
		ctx, key := timed(t), pgtest.Key(t)
		dsn := database(t)
		config.Lease = testLease
		pool, proxy := proxied(t, pgtest.Shared(t), dsn)
		cut := newLocker(t, pool, &config)
		healAtEnd(t, proxy, pool)
		sprung := proxy.Set(pgtest.Trap{Type: pgtest.TypeQuery, Contains: ".acquire(", Pass: pgtest.WholeMessage})
		mine, cancel := context.WithCancel(ctx)
		lost := acquire(mine, cut, key)
		await(t, "the trap", sprung)
		begin := time.Now()
		proxy.BlackHole()
		cancel()
		require.ErrorIs(t, await(t, "the cancelled acquire", lost).err, context.Canceled)
		out := await(t, "the lock", acquire(ctx, newLocker(t, newPool(t, dsn), &config), key))
		require.NoError(t, out.held(t).Release(ctx))
		require.Less(t, out.at.Sub(begin), testLease+time.Second)
		t.Logf("free after %v", out.at.Sub(begin))
	})
}
