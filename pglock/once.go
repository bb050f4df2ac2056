package pglock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Once runs fn for one tick of a job, the slot, unless that was done before, by whichever replica. The claim of the tick and
// what fn does in tx are one transaction: fn's effects in this database happen exactly once for each slot, whatever the
// clocks of the replicas say and whoever leads. It returns true if fn ran and its transaction is committed.
//
// If fn fails or the replica dies nothing is claimed, and the next one that asks runs the tick. If the error matches
// ErrCommitUnknown the tick may have run: asking again tells, and does not repeat it. While another replica is
// at it Once waits for the outcome; a replica that freezes in fn holds the others up for at most Config.Lease.
//
// Effects outside of this database are not in the transaction. Done within fn they happen at least once: again, if the commit
// fails. Done after Once has returned true they happen at most once: not at all, if the replica dies in between.
//
// slot must be the time for which the tick is scheduled, not the time at which it runs: the replicas have to agree on it.
func (l *Locker) Once(ctx context.Context, job string, slot time.Time, fn func(ctx context.Context, tx pgx.Tx) error) (ran bool, err error) {
	const op = "once"
	if err := checkJob(job); err != nil {
		return false, l.m.lockError(op, job, err)
	}
	if slot.IsZero() {
		return false, l.m.lockError(op, job, errors.New("the slot is the zero time: it must be the scheduled time of the tick"))
	}
	if !l.m.begin() {
		return false, l.m.lockError(op, job, ErrClosed)
	}
	defer l.m.finish()
	err = inTx(ctx, l.m.pool, LockError{Op: op, Key: l.m.label(job)}, readCommitted(), func(tx pgx.Tx) error {
		claimed, err := l.claimTick(ctx, tx, job, slot)
		if err != nil {
			return l.m.lockError(op, job, classify(err))
		}
		if !claimed {
			return nil
		}
		if err := fn(ctx, tx); err != nil {
			return err
		}
		ran = true
		return nil
	})
	return ran && err == nil, err
}

// checkJob is checkKey for what is in an index.
func checkJob(job string) error { return errOr(checkKey(job), fitsIndex("a job's name", job)) }

// claimTick reports false if the tick was run before. It waits for a transaction that is at it.
func (l *Locker) claimTick(ctx context.Context, tx pgx.Tx, job string, slot time.Time) (bool, error) {
	c := &l.m.config
	if _, err := tx.Exec(ctx, boundIdleSQL, fmt.Sprint(c.Lease.Milliseconds())); err != nil {
		return false, err
	}
	tag, err := tx.Exec(ctx, l.m.sql.claimTick(), c.Namespace, job, slot)
	return tag.RowsAffected() == 1, err
}

// LastTick returns the latest slot of job that has run, and false if none has.
func (l *Locker) LastTick(ctx context.Context, job string) (slot time.Time, ok bool, err error) {
	const op = "last tick"
	if err := checkJob(job); err != nil {
		return time.Time{}, false, l.m.lockError(op, job, err)
	}
	c := &l.m.config
	err = l.m.pool.QueryRow(ctx, l.m.sql.lastTick(), c.Namespace, job).Scan(&slot)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return time.Time{}, false, nil
	case err != nil:
		return time.Time{}, false, l.m.lockError(op, job, classify(err))
	}
	return slot, true, nil
}

// PruneTicks forgets the ticks that ran longer ago than age, and returns how many. A tick that is asked for after that runs
// again: choose an age beyond any replica's delay, such as a week.
func (l *Locker) PruneTicks(ctx context.Context, age time.Duration) (forgotten int64, err error) {
	if age <= 0 {
		return 0, &LockError{Op: "prune ticks", Err: fmt.Errorf("the age %v must be positive", age)}
	}
	tag, err := l.m.pool.Exec(ctx, l.m.sql.pruneTicks(), age.Seconds())
	if err != nil {
		return 0, &LockError{Op: "prune ticks", Err: classify(err)}
	}
	return tag.RowsAffected(), nil
}

// CatchUp says what is to be done about ticks that nobody ran in time because nobody was there.
type CatchUp int

// What DueTicks returns after a gap.
const (
	CatchUpOnce CatchUp = iota // the latest of the missed ticks, for all of them
	CatchUpAll                 // each of them
	CatchUpSkip                // none of them
)

// DueTicks returns the slots that are due at now and come after last, in their order. next returns the first slot after a
// time, as the Next of a cron schedule does, and the zero time if there is none; DueTicks stops at one that is not after that
// time. A slot that is older than grace was missed, and policy says what becomes of it. Where last is the zero time, since no
// tick has run yet, nothing was missed.
func DueTicks(last, now time.Time, grace time.Duration, policy CatchUp, next func(time.Time) time.Time) []time.Time {
	intime := now.Add(-grace)
	if last.IsZero() || policy == CatchUpSkip && last.Before(intime) {
		last = intime
	}
	var due []time.Time
	for slot := next(last); slot.After(last) && !slot.After(now); last, slot = slot, next(slot) {
		if policy == CatchUpOnce && len(due) > 0 && due[len(due)-1].Before(intime) {
			due = due[:0] // the one before it was missed, and is made up for by a later one
		}
		due = append(due, slot)
	}
	return due
}
