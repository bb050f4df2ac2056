package pglock_test

import (
	"context"
	"fmt"
	"log/slog"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

func init() {
	roles = append(roles, pgtest.Role{Name: "scheduler", Run: scheduler})
}

// TestElectionPollersHoldNoConnection counts what 200 candidates ask of the
// server while another leads.
func TestElectionPollersHoldNoConnection(t *testing.T) {
	t.Parallel()
	const candidates, conns, interval, window = 200, 4, 4 * time.Second, 12 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), 3*scenarioTimeout)
	w := newWire(t)
	key := pgtest.Key(t)
	lock, err := newLocker(t, newPool(t, w.near), nil).Acquire(ctx, key)
	require.NoError(t, err)
	pool := w.pool(t, conns)
	var running sync.WaitGroup
	var lockers []*pglock.Locker
	led := make(chan string, candidates)
	for i := range candidates {
		locker, err := pglock.New(pool, &pglock.Config{Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		lockers = append(lockers, locker)
		election, err := pglock.NewElection(locker, key, &pglock.ElectionConfig{Name: fmt.Sprint(i), PollInterval: interval})
		require.NoError(t, err)
		running.Go(func() {
			err := election.Run(ctx, func(ctx context.Context, _ *pglock.Term) error {
				led <- fmt.Sprint(i)
				<-ctx.Done()
				return nil
			})
			if ctx.Err() == nil {
				led <- err.Error()
			}
		})
		// One after the other: those that find the pool in use connect by themselves.
		require.NoError(t, pgtest.Poll(ctx, "a first ask", func() bool { return locker.Stat().NotAcquired > 0 }))
	}
	defer func() {
		cancel()
		running.Wait()
		for _, locker := range lockers {
			require.NoError(t, locker.Close(context.Background()))
			require.Zero(t, locker.Stat().Sessions)
		}
	}()
	asked := func() (n int) {
		for _, locker := range lockers {
			n += int(locker.Stat().NotAcquired)
		}
		return n
	}
	before, first, began := w.proxy.Counts(), asked(), time.Now()
	samples, held, sessions := 0, 0, 0
	for tick := time.NewTicker(5 * time.Millisecond); time.Since(began) < window; <-tick.C {
		for _, locker := range lockers {
			sessions += locker.Stat().Sessions
		}
		samples++
		held += int(pool.Stat().AcquiredConns())
	}
	seen, took := w.proxy.Counts().Since(before), time.Since(began)
	polls := asked() - first
	want := candidates * took.Seconds() / interval.Seconds()
	busyConns, asking := float64(held)/float64(samples), float64(sessions)/float64(samples)
	t.Logf("%d candidates every %v: %d polls and %d round trips in %v, the formula says %.0f; connections in use on the average %.2f of the pool's %d, new ones %d, sessions of lockers %.2f",
		candidates, interval, polls, seen.RoundTrips(), took.Round(time.Millisecond), want, busyConns, conns, seen.Connections, asking)
	// A machine that others use too asks less often than the formula says, never more.
	require.Less(t, float64(seen.RoundTrips()), 1.2*want)
	require.Less(t, float64(polls), 1.2*want)
	require.Greater(t, float64(polls), 0.5*want)
	require.Less(t, seen.Connections, polls/10, "new ones, for those that find the pool in use")
	require.Less(t, busyConns, 2.0)
	require.Less(t, asking, candidates/10.0, "those that ask at one time")
	require.Empty(t, led)

	// And one of them leads within an interval and a half.
	released := time.Now()
	require.NoError(t, lock.Release(ctx))
	leader := <-led
	t.Logf("after the release candidate %s leads, %v later", leader, time.Since(released).Round(time.Millisecond))
	require.Less(t, time.Since(released), interval*3/2)
}

// TestElectionPollersWaitForThePool has candidates ask while the pool is in use:
// for a moment, which they wait for, and for good, which they do not.
func TestElectionPollersWaitForThePool(t *testing.T) {
	t.Parallel()
	const candidates, interval, moment = 8, 6 * time.Second, 300 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), scenarioTimeout)
	w := newWire(t)
	pool := w.pool(t, 1)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	poller := func(key string) *pglock.Locker {
		locker := newLocker(t, pool, &pglock.Config{Logger: slog.New(slog.DiscardHandler)})
		running.Go(func() { _ = campaign(ctx, locker, key, interval) })
		return locker
	}

	key := pgtest.Key(t)
	_, err := newLocker(t, newPool(t, w.near), nil).Acquire(ctx, key)
	require.NoError(t, err)
	busy, err := pool.Acquire(ctx)
	require.NoError(t, err)
	seen := w.during(func() {
		lockers := make([]*pglock.Locker, candidates)
		for i := range lockers {
			lockers[i] = poller(key)
		}
		<-time.After(moment)
		busy.Release()
		for _, locker := range lockers {
			require.NoError(t, pgtest.Poll(ctx, "a first ask", func() bool { return locker.Stat().NotAcquired > 0 }))
		}
	})
	require.Zero(t, seen.Connections, "new ones")
	require.Equal(t, candidates, seen.RoundTrips())

	busy, err = pool.Acquire(ctx)
	require.NoError(t, err)
	defer busy.Release()
	began := time.Now()
	alone := poller(pgtest.Key(t))
	require.NoError(t, pgtest.Poll(ctx, "a lock", func() bool { return alone.Stat().Acquired > 0 }))
	t.Logf("while the pool is in use for good a candidate has the lock %v after it was asked to", time.Since(began).Round(time.Millisecond))
	require.Less(t, time.Since(began), interval)
}

