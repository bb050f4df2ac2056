// Package pglockgocron lets several replicas of a service share the jobs of a [gocron] scheduler by locks of [pglock].
//
// There are two ways, of which a scheduler takes one:
//
//   - [Elector]: one replica leads and runs all jobs. For many jobs, or jobs that know of each other.
//   - [Locker]: whichever replica is first runs a tick of a job. The load spreads.
//
// # What runs how often
//
// A lock alone does not make a tick run once: a job that takes 5 ms has freed the lock before a replica whose clock is 10 ms
// behind asks for it, and runs again. So the Locker claims the tick too, in the table pglock.ticks, before the job runs: each
// tick runs at most once, and not at all if the replica dies in between. The Elector claims nothing: around a change of the
// leader a tick may run twice or be missed, as the clocks differ.
//
// Where a tick must have its effect exactly once, let the job itself call [pglock.Locker.Once], with its scheduled time as
// the slot, and do its work in that transaction; use the Elector then, or neither.
//
// gocron has no way to tell a job that its lock, or its term, was lost. Work that must be right passes its token to the
// resource: see the package pglock.
//
// [gocron]: https://pkg.go.dev/github.com/go-co-op/gocron/v2
package pglockgocron

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jackc/pgx/v5"

	"github.com/seed35111a8b/pglock/pglock"
)

// ErrNotLeader means that another replica leads, or none does.
var ErrNotLeader = errors.New("pglockgocron: this replica does not lead")

// ErrTickTaken means that the tick was run before, here or on another replica.
var ErrTickTaken = errors.New("pglockgocron: this tick has been run")

// An Elector runs the jobs of a scheduler only while its replica leads. It is safe for concurrent use.
type Elector struct {
	election *pglock.Election
}

var _ gocron.Elector = (*Elector)(nil)

// NewElector returns an Elector for the option gocron.WithDistributedElector. It does not lead unless Run is called.
func NewElector(election *pglock.Election) *Elector { return &Elector{election: election} }

// Run campaigns, and leads whenever it can, until ctx ends: see Election.Run, whose errors it returns. Let it end before the
// Locker is closed, and the scheduler be shut down before it, so that no job of this replica runs beside the next leader's.
func (e *Elector) Run(ctx context.Context) error {
	return e.election.Run(ctx, func(ctx context.Context, _ *pglock.Term) error {
		<-ctx.Done()
		return nil
	})
}

// IsLeader returns nil while this replica leads, by its own clock too, and else ErrNotLeader. It does no I/O.
func (e *Elector) IsLeader(context.Context) error {
	if e.election.IsLeader() {
		return nil
	}
	return ErrNotLeader
}

// A Slot tells the scheduled time of the tick that a job is about to run, from the time at which its timer fired. All
// replicas must come to the same time for the same tick.
type Slot func(job string, fired time.Time) time.Time

// Every is the Slot of jobs that are due at the multiples of interval since the zero time, such as each full minute. The
// replicas' timers may be early or late by less than half of it. Give a gocron.DurationJob an aligned start with
// gocron.WithStartAt; an unaligned one counts for the multiple nearest to it.
func Every(interval time.Duration) Slot {
	return func(_ string, fired time.Time) time.Time { return fired.Round(interval) }
}

// A Locker lets one replica run each tick of a job: it holds the lock of the job's name while the job runs, and claims the
// tick. It is safe for concurrent use.
type Locker struct {
	locker *pglock.Locker
	slot   Slot
}

var _ gocron.Locker = (*Locker)(nil)

// NewLocker returns a Locker for the option gocron.WithDistributedLocker. Jobs need names that all replicas share, by
// gocron.WithName. A nil slot claims nothing: two runs of a job exclude each other, and a fast job runs on each replica.
func NewLocker(locker *pglock.Locker, slot Slot) *Locker { return &Locker{locker: locker, slot: slot} }

// Lock returns the lock of a job's tick. The error matches pglock.ErrNotAcquired if the job runs elsewhere, ErrTickTaken if
// the tick has been run, or says what else is wrong; gocron then skips the tick, and tells the event listener
// gocron.AfterLockError. It never waits for another replica's job.
func (l *Locker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	if l.slot == nil {
		lock, err := l.locker.TryAcquire(ctx, job)
		if err != nil {
			return nil, err
		}
		return held{lock}, nil
	}
	slot := l.slot(job, time.Now())
	var lock *pglock.Lock
	// Whoever comes second learns it from the claim and leaves the lock alone, which the next tick may want by then. Where
	// the lock is not free nothing is claimed, and another replica may still be in time.
	first, err := l.locker.Once(ctx, job, slot, func(ctx context.Context, _ pgx.Tx) (err error) {
		lock, err = l.locker.TryAcquire(ctx, job)
		return err
	})
	switch {
	case first && err == nil:
		return held{lock}, nil
	case lock != nil: // the claim could not be committed
		return nil, errors.Join(err, lock.Release(ctx))
	case err == nil:
		err = fmt.Errorf("%w: %s of %s", ErrTickTaken, job, slot.Format(time.RFC3339Nano))
	}
	return nil, err
}

// held is the lock of a job that runs.
type held struct{ lock *pglock.Lock }

// Unlock releases the lock. It works though gocron's ctx has ended, as it has when the scheduler is shut down. The error
// matches pglock.ErrLost if the lock had been lost while the job ran.
func (h held) Unlock(ctx context.Context) error { return h.lock.Release(ctx) }
