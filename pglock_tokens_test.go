package pglock_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// history is the numbers that were drawn, each with the time in which that was.
type history struct {
	mu    sync.Mutex // guards draws
	draws []draw
}

type draw struct {
	began, ended time.Time
	number       int64
}

func (h *history) add(began time.Time, number int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.draws = append(h.draws, draw{began, time.Now(), number})
}

func (h *history) len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.draws)
}

func (h *history) last() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.MaxFunc(h.draws, func(a, b draw) int { return int(a.number - b.number) }).number
}

// check returns an error if a number came twice, or if a draw that began when
// another had ended has not the greater number of the two.
func (h *history) check() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	seen := map[int64]bool{}
	for _, d := range h.draws {
		if seen[d.number] {
			return fmt.Errorf("%d was drawn twice", d.number)
		}
		seen[d.number] = true
	}
	byEnd := slices.SortedFunc(slices.Values(h.draws), func(a, b draw) int { return a.ended.Compare(b.ended) })
	byBegin := slices.SortedFunc(slices.Values(h.draws), func(a, b draw) int { return a.began.Compare(b.began) })
	var before int64 // the greatest of those that had ended
	for _, d := range byBegin {
		for len(byEnd) > 0 && byEnd[0].ended.Before(d.began) {
			before = max(before, byEnd[0].number)
			byEnd = byEnd[1:]
		}
		if d.number <= before {
			return fmt.Errorf("%d was drawn after %d", d.number, before)
		}
	}
	return nil
}

// histories are what one key's holders were granted, and beside it what a plain
// sequence gave to the same role at the same time.
type histories struct {
	key            string
	granted, plain history
}

const plainSequence = "CREATE SEQUENCE public.plain; GRANT USAGE ON SEQUENCE public.plain TO public"

// grow draws n of both on the database.
func (h *histories) grow(t *testing.T, dsn string, n int) {
	t.Helper()
	ctx := timed(t)
	pool := newPool(t, dsn)
	locker := newLocker(t, pool, &pglock.Config{MaxIdleSessions: 1})
	for range n {
		began := time.Now()
		lock, err := locker.TryAcquire(ctx, h.key)
		require.NoError(t, err)
		h.granted.add(began, lock.Token())
		require.NoError(t, lock.Release(ctx))
		require.NoError(t, h.nextPlain(ctx, pool))
	}
	require.NoError(t, locker.Close(ctx)) // the server may be gone by the end of the test
	pool.Close()
}

func (h *histories) nextPlain(ctx context.Context, pool *pgxpool.Pool) error {
	began := time.Now()
	var number int64
	if err := pool.QueryRow(ctx, "SELECT nextval('public.plain')").Scan(&number); err != nil {
		return err
	}
	h.plain.add(began, number)
	return nil
}

// requireOrder fails the test unless the tokens increased, and the plain
// sequence, which the same test must catch, did not.
func (h *histories) requireOrder(t *testing.T) {
	t.Helper()
	require.NoError(t, h.granted.check(), "tokens")
	err := h.plain.check()
	require.Error(t, err, "a plain sequence passes too, so this test shows nothing")
	t.Logf("%d grants, tokens up to %d strictly increasing; of %d values of a plain sequence %v",
		h.granted.len(), h.granted.last(), h.plain.len(), err)
}

// appRole makes a role with no more than the privileges that an application
// needs, and with the settings, and returns its DSN.
func appRole(tb testing.TB, s *pgtest.Server, dsn string, settings ...string) string {
	tb.Helper()
	role, db := "app_"+strings.ToLower(rand.Text()[:10]), databaseName(tb, dsn)
	sql := strings.ReplaceAll(`CREATE ROLE app LOGIN;
		GRANT USAGE ON SCHEMA pglock TO app;
		GRANT SELECT ON pglock.reign TO app;
		GRANT USAGE ON SEQUENCE pglock.tokens TO app;
		GRANT SELECT, INSERT, UPDATE ON pglock.fenced_writes TO app;`, " app", " "+role)
	for _, setting := range settings {
		sql += fmt.Sprintf("ALTER ROLE %s SET %s;", role, setting)
	}
	require.NoError(tb, s.Exec(tb.Context(), db, sql))
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), scenarioTimeout)
		defer cancel()
		require.NoError(tb, s.Exec(ctx, db, "DROP OWNED BY "+role+"; DROP ROLE "+role))
	})
	return s.UserDSN(role, "", db)
}

