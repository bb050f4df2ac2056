package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed35111a8b/pglock/cmd/pglock/internal/supervise"
	"github.com/seed35111a8b/pglock/pglock"
)

type runCommand struct {
	Key      string        `arg:"" help:"Name of the lock: any text. Whoever uses the same name, in the same namespace, shares it."`
	Try      bool          `help:"Do not wait if another holds the lock." xor:"wait"`
	Wait     time.Duration `help:"Wait this long at most, as in 30s or 5m. Without it, and without --try, wait for as long as it takes." placeholder:"DURATION" xor:"wait"`
	Conflict int           `help:"Exit code if the lock was not acquired (default 1)." short:"E" name:"conflict-exit-code" default:"1" placeholder:"CODE"`
	Once     string        `help:"Run the tick SLOT of this key once: do nothing if it has run, on whichever host." placeholder:"SLOT"`
	Lease    time.Duration `help:"How long a host that froze or was cut off keeps the lock (default 15s)." default:"15s" placeholder:"DURATION"`
	Margin   time.Duration `help:"The last part of the lease, in which the command has to have ended (default a fifth of it)." placeholder:"DURATION"`
	Grace    time.Duration `help:"Time between SIGTERM and SIGKILL; at most four fifths of the margin (default two thirds of it)." placeholder:"DURATION"`
}

// Help is shown below the summary.
func (*runCommand) Help() string {
	return `The lock is held from before the command starts until it has ended, and everything that it has started with it: what it
leaves behind in the background is ended too. Usage:

    pglock run [flags] KEY -- COMMAND [ARGUMENT…]

The command has standard input, output and error, and the terminal. It leads a process group of its own. Signals that pglock
gets it passes on, those that ask to end to the whole group. The exit code is the command's, or 128+n if signal n ended
it.

It finds in its environment PGLOCK_KEY; PGLOCK_LOCK_ID, the number that PostgreSQL locks; and PGLOCK_TOKEN, the fencing token: a number
that rises with each holder, for whatever can refuse the writes of an earlier one (docs/command.md).

If the lock is lost (the server ends, the network fails, the lease runs out) the command and everything that it has started
get SIGTERM, after the grace SIGKILL, and are gone before another host can have the lock, unless the server itself ended the
session: then the other may have it at once. So it is too if pglock is stopped for longer than the lease. If pglock
is killed, the command's whole tree is killed with it (on Linux; elsewhere its process group is).

With --once, SLOT names the tick that is to run: a time such as 2026-11-29T16:00:00Z, or a duration such as 1h or 15m, for
the one that contains the server's present time, counted from midnight UTC. A tick has run when the command has ended with exit code
0; if it fails, or its host dies, the next that asks runs it. A tick that has run is no error: the exit code is 0.`
}

// Run is called by kong.
func (c *runCommand) Run(a *app) error {
	if len(a.argv) == 0 {
		return usageError("which command? pglock run [flags] KEY -- COMMAND [ARGUMENT…]")
	}
	if err := c.complete(); err != nil {
		return err
	}
	path, err := lookPath(a.argv[0])
	if err != nil {
		return err
	}
	locker, pool, end, err := a.locker(a.ctx, pglock.Config{
		Lease: c.Lease, TrustMargin: c.Margin, HeartbeatInterval: c.heartbeat(),
	})
	if err != nil {
		return err
	}
	defer end()
	var slot time.Time
	if c.Once != "" {
		if slot, err = c.slot(a.ctx, pool); err != nil {
			return err
		}
		if ran, err := hasRun(a.ctx, locker, c.Key, slot); err != nil || ran {
			return err
		}
	}
	lock, err := c.acquire(a.ctx, locker)
	if err != nil {
		return c.notAcquired(a.ctx, err)
	}
	return c.hold(a, locker, lock, path, slot)
}

