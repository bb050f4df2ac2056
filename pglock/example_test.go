package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// One replica of many runs the export; the write is refused if this replica is too late.
func Example() {
	databaseURL := pgtest.ExampleDSN()

	ctx := context.Background()
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	locker, err := pglock.New(pool, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close(ctx)
	if err := locker.Migrate(ctx); err != nil {
		log.Fatal(err)
	}

	ran, err := locker.TryDo(ctx, "nightly-export", func(ctx context.Context, lock *pglock.Lock) error {
		// ctx ends when the lock does, or with the caller's ctx.
		fmt.Println("this replica runs the export")
		return lock.FencedTx(ctx, pool, "exports", func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "CREATE TABLE IF NOT EXISTS exports AS SELECT now() AS at")
			return err
		})
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("ran:", ran)
	// Output:
	// this replica runs the export
	// ran: true
}

// A holder that was merely slow comes back after its successor has begun.
func ExampleLock_FencedTx() {
	ctx := context.Background()
	pool, locker := exampleLocker()
	defer pool.Close()
	defer locker.Close(ctx)
	db := exampleTable(pool)

	slow, _ := locker.Acquire(ctx, "report")
	token := slow.Token()
	_ = slow.Release(ctx) // or its lease ended while it was frozen

	next, _ := locker.Acquire(ctx, "report")
	defer next.Release(ctx)
	err := next.FencedTx(ctx, db, "report", func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO reports VALUES ('by the successor')")
		return err
	})
	fmt.Println("successor:", err)

	// The slow one does not look at its lock. It only has its token, and that is enough.
	err = pglock.Fencer{}.FencedTx(ctx, db, token, "report", func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO reports VALUES ('too late')")
		return err
	})
	fmt.Println("slow holder is refused:", errors.Is(err, pglock.ErrStaleToken))
	// Output:
	// successor: <nil>
	// slow holder is refused: true
}

// Waiting ends with the context.
func ExampleLocker_Acquire() {
	ctx := context.Background()
	pool, locker := exampleLocker()
	defer pool.Close()
	defer locker.Close(ctx)

	held, _ := locker.TryAcquire(ctx, "import")
	defer held.Release(ctx)

	wait, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err := locker.Acquire(wait, "import")
	fmt.Println(errors.Is(err, pglock.ErrNotAcquired), errors.Is(err, context.DeadlineExceeded))
	// Output: true true
}

// Work that goes on for long watches the lock's context, or binds its own to it.
func ExampleLock_Bind() {
	ctx := context.Background()
	pool, locker := exampleLocker()
	defer pool.Close()
	defer locker.Close(ctx)

	lock, _ := locker.Acquire(ctx, "leader")
	work, cancel := lock.Bind(ctx)
	defer cancel()

	_ = lock.Release(ctx)
	<-work.Done()
	fmt.Println(context.Cause(work))
	// Output: lock released
}

func exampleLocker() (*pgxpool.Pool, *pglock.Locker) {
	return exampleReplica(pgtest.ExampleDSN())
}

// exampleReplica is what one replica of a service has.
func exampleReplica(databaseURL string) (*pgxpool.Pool, *pglock.Locker) {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		log.Fatal(err)
	}
	locker, err := pglock.New(pool, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := locker.Migrate(ctx); err != nil {
		log.Fatal(err)
	}
	return pool, locker
}

// exampleReplicas are several replicas, each with a pool of its own, and one of these pools.
func exampleReplicas(n int) (pool *pgxpool.Pool, lockers []*pglock.Locker, end func()) {
	databaseURL := pgtest.ExampleDSN()
	pools := make([]*pgxpool.Pool, n)
	lockers = make([]*pglock.Locker, n)
	for i := range n {
		pools[i], lockers[i] = exampleReplica(databaseURL)
	}
	return pools[0], lockers, func() {
		for i := range n {
			if err := lockers[i].Close(context.Background()); err != nil {
				log.Fatal(err)
			}
			pools[i].Close()
		}
	}
}

// exampleLose ends the session of lock as an administrator would, and returns when the holder knows it.
func exampleLose(locker *pglock.Locker, lock *pglock.Lock) {
	ctx := context.Background()
	holders, err := locker.Holders(ctx, lock.Key())
	if err != nil {
		log.Fatal(err)
	}
	if err := locker.Terminate(ctx, holders[0]); err != nil {
		log.Fatal(err)
	}
	<-lock.Context().Done()
}

func exampleTable(pool *pgxpool.Pool) *pgxpool.Pool {
	if _, err := pool.Exec(context.Background(), "CREATE TABLE reports (line text)"); err != nil {
		log.Fatal(err)
	}
	return pool
}
