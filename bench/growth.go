package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// growthPlan says at how many locks and waiters the cost of one more is measured. A round goes through all of them several times,
// so that a disturbance of the machine hits all alike.
type growthPlan struct {
	held, waiters []int
	workers       int
	sweeps        int
	turn          time.Duration
}

// A step is what was measured beside a number of locks or waiters in a round.
type step struct {
	nanos   []int64
	seconds float64
	each    time.Duration // the sum of what a hand-over took on average in each sweep
}

// growthSettings raise the lock table of the server that 100,000 locks are held on.
func growthSettings() map[string]string {
	settings := postgresSettings()
	settings["max_connections"] = "150"
	settings["max_locks_per_transaction"] = "2048"
	return settings
}

// growth measures what cycles cost beside locks that are held and beside waiters of the same process.
func (b *bench) growth(ctx context.Context, plan growthPlan) (err error) {
	server, dsn, err := newPostgres(ctx, growthSettings())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close(context.WithoutCancel(ctx))) }()
	for range b.rounds {
		locks, waiters := make([]step, len(plan.held)), make([]step, len(plan.waiters))
		for range plan.sweeps {
			if err := besideLocks(ctx, plan, dsn, locks); err != nil {
				return fmt.Errorf("beside locks: %w", err)
			}
			if err := besideWaiters(ctx, plan, dsn, waiters); err != nil {
				return fmt.Errorf("beside waiters: %w", err)
			}
		}
		for i, held := range plan.held {
			b.results.add(figure{workGrowth, heldCase(held), peerShared, metricRate, unitRate}, float64(len(locks[i].nanos))/locks[i].seconds)
		}
		for i, n := range plan.waiters {
			b.results.addLatencies(workGrowth, waitingCase(n), peerParked, waiters[i].nanos)
			if n > 1 {
				b.results.add(figure{workGrowth, waitingCase(n), peerParked, metricDrain, unitMicros}, micros(waiters[i].each)/float64(plan.sweeps))
			}
		}
	}
	return nil
}

// besideLocks holds more and more locks, and at each step measures cycles of other keys.
func besideLocks(ctx context.Context, plan growthPlan, dsn string, steps []step) (err error) {
	most := plan.held[len(plan.held)-1]
	c, err := openLocker(ctx, dsn, &pglock.Config{LocksPerSession: 1000, MaxSessions: most/1000 + 5, MaxLocks: 2*most + 1000})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(ctx)) }()
	p := &cyclePeer{name: peerShared, client: c}
	held := 0
	for i, target := range plan.held {
		for held < target {
			var keys []string
			for range min(1000, target-held) {
				keys = append(keys, "held/"+strconv.Itoa(held))
				held++
			}
			locks, err := c.locker.TryAcquireSome(ctx, len(keys), keys...)
			if err != nil {
				return err
			}
			if len(locks) != len(keys) {
				return fmt.Errorf("%d of %d locks", len(locks), len(keys))
			}
		}
		if _, err := p.run(ctx, plan.workers, 2*plan.turn); err != nil { // the sessions are full, and a new one has to get warm
			return err
		}
		p.nanos = nil
		took, err := p.run(ctx, plan.workers, plan.turn)
		if err != nil {
			return err
		}
		steps[i].nanos = append(steps[i].nanos, p.nanos...)
		steps[i].seconds += took.Seconds()
	}
	return nil
}

func heldCase(n int) string { return strconv.Itoa(n) + " locks held" }

// besideWaiters lets more and more goroutines wait for a key that another client holds. At each step it measures cycles of
// other keys, and then how long each of the waiters takes to get the lock from the one before, while as many go on waiting.
func besideWaiters(ctx context.Context, plan growthPlan, dsn string, steps []step) (err error) {
	config := &pglock.Config{MaxIdleSessions: 4, MaxSessions: 8}
	theirs, err := openLocker(ctx, dsn, config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, theirs.Close(ctx)) }()
	c, err := openLocker(ctx, dsn, config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(ctx)) }()
	p := &cyclePeer{name: peerParked, client: c}
	if _, err := p.run(ctx, 1, 2*plan.turn); err != nil {
		return err
	}
	for i, waiters := range plan.waiters {
		if err := besideSomeWaiters(ctx, plan, theirs, p, waiters, &steps[i]); err != nil {
			return err
		}
	}
	return nil
}

