package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// demo is three replicas on a database of their own, and one who is hard on them.
type demo struct {
	jobs   []job
	lease  time.Duration
	store  *store
	locker *pglock.Locker
	fleet  *fleet
	view   *view
}

const (
	minDemoLease = time.Second
	maxDemoLease = 10 * time.Second
)

// demoCommand runs the demo. It returns errAudit if the audit found something.
func demoCommand(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	flags := newFlags("demo", stderr)
	lease := flags.Duration("lease", 2*time.Second, "the replicas' lease")
	if err := parse(flags, args); err != nil {
		return err
	}
	if *lease < minDemoLease || *lease > maxDemoLease {
		return fmt.Errorf("-lease %v: the demo, which waits until it ends, works between %v and %v", *lease, minDemoLease, maxDemoLease)
	}
	jobs, err := exampleJobs()
	if err != nil {
		return err
	}
	fmt.Fprintln(stdout, "starting a PostgreSQL, or connecting to that of DATABASE_URL")
	server, err := pgtest.Start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = joinClosed(ctx, err, server.Close) }()
	dsn, err := server.CreateDatabase(ctx)
	if err != nil {
		return err
	}
	defer func() {
		err = joinClosed(ctx, err, func(ctx context.Context) error { return server.DropDatabase(ctx, dsn) })
	}()
	pool, err := openPool(ctx, dsn, "demo")
	if err != nil {
		return err
	}
	defer pool.Close()
	locker, err := newLocker(pool, *lease, slog.New(slog.NewTextHandler(stderr, nil)))
	if err != nil {
		return err
	}
	defer func() { err = joinClosed(ctx, err, locker.Close) }()
	d := &demo{
		jobs: jobs, lease: *lease, store: &store{pool: pool}, locker: locker,
		fleet: newFleet(dsn, *lease), view: newView(stdout, jobs, locker),
	}
	defer func() { err = errors.Join(err, d.fleet.close()) }()
	return d.run(ctx, stdout)
}

// joinClosed adds the error of a clean-up, which runs also when ctx has ended.
func joinClosed(ctx context.Context, err error, clean func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	return errors.Join(err, clean(ctx))
}

// run is the demo from the first replica to the audit.
func (d *demo) run(ctx context.Context, stdout io.Writer) error {
	if err := d.store.migrate(ctx, d.locker, d.jobs); err != nil {
		return err
	}
	d.view.header()
	failure := d.play(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	until, err := d.settle(ctx, failure == nil)
	if err != nil {
		return err
	}
	failure = errors.Join(failure, d.stop(ctx))
	result, err := d.store.audit(ctx, d.jobs, until)
	if err != nil {
		return err
	}
	if failure != nil {
		result.other = append(result.other, failure.Error())
	}
	result.print(stdout)
	if len(result.problems()) > 0 {
		return errAudit
	}
	return nil
}

// play is what happens to the replicas.
func (d *demo) play(ctx context.Context) error {
	d.view.heading("three replicas share the jobs")
	for _, name := range []string{"alpha", "beta", "gamma"} {
		if err := d.fleet.start(ctx, name); err != nil {
			return err
		}
	}
	for _, part := range []func(context.Context) error{
		func(ctx context.Context) error { return d.watch(ctx, "invoices", 2) },
		d.killHolder,
		func(ctx context.Context) error { return d.watch(ctx, "invoices", 2) },
		d.endSession,
		func(ctx context.Context) error { return d.watch(ctx, "report", 2) },
		d.freezeHolder,
		func(ctx context.Context) error { return d.watch(ctx, "invoices", 1) },
		d.rollingRestart,
		func(ctx context.Context) error { return d.watch(ctx, "invoices", 2) },
	} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	return nil
}

// watch returns when n more ticks of the job are done.
func (d *demo) watch(ctx context.Context, job string, n int) error {
	for range n {
		if _, err := d.await(ctx, "a tick of "+job, func(e event) bool { return e.Msg == evDone && e.Job == job }); err != nil {
			return err
		}
	}
	return nil
}

// settle ends the time that the audit covers, and returns when all its ticks are run, or will not be.
func (d *demo) settle(ctx context.Context, healthy bool) (until time.Time, err error) {
	until, err = d.store.now(ctx)
	if err != nil || !healthy {
		return until, err
	}
	var auditErr error
	_, err = d.await(ctx, "the last ticks", func(event) bool {
		var a audit
		a, auditErr = d.store.audit(ctx, d.jobs, until)
		return auditErr != nil || !slices.ContainsFunc(a.jobs, func(j jobAudit) bool { return len(j.missed) > 0 })
	})
	if err != nil && ctx.Err() == nil {
		err = nil // ticks are missed, or a replica has ended: the audit says so
	}
	return until, errors.Join(err, auditErr)
}

// stop ends all replicas with SIGTERM. The error says which did not end cleanly.
func (d *demo) stop(ctx context.Context) error {
	d.view.heading("SIGTERM to all replicas")
	last := slices.Collect(maps.Keys(d.fleet.processes))
	for _, name := range last {
		if err := d.fleet.terminate(name); err != nil {
			return err
		}
	}
	var err error
	for range last {
		_, awaitErr := d.await(ctx, "a replica to end", func(e event) bool {
			return e.Msg == evEnded && d.fleet.ending[e.Replica] != nil
		})
		err = errors.Join(err, awaitErr)
	}
	if err != nil {
		return err
	}
	for _, p := range d.fleet.ending {
		err = errors.Join(err, p.Wait(ctx))
	}
	return err
}

// patience is how long the demo waits for an event: far longer than any should take.
const patience = 20 * time.Second

// await shows what happens until an event matches, and returns that.
func (d *demo) await(ctx context.Context, what string, match func(event) bool) (event, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case e := <-d.fleet.events:
			d.view.event(ctx, e)
			if _, running := d.fleet.processes[e.Replica]; e.Msg == evEnded && running {
				return e, fmt.Errorf("replica %s has ended by itself: %s", e.Replica, e.Error)
			}
			if match(e) {
				return e, nil
			}
		case <-timer.C:
			return event{}, fmt.Errorf("waited %v for %s", patience, what)
		case <-ctx.Done():
			return event{}, ctx.Err()
		}
	}
}
