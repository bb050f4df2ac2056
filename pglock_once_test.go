package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// dayClock is the true time of a day that a test lets pass.
type dayClock struct {
	mu      sync.Mutex // guards the rest
	now     time.Time
	changed chan struct{} // closed by the next change
	handled time.Time     // the latest time at which a leader found nothing more to do
}

func newDayClock(now time.Time) *dayClock {
	return &dayClock{now: now, changed: make(chan struct{})}
}

func (c *dayClock) read() (now time.Time, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now, c.changed
}

func (c *dayClock) set(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *dayClock) handle(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.After(c.handled) {
		c.handled = now
	}
}

func (c *dayClock) handledAt() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.handled
}

// midTick stops a scheduler within a tick, with the work of it done and not
// committed, until another leads and asks for the tick too.
type midTick struct {
	reached chan *dayScheduler
	goOn    chan struct{}
}

// dayScheduler is a replica: while it leads it runs what is due by its own
// clock. It is careless: in a new term it asks again for the ticks of the last
// two minutes, and it finishes a tick that it has begun though its term has
// ended. Whether that matters is for claim to say.
type dayScheduler struct {
	name     string
	skew     time.Duration
	clock    *dayClock
	locker   *pglock.Locker
	election *pglock.Election
	job      string
	effect   string // INSERT of a slot
	claim    func(ctx context.Context, job string, slot time.Time, fn func(context.Context, pgx.Tx) error) (bool, error)
	stop     chan midTick // has an element if the next tick is to stop
}

func (d *dayScheduler) lead(ctx context.Context, _ *pglock.Term) error {
	last, _, err := d.locker.LastTick(ctx, d.job)
	if err != nil {
		return err
	}
	now, _ := d.clock.read()
	if again := now.Add(d.skew - 2*time.Minute); last.IsZero() || again.Before(last) {
		last = again
	}
	for ctx.Err() == nil {
		now, changed := d.clock.read()
		for _, slot := range pglock.DueTicks(last, now.Add(d.skew), 0, pglock.CatchUpAll, nextMinute) {
			if ctx.Err() != nil {
				break
			}
			if err := d.tick(context.WithoutCancel(ctx), slot); err != nil {
				return err
			}
			last = slot
		}
		d.clock.handle(now)
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return nil
}

func (d *dayScheduler) tick(ctx context.Context, slot time.Time) error {
	_, err := d.claim(ctx, d.job, slot, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, d.effect, slot); err != nil {
			return err
		}
		select {
		case stop := <-d.stop:
			stop.reached <- d
			<-stop.goOn
		default:
		}
		return nil
	})
	return err
}

func nextMinute(after time.Time) time.Time { return after.Truncate(time.Minute).Add(time.Minute) }

// day is a day's run.
type day struct {
	schedulers []*dayScheduler
	clock      *dayClock
	admin      *pglock.Locker
	pool       *pgxpool.Pool
	job, table string
	changes    map[string]int
}

// dayBegins is midnight; the day's ticks are those after it up to the next.
var dayBegins = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// newDay starts three replicas whose clocks are right, 30 s fast and 30 s slow.
func newDay(t *testing.T, withoutClaim bool) *day {
	t.Helper()
	pool := newPool(t, database(t))
	d := &day{
		clock: newDayClock(dayBegins), admin: newLocker(t, pool, nil), pool: pool, job: pgtest.Key(t),
		table: table(t, pool, "slot timestamptz NOT NULL"), changes: map[string]int{},
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 3)
	for i, skew := range []time.Duration{0, 30 * time.Second, -30 * time.Second} {
		own := newPool(t, database(t))
		s := &dayScheduler{
			name: fmt.Sprint("clock ", skew), skew: skew, clock: d.clock, job: d.job, stop: make(chan midTick, 1),
			locker: newLocker(t, own, &pglock.Config{Logger: slog.New(slog.DiscardHandler)}),
			effect: "INSERT INTO " + d.table + " (slot) VALUES ($1)",
		}
		s.claim = s.locker.Once
		if withoutClaim {
			s.claim = func(ctx context.Context, _ string, _ time.Time, fn func(context.Context, pgx.Tx) error) (bool, error) {
				return true, pgx.BeginFunc(ctx, own, func(tx pgx.Tx) error { return fn(ctx, tx) })
			}
		}
		var err error
		s.election, err = pglock.NewElection(s.locker, d.job, &pglock.ElectionConfig{Name: fmt.Sprint(i), Pause: time.Millisecond})
		require.NoError(t, err)
		d.schedulers = append(d.schedulers, s)
		go func() { done <- s.election.Run(ctx, s.lead) }()
	}
	t.Cleanup(func() {
		cancel()
		for range d.schedulers {
			require.ErrorIs(t, <-done, context.Canceled)
		}
	})
	return d
}

// pass lets the day pass in steps of 20 s, with a change of the leader in one
// minute of twelve, and then a moment in which the slowest clock comes to its
// end.
func (d *day) pass(t *testing.T) {
	t.Helper()
	dice := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	end := dayBegins.Add(24 * time.Hour)
	for now := dayBegins.Add(20 * time.Second); !now.After(end.Add(40 * time.Second)); now = now.Add(20 * time.Second) {
		var stop *midTick
		if now.Before(end.Add(-time.Minute)) && dice.IntN(36) == 0 {
			stop = d.change(t, now, dice)
		} else {
			d.clock.set(now)
		}
		if stop != nil {
			close(stop.goOn)
		}
		eventually(t, "a leader that has nothing more to do", func() bool { return !d.clock.handledAt().Before(now) })
	}
	// The slowest may lead, and owes the last tick.
	d.clock.set(end.Add(2 * time.Minute))
	eventually(t, "the end of the day", func() bool { return d.clock.handledAt().After(end.Add(time.Minute)) })
}

