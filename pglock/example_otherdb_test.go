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

// fenceLedger prepares the database that has the ledger. It grants no locks and needs the fence alone.
func fenceLedger(ctx context.Context, ledger *pgxpool.Pool) error {
	if err := (pglock.Fencer{}).Migrate(ctx, ledger); err != nil {
		return err
	}
	_, err := ledger.Exec(ctx, `CREATE TABLE balances (account text PRIMARY KEY, amount int, fencing_token bigint NOT NULL);
SELECT pglock.fence_table('balances')`)
	return err
}

// The locks are in one database, what they protect is in another. The tokens are those of the first, the second compares them.
func Example_otherDatabase() {
	ctx := context.Background()
	locks, locker := exampleLocker()
	defer locks.Close()
	defer locker.Close(ctx)
	ledger, err := pgxpool.New(ctx, pgtest.ExampleDSN())
	if err != nil {
		log.Fatal(err)
	}
	defer ledger.Close()
	if err := fenceLedger(ctx, ledger); err != nil {
		log.Fatal(err)
	}

	slow, err := locker.Acquire(ctx, "ledger")
	if err != nil {
		log.Fatal(err)
	}
	exampleLose(locker, slow)
	lock, err := locker.Acquire(ctx, "ledger")
	if err != nil {
		log.Fatal(err)
	}
	defer lock.Release(ctx)

	// By resource: one name for whatever the holder writes there.
	err = lock.FencedTx(ctx, ledger, "ledger", func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO balances VALUES ('alice', 10, $1)", lock.Token())
		return err
	})
	fmt.Println("the holder writes:", err)
	err = pglock.Fencer{}.Claim(ctx, ledger, slow.Token(), "ledger")
	fmt.Println("the one before is refused:", errors.Is(err, pglock.ErrStaleToken))

	// By row, also for programs that do not know pglock: the trigger compares the column.
	_, err = ledger.Exec(ctx, "UPDATE balances SET amount = 0, fencing_token = $1 WHERE account = 'alice'", slow.Token())
	stale, ok := pglock.AsStaleToken(err)
	fmt.Println("and by the row:", ok && stale.Highest == lock.Token())
	// Output:
	// the holder writes: <nil>
	// the one before is refused: true
	// and by the row: true
}
