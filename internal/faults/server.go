package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed35111a8b/pglock/internal/faults/history"
	"github.com/seed35111a8b/pglock/pglock"
)

// followServer lets the server's faults strike, until ctx ends. A crash that has
// begun is seen through: the server is up again when it returns.
func (r *runner) followServer(ctx context.Context, plan []step) error {
	for _, step := range plan {
		wait(ctx, step.after)
		if over(ctx) {
			break
		}
		if err := r.strikeServer(context.WithoutCancel(ctx), step); err != nil {
			return fmt.Errorf("server: %s: %w", step.kind, err)
		}
	}
	return nil
}

// quieten has the clients write nothing for a while. The first token after a
// checkpoint puts a record into the log that reserves some more, and nobody waits
// for its flush: with no write to flush it, a crash loses it and the sequence
// goes back.
func (r *runner) quieten(ctx context.Context, quiet time.Duration) error {
	r.say(sayQuiet)
	wait(ctx, quiet/2) // for writes that are under way
	err := r.server.Exec(ctx, "", "CHECKPOINT")
	wait(ctx, quiet/2)
	return err
}

// serverTimeout bounds a server fault, to the server's being up again.
const serverTimeout = time.Minute

func (r *runner) strikeServer(ctx context.Context, step step) error {
	ctx, cancel := context.WithTimeout(ctx, serverTimeout)
	defer cancel()
	if step.quiet > 0 {
		defer r.say(sayLoud)
		if err := r.quieten(ctx, step.quiet); err != nil {
			return err
		}
	}
	d := history.Disturbance{Kind: step.kind, Client: history.Everyone, Begin: history.Now()}
	down, up := r.server.Kill, r.server.Restart
	switch step.kind {
	case history.Restart:
		down = r.server.Stop
	case history.CrashBackend:
		var err error
		if down, up, err = r.backendCrash(ctx); errors.Is(err, errNotReached) {
			return nil
		} else if err != nil {
			return err
		}
		d.Begin = history.Now()
	}
	if err := down(ctx); err != nil {
		return err
	}
	d.Begun = history.Now()
	err := up(ctx)
	d.Ending = history.Now()
	r.disturbed(d, d.Ending)
	return err
}

// errNotReached: the server, which all clients come back to at once after a fault,
// did not let us in, and so nothing was done to it.
var errNotReached = errors.New("the server was not reached")

// backendCrash returns what kills a backend and waits until the postmaster has
// ended all others, and what waits until the server is up again.
func (r *runner) backendCrash(ctx context.Context) (down, up func(context.Context) error, err error) {
	mark, err := r.server.Mark(ctx)
	if err != nil {
		return nil, nil, err
	}
	dial, cancel := context.WithTimeout(ctx, 2*lease)
	defer cancel()
	conn, err := pgx.Connect(dial, r.dsn)
	if err != nil {
		return nil, nil, errors.Join(errNotReached, err)
	}
	var pid int
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		return nil, nil, errors.Join(err, conn.Close(ctx))
	}
	down = func(ctx context.Context) error {
		err := r.server.SignalBackend(ctx, pid, syscall.SIGKILL)
		_ = conn.Close(ctx) // nothing answers
		if err != nil {
			return err
		}
		_, err = r.server.WaitLog(ctx, mark, "all server processes terminated; reinitializing")
		return err
	}
	return down, func(ctx context.Context) error { return r.server.AwaitCrashRecovery(ctx, mark) }, nil
}

// terminateSQL ends a session of the client, one with a lock if there is one,
// and returns what it had locked when it was chosen.
const terminateSQL = `
	WITH victim AS MATERIALIZED (
		SELECT pid, array(
			SELECT classid::bigint << 32 | objid::bigint FROM pg_locks l
			WHERE locktype = 'advisory' AND granted AND l.pid = a.pid) AS ids
		FROM pg_stat_activity a
		WHERE datname = current_database() AND (application_name = $1 OR starts_with(application_name, $1 || ' '))
		ORDER BY cardinality(array(
			SELECT 1 FROM pg_locks l WHERE locktype = 'advisory' AND granted AND l.pid = a.pid)) = 0, random()
		LIMIT 1)
	SELECT ids, pg_terminate_backend(pid, 1000) FROM victim`

// terminate ends a session of the client. It counts as a fault if there was one.
func (r *runner) terminate(ctx context.Context, s *seat) {
	bounded, cancel := context.WithTimeout(ctx, 2*lease)
	defer cancel()
	d := history.Disturbance{Kind: history.Terminate, Client: s.number, Begin: history.Now()}
	conn, err := pgx.Connect(bounded, r.dsn)
	if err != nil {
		return // the server is down, and with it all sessions
	}
	defer func() { _ = conn.Close(bounded) }()
	var ids []int64
	var gone bool
	err = conn.QueryRow(bounded, terminateSQL, s.name()).Scan(&ids, &gone)
	if errors.Is(err, pgx.ErrNoRows) {
		return
	}
	d.Begun, d.Unsure = history.Now(), err != nil || !gone
	if d.Unsure {
		d.Begun += int64(lease) // it ends when the server gets to it, if at all
	} else {
		d.Keys = r.keysOf(ids)
	}
	r.disturbed(d, 0)
}

// keysOf never returns nil, which would mean all keys.
func (r *runner) keysOf(ids []int64) []string {
	keys := []string{}
	for _, key := range r.keys {
		id, _ := pglock.HashID("", key).Int64()
		for _, n := range ids {
			if n == id {
				keys = append(keys, key)
			}
		}
	}
	return keys
}
