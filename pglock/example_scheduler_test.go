package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// every is a schedule. Here it is in parts of a second.
func every(d time.Duration) func(time.Time) time.Time {
	return func(t time.Time) time.Time { return t.Truncate(d).Add(d) }
}

// runSchedule runs the ticks of all jobs as they become due, until ctx ends.
func runSchedule(ctx context.Context, locker *pglock.Locker, jobs map[string]func(time.Time) time.Time) error {
	for {
		now := time.Now()
		soonest := now.Add(time.Hour)
		for job, next := range jobs {
			last, _, err := locker.LastTick(ctx, job)
			if err != nil {
				return err
			}
			for _, slot := range pglock.DueTicks(last, now, time.Minute, pglock.CatchUpAll, next) {
				if _, err := locker.Once(ctx, job, slot, func(ctx context.Context, tx pgx.Tx) error {
					_, err := tx.Exec(ctx, "INSERT INTO runs VALUES ($1, $2)", job, slot)
					return err
				}); err != nil {
					return err
				}
			}
			if slot := next(now); slot.Before(soonest) {
				soonest = slot
			}
		}
		select {
		case <-time.After(time.Until(soonest)):
		case <-ctx.Done():
			return nil
		}
	}
}

// One replica is elected and runs all jobs. A tick runs once also where a term ends in the middle of it.
func Example_scheduler() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	pool, replicas, end := exampleReplicas(3)
	defer end()
	if _, err := pool.Exec(ctx, "CREATE TABLE runs (job text, slot timestamptz)"); err != nil {
		log.Fatal(err)
	}

	jobs := map[string]func(time.Time) time.Time{"clean": every(100 * time.Millisecond), "mail": every(250 * time.Millisecond)}
	terms := make(chan *pglock.Term, 10)
	var wg sync.WaitGroup
	for _, locker := range replicas {
		election, err := pglock.NewElection(locker, "scheduler", nil)
		if err != nil {
			log.Fatal(err)
		}
		wg.Go(func() {
			err := election.Run(ctx, func(ctx context.Context, term *pglock.Term) error {
				terms <- term
				return runSchedule(ctx, locker, jobs)
			})
			if !errors.Is(err, context.Canceled) {
				log.Fatal(err)
			}
		})
	}
	exampleLose(replicas[0], (<-terms).Lock()) // the leader's session ends; another leads, and goes on where it was
	<-terms
	until := func(sql string) {
		ok := false
		if err := pgtest.Poll(ctx, sql, func() bool { return pool.QueryRow(ctx, sql).Scan(&ok) != nil || ok }); err != nil {
			log.Fatal(err)
		}
	}
	until("SELECT count(DISTINCT slot) >= 3 FROM runs WHERE job = 'clean'")
	until("SELECT count(DISTINCT slot) >= 2 FROM runs WHERE job = 'mail'")
	cancel()
	wg.Wait()

	var twice int
	if err := pool.QueryRow(context.Background(), "SELECT count(*) - count(DISTINCT (job, slot)) FROM runs").Scan(&twice); err != nil {
		log.Fatal(err)
	}
	fmt.Println(twice, "ticks ran twice")
	// Output: 0 ticks ran twice
}
