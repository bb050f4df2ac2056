package pglockcron_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/robfig/cron/v3"
	"github.com/stretchr/testify/require"

	pglockcron "github.com/seed35111a8b/pglock/contrib/cron"
	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// every is a schedule that is finer than cron's.
type every time.Duration

func (e every) Next(t time.Time) time.Time {
	return t.Truncate(time.Duration(e)).Add(time.Duration(e))
}

const interval = every(200 * time.Millisecond)

func replica(t *testing.T) (*pglock.Locker, *pgxpool.Pool) {
	t.Helper()
	pool := pgtest.Pool(t, pgtest.Database(t))
	locker, err := pglock.New(pool, &pglock.Config{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, locker.Close(context.Background())) })
	require.NoError(t, locker.Migrate(t.Context()))
	return locker, pool
}

func count(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), sql, args...).Scan(&n))
	return n
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, pgtest.Poll(ctx, what, done))
}

// start starts three crons, whose job is made by the function.
func start(t *testing.T, name string, job func(*pglockcron.Ticks) cron.Job) (stop func()) {
	t.Helper()
	var crons []*cron.Cron
	for range 3 {
		locker, _ := replica(t)
		ticks := pglockcron.New(context.Background(), locker, name, interval, slog.New(slog.DiscardHandler))
		c := cron.New()
		c.Schedule(ticks, job(ticks))
		c.Start()
		crons = append(crons, c)
	}
	return func() {
		for _, c := range crons {
			<-c.Stop().Done()
		}
	}
}

// span is the number of ticks from the first to the last that was claimed.
const span = `SELECT 1 + round(extract(epoch FROM max(slot) - min(slot)) * 5) FROM pglock.ticks WHERE job = $1`

func TestJobRunsATickOfThreeCronsOnce(t *testing.T) {
	name := pgtest.Key(t)
	_, admin := replica(t)
	_, err := admin.Exec(t.Context(), "CREATE TABLE effects (slot timestamptz NOT NULL)")
	require.NoError(t, err)
	var calls atomic.Int64
	stop := start(t, name, func(ticks *pglockcron.Ticks) cron.Job {
		return ticks.Job(func(ctx context.Context, tx pgx.Tx, slot time.Time) error {
			if _, err := tx.Exec(ctx, "INSERT INTO effects VALUES ($1)", slot); err != nil {
				return err
			}
			if calls.Add(1)%4 == 1 {
				return errors.New("as planned: another replica runs the tick")
			}
			return nil
		})
	})
	await(t, "15 effects", func() bool { return count(t, admin, "SELECT count(*) FROM effects") >= 15 })
	stop()
	effects := count(t, admin, "SELECT count(*) FROM effects")
	t.Logf("three crons, %d calls of which each fourth failed, %d effects", calls.Load(), effects)
	require.Equal(t, effects, count(t, admin, "SELECT count(DISTINCT slot) FROM effects"))
	require.Equal(t, effects, count(t, admin, "SELECT count(*) FROM pglock.ticks WHERE job = $1", name))
	require.LessOrEqual(t, count(t, admin, span, name)-effects, 2, "missed, where all three failed")
}

func TestWrapRunsATickOfThreeCronsOnce(t *testing.T) {
	name := pgtest.Key(t)
	_, admin := replica(t)
	var runs, inside atomic.Int64
	stop := start(t, name, func(ticks *pglockcron.Ticks) cron.Job {
		return cron.NewChain(ticks.Wrap).Then(cron.FuncJob(func() {
			if inside.Add(1) > 1 {
				runs.Add(1000)
			}
			runs.Add(1)
			inside.Add(-1)
		}))
	})
	await(t, "15 runs", func() bool { return runs.Load() >= 15 })
	stop()
	ticks := count(t, admin, "SELECT count(*) FROM pglock.ticks WHERE job = $1", name)
	t.Logf("three crons, %d ticks in a span of %d, %d runs", ticks, count(t, admin, span, name), runs.Load())
	require.EqualValues(t, ticks, runs.Load(), "each tick that was claimed ran once, and none beside another")
}

// A run that takes longer than the interval has the chain skip those after it,
// and has no effect on which ticks later runs are for.
func TestSkippedRunsLeaveNoLag(t *testing.T) {
	locker, _ := replica(t)
	ticks := pglockcron.New(t.Context(), locker, pgtest.Key(t), interval, slog.New(slog.DiscardHandler))
	type run struct{ at, slot time.Time }
	runs := make(chan run, 100)
	first, goOn := true, make(chan struct{})
	c := cron.New(cron.WithChain(cron.SkipIfStillRunning(cron.DiscardLogger)))
	c.Schedule(ticks, ticks.Job(func(_ context.Context, _ pgx.Tx, slot time.Time) error {
		runs <- run{time.Now(), slot}
		if first {
			first = false
			<-goOn
		}
		return nil
	}))
	c.Start()
	<-runs
	<-time.After(10 * time.Duration(interval))
	close(goOn)
	lags, before := []time.Duration{}, time.Time{}
	for range 5 {
		r := <-runs
		require.True(t, r.slot.After(before))
		lags, before = append(lags, r.at.Sub(r.slot)), r.slot
	}
	<-c.Stop().Done()
	t.Logf("after a run of ten intervals: behind by %v", lags)
	require.Less(t, slices.Min(lags), time.Duration(interval), "ten intervals, if each run took the oldest tick")
}

func TestRunByHandIsNoTick(t *testing.T) {
	locker, _ := replica(t)
	ticks := pglockcron.New(t.Context(), locker, pgtest.Key(t), interval, nil)
	ticks.Wrap(cron.FuncJob(func() { t.Error("ran") })).Run()
	ticks.Next(time.Now().Add(time.Hour))
	ticks.Job(func(context.Context, pgx.Tx, time.Time) error { t.Error("ran"); return nil }).Run()
}
