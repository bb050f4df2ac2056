package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAuditFinds plants one mistake in ten clean runs of a job that is due each second.
func TestAuditFinds(t *testing.T) {
	since := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	b := newBundle(t, job{name: "j", schedule: every(time.Second)})
	until := since.Add(10*time.Second + 500*time.Millisecond)
	for name, test := range map[string]struct {
		plant string
		want  string // in the last line
	}{
		"nothing":         {"", "audit: ok: 10 ticks, each run once"},
		"a later run":     {"INSERT INTO jobrunner.job_runs VALUES ('j', '2026-05-01 12:00:11Z', 'a', 11, 0, now(), now()); UPDATE jobrunner.jobs SET runs = 11", "audit: ok"},
		"a missed tick":   {"DELETE FROM jobrunner.job_runs WHERE token = 4", "audit: FAILED: j: 1 ticks missed, from 12:00:04; "},
		"the last missed": {"DELETE FROM jobrunner.job_runs WHERE token = 10", "1 ticks missed, from 12:00:10"},
		"a duplicate": {`ALTER TABLE jobrunner.job_runs DROP CONSTRAINT job_runs_once;
			INSERT INTO jobrunner.job_runs SELECT * FROM jobrunner.job_runs WHERE token = 4`, "audit: FAILED: j: 1 ticks run twice"},
		"a stray run":   {"UPDATE jobrunner.job_runs SET scheduled_at = scheduled_at + interval '10 ms' WHERE token = 4", "1 runs of no tick"},
		"a lost update": {"UPDATE jobrunner.jobs SET total = total - 1", "audit: FAILED: j: the running total is 99, the runs brought 100"},
		"a lost count":  {"UPDATE jobrunner.jobs SET runs = runs + 1", "audit: FAILED: j: 11 runs were counted, there are 10"},
		"a stale write after a claim": {
			"UPDATE jobrunner.job_runs SET finished_at = finished_at + interval '1 s' WHERE token = 4",
			"audit: FAILED: j: 1 stale writes accepted",
		},
		"a stale write after a write": {
			`DELETE FROM jobrunner.attempts;
			UPDATE jobrunner.job_runs SET finished_at = finished_at + interval '1500 ms' WHERE token = 4`,
			"audit: FAILED: j: 1 stale writes accepted",
		},
		"no take-over": {
			"INSERT INTO jobrunner.faults VALUES ('j', 10, 'kill -9', 'a', '1 s', '2026-05-01 12:00:09Z')",
			"audit: FAILED: j: kill -9 of a (token 10): nobody took over",
		},
		"a slow take-over": {
			"INSERT INTO jobrunner.faults VALUES ('j', 4, 'kill -9', 'a', '900 ms', '2026-05-01 12:00:04Z')",
			"audit: FAILED: j: kill -9 of a (token 4): taken over after 1000 ms, bound 900 ms",
		},
		"a quick take-over": {
			"INSERT INTO jobrunner.faults VALUES ('j', 4, 'kill -9', 'a', '1100 ms', '2026-05-01 12:00:04Z')",
			"take-over after kill -9 1000 ms",
		},
		"no rejection": {
			"INSERT INTO jobrunner.faults VALUES ('j', 4, 'SIGSTOP', 'a', '2 s', '2026-05-01 12:00:04Z')",
			"audit: FAILED: j: SIGSTOP of a (token 4): its late write was not rejected",
		},
		"a rejection": {
			`INSERT INTO jobrunner.faults VALUES ('j', 4, 'SIGSTOP', 'a', '2 s', '2026-05-01 12:00:04Z');
			INSERT INTO jobrunner.rejections VALUES ('j', '2026-05-01 12:00:04Z', 'a', 4, 5)`,
			"audit: ok: 10 ticks, each run once; 1 stale writes rejected",
		},
	} {
		t.Run(name, func(t *testing.T) {
			b.exec(t, "DROP SCHEMA jobrunner CASCADE; "+schemaSQL)
			b.exec(t, "INSERT INTO jobrunner.jobs VALUES ('j', $1, 10, 100)", since)
			b.exec(t, `INSERT INTO jobrunner.attempts SELECT 'j', n, t, 'a', t
				FROM generate_series(1, 10) n, LATERAL (SELECT $1::timestamptz + n * interval '1 s') AS t (t)`, since)
			b.exec(t, `INSERT INTO jobrunner.job_runs
				SELECT job, scheduled_at, replica, token, 10, started_at, started_at + interval '300 ms' FROM jobrunner.attempts`)
			b.exec(t, test.plant)
			_, last := b.audit(t, until)
			require.Contains(t, last, test.want)
		})
	}
}

func TestAuditWantsTicks(t *testing.T) {
	t.Parallel()
	b := newBundle(t, job{name: "j", schedule: lastHour()})
	_, last := b.audit(t, time.Now())
	require.Contains(t, last, "audit: FAILED: j: no tick was due")
}
