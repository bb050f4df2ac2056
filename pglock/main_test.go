package pglock_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// newLocker returns a Locker on the package's database, migrated, with a pool of its own.
func newLocker(t *testing.T, config *pglock.Config) (*pglock.Locker, *pgxpool.Pool) {
	t.Helper()
	pool := pgtest.Pool(t, pgtest.Database(t))
	locker, err := pglock.New(pool, config)
	require.NoError(t, err)
	t.Cleanup(func() { closeLocker(t, locker) })
	require.NoError(t, locker.Migrate(t.Context()))
	return locker, pool
}

// closeLocker closes it after the test's own ctx may have ended.
func closeLocker(t *testing.T, locker *pglock.Locker) {
	t.Helper()
	require.NoError(t, locker.Close(context.Background()))
}
