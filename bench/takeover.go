package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/seed35111a8b/pglock/internal/pgtest"
)

// takeOverPlan says how take-overs are measured. Those of all peers go on at the same time, since they wait.
type takeOverPlan struct {
	times int // of a round
	lease time.Duration
}

// Cases of take-overs.
const (
	caseKilled = "holder killed (kill -9)"
	caseFrozen = "holder frozen (SIGSTOP)"
)

// takeOverPeers are those that wait and end by themselves; a frozen raw session would keep its lock for good.
func takeOverPeers() []string { return handOverPeers() }

// takeOvers measures the time from the end of a holder to the grant of a waiter in another process.
func (b *bench) takeOvers(ctx context.Context, plan takeOverPlan) error {
	for range b.rounds {
		for _, c := range []string{caseKilled, caseFrozen} {
			names := takeOverPeers()
			errs := make([]error, len(names))
			var all sync.WaitGroup
			for i, name := range names {
				all.Go(func() {
					if err := b.takeOversOf(ctx, plan, name, c); err != nil {
						errs[i] = fmt.Errorf("%s, %s: %w", name, c, err)
					}
				})
			}
			all.Wait()
			if err := errors.Join(errs...); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *bench) takeOversOf(ctx context.Context, plan takeOverPlan, name, c string) error {
	var took []int64
	for range plan.times {
		nanos, err := b.takeOver(ctx, plan, name, c)
		if err != nil {
			return err
		}
		took = append(took, nanos)
	}
	b.results.addLatencies(workTakeOver, c, name, took)
	return nil
}

// never is what is reported where nobody took over within twice the lease and some time.
const never = time.Hour

func (b *bench) takeOver(ctx context.Context, plan takeOverPlan, name, c string) (nanos int64, err error) {
	holder, err := b.startNode(ctx, name, 1, plan.lease)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, holder.Kill()) }()
	waiter, err := b.startNode(ctx, name, 1, plan.lease)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, waiter.Kill()) }()
	key := newKey("take-over")
	if err := ask(ctx, holder, "hold "+key, "held"); err != nil {
		return 0, err
	}
	if err := ask(ctx, waiter, "wait 1 "+key+" 0", "waiting"); err != nil {
		return 0, err
	}
	<-time.After(plan.lease / 2)
	end := monotonic()
	if c == caseKilled {
		err = holder.Kill()
	} else {
		err = holder.Freeze()
	}
	if err != nil {
		return 0, err
	}
	granted, err := grantWithin(ctx, waiter, 2*plan.lease+5*time.Second)
	if err != nil {
		return 0, err
	}
	if granted == 0 {
		return never.Nanoseconds(), nil
	}
	return granted - end, nil
}

// grantWithin returns when a waiting node was granted the lock, 0 if that took longer.
func grantWithin(ctx context.Context, p *pgtest.Process, d time.Duration) (int64, error) {
	limited, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	rest, err := p.Expect(limited, "grant")
	if err != nil {
		if ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			return 0, nil
		}
		return 0, err
	}
	var g grant
	_, err = fmt.Sscan(rest, &g.granted, &g.released)
	return g.granted, err
}
