package pglock_test

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/migrations"
	"github.com/seed35111a8b/pglock/pglock"
)

func TestMigrateByTwentyReplicasAtOnce(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDatabase(t, pgtest.Shared(t))
	var start, done sync.WaitGroup
	start.Add(1)
	errs := make([]error, 20)
	for i := range errs {
		pool := pgtest.Pool(t, dsn)
		locker, err := pglock.New(pool, nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, locker.Close(context.Background())) })
		done.Go(func() {
			start.Wait()
			errs[i] = locker.Migrate(t.Context())
		})
	}
	start.Done()
	done.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	pool := pgtest.Pool(t, dsn)
	var versions []int
	rows, err := pool.Query(t.Context(), "SELECT version FROM pglock.migrations ORDER BY 1")
	require.NoError(t, err)
	versions, err = pgx.CollectRows(rows, pgx.RowTo[int])
	require.NoError(t, err)
	require.Equal(t, []int{migrations.Locks, migrations.Fence, migrations.Schedules}, versions)
}

func TestMigrateInSchemasWithOddNames(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDatabase(t, pgtest.Shared(t))
	pool := pgtest.Pool(t, dsn)
	for _, schema := range []string{"Mixed Case", `quo"te`, "apo'strophe", "schlüssel", `back\slash`, "semi;colon--"} {
		locker, err := pglock.New(pool, &pglock.Config{Schema: schema})
		require.NoError(t, err)
		require.NoError(t, locker.Migrate(t.Context()), schema)
		require.NoError(t, locker.Migrate(t.Context()), "again in "+schema)
		lock, err := locker.Acquire(t.Context(), pgtest.Key(t))
		require.NoError(t, err, schema)
		require.NoError(t, lock.FencedTx(t.Context(), pool, "r", func(pgx.Tx) error { return nil }), schema)
		require.NoError(t, lock.Release(t.Context()))
		require.NoError(t, locker.Close(t.Context()))
	}
}

func TestMigrateOverASlowNetworkWithAShortIdleTimeout(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	direct := pgtest.Pool(t, pgtest.NewDatabase(t, s))
	name := direct.Config().ConnConfig.Database
	require.NoError(t, s.Exec(t.Context(), "", "ALTER DATABASE "+name+" SET idle_in_transaction_session_timeout = '20ms'"))
	p := pgtest.ProxyTo(t, s)
	p.Delay(pgtest.ToServer, func() time.Duration { return 50 * time.Millisecond })
	locker, err := pglock.New(pgtest.Pool(t, s.Via(p.Addr(), name)), nil)
	require.NoError(t, err)
	require.NoError(t, locker.Migrate(t.Context()))
	require.NoError(t, locker.Close(t.Context()))
}

