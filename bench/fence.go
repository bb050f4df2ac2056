package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed35111a8b/pglock/pglock"
)

// Peers of the fenced write.
const (
	peerFenced   = "pglock, FencedTx"
	peerUnfenced = "the same, unfenced"
)

// fencePlan says how fenced writes are measured: writers of one resource, each with a row of its own, in turns with the same
// writes without the fence. Each is a transaction of one UPDATE that is durable when it is committed.
type fencePlan struct {
	writers []int
	turns   int
	turn    time.Duration
}

func writersCase(n int) string {
	if n == 1 {
		return "1 writer"
	}
	return fmt.Sprintf("%d writers of one resource", n)
}

const (
	createRows = `CREATE TABLE IF NOT EXISTS bench_rows (id int PRIMARY KEY, n bigint NOT NULL);
		INSERT INTO bench_rows SELECT i, 0 FROM generate_series(0, 1000) i ON CONFLICT DO NOTHING`
	updateRow = "UPDATE bench_rows SET n = n + 1 WHERE id = $1"
)

// fencedWrites measures what the fence adds to a transaction.
func (b *bench) fencedWrites(ctx context.Context, plan fencePlan) (err error) {
	c, err := openLocker(ctx, b.servers.Postgres, &pglock.Config{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(ctx)) }()
	if _, err := c.pool.Exec(ctx, createRows); err != nil {
		return err
	}
	lock, err := c.locker.Acquire(ctx, "fence")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release(ctx)) }()
	writes := map[string]func(writer int) error{
		peerFenced: func(writer int) error {
			return lock.FencedTx(ctx, c.pool, "resource", func(tx pgx.Tx) error { return update(ctx, tx, writer) })
		},
		peerUnfenced: func(writer int) error {
			return pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error { return update(ctx, tx, writer) })
		},
	}
	for _, writers := range plan.writers {
		if err := b.writeRounds(plan, writers, writes); err != nil {
			return err
		}
	}
	return nil
}

func update(ctx context.Context, tx pgx.Tx, writer int) error {
	_, err := tx.Exec(ctx, updateRow, writer)
	return err
}

func (b *bench) writeRounds(plan fencePlan, writers int, writes map[string]func(int) error) error {
	names := []string{peerUnfenced, peerFenced}
	for _, name := range names { // statements are prepared
		if _, _, err := writeFor(plan.turn/2, writers, writes[name]); err != nil {
			return err
		}
	}
	for range b.rounds {
		nanos, seconds := map[string][]int64{}, map[string]float64{}
		for n := range 2 * plan.turns {
			name := names[(n+n/2)%2] // either goes first as often
			took, d, err := writeFor(plan.turn, writers, writes[name])
			if err != nil {
				return err
			}
			nanos[name] = append(nanos[name], took...)
			seconds[name] += d.Seconds()
		}
		for _, name := range names {
			b.results.add(figure{workFence, writersCase(writers), name, metricRate, unitRate}, float64(len(nanos[name]))/seconds[name])
			b.results.addLatencies(workFence, writersCase(writers), name, nanos[name])
		}
	}
	return nil
}

// writeFor lets the writers write for about the given time.
func writeFor(d time.Duration, writers int, write func(writer int) error) ([]int64, time.Duration, error) {
	var wg sync.WaitGroup
	each := make([][]int64, writers)
	errs := make([]error, writers)
	start := time.Now()
	for w := range writers {
		wg.Go(func() {
			for before := time.Now(); len(each[w]) == 0 || before.Sub(start) < d; {
				if errs[w] = write(w); errs[w] != nil {
					return
				}
				now := time.Now()
				each[w] = append(each[w], now.Sub(before).Nanoseconds())
				before = now
			}
		})
	}
	wg.Wait()
	var nanos []int64
	for _, one := range each {
		nanos = append(nanos, one...)
	}
	return nanos, time.Since(start), errors.Join(errs...)
}
