package pglock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// TryAcquireTx acquires the lock for key until tx ends, if nobody holds it; otherwise the error matches ErrNotAcquired and tx
// goes on. It excludes the session locks of all Lockers with the same configuration, and is excluded by them. It has no
// token and needs none: the lock lives as long as the transaction whose writes it protects. It works behind poolers in any
// mode. To release it end tx; a rollback to a savepoint that was set before releases it too.
//
// See https://www.postgresql.org/docs/current/explicit-locking.html#ADVISORY-LOCKS.
func (l *Locker) TryAcquireTx(ctx context.Context, tx pgx.Tx, key string) error {
	const op = "try acquire tx"
	id, err := l.m.config.identify(key)
	if err != nil {
		return l.m.lockError(op, key, err)
	}
	sql, args := tryTxSQL, []any(nil)
	if a, b, ok := id.Pair(); ok {
		sql, args = tryTxPairSQL, append(args, a, b)
	} else {
		n, _ := id.Int64()
		args = append(args, n)
	}
	var taken bool
	if err := tx.QueryRow(ctx, sql, args...).Scan(&taken); err != nil {
		return l.m.lockError(op, key, classify(err))
	}
	if !taken {
		return l.m.lockError(op, key, ErrNotAcquired)
	}
	return nil
}

// AcquireTx is TryAcquireTx that waits until the lock is free, or until ctx's deadline: then the error matches
// ErrNotAcquired and context.DeadlineExceeded, and tx goes on. A ctx that is cancelled while it waits ends tx, since pgx
// closes the connection. PostgreSQL sees deadlocks between such waits and row locks, and ends one of them with SQLSTATE
// 40P01.
//
// A transaction that waits holds what it holds: see the section Waiting of the package documentation for what that does to
// vacuum and CREATE INDEX CONCURRENTLY. Take the lock first, and do not wait for long.
func (l *Locker) AcquireTx(ctx context.Context, tx pgx.Tx, key string) error {
	const op = "acquire tx"
	id, err := l.m.config.identify(key)
	if err != nil {
		return l.m.lockError(op, key, err)
	}
	if ctx.Err() != nil {
		return l.m.lockError(op, key, waitEnded(ctx, nil))
	}
	var wait time.Duration // 0: without end
	statement := ctx
	if deadline, ok := ctx.Deadline(); ok {
		wait = max(time.Millisecond, time.Until(deadline))
		// The server ends the wait at the deadline, and the answer takes a moment. Were ctx to end first tx would end with it.
		var cancel context.CancelFunc
		statement, cancel = context.WithDeadline(context.WithoutCancel(ctx), deadline.Add(l.m.config.ReleaseTimeout))
		defer cancel()
		stop := context.AfterFunc(ctx, func() {
			if errors.Is(ctx.Err(), context.Canceled) {
				cancel()
			}
		})
		defer stop()
	}
	packed, kind := id.packed(exclusive)
	var taken bool
	err = tx.QueryRow(statement, l.m.sql.lockTx(), packed, kind, wait.Milliseconds()).Scan(&taken)
	switch {
	case err != nil:
		return l.m.lockError(op, key, classify(err))
	case !taken:
		return l.m.lockError(op, key, fmt.Errorf("%w: %w", ErrNotAcquired, context.DeadlineExceeded))
	}
	return nil
}
