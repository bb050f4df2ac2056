package pglock_test

import (
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// TestRoleWithTheDocumentedGrants reads the grants out of docs/operations.md and runs a service with nothing else.
func TestRoleWithTheDocumentedGrants(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	_, grants, ok := strings.Cut(string(text), "<!-- grants -->\n```sql\n")
	require.True(t, ok)
	grants, _, ok = strings.Cut(grants, "```")
	require.True(t, ok)

	s := pgtest.New(t)
	dsn := pgtest.NewDatabase(t, s)
	owner := pgtest.Pool(t, dsn)
	admin, err := pglock.New(owner, nil)
	require.NoError(t, err)
	require.NoError(t, admin.Migrate(t.Context()))
	_, err = owner.Exec(t.Context(), "CREATE ROLE app LOGIN PASSWORD 'app'")
	require.NoError(t, err)

	config, err := pgxpool.ParseConfig(dsn)
	require.NoError(t, err)
	pool := pgtest.Pool(t, s.UserDSN("app", "app", config.ConnConfig.Database))
	locker, err := pglock.New(pool, nil)
	require.NoError(t, err)
	defer closeLocker(t, locker)
	key := pgtest.Key(t)
	_, err = locker.TryAcquire(t.Context(), key)
	require.ErrorContains(t, err, "docs/operations.md", "without the grants it says where they are")

	_, err = owner.Exec(t.Context(), grants)
	require.NoError(t, err)
	lock, err := locker.Acquire(t.Context(), key)
	require.NoError(t, err)
	require.NoError(t, lock.Claim(t.Context(), pool, "resource"))
	require.NoError(t, lock.FencedTx(t.Context(), pool, "resource", func(pgx.Tx) error { return nil }))
	holders, err := locker.Holders(t.Context(), key)
	require.NoError(t, err)
	require.Len(t, holders, 1)
	require.NoError(t, lock.Release(t.Context()))

	require.NoError(t, s.Restart(t.Context()))
	owner.Reset()
	pool.Reset()
	after, err := locker.Acquire(t.Context(), key)
	require.NoError(t, err, "a new reign is raised with the rights of the function's owner")
	require.Greater(t, after.Token(), lock.Token()+1<<20-1)
	require.NoError(t, after.Release(t.Context()))
}
