package pglock_test

import (
	"context"
	"fmt"
	"log"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed35111a8b/pglock/pglock"
)

// hourly returns the first full hour after t, as the Next of a cron schedule would.
func hourly(t time.Time) time.Time { return t.Truncate(time.Hour).Add(time.Hour) }

// reportDue makes the reports that are due. Every replica calls it once a minute or so.
func reportDue(ctx context.Context, locker *pglock.Locker, now time.Time) error {
	const job = "hourly-report"
	// That a tick runs once is Once's doing. The lock spares the other replicas the wait for its transaction.
	_, err := locker.TryDo(ctx, job, func(ctx context.Context, _ *pglock.Lock) error {
		last, _, err := locker.LastTick(ctx, job)
		if err != nil {
			return err
		}
		// After a night in which no replica ran there is one report, not ten.
		for _, slot := range pglock.DueTicks(last, now, 10*time.Minute, pglock.CatchUpOnce, hourly) {
			_, err := locker.Once(ctx, job, slot, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "INSERT INTO reports VALUES ($1)", slot)
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

// Each hour's report is made once, whichever replica makes it, though their clocks differ.
func Example_hourlyJob() {
	ctx := context.Background()
	pool, replicas, end := exampleReplicas(3)
	defer end()
	if _, err := pool.Exec(ctx, "CREATE TABLE reports (hour timestamptz)"); err != nil {
		log.Fatal(err)
	}

	midnight := time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC)
	for _, at := range []time.Duration{10 * time.Hour, 10*time.Hour + time.Minute, 11 * time.Hour, 21 * time.Hour} {
		var wg sync.WaitGroup
		for i, locker := range replicas {
			wg.Go(func() {
				clock := midnight.Add(at + time.Duration(i)*7*time.Second)
				if err := reportDue(ctx, locker, clock); err != nil {
					log.Fatal(err)
				}
			})
		}
		wg.Wait()
	}

	rows, err := pool.Query(ctx, `SELECT to_char(hour AT TIME ZONE 'UTC', 'HH24:MI') || ': ' || count(*)
  FROM reports GROUP BY hour ORDER BY hour`)
	if err != nil {
		log.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(strings.Join(lines, "\n"))
	// Output:
	// 10:00: 1
	// 11:00: 1
	// 21:00: 1
}