// complete sets the defaults that depend on each other, and refuses what cannot be kept.
func (c *runCommand) complete() error {
	if c.Wait < 0 {
		return usageError("--wait %v: it must be positive", c.Wait)
	}
	if c.Conflict < 0 || c.Conflict > 255 {
		return usageError("-E %d: an exit code is between 0 and 255", c.Conflict)
	}
	if c.Margin == 0 {
		c.Margin = c.Lease / 5
	}
	longest := c.Margin * 4 / 5
	if c.Grace == 0 {
		c.Grace = c.Margin * 2 / 3
	}
	if c.Grace < 0 || c.Grace > longest {
		return usageError("--grace %v: with --lease %v and --margin %v it can be at most %v, or the command could still run when "+
			"another host has the lock; a longer --margin makes room, and a longer --lease for that", c.Grace, c.Lease, c.Margin, longest)
	}
	return nil
}

// heartbeat lets three fit into the time before the margin.
func (c *runCommand) heartbeat() time.Duration {
	return min(c.Lease/5, (c.Lease-c.Margin)/3)
}

// lookPath finds the command before the lock is taken.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil, errors.Is(err, exec.ErrDot):
		return path, nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		return "", &exitError{Code: exitNotFound, Err: err}
	}
	return "", &exitError{Code: exitCannotRun, Err: err}
}

func (c *runCommand) acquire(ctx context.Context, locker *pglock.Locker) (*pglock.Lock, error) {
	if c.Try {
		return locker.TryAcquire(ctx, c.Key)
	}
	if c.Wait > 0 {
		waiting, cancel := context.WithTimeout(ctx, c.Wait)
		defer cancel()
		ctx = waiting
	}
	return locker.Acquire(ctx, c.Key)
}

// notAcquired gives the error its exit code. A wait that ended while the server was out of reach says nothing of the lock.
func (c *runCommand) notAcquired(ctx context.Context, err error) error {
	if ctx.Err() == nil && errors.Is(err, pglock.ErrNotAcquired) && !errors.Is(err, pglock.ErrUnavailable) {
		return &exitError{Code: c.Conflict, Err: err}
	}
	return err
}

// hold runs the command under the lock.
func (c *runCommand) hold(a *app, locker *pglock.Locker, lock *pglock.Lock, path string, slot time.Time) error {
	release := func() error { return lock.Release(context.WithoutCancel(a.ctx)) }
	if c.Once != "" {
		// Another may have run it while we waited.
		if ran, err := hasRun(a.ctx, locker, c.Key, slot); err != nil || ran {
			return errors.Join(err, release())
		}
	}
	j := &job{app: a, lock: lock, trust: c.Lease - c.Margin, interval: c.heartbeat()}
	config := supervise.Config{
		Path: path, Args: a.argv, Grace: c.Grace,
		Env: append(os.Environ(),
			"PGLOCK_KEY="+lock.Key(), "PGLOCK_LOCK_ID="+lock.LockID().String(), fmt.Sprintf("PGLOCK_TOKEN=%d", lock.Token())),
	}
	code, err := j.run(a.ctx, config)
	if err == nil && code == 0 && c.Once != "" {
		err = markRun(context.WithoutCancel(a.ctx), locker, c.Key, slot)
	}
	if released := release(); released != nil && err == nil {
		a.complain(fmt.Errorf("the command had ended, then: %w", released))
	}
	if err != nil {
		return err
	}
	if code == exitSignal+int(interrupt) {
		j.passOnInterrupt()
	}
	return exitWith(code)
}

var errNotRun = errors.New("has not run")

// hasRun asks without leaving a mark: the claim is rolled back.
func hasRun(ctx context.Context, locker *pglock.Locker, key string, slot time.Time) (bool, error) {
	_, err := locker.Once(ctx, key, slot, func(context.Context, pgx.Tx) error { return errNotRun })
	if errors.Is(err, errNotRun) {
		return false, nil
	}
	return err == nil, err
}

// markRun notes that the tick has run.
func markRun(ctx context.Context, locker *pglock.Locker, key string, slot time.Time) error {
	_, err := locker.Once(ctx, key, slot, func(context.Context, pgx.Tx) error { return nil })
	if err != nil {
		return fmt.Errorf("the command has ended well, but the tick could not be marked as run, and may run again: %w", err)
	}
	return nil
}
