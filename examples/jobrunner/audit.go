package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// errAudit: the audit found something wrong, and says what.
var errAudit = errors.New("the audit failed")

// audit is what the database says of all runs, against what the schedules ask for.
type audit struct {
	until  time.Time
	jobs   []jobAudit
	faults []faultAudit
	other  []string // problems that were found elsewhere
}

// jobAudit is the audit of one job. Ticks are those up to audit.until; sums are over all runs.
type jobAudit struct {
	job        string
	ticks      int // that the schedule has
	runs       int // of these ticks
	duplicates int
	missed     []time.Time
	strays     int // runs of what is no tick of the schedule
	disorder   int // runs that a holder wrote though a later one had begun or written: stale writes that were accepted
	attempts   int
	rejected   int           // stale writes
	latest     time.Duration // from a tick to the beginning of its run
	total      int64         // running total
	sum        int64         // of what the runs brought
	count      int64         // running number of runs
	allRuns    int64
}

// faultAudit is what came of one thing that was done to a holder.
type faultAudit struct {
	kind, job, replica string
	token              int64
	bound              time.Duration
	successor          string        // empty if nobody took over
	takeOver           time.Duration // until the successor had begun
	rejected           int           // writes of that holder
}

// audit compares the database with the schedules, for ticks up to and including until. It sees the database as it is at
// one moment, so that runs may go on meanwhile.
func (s *store) audit(ctx context.Context, jobs []job, until time.Time) (audit, error) {
	result := audit{until: until}
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, s.pool, snapshot, func(tx pgx.Tx) (err error) {
		for _, j := range jobs {
			a, err := auditJob(ctx, tx, j, until)
			if err != nil {
				return fmt.Errorf("audit of %s: %w", j.name, err)
			}
			result.jobs = append(result.jobs, a)
		}
		result.faults, err = auditFaults(ctx, tx)
		return err
	})
	return result, err
}

func auditJob(ctx context.Context, tx pgx.Tx, j job, until time.Time) (jobAudit, error) {
	a := jobAudit{job: j.name}
	var since time.Time
	err := tx.QueryRow(ctx, `SELECT since, runs, total,
		  (SELECT count(*) FROM jobrunner.attempts WHERE job = name),
		  (SELECT count(*) FROM jobrunner.rejections WHERE job = name)
		FROM jobrunner.jobs WHERE name = $1`, j.name).Scan(&since, &a.count, &a.total, &a.attempts, &a.rejected)
	if err != nil {
		return a, err
	}
	runs, err := auditRuns(ctx, tx, &a)
	if err != nil {
		return a, err
	}
	a.compare(runs, j.ticks(since, until), until)
	return a, nil
}

// auditRuns adds up the runs of a job, and returns how many there are of each tick.
func auditRuns(ctx context.Context, tx pgx.Tx, a *jobAudit) (map[time.Time]int, error) {
	rows, err := tx.Query(ctx, `SELECT scheduled_at, amount, started_at - scheduled_at,
		  EXISTS (SELECT FROM jobrunner.attempts a WHERE a.job = r.job AND a.token > r.token AND a.started_at < r.finished_at)
		  OR EXISTS (SELECT FROM jobrunner.job_runs o WHERE o.job = r.job AND o.token > r.token AND o.finished_at < r.finished_at)
		FROM jobrunner.job_runs r WHERE job = $1`, a.job)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	runs := map[time.Time]int{}
	for rows.Next() {
		var tick time.Time
		var amount int64
		var late time.Duration
		var disorder bool
		if err := rows.Scan(&tick, &amount, &late, &disorder); err != nil {
			return nil, err
		}
		runs[tick.UTC()]++
		a.allRuns++
		a.sum += amount
		a.latest = max(a.latest, late)
		if disorder {
			a.disorder++
		}
	}
	return runs, rows.Err()
}

// compare counts the runs of each tick. Runs after until are left alone.
func (a *jobAudit) compare(runs map[time.Time]int, ticks []time.Time, until time.Time) {
	a.ticks = len(ticks)
	for _, tick := range ticks {
		n := runs[tick]
		delete(runs, tick)
		a.runs += n
		if n == 0 {
			a.missed = append(a.missed, tick)
		} else {
			a.duplicates += n - 1
		}
	}
	for tick, n := range runs {
		if !tick.After(until) {
			a.strays += n
		}
	}
}

func auditFaults(ctx context.Context, tx pgx.Tx) ([]faultAudit, error) {
	rows, err := tx.Query(ctx, `SELECT f.kind, f.job, f.replica, f.token, f.bound, coalesce(a.replica, ''),
		  coalesce(a.started_at - f.at, '0'),
		  (SELECT count(*) FROM jobrunner.rejections r WHERE r.job = f.job AND r.token = f.token)
		FROM jobrunner.faults f LEFT JOIN LATERAL (
		  SELECT replica, started_at FROM jobrunner.attempts a WHERE a.job = f.job AND a.token > f.token
		  ORDER BY started_at LIMIT 1) a ON true
		ORDER BY f.at`)
	if err != nil {
		return nil, fmt.Errorf("audit of faults: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (f faultAudit, err error) {
		return f, row.Scan(&f.kind, &f.job, &f.replica, &f.token, &f.bound, &f.successor, &f.takeOver, &f.rejected)
	})
}

// problems lists what is wrong.
func (a audit) problems() []string {
	list := append([]string(nil), a.other...)
	add := func(wrong bool, format string, args ...any) {
		if wrong {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}
	for _, j := range a.jobs {
		add(j.ticks == 0, "%s: no tick was due", j.job)
		add(len(j.missed) > 0, "%s: %d ticks missed, from %s", j.job, len(j.missed), clock(first(j.missed)))
		add(j.duplicates > 0, "%s: %d ticks run twice", j.job, j.duplicates)
		add(j.strays > 0, "%s: %d runs of no tick", j.job, j.strays)
		add(j.disorder > 0, "%s: %d stale writes accepted", j.job, j.disorder)
		add(j.total != j.sum, "%s: the running total is %d, the runs brought %d", j.job, j.total, j.sum)
		add(j.count != j.allRuns, "%s: %d runs were counted, there are %d", j.job, j.count, j.allRuns)
	}
	for _, f := range a.faults {
		what := fmt.Sprintf("%s: %s of %s (token %d)", f.job, f.kind, f.replica, f.token)
		add(f.successor == "", "%s: nobody took over", what)
		add(f.takeOver > f.bound, "%s: taken over after %s, bound %s", what, ms(f.takeOver), ms(f.bound))
		add((f.kind == faultEnd || f.kind == faultFreeze) && f.rejected == 0, "%s: its late write was not rejected", what)
	}
	return list
}

func first(list []time.Time) (t time.Time) {
	if len(list) > 0 {
		t = list[0]
	}
	return t
}
