// Package pglockcron lets each tick of a job of a [cron] run on one of several replicas, by [pglock].
//
//	ticks := pglockcron.New(ctx, locker, "invoices", schedule, nil)
//	c.Schedule(ticks, ticks.Job(sendInvoices))
//
// A Ticks is put between a Cron and the schedule of one job. It remembers for which times the Cron has been woken, since a
// cron.Job is not told, and claims each of them in the table pglock.ticks, so that the replicas agree on it whatever their
// clocks say.
//
//   - [Ticks.Job]: the work is a function that gets the transaction of the claim. Its effects in the database happen exactly
//     once; if it fails, or the replica dies, another that comes to the tick later runs it.
//   - [Ticks.Wrap]: the work is any cron.Job. The tick is claimed before it: it runs at most once, and not at all if the
//     replica dies in between. Two ticks never overlap, on whichever replicas: the second is then skipped.
//
// The wrappers of cron.WithChain go around both. Where cron.SkipIfStillRunning skips a run its tick is left to the other replicas;
// runs that cron.DelayIfStillRunning delays take the latest tick first.
//
// A tick for which no replica was there is not made up for: see pglock.DueTicks.
//
// [cron]: https://pkg.go.dev/github.com/robfig/cron/v3
package pglockcron

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/robfig/cron/v3"

	"github.com/seed35111a8b/pglock/pglock"
)

// Ticks are those of one job. It is the cron.Schedule of an entry, and makes its cron.Job. It belongs to one entry of one
// Cron, that is started once.
type Ticks struct {
	locker   *pglock.Locker
	name     string
	schedule cron.Schedule
	logger   *slog.Logger
	context  func() context.Context

	mu    sync.Mutex  // guards slots
	slots []time.Time // for which the Cron will wake, or has woken, and that no run has taken
}

var _ cron.Schedule = (*Ticks)(nil)

// New returns the Ticks of the job of that name, which all replicas share. The schedule must come to the same times on each
// of them, as one that cron.ParseStandard has made does; cron.Every counts from when it was started, and does not. ctx is
// handed to the work: end it to stop what runs. A nil logger means slog.Default().
func New(ctx context.Context, locker *pglock.Locker, name string, schedule cron.Schedule, logger *slog.Logger) *Ticks {
	if logger == nil {
		logger = slog.Default()
	}
	return &Ticks{
		locker: locker, name: name, schedule: schedule, logger: logger,
		context: func() context.Context { return ctx },
	}
}

// mostLate is how many ticks are remembered for runs that are late.
const mostLate = 100

// Next returns what the schedule says, and remembers it for the run that the Cron will start then.
func (t *Ticks) Next(after time.Time) time.Time {
	next := t.schedule.Next(after)
	if !next.IsZero() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.slots = append(t.slots, next)
		t.slots = t.slots[max(0, len(t.slots)-mostLate):]
	}
	return next
}

// take returns the latest tick that is due and that no run has taken: runs that a wrapper has skipped take none, and those after
// them must not be behind for that. A late run takes one of those that are left.
func (t *Ticks) take() (slot time.Time, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for i, slot := range slices.Backward(t.slots) {
		if !slot.After(now) {
			t.slots = slices.Delete(t.slots, i, i+1)
			return slot, true
		}
	}
	return slot, false // run by hand
}

// Job returns the job that runs fn once for each tick, in the transaction that claims it: see Locker.Once. An error is
// logged.
func (t *Ticks) Job(fn func(ctx context.Context, tx pgx.Tx, slot time.Time) error) cron.Job {
	return cron.FuncJob(func() {
		slot, ok := t.take()
		if !ok {
			return
		}
		_, err := t.locker.Once(t.context(), t.name, slot, func(ctx context.Context, tx pgx.Tx) error {
			return fn(ctx, tx, slot)
		})
		t.report(slot, err)
	})
}

// Wrap is a cron.JobWrapper: it returns a job that runs job under the lock of its name, at most once for each tick.
func (t *Ticks) Wrap(job cron.Job) cron.Job {
	return cron.FuncJob(func() {
		slot, ok := t.take()
		if !ok {
			return
		}
		var lock *pglock.Lock
		// Whoever comes second learns it from the claim and leaves the lock alone, which the next tick may want by then.
		first, err := t.locker.Once(t.context(), t.name, slot, func(ctx context.Context, _ pgx.Tx) (err error) {
			lock, err = t.locker.TryAcquire(ctx, t.name)
			return err
		})
		if lock != nil {
			defer func() { t.report(slot, lock.Release(t.context())) }() // ErrLost says that another may have run beside it
		}
		if first {
			job.Run()
		}
		t.report(slot, err)
	})
}

// report logs an error, unless it is that everything ends.
func (t *Ticks) report(slot time.Time, err error) {
	switch {
	case err == nil, t.context().Err() != nil && errors.Is(err, context.Canceled):
		return
	case errors.Is(err, pglock.ErrNotAcquired):
		t.logger.Info("pglockcron: tick skipped, the one before still runs", "job", t.name, "slot", slot)
		return
	}
	t.logger.Error("pglockcron: tick failed", "job", t.name, "slot", slot, "error", err)
}
