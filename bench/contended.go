package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// contendedPlan says how tries for a lock that another client holds are measured.
type contendedPlan struct {
	turns int
	turn  time.Duration
}

// contended measures tries for a lock that another client holds: one worker, one answer after the other.
func (b *bench) contended(ctx context.Context, plan contendedPlan) (err error) {
	taking, closeTaking, err := b.openPeers(ctx, 1, defaultLease, peers())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeTaking(ctx)) }()
	const lease = time.Hour // not all peers renew theirs
	holders, closeHolders, err := b.openPeers(ctx, 1, lease, peers())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeHolders(ctx)) }()
	for i, p := range holders {
		if _, err := p.client.Try(ctx, 0, contendedKey(p.name)); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if err := taking[i].contend(ctx, plan.turn/4); err != nil {
			return err
		}
		taking[i].nanos = taking[i].nanos[:0]
	}
	for round := range b.rounds {
		for n := range plan.turns {
			for i := range taking {
				if err := taking[(i+n+round)%len(taking)].contend(ctx, plan.turn); err != nil {
					return err
				}
			}
		}
		for _, p := range taking {
			b.results.addLatencies(workContended, "", p.name, p.nanos)
			p.nanos = p.nanos[:0]
		}
	}
	return nil
}

func contendedKey(peer string) string { return "contended/" + peer }

// contend tries for about the given time. It adds to p.nanos.
func (p *cyclePeer) contend(ctx context.Context, d time.Duration) error {
	key := contendedKey(p.name)
	start := time.Now()
	for before := start; before.Sub(start) < d; {
		_, err := p.client.Try(ctx, 0, key)
		if !errors.Is(err, errTaken) {
			return fmt.Errorf("%s: the lock is held, and yet: %w", p.name, err)
		}
		now := time.Now()
		p.nanos = append(p.nanos, now.Sub(before).Nanoseconds())
		before = now
	}
	return nil
}
