package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// indexOrders may be called again after it has failed, and where the index is there already.
func indexOrders(ctx context.Context, pool *pgxpool.Pool) error {
	var valid bool
	err := pool.QueryRow(ctx, "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('orders_by_customer')").Scan(&valid)
	switch {
	case err == nil && valid:
		return nil
	case err == nil:
		// Left by an attempt that failed: it costs at every write and serves no query, and IF NOT EXISTS would be content with it.
		if _, err := pool.Exec(ctx, "DROP INDEX CONCURRENTLY orders_by_customer"); err != nil {
			return err
		}
	case !errors.Is(err, pgx.ErrNoRows):
		return err
	}
	_, err = pool.Exec(ctx, "CREATE INDEX CONCURRENTLY orders_by_customer ON orders (customer)") // in no transaction
	return err
}

// awaitedBySession returns the process ID of the session that an index build waits for.
func awaitedBySession(ctx context.Context, pool *pgxpool.Pool) (awaited int) {
	err := pgtest.Poll(ctx, "the index build to wait", func() bool {
		return pool.QueryRow(ctx, `SELECT current_locker_pid FROM pg_stat_progress_create_index
  WHERE datname = current_database() AND phase = 'waiting for old snapshots' AND current_locker_pid <> 0`).Scan(&awaited) == nil
	})
	if err != nil {
		log.Fatal(err)
	}
	return awaited
}

// One replica migrates, the others wait for it. CREATE INDEX CONCURRENTLY gets past those that wait for a Lock, and never past
// one that waits inside a statement, whose snapshot is older than the index.
func Example_createIndexConcurrently() {
	ctx := context.Background()
	pool, replicas, end := exampleReplicas(2)
	defer end()
	locker, other := replicas[0], replicas[1]
	if _, err := pool.Exec(ctx, "CREATE TABLE orders AS SELECT n AS customer FROM generate_series(1, 1000) n"); err != nil {
		log.Fatal(err)
	}
	lock, err := locker.Acquire(ctx, "migrate")
	if err != nil {
		log.Fatal(err)
	}

	// What a lock that is waited for in a statement does: pg_advisory_lock, pg_advisory_xact_lock, or AcquireTx.
	tx, err := pool.Begin(ctx)
	if err != nil {
		log.Fatal(err)
	}
	waited, built := make(chan error), make(chan error)
	go func() { waited <- other.AcquireTx(ctx, tx, "migrate") }()
	if err := pgtest.WaitForWaiters(ctx, pool, 1); err != nil {
		log.Fatal(err)
	}
	go func() { built <- indexOrders(ctx, pool) }()
	fmt.Println("the build waits for the waiter:", awaitedBySession(ctx, pool) == int(tx.Conn().PgConn().PID()))
	// The waiter waits for the lock, whose holder waits for the build: for ever, were nobody to intervene.
	if _, err := pool.Exec(ctx, `SELECT pg_cancel_backend(pid) FROM pg_stat_progress_create_index
  WHERE datname = current_database()`); err != nil {
		log.Fatal(err)
	}
	fmt.Println("built:", <-built == nil)

	// What those that wait for a Lock do.
	if err := lock.Release(ctx); err != nil {
		log.Fatal(err)
	}
	if err := errors.Join(<-waited, tx.Rollback(ctx)); err != nil {
		log.Fatal(err)
	}
	migrate := func(ctx context.Context, _ *pglock.Lock) error { return indexOrders(ctx, pool) }
	err = locker.Do(ctx, "migrate", func(held context.Context, lock *pglock.Lock) error {
		go func() { waited <- other.Do(ctx, "migrate", migrate) }()
		if err := pgtest.WaitForWaiters(ctx, pool, 1); err != nil {
			return err
		}
		return migrate(held, lock)
	})
	fmt.Println("built:", err == nil)
	fmt.Println("the others find it done:", <-waited == nil)
	// Output:
	// the build waits for the waiter: true
	// built: false
	// built: true
	// the others find it done: true
}
