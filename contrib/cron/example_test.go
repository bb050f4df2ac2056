package pglockcron_test

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/robfig/cron/v3"

	pglockcron "github.com/seed35111a8b/pglock/contrib/cron"
	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// Each replica of a service does this: each tick has its effect once.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, pgtest.ExampleDSN())
	if err != nil {
		panic(err)
	}
	defer pool.Close()
	locker, err := pglock.New(pool, nil)
	if err != nil {
		panic(err)
	}
	defer locker.Close(ctx)
	if err := locker.Migrate(ctx); err != nil {
		panic(err)
	}
	schedule, err := cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow).Parse("* * * * * *")
	if err != nil {
		panic(err)
	}
	ran := make(chan int, 10)
	ticks := pglockcron.New(ctx, locker, "count", schedule, nil)
	c := cron.New()
	c.Schedule(ticks, ticks.Job(func(ctx context.Context, tx pgx.Tx, _ time.Time) error {
		var one int
		if err := tx.QueryRow(ctx, "SELECT 1").Scan(&one); err != nil { // the work, in the transaction of the claim
			return err
		}
		ran <- one
		return nil
	}))
	c.Start()
	fmt.Println("ran:", <-ran)
	<-c.Stop().Done()
	// Output: ran: 1
}
