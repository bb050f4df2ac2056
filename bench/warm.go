package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed35111a8b/pglock/internal/pgtest"
)

// Cases of tries on a warm pool.
const (
	warmSoon     = "as soon as the pool has a connection"
	warmTenTimes = "ten times a second"
)

// warmPlan says how often a dedicated lock is taken on a pool that has a connection at hand.
type warmPlan struct {
	soon, tenTimes int
}

// warm measures what TryAcquire of a dedicated lock takes, without the release and the close, beside the raw statement. Each
// lock costs the pool a connection; the next try begins when the pool has one again.
func (b *bench) warm(ctx context.Context, plan warmPlan) (err error) {
	limit, err := openRaw(ctx, opening{addresses: b.servers.addresses, workers: 1})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, limit.Close(ctx)) }()
	c, err := openPglock(ctx, peerDedicated, opening{addresses: b.servers.addresses, workers: 1, lease: defaultLease})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(ctx)) }()
	if err := c.pool.Ping(ctx); err != nil {
		return err
	}
	every := time.NewTicker(100 * time.Millisecond)
	defer every.Stop()
	pairs := map[string]int{warmSoon: plan.soon, warmTenTimes: plan.tenTimes}
	for range b.rounds {
		for _, name := range []string{warmSoon, warmTenTimes} {
			var raw, ours []int64
			for range pairs[name] {
				if name == warmTenTimes {
					<-every.C
				}
				if err := awaitConnection(ctx, c.pool); err != nil {
					return err
				}
				if err := timeTry(ctx, limit, &raw); err != nil {
					return err
				}
				if err := timeTry(ctx, c, &ours); err != nil {
					return err
				}
			}
			b.results.addLatencies(workWarm, name, peerRaw, raw)
			b.results.addLatencies(workWarm, name, peerDedicated, ours)
		}
	}
	return nil
}

func awaitConnection(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	return pgtest.Poll(ctx, "the pool to have a connection", func() bool { return pool.Stat().IdleConns() > 0 })
}

// timeTry adds how long one try took to nanos.
func timeTry(ctx context.Context, c client, nanos *[]int64) error {
	start := time.Now()
	lock, err := c.Try(ctx, 0, "warm")
	if err != nil {
		return err
	}
	*nanos = append(*nanos, time.Since(start).Nanoseconds())
	return lock.Release(ctx)
}