// eventually waits longer than pgtest.Eventually: a day is long.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	require.NoError(t, pgtest.Poll(timed(t), what, done))
}

// leader is the one that leads, if any does at this moment.
func (d *day) leader() *dayScheduler {
	for _, s := range d.schedulers {
		if s.election.IsLeader() {
			return s
		}
	}
	return nil
}

// change changes the leader as the clock changes to now: between two ticks, or
// in the middle of one.
func (d *day) change(t *testing.T, now time.Time, dice *rand.Rand) *midTick {
	t.Helper()
	var old *dayScheduler
	eventually(t, "a leader", func() bool { old = d.leader(); return old != nil })
	due := nextMinute(now.Add(old.skew - 20*time.Second)) // the tick of this step, if it has one
	if due.After(now.Add(old.skew)) {
		d.clock.set(now)
		if dice.IntN(2) == 0 {
			d.changes["resigned"]++
			require.NoError(t, old.election.Resign(t.Context()))
		} else {
			d.changes["session ended"]++
			d.endSession(t)
		}
		return nil
	}
	stop := midTick{reached: make(chan *dayScheduler, 1), goOn: make(chan struct{})}
	old.stop <- stop
	d.clock.set(now)
	eventually(t, "the tick", func() bool { return len(stop.reached) > 0 || !d.clock.handledAt().Before(now) })
	select {
	case <-old.stop: // a leader whose clock is faster has run the tick before
		return nil
	default:
	}
	d.changes["session ended in the middle of a tick"]++
	d.endSession(t)
	eventually(t, "another leader", func() bool { next := d.leader(); return next != nil && next != old })
	return &stop
}

func (d *day) endSession(t *testing.T) {
	t.Helper()
	holders, err := d.admin.Holders(t.Context(), d.job)
	require.NoError(t, err)
	if len(holders) > 0 && !holders[0].Waiting {
		if err := d.admin.Terminate(t.Context(), holders[0]); err != nil {
			require.ErrorContains(t, err, "is gone") // it has ended by itself, which serves as well
		}
	}
}

// problem says what is wrong with the effects of the day, of which each slot
// must have one.
func (d *day) problem(t *testing.T) error {
	t.Helper()
	var missing, repeated, strays int
	require.NoError(t, d.pool.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE n = 0), count(*) FILTER (WHERE n > 1)
		FROM (SELECT s, count(e.slot) AS n FROM generate_series($1::timestamptz + interval '1 min', $1 + interval '1 day', '1 min') s
			LEFT JOIN `+d.table+` e ON e.slot = s GROUP BY s) c`, dayBegins).Scan(&missing, &repeated))
	require.NoError(t, d.pool.QueryRow(t.Context(), "SELECT count(*) FROM "+d.table+
		" WHERE slot <> date_trunc('minute', slot)").Scan(&strays))
	if missing+repeated+strays > 0 {
		return fmt.Errorf("%d slots have no effect, %d more than one, %d effects are of no slot", missing, repeated, strays)
	}
	return nil
}

func TestOnceADayOfMinutes(t *testing.T) {
	t.Parallel()
	t.Run("each slot once", func(t *testing.T) {
		t.Parallel()
		d := newDay(t, false)
		began := time.Now()
		d.pass(t)
		require.NoError(t, d.problem(t))
		require.Equal(t, 1440, count(t, d.pool, "SELECT count(*) FROM pglock.ticks WHERE job = $1 AND slot > $2 AND slot <= $2 + interval '1 day'",
			d.job, dayBegins))
		t.Logf("24 h in %v, clocks right, 30 s fast and 30 s slow, the leader changed: %v; 1440 ticks, 1440 effects, each slot once",
			time.Since(began).Round(time.Millisecond), d.changes)
	})
	t.Run("not so without the claim", func(t *testing.T) {
		t.Parallel()
		d := newDay(t, true)
		d.pass(t)
		err := d.problem(t)
		require.Error(t, err, "the same day without Once")
		t.Logf("without the claim, the leader changed: %v; %v", d.changes, err)
	})
}

// TestOnceLeavesNothingOfAFailure is the other half of exactly once: what fails
// is not claimed.
func TestOnceLeavesNothingOfAFailure(t *testing.T) {
	t.Parallel()
	ctx := timed(t)
	pool := newPool(t, database(t))
	locker := newLocker(t, pool, nil)
	effects, job, slot := table(t, pool, "n int"), pgtest.Key(t), dayBegins
	work := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO "+effects+" VALUES (1)")
		return err
	}
	failed := errors.New("as planned")
	ran, err := locker.Once(ctx, job, slot, func(ctx context.Context, tx pgx.Tx) error { return errors.Join(work(ctx, tx), failed) })
	require.ErrorIs(t, err, failed)
	require.False(t, ran)
	require.PanicsWithValue(t, "as planned", func() {
		_, _ = locker.Once(ctx, job, slot, func(ctx context.Context, tx pgx.Tx) error {
			require.NoError(t, work(ctx, tx))
			panic("as planned")
		})
	})
	require.Zero(t, count(t, pool, "SELECT count(*) FROM "+effects))
	ran, err = locker.Once(ctx, job, slot, work)
	require.NoError(t, err)
	require.True(t, ran)
	ran, err = locker.Once(ctx, job, slot, work)
	require.NoError(t, err)
	require.False(t, ran)
	require.Equal(t, 1, count(t, pool, "SELECT count(*) FROM "+effects))
}
