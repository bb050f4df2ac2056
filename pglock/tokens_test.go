package pglock_test

import (
	"context"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// lonely is a Locker on a migrated database of the test's own, where nobody else draws tokens.
func lonely(t *testing.T, config *pglock.Config) (*pglock.Locker, *pgxpool.Pool) {
	t.Helper()
	pool := pgtest.Pool(t, pgtest.NewDatabase(t, pgtest.Shared(t)))
	locker, err := pglock.New(pool, config)
	require.NoError(t, err)
	t.Cleanup(func() { closeLocker(t, locker) })
	require.NoError(t, locker.Migrate(t.Context()))
	return locker, pool
}

// draw returns the token of one grant.
func draw(t *testing.T, locker *pglock.Locker) (token int64) {
	t.Helper()
	require.NoError(t, locker.Do(t.Context(), "draw", func(_ context.Context, lock *pglock.Lock) error {
		token = lock.Token()
		return nil
	}))
	return token
}

func TestTokensTellTheNextOne(t *testing.T) {
	t.Parallel()
	locker, pool := lonely(t, &pglock.Config{Schema: `it's "odd"`})
	for range 3 {
		tokens, err := locker.Tokens(t.Context())
		require.NoError(t, err)
		require.True(t, tokens.Current)
		require.False(t, tokens.Behind())
		require.Equal(t, tokens.Next, draw(t, locker))
	}
	lock, err := locker.Acquire(t.Context(), "claim")
	require.NoError(t, err)
	require.NoError(t, lock.Claim(t.Context(), pool, "resource"))
	require.NoError(t, lock.Release(t.Context()))
	tokens, err := locker.Tokens(t.Context())
	require.NoError(t, err)
	require.Equal(t, lock.Token(), tokens.Highest)
	require.Equal(t, lock.Token(), tokens.Base+tokens.Sequence)
	require.NoError(t, locker.RaiseTokens(t.Context(), tokens.Highest+100))
	require.Equal(t, tokens.Highest+101, draw(t, locker))
}

func TestTokensBeforeMigrating(t *testing.T) {
	t.Parallel()
	locker, err := pglock.New(pgtest.Pool(t, pgtest.NewDatabase(t, pgtest.Shared(t))), nil)
	require.NoError(t, err)
	defer closeLocker(t, locker)
	_, err = locker.Tokens(t.Context())
	require.ErrorIs(t, err, pglock.ErrNotMigrated)
	require.ErrorIs(t, locker.RaiseTokens(t.Context(), 1), pglock.ErrNotMigrated)
}

func TestRaiseTokensAboveWhatWasAccepted(t *testing.T) {
	t.Parallel()
	locker, pool := lonely(t, nil)
	first := draw(t, locker)
	_, err := pool.Exec(t.Context(), "INSERT INTO pglock.fenced_writes VALUES ('restored', 5000, now())")
	require.NoError(t, err)
	tokens, err := locker.Tokens(t.Context())
	require.NoError(t, err)
	require.True(t, tokens.Behind())
	require.EqualValues(t, 5000, tokens.Highest)
	require.Less(t, first, tokens.Highest)

	require.NoError(t, locker.RaiseTokens(t.Context(), 0))
	require.EqualValues(t, 5001, draw(t, locker), "above the fence of this database")
	require.NoError(t, locker.RaiseTokens(t.Context(), 7000))
	require.EqualValues(t, 7001, draw(t, locker), "above one that was accepted elsewhere")
	require.NoError(t, locker.RaiseTokens(t.Context(), 6000))
	require.EqualValues(t, 7002, draw(t, locker), "it never goes back")
	require.Error(t, locker.RaiseTokens(t.Context(), 1<<62+1))
	require.EqualValues(t, 7003, draw(t, locker))
}

// A row of the reign that came out of a dump is told by its xmin. Raising the base must not make it look like this life's.
func TestRaiseTokensOfARestoredReignBeginsANewOne(t *testing.T) {
	t.Parallel()
	locker, pool := lonely(t, nil)
	_, err := pool.Exec(t.Context(), "UPDATE pglock.reign SET base = base")
	require.NoError(t, err)
	tokens, err := locker.Tokens(t.Context())
	require.NoError(t, err)
	require.False(t, tokens.Current)

	require.NoError(t, locker.RaiseTokens(t.Context(), 10))
	tokens, err = locker.Tokens(t.Context())
	require.NoError(t, err)
	require.True(t, tokens.Current)
	require.Greater(t, tokens.Next, int64(1<<20))
	require.Equal(t, tokens.Next, draw(t, locker), "raised once")
}

// Tokens of a key rise while others raise them.
func TestRaiseTokensWhileTheyAreDrawn(t *testing.T) {
	t.Parallel()
	locker, pool := lonely(t, &pglock.Config{MaxIdleSessions: 2})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for ctx.Err() == nil {
				tokens, err := locker.Tokens(t.Context())
				if err == nil {
					err = locker.RaiseTokens(t.Context(), tokens.Next+1)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 200 {
		lock, err := locker.Acquire(t.Context(), "rising")
		require.NoError(t, err)
		// A token that is not higher than the one before is refused: it was claimed.
		err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			var before int64
			if err := tx.QueryRow(t.Context(), "SELECT coalesce(max(token), 0) FROM pglock.fenced_writes").Scan(&before); err != nil {
				return err
			}
			require.Greater(t, lock.Token(), before)
			return lock.Fence(t.Context(), tx, "rising")
		})
		require.NoError(t, err)
		require.NoError(t, lock.Release(t.Context()))
	}
	cancel()
	wg.Wait()
}
