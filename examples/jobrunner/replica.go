package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed35111a8b/pglock/pglock"
)

// retryPause is how long a replica waits after an error before it tries again.
const retryPause = 500 * time.Millisecond

// replica runs the ticks of all jobs, together with others like it. For each job it waits until a tick is due and then for
// the job's lock: whoever gets it first runs the tick, and the others, when the lock comes to them, find it done. If the
// holder dies they get the lock at once, and find the tick still to do. With an election there is one lock for all jobs, and
// its holder, the leader, runs all ticks.
type replica struct {
	name     string
	jobs     []job
	locker   *pglock.Locker
	store    *store
	log      *slog.Logger
	election *pglock.Election // nil: a lock for each job
	grace    time.Duration    // for runs that have begun, when the replica is to end
	careless bool             // see late.go

	ticks, stale atomic.Int64 // runs recorded, and writes that the fence refused
}

// run runs ticks until ctx ends. Runs that have begun by then have the grace time to finish before they are cancelled. When
// run returns, no lock is held.
func (r *replica) run(ctx context.Context) {
	halt, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(r.grace)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel(errors.New("the replica ends and the grace time is over"))
		case <-halt.Done():
		}
	})
	defer stop()
	r.log.Info(evReady)
	if r.election != nil {
		r.campaign(ctx, halt)
		return
	}
	var jobs sync.WaitGroup
	for _, j := range r.jobs {
		jobs.Go(func() { r.follow(ctx, halt, j) })
	}
	jobs.Wait()
}

// campaign runs the ticks of all jobs while this replica leads, until ctx ends.
func (r *replica) campaign(ctx, halt context.Context) {
	for {
		err := r.election.Run(ctx, func(ctx context.Context, term *pglock.Term) error {
			r.log.Info(evLeads, "token", term.Token())
			var jobs sync.WaitGroup
			for _, j := range r.jobs {
				jobs.Go(func() { r.serve(ctx, halt, term.Lock(), j) })
			}
			jobs.Wait()
			return nil
		})
		if ctx.Err() != nil {
			return
		}
		r.log.Error(evFailed, "error", err)
		pause(ctx, retryPause)
	}
}

// serve runs the ticks of one job until ctx, a term's, ends. A run that has begun may finish: the Election waits for it before
// it lets another lead.
func (r *replica) serve(ctx, halt context.Context, lock *pglock.Lock, j job) {
	held, cancel := lock.Bind(halt)
	defer cancel()
	var wait time.Duration
	for pause(ctx, wait) {
		var err error
		if wait, err = r.runDue(ctx, held, halt, lock, j); err == nil {
			continue
		}
		if !errors.Is(err, pglock.ErrLost) && !errors.Is(err, pglock.ErrReleased) {
			r.log.Error(evFailed, "job", j.name, "error", err)
		}
		wait = retryPause
	}
}

// follow runs the ticks of one job until ctx ends. halt cancels a run that has begun.
func (r *replica) follow(ctx, halt context.Context, j job) {
	var wait time.Duration
	for pause(ctx, wait) {
		err := r.locker.Do(ctx, j.name, func(_ context.Context, lock *pglock.Lock) (err error) {
			// Do's own ctx ends with ctx; a run that has begun may finish.
			held, cancel := lock.Bind(halt)
			defer cancel()
			wait, err = r.runDue(ctx, held, halt, lock, j)
			return err
		})
		switch {
		case err == nil, errors.Is(err, pglock.ErrNotAcquired) && ctx.Err() != nil:
			continue
		case !errors.Is(err, pglock.ErrLost): // that is logged by the library
			r.log.Error(evFailed, "job", j.name, "error", err)
		}
		wait = retryPause
	}
}

// runDue runs the ticks that are due, in their order, for as long as ctx lasts and the lock is held. It returns the time
// until the next one.
func (r *replica) runDue(ctx, held, halt context.Context, lock *pglock.Lock, j job) (time.Duration, error) {
	for ctx.Err() == nil {
		a, wait, err := r.store.begin(held, lock, j, r.name)
		if err != nil || a == nil {
			return wait, err
		}
		r.log.Info(evBegan, a.attrs()...)
		if r.careless {
			err = r.runCareless(held, halt, lock, j, a)
		} else {
			err = r.runTick(held, lock, j, a)
		}
		if err != nil {
			return 0, err
		}
	}
	return 0, nil
}

// runTick does the work of a tick and records it, for as long as held lasts. If the lock is lost it stops: another replica
// has the tick now.
func (r *replica) runTick(held context.Context, lock *pglock.Lock, j job, a *attempt) error {
	amount, err := j.work(held, a.tick)
	if err != nil {
		return fmt.Errorf("tick %s: %w", clock(a.tick), err)
	}
	if err := r.record(held, lock, a, amount); err != nil {
		return err
	}
	r.log.Info(evDone, a.attrs()...)
	return nil
}

// record writes the result. The fence lets it through only if no later holder has begun, whatever this one believes.
func (r *replica) record(ctx context.Context, lock *pglock.Lock, a *attempt, amount int64) error {
	err := lock.FencedTx(ctx, r.store.pool, a.job, func(tx pgx.Tx) error { return a.finish(ctx, tx, amount) })
	if err == nil {
		r.ticks.Add(1)
	}
	if stale, ok := pglock.AsStaleToken(err); ok {
		err = errors.Join(err, r.rejected(ctx, a, stale))
	}
	return err
}

// rejected logs and notes that the fence refused the write of a.
func (r *replica) rejected(ctx context.Context, a *attempt, stale *pglock.StaleTokenError) error {
	r.stale.Add(1)
	err := r.store.noteRejection(context.WithoutCancel(ctx), a, stale.Highest)
	r.log.Warn(evRejected, a.attrs("highest", stale.Highest)...)
	return err
}

// pause waits for d. It reports false if ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