func TestP6_TokensIncreaseOver1000Grants(t *testing.T) {
	t.Parallel()
	const lockers, workers, grants = 4, 5, 1000
	ctx := timed(t)
	key := pgtest.Key(t)
	pool := newPool(t, database(t))
	var left atomic.Int64
	left.Store(grants)
	var tokens []int64 // guarded by the lock itself
	failures := make(chan error, lockers*workers)
	var sessions int64
	all := make([]*pglock.Locker, lockers)
	for i := range all {
		all[i] = newLocker(t, pool, &pglock.Config{MaxSessions: 20})
		for range workers {
			go func() {
				var err error
				for err == nil && left.Add(-1) >= 0 {
					err = all[i].Do(ctx, key, func(_ context.Context, lock *pglock.Lock) error {
						tokens = append(tokens, lock.Token())
						return nil
					})
				}
				failures <- err
			}()
		}
	}
	for range lockers * workers {
		require.NoError(t, <-failures)
	}
	for _, locker := range all {
		sessions += locker.Stat().SessionsOpened
	}
	require.Len(t, tokens, grants)
	require.Positive(t, tokens[0])
	for i := range grants - 1 {
		require.Less(t, tokens[i], tokens[i+1], "grants %d and %d", i, i+1)
	}
	t.Logf("%d grants to %d goroutines of %d Lockers over %d sessions: tokens %d to %d, strictly increasing",
		grants, lockers*workers, lockers, sessions, tokens[0], tokens[grants-1])
}

func TestP6_TokensIncreaseOver20Crashes(t *testing.T) {
	t.Parallel()
	const crashes, workers, perLife = 20, 2, 10
	// What is not flushed is lost in a crash. Flushing seldom makes it certain
	// that something is; grants must not depend on it.
	s := pgtest.New(t, pgtest.Setting("wal_writer_delay", "10s"))
	owner := ownDatabase(t, s)
	dsn := appRole(t, s, owner, "synchronous_commit = off")
	require.NoError(t, s.Exec(t.Context(), databaseName(t, owner), plainSequence))
	h := histories{key: pgtest.Key(t)}
	ctx, stop := context.WithTimeout(t.Context(), 3*scenarioTimeout)
	defer stop()

	var all sync.WaitGroup
	for i := range workers {
		pool := newPool(t, dsn)
		locker := newLocker(t, pool, &pglock.Config{MaxIdleSessions: i % 2})
		all.Go(func() { untilEnd(ctx, func() error { return h.grant(ctx, locker) }) })
	}
	pool := newPool(t, dsn)
	all.Go(func() { untilEnd(ctx, func() error { return h.nextPlain(ctx, pool) }) })
	var granted, plain int
	more := func() bool { return h.granted.len() > granted && h.plain.len() > plain }
	for i := range crashes {
		granted, plain = h.granted.len()+perLife, h.plain.len()+perLife
		require.NoError(t, pgtest.Poll(ctx, "grants", more))
		if i%2 == 0 {
			require.NoError(t, s.CrashPostmaster(ctx))
		} else {
			require.NoError(t, s.CrashBackend(ctx))
		}
	}
	granted, plain = h.granted.len()+perLife, h.plain.len()+perLife
	require.NoError(t, pgtest.Poll(ctx, "grants after the last crash", more))
	stop()
	all.Wait()
	h.requireOrder(t)
}

// grant takes the lock and releases it, if nobody has it, and remembers the token.
func (h *histories) grant(ctx context.Context, locker *pglock.Locker) error {
	began := time.Now()
	lock, err := locker.TryAcquire(ctx, h.key)
	if errors.Is(err, pglock.ErrNotAcquired) {
		return nil
	}
	if err != nil {
		return err
	}
	h.granted.add(began, lock.Token())
	return lock.Release(ctx)
}

// untilEnd calls f until ctx ends, with a pause after an error: the server is
// down for a while.
func untilEnd(ctx context.Context, f func() error) {
	for ctx.Err() == nil {
		if f() == nil {
			continue
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// laterReign waits until a reign that begins now, on any copy of the database,
// is above all grants: that takes a second since the last one began.
func (h *histories) laterReign(t *testing.T, dsn string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.Background())) }()
	const sql = "SELECT floor(extract(epoch from clock_timestamp() - created_at))::bigint << 20 > $1 FROM pglock.reign"
	pgtest.Eventually(t, "the next second", func() bool {
		var later bool
		require.NoError(t, conn.QueryRow(t.Context(), sql, h.granted.last()).Scan(&later))
		return later
	})
}

