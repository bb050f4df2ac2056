package tooltest_test

import (
	"crypto/rand"
	"net/url"
	"strconv"
	"testing"

	migratedb "github.com/golang-migrate/migrate/v4/database"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pressly/goose/v3/lock"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

func TestGolangMigrateLockIDs(t *testing.T) {
	t.Parallel()
	for range 100 {
		database, schema, table := rand.Text(), "schéma "+rand.Text(), rand.Text()
		for _, names := range [][]string{nil, {schema}, {schema, table}} {
			want, err := migratedb.GenerateAdvisoryLockId(database, names...)
			require.NoError(t, err)
			require.Equal(t, want, pglock.GolangMigrateKeys(names...)(database).String())
		}
	}
}

// TestGolangMigrateAndLockerExcludeEachOther with the database's name as golang-migrate has it: with a slash where it
// connected by a URL.
func TestGolangMigrateAndLockerExcludeEachOther(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T, dsn string) (driver migratedb.Driver, key string){
		"WithInstance": func(t *testing.T, dsn string) (migratedb.Driver, string) {
			t.Helper()
			driver, err := migratepgx.WithInstance(openDB(t, dsn), &migratepgx.Config{})
			require.NoError(t, err)
			return driver, databaseName(t, dsn)
		},
		"URL": func(t *testing.T, dsn string) (migratedb.Driver, string) {
			t.Helper()
			driver, err := migratedb.Open(migrateURL(t, dsn))
			require.NoError(t, err)
			return driver, "/" + databaseName(t, dsn)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.NewDatabase(t, pgtest.Shared(t))
			driver, key := start(t, dsn)
			t.Cleanup(func() { require.NoError(t, driver.Close()) })
			pool := pgtest.Pool(t, dsn)
			locker := migratedLocker(t, pool, pglock.GolangMigrateKeys("public", "schema_migrations"))

			require.NoError(t, driver.Lock())
			_, err := locker.TryAcquire(t.Context(), key)
			require.ErrorIs(t, err, pglock.ErrNotAcquired)
			require.NoError(t, driver.Unlock())

			held, err := locker.TryAcquire(t.Context(), key)
			require.NoError(t, err)
			locked := make(chan error, 1)
			go func() { locked <- driver.Lock() }()
			require.NoError(t, pgtest.WaitForWaiters(t.Context(), pool, 1))
			require.NoError(t, held.Release(t.Context()))
			require.NoError(t, <-locked)
			require.NoError(t, driver.Unlock())
		})
	}
}

func TestGooseAndLockerExcludeEachOther(t *testing.T) {
	t.Parallel()
	require.EqualValues(t, lock.DefaultLockID, pglock.GooseLockID)
	const custom = 123456789
	for key, option := range map[string]lock.SessionLockerOption{
		"goose":              lock.WithLockID(lock.DefaultLockID),
		strconv.Itoa(custom): lock.WithLockID(custom),
	} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.NewDatabase(t, pgtest.Shared(t))
			locker := migratedLocker(t, pgtest.Pool(t, dsn), pglock.GooseKeys)
			theirs, err := lock.NewPostgresSessionLocker(option, lock.WithLockTimeout(1, 1))
			require.NoError(t, err)
			conn, err := openDB(t, dsn).Conn(t.Context())
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, conn.Close()) })

			require.NoError(t, theirs.SessionLock(t.Context(), conn))
			_, err = locker.TryAcquire(t.Context(), key)
			require.ErrorIs(t, err, pglock.ErrNotAcquired)
			require.NoError(t, theirs.SessionUnlock(t.Context(), conn))

			held, err := locker.TryAcquire(t.Context(), key)
			require.NoError(t, err)
			require.ErrorContains(t, theirs.SessionLock(t.Context(), conn), "failed to acquire lock")
			require.NoError(t, held.Release(t.Context()))
			require.NoError(t, theirs.SessionLock(t.Context(), conn))
			require.NoError(t, theirs.SessionUnlock(t.Context(), conn))
		})
	}
}

func migratedLocker(t *testing.T, pool *pgxpool.Pool, keyFunc func(string) pglock.LockID) *pglock.Locker {
	t.Helper()
	locker := newLockerWith(t, pool, &pglock.Config{KeyFunc: keyFunc})
	require.NoError(t, locker.Migrate(t.Context()))
	return locker
}

// migrateURL is the DSN under the scheme by which golang-migrate finds its driver for pgx v5.
func migrateURL(t *testing.T, dsn string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	u.Scheme = "pgx5"
	return u.String()
}

func databaseName(t *testing.T, dsn string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	require.NoError(t, err)
	return u.Path[1:]
}
