package pglock_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// TestTokensRiseOverARestoreOfTheDataAlone puts the rows of an older state back into tables that stay, within one life of
// the server: nothing but the transaction that wrote the reign's row tells it from the one that was there.
func TestTokensRiseOverARestoreOfTheDataAlone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.NewDatabase(t, pgtest.Shared(t)))
	locker, err := pglock.New(pool, nil)
	require.NoError(t, err)
	defer closeLocker(t, locker)
	require.NoError(t, locker.Migrate(t.Context()))
	key := pgtest.Key(t)
	grant := func() int64 {
		lock, err := locker.Acquire(t.Context(), key)
		require.NoError(t, err)
		require.NoError(t, lock.Release(t.Context()))
		return lock.Token()
	}
	exec := func(sql string) {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	grant()
	exec("CREATE TABLE saved AS SELECT r.*, s.last_value FROM pglock.reign r, pglock.tokens s")
	var last int64
	for range 20 {
		last = grant()
	}
	exec(`TRUNCATE pglock.reign;
		INSERT INTO pglock.reign SELECT one, created_at, started_at, stats_reset, database_id, written_by, base FROM saved;
		SELECT setval('pglock.tokens', last_value) FROM saved`)
	require.Greater(t, grant(), last)
}

func TestResourcesThatCannotBeFencedAreNamed(t *testing.T) {
	t.Parallel()
	locker, pool := newLocker(t, nil)
	lock, err := locker.Acquire(t.Context(), pgtest.Key(t))
	require.NoError(t, err)
	for _, resource := range []string{"", "a\x00b", "\xff", string(make([]byte, 3000))} {
		require.ErrorIs(t, lock.Claim(t.Context(), pool, resource), pglock.ErrInvalidKey)
	}
	require.ErrorIs(t, lock.Claim(t.Context(), pool), pglock.ErrInvalidKey)
	require.NoError(t, lock.Claim(t.Context(), pool, "good"))
	require.NoError(t, lock.Release(t.Context()))
}