// slotInterval is the schedule of the scheduler process.
const slotInterval = 100 * time.Millisecond

// scheduler leads until SIGTERM, and while it leads runs each slot once.
func scheduler(ctx context.Context, self *pgtest.Self) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	locker, pool, err := open(ctx, self, nil)
	if err != nil {
		return err
	}
	job := self.Arg("KEY")
	election, err := pglock.NewElection(locker, job, &pglock.ElectionConfig{Name: self.Arg("NAME")})
	if err != nil {
		return err
	}
	self.Say("ready")
	next := func(after time.Time) time.Time { return after.Truncate(slotInterval).Add(slotInterval) }
	err = election.Run(ctx, func(ctx context.Context, _ *pglock.Term) error {
		self.Say("leads", int64(monotonic()))
		last, _, err := locker.LastTick(ctx, job)
		for ctx.Err() == nil && err == nil {
			now := time.Now()
			for _, slot := range pglock.DueTicks(last, now, slotInterval, pglock.CatchUpAll, next) {
				// A slot that has begun is finished, and recorded, before the lock is released.
				_, err = locker.Once(context.WithoutCancel(ctx), job, slot, func(ctx context.Context, tx pgx.Tx) error {
					_, err := tx.Exec(ctx, "INSERT INTO "+self.Arg("TABLE")+" (slot) VALUES ($1)", slot)
					return err
				})
				if err != nil || ctx.Err() != nil {
					break
				}
				last = slot
			}
			timer := time.NewTimer(time.Until(next(now)))
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
			timer.Stop()
		}
		return err
	})
	if ctx.Err() == nil {
		return err
	}
	err = locker.Close(context.WithoutCancel(ctx))
	pool.Close()
	return err
}

// TestElectionRollingRestart replaces three replicas one by one, the leading one
// first, and looks for the ticks.
func TestElectionRollingRestart(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*scenarioTimeout)
	defer cancel()
	dsn := ownDatabase(t, pgtest.Shared(t))
	pool := newPool(t, dsn)
	admin := newLocker(t, pool, nil)
	effects, key := table(t, pool, "slot timestamptz NOT NULL"), pgtest.Key(t)
	observer, err := pglock.NewElection(admin, key, nil)
	require.NoError(t, err)
	replicas := map[string]*pgtest.Process{}
	start := func(name string) {
		replicas[name] = process(t, "scheduler", dsn, key, "NAME="+name, "TABLE="+effects)
		_, err := replicas[name].Expect(ctx, "ready")
		require.NoError(t, err)
	}
	ticks := func() int { return count(t, pool, "SELECT count(*) FROM "+effects) }
	awaitTicks := func() {
		had := ticks()
		require.NoError(t, pgtest.Poll(ctx, "five ticks", func() bool { return ticks() >= had+5 }))
	}
	for i := range 3 {
		start(fmt.Sprint("old", i))
	}
	awaitTicks()
	var took []time.Duration
	for i := range 3 {
		// The one that leads, if it is an old one, and any old one after that.
		leader, err := observer.Leader(ctx)
		require.NoError(t, err)
		victim := leader.Name
		if !strings.HasPrefix(victim, "old") {
			for name := range replicas {
				if strings.HasPrefix(name, "old") {
					victim = name
				}
			}
		}
		old := replicas[victim]
		delete(replicas, victim)
		at := monotonic()
		require.NoError(t, old.Signal(syscall.SIGTERM))
		require.NoError(t, old.Wait(ctx))
		if victim == leader.Name {
			eventually(t, "another leader", func() bool {
				next, err := observer.Leader(ctx)
				return err == nil && next.Token > leader.Token
			})
			next, err := observer.Leader(ctx)
			require.NoError(t, err)
			said, err := replicas[next.Name].Expect(ctx, "leads")
			require.NoError(t, err)
			var led int64
			_, err = fmt.Sscan(said, &led)
			require.NoError(t, err)
			took = append(took, time.Duration(led)-at)
			t.Logf("SIGTERM to the leader %s: %s leads %v later", victim, next.Name, took[len(took)-1].Round(10*time.Microsecond))
		} else {
			t.Logf("SIGTERM to the follower %s: %s leads on", victim, leader.Name)
		}
		awaitTicks()
		start(fmt.Sprint("new", i))
		awaitTicks()
	}
	require.NotEmpty(t, took)
	require.Less(t, slices.Max(took), 5*time.Second, "250 ms on a quiet machine, and not the lease of 15 s")
	for _, p := range replicas {
		require.NoError(t, p.Signal(syscall.SIGTERM))
		require.NoError(t, p.Wait(ctx))
	}
	var slots, distinct, span int
	require.NoError(t, pool.QueryRow(ctx, `SELECT count(*), count(DISTINCT slot),
		1 + round(extract(epoch FROM max(slot) - min(slot)) * 1000 / $1) FROM `+effects, slotInterval.Milliseconds()).Scan(&slots, &distinct, &span))
	require.Equal(t, span, distinct, "slots missed")
	require.Equal(t, slots, distinct, "slots run twice")
	require.Equal(t, slots, count(t, pool, "SELECT count(*) FROM pglock.ticks WHERE job = $1", key))
	t.Logf("%d slots of %v from the first to the last, each run once", slots, slotInterval)
}
