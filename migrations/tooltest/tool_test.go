package tooltest_test

import (
	"context"
	"database/sql"
	"os"
	"testing"
	"time"

	"github.com/golang-migrate/migrate/v4"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	_ "github.com/golang-migrate/migrate/v4/source/file"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
	"github.com/pressly/goose/v3/lock"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/migrations"
	"github.com/seed35111a8b/pglock/pglock"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// A tool is one that migrates, in the words of both.
type tool struct {
	up, down func() error
	upOne    func() error // one version; golang-migrate leaves a goroutine with the next one where more were asked for and one failed
	adopt    func() error // tells the tool that everything is applied
}

// tools makes each tool on a database of its own and runs the test with it.
func tools(t *testing.T, test func(t *testing.T, tool tool, pool *pgxpool.Pool)) {
	t.Helper()
	for name, start := range map[string]func(t *testing.T, dsn string) tool{
		"golang-migrate": golangMigrate, "golang-migrate embedded": golangMigrateEmbedded, "goose": gooseProvider,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := pgtest.NewDatabase(t, pgtest.Shared(t))
			test(t, start(t, dsn), pgtest.Pool(t, dsn))
		})
	}
}

func TestToolsMigrateUpAndDown(t *testing.T) {
	t.Parallel()
	tools(t, func(t *testing.T, tool tool, pool *pgxpool.Pool) {
		t.Helper()
		for range 2 {
			require.NoError(t, tool.up())
			useLocks(t, pool)
			require.NoError(t, tool.down())
			requireNothingLeft(t, pool)
		}
	})
}

func TestLockerMigrateChangesNothingAfterATool(t *testing.T) {
	t.Parallel()
	tools(t, func(t *testing.T, tool tool, pool *pgxpool.Pool) {
		t.Helper()
		require.NoError(t, tool.up())
		before := applied(t, pool)
		require.NoError(t, newLocker(t, pool).Migrate(t.Context()))
		require.Equal(t, before, applied(t, pool))
		useLocks(t, pool)
		require.NoError(t, tool.down())
		requireNothingLeft(t, pool)
	})
}

// TestToolAfterLockerMigrate: the tool cannot know what it has not applied itself, fails without harm, and takes over
// when it is told.
func TestToolAfterLockerMigrate(t *testing.T) {
	t.Parallel()
	tools(t, func(t *testing.T, tool tool, pool *pgxpool.Pool) {
		t.Helper()
		require.NoError(t, newLocker(t, pool).Migrate(t.Context()))
		before := applied(t, pool)
		require.ErrorContains(t, tool.upOne(), "migrations_pkey")
		require.Equal(t, before, applied(t, pool))
		useLocks(t, pool)

		require.NoError(t, tool.adopt())
		require.NoError(t, tool.up())
		require.Equal(t, before, applied(t, pool))
		require.NoError(t, tool.down())
		requireNothingLeft(t, pool)
	})
}

// golangMigrate reads the folder by a file URL and connects by a URL, as the command line does.
func golangMigrate(t *testing.T, dsn string) tool {
	t.Helper()
	m, err := migrate.New("file://..", migrateURL(t, dsn))
	require.NoError(t, err)
	return golangMigrateTool(t, m)
}

// golangMigrateEmbedded reads what package migrations embeds and shares the service's own database/sql handle.
func golangMigrateEmbedded(t *testing.T, dsn string) tool {
	t.Helper()
	source, err := iofs.New(migrations.FS, ".")
	require.NoError(t, err)
	driver, err := migratepgx.WithInstance(openDB(t, dsn), &migratepgx.Config{})
	require.NoError(t, err)
	m, err := migrate.NewWithInstance("iofs", source, "app", driver)
	require.NoError(t, err)
	return golangMigrateTool(t, m)
}

func golangMigrateTool(t *testing.T, m *migrate.Migrate) tool {
	t.Helper()
	t.Cleanup(func() {
		sourceErr, databaseErr := m.Close()
		require.NoError(t, sourceErr)
		require.NoError(t, databaseErr)
	})
	return tool{
		up: func() error {
			err := m.Up()
			if err == migrate.ErrNoChange { //nolint:errorlint // golang-migrate returns it bare
				return nil
			}
			return err
		},
		down:  m.Down,
		upOne: func() error { return m.Steps(1) },
		adopt: func() error { return m.Force(migrations.Latest) },
	}
}

func gooseProvider(t *testing.T, dsn string) tool {
	t.Helper()
	db := openDB(t, dsn)
	locker, err := lock.NewPostgresSessionLocker()
	require.NoError(t, err)
	provider, err := goose.NewProvider(goose.DialectPostgres, db, os.DirFS("../goose"), goose.WithSessionLocker(locker))
	require.NoError(t, err)
	return tool{
		up: func() error {
			_, err := provider.Up(t.Context())
			return err
		},
		down: func() error {
			_, err := provider.DownTo(t.Context(), 0)
			return err
		},
		upOne: func() error {
			_, err := provider.UpByOne(t.Context())
			return err
		},
		adopt: func() error {
			store, err := database.NewStore(goose.DialectPostgres, goose.DefaultTablename)
			for _, source := range provider.ListSources() {
				if err == nil {
					err = store.Insert(t.Context(), db, database.InsertRequest{Version: source.Version})
				}
			}
			return err
		},
	}
}

func openDB(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", dsn)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func newLocker(t *testing.T, pool *pgxpool.Pool) *pglock.Locker {
	t.Helper()
	return newLockerWith(t, pool, nil)
}

func newLockerWith(t *testing.T, pool *pgxpool.Pool, config *pglock.Config) *pglock.Locker {
	t.Helper()
	locker, err := pglock.New(pool, config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, locker.Close(context.Background())) })
	return locker
}

// useLocks takes a lock, is refused it a second time, writes through the fence and releases it.
func useLocks(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	locker, key := newLocker(t, pool), pgtest.Key(t)
	held, err := locker.TryAcquire(t.Context(), key)
	require.NoError(t, err)
	_, err = newLocker(t, pool).TryAcquire(t.Context(), key)
	require.ErrorIs(t, err, pglock.ErrNotAcquired)
	nothing := func(pgx.Tx) error { return nil }
	require.NoError(t, held.FencedTx(t.Context(), pool, key, nothing))
	err = pglock.Fencer{}.FencedTx(t.Context(), pool, held.Token()-1, key, nothing)
	require.Error(t, err, "an older token, or none")
	require.NoError(t, held.Release(t.Context()))
}

// A migration is a row of pglock.migrations.
type migration struct {
	Version   int
	AppliedAt time.Time
}

// applied returns the migrations that are there, and since when.
func applied(t *testing.T, pool *pgxpool.Pool) []migration {
	t.Helper()
	rows, err := pool.Query(t.Context(), "SELECT version, applied_at FROM pglock.migrations ORDER BY version")
	require.NoError(t, err)
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[migration])
	require.NoError(t, err)
	require.Len(t, list, migrations.Latest)
	return list
}

func requireNothingLeft(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	var left int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = 'pglock'::regnamespace)
		+ (SELECT count(*) FROM pg_proc WHERE pronamespace = 'pglock'::regnamespace)`).Scan(&left))
	require.Zero(t, left)
	_, err := newLocker(t, pool).TryAcquire(t.Context(), pgtest.Key(t))
	require.ErrorIs(t, err, pglock.ErrNotMigrated)
}
