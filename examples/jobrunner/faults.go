package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/seed35111a8b/pglock/pglock"
)

// Kinds of faults.
const (
	faultKill   = "kill -9"
	faultEnd    = "session ended"
	faultFreeze = "SIGSTOP"
	faultTerm   = "SIGTERM"
)

// slack is what a take-over may take beside what it is bound by: the fault is noted before it happens, and two cores are
// shared by all.
const slack = time.Second

// killHolder kills the holder of a lock in the middle of a job. The kernel closes its sockets, and the server frees its
// locks.
func (d *demo) killHolder(ctx context.Context) error {
	d.view.heading("(1) kill -9 to a holder in the middle of a job")
	holder, _, err := d.holder(ctx, "invoices")
	if err != nil {
		return err
	}
	if err := d.store.noteFault(ctx, faultKill, holder, d.lease); err != nil {
		return err
	}
	if err := d.fleet.kill(holder.Replica); err != nil {
		return err
	}
	d.view.say(ctx, "%s is KILLED in the middle of %s %s", holder.Replica, holder.Job, clock(holder.Tick))
	if _, err := d.takeOver(ctx, holder); err != nil {
		return err
	}
	d.view.say(ctx, "delta is started in its place")
	return d.fleet.start(ctx, "delta")
}

// endSession ends the session of a holder in the middle of a job, as an operator or a failover does. The holder does not
// look, and writes late.
func (d *demo) endSession(ctx context.Context) error {
	d.view.heading("(2) the server ends the session of a holder in the middle of a job; the holder writes all the same")
	holder, session, err := d.holder(ctx, "report")
	if err != nil {
		return err
	}
	if err := d.store.noteFault(ctx, faultEnd, holder, d.lease); err != nil {
		return err
	}
	if err := d.locker.Terminate(ctx, session); err != nil {
		return err
	}
	d.view.say(ctx, "the SESSION of %s is ENDED in the middle of %s %s (backend %d)",
		holder.Replica, holder.Job, clock(holder.Tick), session.PID)
	rejected, err := d.takeOver(ctx, holder)
	if err != nil || rejected {
		return err
	}
	return d.rejection(ctx, holder)
}

// freezeHolder freezes a holder in the middle of a job until the server has ended its lease and another holds the lock, and
// wakes it. It then finds its work done and writes late.
func (d *demo) freezeHolder(ctx context.Context) error {
	d.view.heading("(3) SIGSTOP to a holder in the middle of a job until its lease of %v has ended, then SIGCONT", d.lease)
	holder, _, err := d.holder(ctx, "invoices")
	if err != nil {
		return err
	}
	if err := d.store.noteFault(ctx, faultFreeze, holder, d.lease+slack); err != nil {
		return err
	}
	process := d.fleet.processes[holder.Replica]
	if err := process.Freeze(); err != nil {
		return err
	}
	d.view.say(ctx, "%s is FROZEN in the middle of %s %s", holder.Replica, holder.Job, clock(holder.Tick))
	_, err = d.takeOver(ctx, holder)
	if err := errors.Join(err, process.Thaw()); err != nil {
		return err
	}
	d.view.say(ctx, "%s is AWAKE again, and knows nothing", holder.Replica)
	return d.rejection(ctx, holder)
}

// rollingRestart replaces the replicas one by one, as a deployment does: first the holder of a lock in the middle of a job,
// which finishes that and hands the next tick over, then the others.
func (d *demo) rollingRestart(ctx context.Context) error {
	d.view.heading("(4) a rolling restart: SIGTERM to one replica after the other, beginning with a holder in the middle of a job")
	old := slices.Sorted(maps.Keys(d.fleet.processes))
	holder, _, err := d.holder(ctx, "invoices")
	if err != nil {
		return err
	}
	// The run is finished first, and the next tick comes two seconds after this one.
	if err := d.store.noteFault(ctx, faultTerm, holder, 2*time.Second+2*slack); err != nil {
		return err
	}
	if err := d.restart(ctx, holder.Replica); err != nil {
		return err
	}
	for _, name := range old {
		if name == holder.Replica {
			continue
		}
		if err := d.restart(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// restart ends a replica and starts another in its place, when it has ended cleanly.
func (d *demo) restart(ctx context.Context, name string) error {
	if err := d.fleet.terminate(name); err != nil {
		return err
	}
	d.view.say(ctx, "%s is told to END", name)
	at := time.Now()
	clean := false
	_, err := d.await(ctx, name+" to end", func(e event) bool {
		clean = clean || e.Replica == name && e.Msg == evBye
		return e.Replica == name && e.Msg == evEnded
	})
	if err != nil {
		return err
	}
	if !clean {
		return fmt.Errorf("replica %s did not end cleanly", name)
	}
	next := name + "-2"
	d.view.say(ctx, "%s has drained and ended after %s; %s is started in its place", name, ms(time.Since(at)), next)
	if err := d.fleet.start(ctx, next); err != nil {
		return err
	}
	_, err = d.await(ctx, next+" to be ready", func(e event) bool { return e.Replica == next && e.Msg == evReady })
	return err
}

// holder returns the next run of the job that begins, and the session of its lock.
func (d *demo) holder(ctx context.Context, job string) (event, pglock.Holder, error) {
	for {
		e, err := d.await(ctx, "a run of "+job, func(e event) bool { return e.Msg == evBegan && e.Job == job })
		if err != nil {
			return e, pglock.Holder{}, err
		}
		sessions, err := d.locker.Holders(ctx, job)
		if err != nil {
			return e, pglock.Holder{}, err
		}
		// A machine that stood still may show us a run that is over.
		if len(sessions) > 0 && !sessions[0].Waiting && replicaOf(sessions[0]) == e.Replica {
			return e, sessions[0], nil
		}
	}
}

// takeOver returns when another has taken over from the holder that a fault has befallen, and shows how long that took. It
// reports whether the late write was rejected meanwhile.
func (d *demo) takeOver(ctx context.Context, holder event) (rejected bool, err error) {
	_, err = d.await(ctx, "a take-over of "+holder.Job, func(e event) bool {
		rejected = rejected || isRejection(e, holder)
		return e.Msg == evBegan && e.Job == holder.Job && e.Token > holder.Token
	})
	if err != nil {
		return rejected, err
	}
	a, err := d.store.audit(ctx, d.jobs, time.Time{})
	if err != nil {
		return rejected, err
	}
	f := a.faults[len(a.faults)-1]
	bound := fmt.Sprintf("far less than the lease of %v", d.lease)
	if f.kind == faultFreeze {
		bound = fmt.Sprintf("bound: the lease, %s, and %s to be scheduled", ms(d.lease), ms(slack))
	}
	d.view.say(ctx, "TAKE-OVER of %s by %s, %s after the fault (%s)", f.job, f.successor, ms(f.takeOver), bound)
	return rejected, nil
}

// rejection returns when the holder's late write has been rejected.
func (d *demo) rejection(ctx context.Context, holder event) error {
	_, err := d.await(ctx, "the late write of "+holder.Replica, func(e event) bool { return isRejection(e, holder) })
	return err
}

func isRejection(e, holder event) bool {
	return e.Msg == evRejected && e.Job == holder.Job && e.Token == holder.Token
}
