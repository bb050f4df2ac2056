package pglock_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// TestP7_CommitWithoutAnAnswerIsNotCalledLost cuts the way back in the middle of a fenced transaction. The server commits
// it; meanwhile the lock is lost. An error that matched ErrLost would say that nothing of the work remains.
func TestP7_CommitWithoutAnAnswerIsNotCalledLost(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	plain := newPool(t, dsn)
	rows := table(t, plain, "token bigint NOT NULL")
	pool, proxy := proxied(t, pgtest.Shared(t), dsn)
	locker := newLocker(t, pool, &pglock.Config{Lease: 2 * time.Second, ReleaseTimeout: time.Second})
	healAtEnd(t, proxy, pool)
	key := pgtest.Key(t)
	lock := acquired(t.Context(), t, locker, key)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	context.AfterFunc(lock.Context(), cancel) // the commit is waited for until the lock is lost
	err := lock.FencedTx(ctx, pool, key, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO "+rows+" VALUES ($1)", lock.Token())
		proxy.BlackHole(pgtest.ToClient)
		return err
	})
	require.ErrorIs(t, err, pglock.ErrCommitUnknown)
	require.NotErrorIs(t, err, pglock.ErrLost)
	require.ErrorIs(t, lock.Err(), pglock.ErrLost)
	pgtest.Eventually(t, "the row that was committed", func() bool { return count(t, plain, "SELECT count(*) FROM "+rows) == 1 })
}

// TestP7_CommitThatTheServerRefusesLeavesNothing is the other side: an answer that says no is believed.
func TestP7_CommitThatTheServerRefusesLeavesNothing(t *testing.T) {
	t.Parallel()
	pool := newPool(t, database(t))
	rows := table(t, pool, "token bigint UNIQUE DEFERRABLE INITIALLY DEFERRED")
	locker := newLocker(t, pool, nil)
	key := pgtest.Key(t)
	lock := acquired(t.Context(), t, locker, key)
	err := lock.FencedTx(t.Context(), pool, key, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "INSERT INTO "+rows+" VALUES ($1), ($1)", lock.Token())
		return err
	})
	require.ErrorContains(t, err, "23505")
	require.NotErrorIs(t, err, pglock.ErrCommitUnknown)
	require.Zero(t, count(t, pool, "SELECT count(*) FROM "+rows))
	require.NoError(t, lock.Release(t.Context()))
}