func TestP6_TokensIncreaseWithAnOlderBackupStarted(t *testing.T) {
	t.Parallel()
	ctx := timed(t)
	s := pgtest.New(t)
	dsn := ownDatabase(t, s)
	database := databaseName(t, dsn)
	require.NoError(t, s.Exec(ctx, database, plainSequence))
	h := histories{key: pgtest.Key(t)}
	h.grow(t, dsn, 50)
	backup, err := s.BaseBackup(ctx)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, backup.Close()) })
	h.grow(t, dsn, 100)
	require.NoError(t, s.Stop(ctx))
	for range 2 { // the second time is a restore of the same backup after the first
		restored := pgtest.New(t, pgtest.FromBackup(backup))
		h.laterReign(t, restored.DSN(database))
		h.grow(t, restored.DSN(database), 50)
		require.NoError(t, restored.Stop(ctx))
	}
	require.NoError(t, s.Restart(ctx)) // for what is dropped at the end of the test
	h.requireOrder(t)
}

// dumped is a server and a database of which a dump was taken some grants ago.
func dumped(t *testing.T) (s *pgtest.Server, dsn string, h *histories, dump []byte) {
	t.Helper()
	s = pgtest.New(t)
	dsn = ownDatabase(t, s)
	require.NoError(t, s.Exec(t.Context(), databaseName(t, dsn), plainSequence))
	h = &histories{key: pgtest.Key(t)}
	h.grow(t, dsn, 50)
	dump, err := s.Dump(t.Context(), databaseName(t, dsn))
	require.NoError(t, err)
	h.grow(t, dsn, 100)
	return s, dsn, h, dump
}

func TestP6_TokensIncreaseWithADumpRestoredInANewServer(t *testing.T) {
	t.Parallel()
	ctx := timed(t)
	_, _, h, dump := dumped(t)
	other := pgtest.New(t)
	require.NoError(t, other.Exec(ctx, "", "CREATE DATABASE restored"))
	require.NoError(t, other.Restore(ctx, "restored", dump))
	h.grow(t, other.DSN("restored"), 50)
	h.requireOrder(t)
}

func TestP6_TokensIncreaseWithADumpRestoredWhileTheServerRuns(t *testing.T) {
	t.Parallel()
	ctx := timed(t)
	s, dsn, h, dump := dumped(t)
	database := databaseName(t, dsn)
	for _, over := range []struct{ what, in, clear string }{
		{"the database", "", "DROP DATABASE " + database + "; CREATE DATABASE " + database},
		{"the schema", database, "DROP SCHEMA pglock CASCADE; DROP SEQUENCE public.plain"},
	} {
		h.laterReign(t, dsn)
		for sql := range strings.SplitSeq(over.clear, ";") {
			require.NoError(t, s.Exec(ctx, over.in, sql))
		}
		require.NoError(t, s.Restore(ctx, database, dump))
		h.grow(t, dsn, 50)
		t.Log("restored over", over.what)
		h.requireOrder(t)
	}
}

func TestP6_TokensIncreaseOverPromotionsOfLaggingStandbys(t *testing.T) {
	t.Parallel()
	ctx := timed(t)
	primary := pgtest.New(t)
	const database = "promoted"
	require.NoError(t, primary.Exec(ctx, "", "CREATE DATABASE "+database))
	require.NoError(t, migrate(primary.DSN(database)))
	require.NoError(t, primary.Exec(ctx, database, plainSequence))
	h := histories{key: pgtest.Key(t)}
	h.grow(t, primary.DSN(database), 50)
	var standbys []*pgtest.Standby
	for range 2 {
		standby := pgtest.NewStandby(t, primary, pgtest.StandbyConfig{})
		require.NoError(t, standby.AwaitCaughtUp(ctx))
		require.NoError(t, standby.PauseReceive(ctx))
		standbys = append(standbys, standby)
	}
	h.grow(t, primary.DSN(database), 100)
	require.NoError(t, primary.Kill(ctx))
	for _, standby := range standbys {
		h.laterReign(t, standby.DSN(database))
		require.NoError(t, standby.Promote(ctx))
		h.grow(t, standby.DSN(database), 50)
		require.NoError(t, standby.Kill(ctx))
	}
	h.requireOrder(t)
}
