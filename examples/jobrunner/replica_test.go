package main

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
)

func TestTwoReplicasRunEachTickOnce(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{modeLock, modeLeader} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			testTwoReplicas(t, mode)
		})
	}
}

func testTwoReplicas(t *testing.T, mode string) {
	t.Helper()
	var worked atomic.Int64
	instant := func(context.Context, time.Time) (int64, error) { return worked.Add(1), nil }
	b := newBundle(t,
		job{name: "instant", schedule: every(100 * time.Millisecond), work: instant},
		job{name: "busy", schedule: every(250 * time.Millisecond), work: simulate(100 * time.Millisecond)},
	)
	b.mode = mode
	stopA, stopB := b.replica(t, "a", false), b.replica(t, "b", false)
	pgtest.Eventually(t, "runs", func() bool { return b.count(t, "SELECT count(*) FROM jobrunner.job_runs WHERE job = 'busy'") >= 8 })
	until, err := b.store.now(t.Context())
	require.NoError(t, err)
	var last string
	pgtest.Eventually(t, "the last ticks", func() bool {
		a, line := b.audit(t, until)
		last = line
		return len(a.jobs[0].missed)+len(a.jobs[1].missed) == 0
	})
	require.Contains(t, last, "audit: ok")
	stopA()
	stopB()
	require.Equal(t, b.count(t, "SELECT count(*) FROM jobrunner.attempts"), b.count(t, "SELECT count(DISTINCT (job, scheduled_at)) FROM jobrunner.attempts"),
		"each tick was begun once")
}

func TestTicksThatNobodyWasThereForAreRun(t *testing.T) {
	t.Parallel()
	b := newBundle(t, job{name: "j", schedule: every(time.Minute), work: simulate(0)})
	b.exec(t, "UPDATE jobrunner.jobs SET since = clock_timestamp() - interval '10 min'")
	until, err := b.store.now(t.Context())
	require.NoError(t, err)
	b.replica(t, "a", false)
	pgtest.Eventually(t, "runs", func() bool { return b.count(t, "SELECT count(*) FROM jobrunner.job_runs") >= 10 })
	_, last := b.audit(t, until)
	require.Contains(t, last, "audit: ok: 10 ticks, each run once")
}

func TestFailedTickIsRunAgain(t *testing.T) {
	t.Parallel()
	var tries atomic.Int64
	b := newBundle(t, job{name: "j", schedule: lastHour(), work: func(context.Context, time.Time) (int64, error) {
		if tries.Add(1) == 1 {
			return 0, errors.New("as planned")
		}
		return 7, nil
	}})
	b.exec(t, "UPDATE jobrunner.jobs SET since = clock_timestamp() - interval '2 h'")
	b.replica(t, "a", false)
	pgtest.Eventually(t, "a run", func() bool { return b.count(t, "SELECT count(*) FROM jobrunner.job_runs") == 1 })
	require.EqualValues(t, 2, tries.Load())
	require.Equal(t, 2, b.count(t, "SELECT count(*) FROM jobrunner.attempts"))
	require.Equal(t, 7, b.count(t, "SELECT total FROM jobrunner.jobs"))
}

// TestHolderThatIsCutOff ends the session of a holder in the middle of a job. Another runs the tick, and the holder writes
// nothing: because it stops, or because the database refuses it.
func TestHolderThatIsCutOff(t *testing.T) {
	t.Parallel()
	for name, careless := range map[string]bool{"stops": false, "is refused": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := make(chan struct{})   // closed when the first run may end
			stopped := make(chan error, 1) // how the first run ended
			var begun atomic.Int64
			b := newBundle(t, job{name: "j", schedule: lastHour(), work: func(ctx context.Context, _ time.Time) (int64, error) {
				if begun.Add(1) > 1 {
					return 100, nil
				}
				var err error
				select {
				case <-first:
				case <-ctx.Done():
					err = context.Cause(ctx)
				}
				stopped <- err
				return 1, err
			}})
			b.exec(t, "UPDATE jobrunner.jobs SET since = clock_timestamp() - interval '2 h'")
			b.replica(t, "a", careless)
			pgtest.Eventually(t, "a to begin", func() bool { return begun.Load() == 1 })
			b.replica(t, "b", false)
			require.NoError(t, pgtest.WaitForWaiters(t.Context(), b.store.pool, 1))
			sessions, err := b.locker.Holders(t.Context(), "j")
			require.NoError(t, err)
			require.Equal(t, "a", replicaOf(sessions[0]))
			require.NoError(t, b.locker.Terminate(t.Context(), sessions[0]))
			pgtest.Eventually(t, "a run", func() bool { return b.count(t, "SELECT count(*) FROM jobrunner.job_runs") == 1 })
			if careless {
				close(first)
				require.NoError(t, <-stopped)
				pgtest.Eventually(t, "a rejection", func() bool { return b.count(t, "SELECT count(*) FROM jobrunner.rejections") == 1 })
			} else {
				require.ErrorContains(t, <-stopped, "lost")
			}
			require.Equal(t, 100, b.count(t, "SELECT total FROM jobrunner.jobs"))
			_, last := b.audit(t, time.Now())
			require.Contains(t, last, "audit: ok: 1 ticks, each run once")
		})
	}
}

func TestSIGTERM(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args string
		runs int
	}{
		"finishes the job":             {"-grace 10s", 1},
		"cancels the job":              {"-grace 0s", 0},
		"of a leader finishes the job": {"-mode leader -grace 10s", 1},
		"of a leader cancels the job":  {"-mode leader -grace 0s", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			jobs, err := exampleJobs()
			require.NoError(t, err)
			b := newBundle(t, jobs...)
			p := pgtest.SpawnRole(t, "jobrunner", "ARGS=run -log json -name a "+test.args, "DATABASE_URL="+b.dsn)
			var began event
			for began.Msg != evBegan || began.Job == "mail" {
				line, err := p.Line(t.Context())
				require.NoError(t, err)
				began = parseEvent("a", line)
			}
			require.NoError(t, p.Signal(syscall.SIGTERM))
			require.NoError(t, p.Wait(t.Context()))
			require.NoError(t, pgtest.WaitForNoLocks(t.Context(), b.store.pool))
			pgtest.NoBackends(t, b.store.pool, "a%")
			require.Equal(t, test.runs, b.count(t, "SELECT count(*) FROM jobrunner.job_runs WHERE job = $1 AND scheduled_at = $2",
				began.Job, began.Tick))
		})
	}
}
