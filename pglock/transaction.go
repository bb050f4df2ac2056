package pglock

import (
	"cmp"
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A fence is what guards a transaction: a token for each resource, in an order that all such transactions keep.
type fence struct {
	sql        statements
	resources  []string
	tokens     []int64
	idleMillis int64
}

// inFenceOrder sorts resources by the locks that the function fence takes for them, since two may share one.
func inFenceOrder(resources []string) []string {
	slices.SortFunc(resources, func(a, b string) int {
		return cmp.Or(cmp.Compare(Hashtext(a), Hashtext(b)), cmp.Compare(a, b))
	})
	return resources
}

// exec guards a transaction that has begun.
func (f *fence) exec(ctx context.Context, tx pgx.Tx) error {
	var err error
	if len(f.resources) == 1 {
		_, err = tx.Exec(ctx, f.sql.fence(), f.resources[0], f.tokens[0], f.idleMillis)
	} else {
		_, err = tx.Exec(ctx, f.sql.fenceEach(), f.resources, f.tokens, f.idleMillis)
	}
	return classify(err)
}

// inTx is inTx in a transaction that the fence guards. On a connection of pgx itself the fence goes with BEGIN in one message.
func (f *fence) inTx(ctx context.Context, db DB, op string, fn func(pgx.Tx) error) error {
	switch pooled := db.(type) {
	case *pgxpool.Pool:
		conn, err := pooled.Acquire(ctx)
		if err != nil {
			return &LockError{Op: op, Err: classify(err)}
		}
		defer conn.Release()
		db = conn.Conn()
	case *pgxpool.Conn:
		db = pooled.Conn()
	}
	conn, ok := db.(*pgx.Conn)
	if !ok {
		return inTx(ctx, db, LockError{Op: op}, readWrite(), func(tx pgx.Tx) error {
			if err := f.exec(ctx, tx); err != nil {
				return &LockError{Op: op, Err: err}
			}
			return fn(tx)
		})
	}
	begin := f.sql.beginFenced(f.resources, f.tokens, f.idleMillis)
	err := inTx(ctx, conn, LockError{Op: op}, pgx.TxOptions{BeginQuery: begin}, fn)
	if status := conn.PgConn().TxStatus(); status != idleStatus && !conn.IsClosed() {
		// A fence that refuses leaves its transaction open, and pgx knows of none.
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_, _ = conn.Exec(undo, "ROLLBACK") // the connection is closed if it fails, which is a rollback too
	}
	return err
}

// idleStatus is the transaction status of a connection that is in none.
const idleStatus = 'I'

// readWrite returns options with which a transaction may write whatever the session's default is.
func readWrite() pgx.TxOptions { return pgx.TxOptions{AccessMode: pgx.ReadWrite} }

// readCommitted is readWrite where each statement has to see what was committed before it.
func readCommitted() pgx.TxOptions {
	return pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}
}

// inTx runs fn in a transaction with the given options, or in a savepoint of the transaction that db is. What fails of its own, and not
// of fn's, is the error failed, with its cause.
func inTx(ctx context.Context, db DB, failed LockError, options pgx.TxOptions, fn func(pgx.Tx) error) error {
	begin := db.Begin
	if db, ok := db.(interface {
		BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
	}); ok {
		begin = func(ctx context.Context) (pgx.Tx, error) {
			return db.BeginTx(ctx, options)
		}
	}
	tx, err := begin(ctx)
	if err != nil {
		failed.Err = classify(err)
		return &failed
	}
	committed := false
	defer func() { // also when fn panics
		if !committed {
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
			defer cancel()
			_ = tx.Rollback(undo) // the connection is closed if it fails, which is a rollback too
		}
	}()
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		failed.Err = commitFailed(err)
		return &failed
	}
	committed = true
	return nil
}
