package pglockgocron_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	pglockgocron "github.com/seed35111a8b/pglock/contrib/gocron"
	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const interval = 500 * time.Millisecond

// replica is a Locker with a pool of its own, migrated.
func replica(t *testing.T) (*pglock.Locker, *pgxpool.Pool) {
	t.Helper()
	pool := pgtest.Pool(t, pgtest.Database(t))
	locker, err := pglock.New(pool, &pglock.Config{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, locker.Close(context.Background())) })
	require.NoError(t, locker.Migrate(t.Context()))
	return locker, pool
}

// schedule starts a scheduler that writes a row for each run of a fast job.
func schedule(t *testing.T, pool *pgxpool.Pool, job, name string, option gocron.SchedulerOption) gocron.Scheduler {
	t.Helper()
	scheduler, err := gocron.NewScheduler(option)
	require.NoError(t, err)
	_, err = scheduler.NewJob(gocron.DurationJob(interval), gocron.NewTask(func() {
		_, _ = pool.Exec(context.Background(), "INSERT INTO runs (job, replica) VALUES ($1, $2)", job, name)
	}), gocron.WithName(job), gocron.WithStartAt(gocron.WithStartDateTime(time.Now().Truncate(interval).Add(2*interval))))
	require.NoError(t, err)
	scheduler.Start()
	return scheduler
}

func makeRuns(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	_, err := pool.Exec(t.Context(), `CREATE TABLE IF NOT EXISTS runs (job text NOT NULL, replica text NOT NULL,
		at timestamptz NOT NULL DEFAULT clock_timestamp())`)
	require.NoError(t, err)
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

func TestLockerRunsATickOnThreeSchedulersOnce(t *testing.T) {
	job := pgtest.Key(t)
	_, admin := replica(t)
	makeRuns(t, admin)
	var schedulers []gocron.Scheduler
	for _, name := range []string{"a", "b", "c"} {
		locker, pool := replica(t)
		option := gocron.WithDistributedLocker(pglockgocron.NewLocker(locker, pglockgocron.Every(interval)))
		schedulers = append(schedulers, schedule(t, pool, job, name, option))
	}
	runs := func() int { return count(t, admin, "SELECT count(*) FROM runs WHERE job = $1", job) }
	await(t, "12 runs", func() bool { return runs() >= 12 })
	for _, s := range schedulers {
		require.NoError(t, s.Shutdown())
	}
	ticks := count(t, admin, "SELECT count(*) FROM pglock.ticks WHERE job = $1", job)
	span := count(t, admin, "SELECT 1 + round(extract(epoch FROM max(slot) - min(slot)) * 1000 / $2) FROM pglock.ticks WHERE job = $1",
		job, interval.Milliseconds())
	replicas := count(t, admin, "SELECT count(DISTINCT replica) FROM runs WHERE job = $1", job)
	t.Logf("three schedulers, %d ticks in a span of %d, %d runs, by %d replicas", ticks, span, runs(), replicas)
	require.Equal(t, ticks, runs(), "a tick that was claimed ran once")
}

func TestLockerSkips(t *testing.T) {
	locker, _ := replica(t)
	other, _ := replica(t)
	job := pgtest.Key(t)
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	slot := func(string, time.Time) time.Time { return at }
	ours, theirs := pglockgocron.NewLocker(locker, slot), pglockgocron.NewLocker(other, slot)
	lock, err := ours.Lock(t.Context(), job)
	require.NoError(t, err)
	_, err = theirs.Lock(t.Context(), job)
	require.ErrorIs(t, err, pglockgocron.ErrTickTaken)
	at = at.Add(interval)
	_, err = theirs.Lock(t.Context(), job)
	require.ErrorIs(t, err, pglock.ErrNotAcquired, "the tick before still runs")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, lock.Unlock(ended), "as gocron calls it when it is shut down")
	lock, err = theirs.Lock(t.Context(), job)
	require.NoError(t, err, "a tick that was refused is not claimed")
	require.NoError(t, lock.Unlock(t.Context()))

	exclusion := pglockgocron.NewLocker(locker, nil)
	for range 2 {
		lock, err = exclusion.Lock(t.Context(), job)
		require.NoError(t, err)
		require.NoError(t, lock.Unlock(t.Context()))
	}
}

func TestElectorHandsOver(t *testing.T) {
	job := pgtest.Key(t)
	_, admin := replica(t)
	makeRuns(t, admin)
	type member struct {
		scheduler gocron.Scheduler
		stop      context.CancelFunc
		done      chan error
	}
	members := map[string]member{}
	var observer *pglock.Election
	for _, name := range []string{"a", "b", "c"} {
		locker, pool := replica(t)
		election, err := pglock.NewElection(locker, job, &pglock.ElectionConfig{Name: name})
		require.NoError(t, err)
		observer = election
		elector := pglockgocron.NewElector(election)
		require.ErrorIs(t, elector.IsLeader(t.Context()), pglockgocron.ErrNotLeader)
		ctx, stop := context.WithCancel(t.Context())
		m := member{schedule(t, pool, job, name, gocron.WithDistributedElector(elector)), stop, make(chan error, 1)}
		go func() { m.done <- elector.Run(ctx) }()
		members[name] = m
	}
	leader := ""
	for range 3 {
		before := leader
		await(t, "a leader", func() bool {
			next, err := observer.Leader(t.Context())
			leader = next.Name
			return err == nil && leader != before
		})
		await(t, "runs of the leader", func() bool {
			return count(t, admin, "SELECT count(*) FROM runs WHERE job = $1 AND replica = $2", job, leader) >= 3
		})
		m := members[leader]
		require.NoError(t, m.scheduler.Shutdown())
		m.stop()
		require.ErrorIs(t, <-m.done, context.Canceled)
	}
	require.Equal(t, 3, count(t, admin, "SELECT count(DISTINCT replica) FROM runs WHERE job = $1", job))
	// One replica after the other, with no run of one among those of another.
	changes := count(t, admin, `SELECT count(*) FROM (SELECT replica <> lag(replica) OVER (ORDER BY at) AS changed
		FROM runs WHERE job = $1) r WHERE changed`, job)
	require.Equal(t, 2, changes)
}
