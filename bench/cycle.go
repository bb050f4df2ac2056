package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Names of the workloads.
const (
	workCycle     = "acquire and release"
	workContended = "contended try"
	workWarm      = "dedicated try on a warm pool"
	workHandOver  = "hand-over"
	workTakeOver  = "take-over"
	workFence     = "fenced write"
	workMany      = "many keys at once"
	workGrowth    = "growth"
	workIdle      = "idle"
	caseRoundTrip = "one round trip"
	casePaced     = "one round trip, each after 2 ms"
)

// cyclePlan says how cycles of acquire and release are measured. A round goes through the peers several times in short
// turns, so that a disturbance of the machine hits all alike.
type cyclePlan struct {
	workers   []int
	turns     int
	turn      time.Duration // longer with many workers
	dedicated int           // most workers that pglock's dedicated sessions are measured with, since each cycle costs a connection
}

// turnOf gives every worker the time for some cycles.
func (p cyclePlan) turnOf(workers int) time.Duration {
	return p.turn * time.Duration(1+workers/64)
}

func workersCase(n int) string {
	if n == 1 {
		return "1 worker"
	}
	return strconv.Itoa(n) + " workers"
}

// cyclePeer is one peer that takes part in a round.
type cyclePeer struct {
	name    string
	client  client
	nanos   []int64 // of the round
	seconds float64
}

// cycles measures acquire and release of own keys, with each number of workers.
func (b *bench) cycles(ctx context.Context, plan cyclePlan) error {
	for _, workers := range plan.workers {
		which := slices.DeleteFunc(peers(), func(p peer) bool { return p.name == peerDedicated && workers > plan.dedicated })
		taking, closeAll, err := b.openPeers(ctx, workers, defaultLease, which)
		if err != nil {
			return err
		}
		err = b.cycleRounds(ctx, plan, workers, taking)
		if err := errors.Join(err, closeAll(ctx)); err != nil {
			return fmt.Errorf("%s with %s: %w", workCycle, workersCase(workers), err)
		}
	}
	return nil
}

// openPeers opens a client of each peer for so many workers.
func (b *bench) openPeers(ctx context.Context, workers int, lease time.Duration, which []peer) ([]*cyclePeer, func(context.Context) error, error) {
	var open []*cyclePeer
	closeAll := func(ctx context.Context) error {
		var errs []error
		for _, p := range open {
			errs = append(errs, p.client.Close(ctx))
		}
		return errors.Join(errs...)
	}
	for _, p := range which {
		c, err := p.open(ctx, opening{addresses: b.servers.addresses, workers: workers, lease: lease})
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("%s: %w", p.name, err), closeAll(ctx))
		}
		open = append(open, &cyclePeer{name: p.name, client: c})
	}
	return open, closeAll, nil
}

// defaultLease is pglock's default, and for the others' TTL.
const defaultLease = 15 * time.Second

func (b *bench) cycleRounds(ctx context.Context, plan cyclePlan, workers int, taking []*cyclePeer) error {
	turn := plan.turnOf(workers)
	for _, p := range taking { // connections are made and statements prepared
		if _, err := p.run(ctx, workers, turn/4); err != nil {
			return err
		}
		p.nanos = p.nanos[:0]
	}
	for round := range b.rounds {
		for n := range plan.turns {
			for i := range taking {
				p := taking[(i+n+round)%len(taking)]
				if n > 0 && p.name == peerDedicated && workers > 1 {
					continue // one turn is long enough: it makes a connection for each worker
				}
				took, err := p.run(ctx, workers, turn)
				if err != nil {
					return err
				}
				p.seconds += took.Seconds()
			}
		}
		for _, p := range taking {
			b.results.add(figure{workCycle, workersCase(workers), p.name, metricRate, unitRate}, float64(len(p.nanos))/p.seconds)
			b.results.addLatencies(workCycle, workersCase(workers), p.name, p.nanos)
			p.nanos, p.seconds = p.nanos[:0], 0
		}
	}
	return nil
}

// run lets the workers take and release locks of keys of their own for about the given time. It adds to p.nanos.
func (p *cyclePeer) run(ctx context.Context, workers int, d time.Duration) (time.Duration, error) {
	var wg sync.WaitGroup
	each := make([][]int64, workers)
	errs := make([]error, workers)
	start := time.Now()
	for w := range workers {
		wg.Go(func() {
			key := "cycle/" + strconv.Itoa(w)
			for before := time.Now(); len(each[w]) == 0 || before.Sub(start) < d; {
				lock, err := p.client.Try(ctx, w, key)
				if err == nil {
					err = lock.Release(ctx)
				}
				if err != nil {
					errs[w] = fmt.Errorf("%s: %w", p.name, err)
					return
				}
				now := time.Now()
				each[w] = append(each[w], now.Sub(before).Nanoseconds())
				before = now
			}
		})
	}
	wg.Wait()
	for _, nanos := range each {
		p.nanos = append(p.nanos, nanos...)
	}
	return time.Since(start), errors.Join(errs...)
}