func TestMigrationsDownAndUpAgain(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.NewDatabase(t, pgtest.Shared(t)))
	all, err := migrations.All(migrations.Schema)
	require.NoError(t, err)
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	run := func(sql string) {
		t.Helper()
		_, err := conn.Conn().PgConn().Exec(t.Context(), sql).ReadAll()
		require.NoError(t, err)
	}
	for range 2 {
		for _, m := range all {
			run(m.Up)
		}
		for _, m := range slices.Backward(all) {
			run(m.Down)
		}
		var left int
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = 'pglock'::regnamespace)
			+ (SELECT count(*) FROM pg_proc WHERE pronamespace = 'pglock'::regnamespace)`).Scan(&left))
		require.Zero(t, left)
	}
}

func TestFencerMigratesTheFenceAlone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.NewDatabase(t, pgtest.Shared(t)))
	fencer := pglock.Fencer{Schema: "other db"}
	require.NoError(t, fencer.Migrate(t.Context(), pool))
	require.NoError(t, fencer.Migrate(t.Context(), pool))
	require.NoError(t, fencer.Claim(t.Context(), pool, 7, "b", "a", "b"))
	err := fencer.FencedTx(t.Context(), pool, 6, "a", func(pgx.Tx) error {
		t.Error("fn ran in spite of its stale token")
		return nil
	})
	stale, ok := pglock.AsStaleToken(err)
	require.True(t, ok)
	require.Equal(t, pglock.StaleTokenError{Resource: "a", Token: 6, Highest: 7}, *stale)
	require.ErrorIs(t, err, pglock.ErrStaleToken)
	var functions int
	require.NoError(t, pool.QueryRow(t.Context(),
		`SELECT count(*) FROM pg_proc WHERE pronamespace = '"other db"'::regnamespace AND proname = 'acquire'`).Scan(&functions))
	require.Zero(t, functions)
}

// TestKeyInSQLIsTheKeyInGo holds the two implementations of the hash together: on the frozen vectors and on random text.
func TestFenceIsRefusedWhereAdvisoryLocksDoNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.NewDatabase(t, pgtest.Shared(t)))
	_, err := pool.Exec(t.Context(), `SET allow_system_table_mods = on;
		ALTER FUNCTION pg_catalog.pg_advisory_xact_lock_shared(int, int) RENAME TO pg_advisory_xact_lock_shared_real;
		CREATE FUNCTION pg_catalog.pg_advisory_xact_lock_shared(int, int) RETURNS void LANGUAGE sql AS ''`)
	require.NoError(t, err)
	require.ErrorIs(t, pglock.Fencer{}.Migrate(t.Context(), pool), pglock.ErrUnsupportedServer)
}

func TestKeyInSQLIsTheKeyInGo(t *testing.T) {
	t.Parallel()
	_, pool := newLocker(t, nil)
	check := func(namespace, key string) {
		t.Helper()
		var got int64
		require.NoError(t, pool.QueryRow(t.Context(), "SELECT pglock.key($1, $2)", namespace, key).Scan(&got))
		want, ok := pglock.HashID(namespace, key).Int64()
		require.True(t, ok)
		require.Equal(t, want, got, "namespace %q, key %q", namespace, key)
	}
	text, err := os.ReadFile("../internal/keyhash/testdata/vectors.json")
	require.NoError(t, err)
	var vectors []struct {
		Namespace, Key, ID string
		Repeat             int
	}
	require.NoError(t, json.Unmarshal(text, &vectors))
	require.NotEmpty(t, vectors)
	inSQL := 0
	for _, v := range vectors {
		id, err := strconv.ParseInt(v.ID, 10, 64)
		require.NoError(t, err)
		v.Key = strings.Repeat(v.Key, max(1, v.Repeat))
		require.Equal(t, pglock.Int64ID(id), pglock.HashID(v.Namespace, v.Key))
		if pglock.CheckKey(v.Key) == nil && pglock.CheckKey(v.Namespace+"x") == nil {
			check(v.Namespace, v.Key)
			inSQL++
		}
	}
	require.Greater(t, inSQL, len(vectors)/2)
	for range 300 {
		check(randomText(), randomText())
	}
}

// randomText returns up to 20 runes of all planes, without NUL.
func randomText() string {
	runes := make([]rune, rand.N(20))
	for i := range runes {
		runes[i] = 1 + rand.N(rune(0x10FFFF))
	}
	return string(runes) // surrogates become U+FFFD
}

func TestMigrateSaysOnceThatTheServerIsOutOfReach(t *testing.T) {
	t.Parallel()
	locker, err := pglock.New(pgtest.Pool(t, "postgres://app@127.0.0.1:1/app"), nil)
	require.NoError(t, err)
	defer closeLocker(t, locker)
	err = locker.Migrate(t.Context())
	require.ErrorIs(t, err, pglock.ErrUnavailable)
	require.Equal(t, 1, strings.Count(err.Error(), "server unavailable"), err.Error())
	require.Equal(t, 1, strings.Count(err.Error(), "pglock: migrate"), err.Error())
}
