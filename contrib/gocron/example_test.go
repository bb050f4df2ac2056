package pglockgocron_test

import (
	"context"
	"fmt"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jackc/pgx/v5/pgxpool"

	pglockgocron "github.com/seed35111a8b/pglock/contrib/gocron"
	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// Each replica of a service does this: each tick of the job runs on one of them.
func ExampleNewLocker() {
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
	const every = time.Second
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(pglockgocron.NewLocker(locker, pglockgocron.Every(every))))
	if err != nil {
		panic(err)
	}
	ran := make(chan bool, 10)
	_, err = scheduler.NewJob(gocron.DurationJob(every), gocron.NewTask(func() { ran <- true }), gocron.WithName("clean-up"),
		gocron.WithStartAt(gocron.WithStartDateTime(time.Now().Truncate(every).Add(every))))
	if err != nil {
		panic(err)
	}
	scheduler.Start()
	fmt.Println("ran:", <-ran)
	if err := scheduler.Shutdown(); err != nil {
		panic(err)
	}
	// Output: ran: true
}