func waitingCase(n int) string { return strconv.Itoa(n) + " waiters in the process" }

func besideSomeWaiters(ctx context.Context, plan growthPlan, theirs *ourClient, p *cyclePeer, waiters int, s *step) error {
	c, ok := p.client.(*ourClient)
	if !ok {
		return errCannot
	}
	lock, err := theirs.locker.Acquire(ctx, "waited")
	if err != nil {
		return err
	}
	turns := relay{client: c}
	for range waiters {
		turns.all.Go(func() { turns.take(ctx) })
	}
	err = pgtest.Poll(ctx, "waiters", func() bool { return c.locker.Stat().Waiters == waiters })
	if err != nil {
		return errors.Join(err, lock.Release(ctx))
	}
	if _, err := p.run(ctx, 1, plan.turn/2); err != nil {
		return errors.Join(err, lock.Release(ctx))
	}
	p.nanos = nil
	_, err = p.run(ctx, 1, plan.turn)
	s.nanos = append(s.nanos, p.nanos...)
	err = errors.Join(err, lock.Release(ctx))
	turns.all.Wait()
	s.each += turns.each()
	return errors.Join(err, turns.err)
}

// A relay is goroutines that take a lock in turns. Each waits again as soon as it has had a turn, so that always as many wait, until
// measuredHandOvers have been counted.
type relay struct {
	client *ourClient
	all    sync.WaitGroup

	mu          sync.Mutex // guards the rest
	count       int        // turns so far
	first, last time.Time  // between them are measuredHandOvers
	err         error
}

const measuredHandOvers = 1000

// take takes turns until enough have been counted or one fails.
func (r *relay) take(ctx context.Context) {
	for more := true; more; {
		lock, err := r.client.locker.Acquire(ctx, "waited")
		if err == nil {
			more = r.counted(time.Now())
			err = lock.Release(ctx)
		}
		if err != nil {
			r.mu.Lock()
			r.err = err
			r.mu.Unlock()
			return
		}
	}
}

// counted counts a turn and reports whether more are wanted.
func (r *relay) counted(at time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch r.count {
	case 0:
		r.first = at // until then another client had it
	case measuredHandOvers:
		r.last = at
	}
	r.count++
	return r.count <= measuredHandOvers
}

// each returns how long a hand-over took, on average.
func (r *relay) each() time.Duration { return r.last.Sub(r.first) / measuredHandOvers }

// A growth is one figure beside more and more of something.
type growth struct {
	name         string
	cases        []string
	counts       []float64
	peer, metric string
}

// growths are those that were measured. A hand-over needs some waiters: with one of them it is that of another process.
func growths(r *results) []growth {
	var list []growth
	for _, g := range []struct {
		name         string
		c            func(int) string
		least        int
		peer, metric string
	}{
		{"rate of cycles beside locks held", heldCase, 1, peerShared, metricRate},
		{"p50 of a cycle beside waiters", waitingCase, 1, peerParked, metricP50},
		{"hand-over among waiters", waitingCase, 10, peerParked, metricDrain},
	} {
		grown := growth{name: g.name, peer: g.peer, metric: g.metric}
		for n := g.least; n <= 100_000; n *= 10 {
			if len(r.rounds(figure{workGrowth, g.c(n), g.peer, g.metric, ""})) > 0 {
				grown.cases = append(grown.cases, g.c(n))
				grown.counts = append(grown.counts, float64(n))
			}
		}
		if len(grown.cases) > 1 {
			list = append(list, grown)
		}
	}
	return list
}

// relative returns a growth's figures as multiples of the first, each ratio taken within a round.
func (g growth) relative(r *results) []float64 {
	base := r.rounds(figure{workGrowth, g.cases[0], g.peer, g.metric, ""})
	var out []float64
	for _, c := range g.cases {
		out = append(out, median(ratios(r.rounds(figure{workGrowth, c, g.peer, g.metric, ""}), base)))
	}
	return out
}

// flatness returns how far a growth strays from its first figure, as a fraction, in whichever direction is worse.
func flatness(r *results, g growth) []float64 {
	worst := 0.0
	for _, ratio := range g.relative(r) {
		worst = max(worst, math.Abs(ratio-1))
	}
	return []float64{worst}
}
