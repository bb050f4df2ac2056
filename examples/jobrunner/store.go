package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed35111a8b/pglock/pglock"
)

//go:embed schema.sql
var schemaSQL string

// errNotReady: the tables are missing, or the job is not in them.
var errNotReady = errors.New("the database is not ready: run `jobrunner migrate`")

// store is what the job runner keeps in the database.
type store struct {
	pool *pgxpool.Pool
}

// attempt is a run of a tick that has begun: what finish needs to know of the beginning.
type attempt struct {
	job       string
	tick      time.Time
	replica   string
	token     int64
	startedAt time.Time
	runs      int64 // of the job before this one
	total     int64
}

// migrate brings the tables of pglock and of the job runner, and the list of jobs, up to date. All replicas may call it at
// the same time.
func (s *store) migrate(ctx context.Context, locker *pglock.Locker, jobs []job) error {
	if err := locker.Migrate(ctx); err != nil {
		return err
	}
	// The lock is for CREATE … IF NOT EXISTS, of which two at a time can fail.
	return locker.Do(ctx, "migrate", func(ctx context.Context, _ *pglock.Lock) error {
		if _, err := s.pool.Exec(ctx, schemaSQL); err != nil {
			return fmt.Errorf("tables of jobrunner: %w", err)
		}
		for _, j := range jobs {
			_, err := s.pool.Exec(ctx, "INSERT INTO jobrunner.jobs (name) VALUES ($1) ON CONFLICT DO NOTHING", j.name)
			if err != nil {
				return fmt.Errorf("job %s: %w", j.name, err)
			}
		}
		return nil
	})
}

// check returns an error that matches errNotReady if migrate has not been run for these jobs.
func (s *store) check(ctx context.Context, jobs []job) error {
	for _, j := range jobs {
		var known bool
		err := s.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM jobrunner.jobs WHERE name = $1)", j.name).Scan(&known)
		switch pgErr, ok := errors.AsType[*pgconn.PgError](err); {
		case ok && pgErr.Code == "42P01": // undefined_table
			return errNotReady
		case err != nil:
			return fmt.Errorf("the database of DATABASE_URL: %w", err)
		case !known:
			return fmt.Errorf("%w (job %s is unknown)", errNotReady, j.name)
		}
	}
	return nil
}

// begin claims the job for the holder of the lock and begins the first tick that is due and has not been run. Its own clock
// is nothing to a replica: the database's tells what is due. If nothing is, the attempt is nil and wait is the time until
// the next tick.
func (s *store) begin(ctx context.Context, lock *pglock.Lock, j job, replica string) (a *attempt, wait time.Duration, err error) {
	err = lock.FencedTx(ctx, s.pool, j.name, func(tx pgx.Tx) error {
		b := attempt{job: j.name, replica: replica, token: lock.Token()}
		var last time.Time
		err := tx.QueryRow(ctx, `SELECT clock_timestamp(), j.runs, j.total,
			  coalesce((SELECT max(scheduled_at) FROM jobrunner.job_runs r WHERE r.job = j.name), j.since)
			FROM jobrunner.jobs j WHERE j.name = $1`, j.name).Scan(&b.startedAt, &b.runs, &b.total, &last)
		if err != nil {
			return fmt.Errorf("job %s: %w", j.name, err)
		}
		switch b.tick = j.next(last); {
		case b.tick.IsZero():
			return fmt.Errorf("job %s: its schedule has no tick after %v", j.name, last)
		case b.tick.After(b.startedAt):
			wait = b.tick.Sub(b.startedAt)
			return nil
		}
		a = &b
		_, err = tx.Exec(ctx, `INSERT INTO jobrunner.attempts (job, token, scheduled_at, replica, started_at)
			VALUES ($1, $2, $3, $4, $5)
			ON CONFLICT (job, token, scheduled_at) DO UPDATE SET started_at = excluded.started_at`, // it failed before in this term
			b.job, b.token, b.tick, b.replica, b.startedAt)
		return err
	})
	if err != nil {
		return nil, 0, err // the transaction that made it was rolled back
	}
	return a, wait, nil
}

// finish is what a fenced transaction writes when the work is done.
func (a *attempt) finish(ctx context.Context, tx pgx.Tx, amount int64) error {
	_, err := tx.Exec(ctx, `INSERT INTO jobrunner.job_runs
		(job, scheduled_at, replica, token, amount, started_at, finished_at) VALUES ($1, $2, $3, $4, $5, $6, clock_timestamp())`,
		a.job, a.tick, a.replica, a.token, amount, a.startedAt)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, "UPDATE jobrunner.jobs SET runs = $2, total = $3 WHERE name = $1", a.job, a.runs+1, a.total+amount)
	return err
}

// succeeded tells whether a later holder than that of a has begun.
func (s *store) succeeded(ctx context.Context, a *attempt) (yes bool, err error) {
	err = s.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM jobrunner.attempts WHERE job = $1 AND token > $2)",
		a.job, a.token).Scan(&yes)
	return yes, err
}

// noteRejection notes that the fence refused the write of a.
func (s *store) noteRejection(ctx context.Context, a *attempt, highest int64) error {
	_, err := s.pool.Exec(ctx, `INSERT INTO jobrunner.rejections (job, scheduled_at, replica, token, highest)
		VALUES ($1, $2, $3, $4, $5)`, a.job, a.tick, a.replica, a.token, highest)
	return err
}

// noteFault notes what is about to be done to a holder, within bound of which another must have taken over.
func (s *store) noteFault(ctx context.Context, kind string, e event, bound time.Duration) error {
	_, err := s.pool.Exec(ctx, `INSERT INTO jobrunner.faults (kind, job, replica, token, bound) VALUES ($1, $2, $3, $4, $5)`,
		kind, e.Job, e.Replica, e.Token, bound)
	return err
}

// now is the time by the database's clock.
func (s *store) now(ctx context.Context) (t time.Time, err error) {
	err = s.pool.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&t)
	return t, err
}
