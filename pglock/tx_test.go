package pglock_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

func TestTransactionLocksAndSessionLocksExcludeEachOther(t *testing.T) {
	t.Parallel()
	locker, pool := newLocker(t, &pglock.Config{Namespace: "orders"})
	other, _ := newLocker(t, &pglock.Config{Namespace: "invoices"})
	key := pgtest.Key(t)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background())

	require.NoError(t, locker.TryAcquireTx(t.Context(), tx, key))
	_, err = locker.TryAcquire(t.Context(), key)
	require.ErrorIs(t, err, pglock.ErrNotAcquired)
	lock, err := other.TryAcquire(t.Context(), key)
	require.NoError(t, err, "another namespace")
	require.NoError(t, lock.Release(t.Context()))
	require.NoError(t, tx.Commit(t.Context()))

	lock, err = locker.TryAcquire(t.Context(), key)
	require.NoError(t, err, "the transaction has ended")
	tx, err = pool.Begin(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, locker.TryAcquireTx(t.Context(), tx, key), pglock.ErrNotAcquired)
	var one int
	require.NoError(t, tx.QueryRow(t.Context(), "SELECT 1").Scan(&one), "a refusal leaves the transaction usable")
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, lock.Release(t.Context()))
}

func TestAcquireTxWaitsUntilTheDeadlineAndLeavesTheTransactionUsable(t *testing.T) {
	t.Parallel()
	locker, pool := newLocker(t, nil)
	key := pgtest.Key(t)
	lock, err := locker.Acquire(t.Context(), key)
	require.NoError(t, err)
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background())
	_, err = tx.Exec(t.Context(), "SET LOCAL lock_timeout = '7s'")
	require.NoError(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	err = locker.AcquireTx(ctx, tx, key)
	require.ErrorIs(t, err, pglock.ErrNotAcquired)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.GreaterOrEqual(t, time.Since(start), 190*time.Millisecond)
	require.ErrorIs(t, locker.AcquireTx(ctx, tx, key), context.DeadlineExceeded, "a ctx that has ended")

	got := make(chan error, 1)
	go func() { got <- locker.AcquireTx(t.Context(), tx, key) }()
	require.NoError(t, pgtest.WaitForWaiters(t.Context(), pool, 1))
	require.NoError(t, lock.Release(t.Context()))
	require.NoError(t, <-got)
	var timeout string
	require.NoError(t, tx.QueryRow(t.Context(), "SHOW lock_timeout").Scan(&timeout))
	require.Equal(t, "7s", timeout, "the caller's own")
	_, err = locker.TryAcquire(t.Context(), key)
	require.ErrorIs(t, err, pglock.ErrNotAcquired)
	require.NoError(t, tx.Commit(t.Context()))
}

func TestTransactionLocksBehindATransactionPooler(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	dsn := pgtest.NewDatabase(t, s)
	direct, err := pglock.New(pgtest.Pool(t, dsn), nil)
	require.NoError(t, err)
	defer closeLocker(t, direct)
	require.NoError(t, direct.Migrate(t.Context()))
	bouncer := pgtest.PgBouncerTo(t, s, pgtest.TransactionPooling, nil)
	config, err := pgxpool.ParseConfig(dsn)
	require.NoError(t, err)
	pool := pgtest.Pool(t, bouncer.DSN(config.ConnConfig.Database), func(c *pgxpool.Config) {
		c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // prepared statements are not for poolers
	})
	locker, err := pglock.New(pool, nil)
	require.NoError(t, err)
	defer closeLocker(t, locker)
	key := pgtest.Key(t)
	_, err = locker.TryAcquire(t.Context(), key)
	require.ErrorIs(t, err, pglock.ErrPooler)

	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		require.NoError(t, locker.TryAcquireTx(t.Context(), tx, key))
		_, err := direct.TryAcquire(t.Context(), key)
		require.ErrorIs(t, err, pglock.ErrNotAcquired)
		return pgx.BeginFunc(t.Context(), pool, func(second pgx.Tx) error {
			require.ErrorIs(t, locker.TryAcquireTx(t.Context(), second, key), pglock.ErrNotAcquired)
			return nil
		})
	}))
	lock, err := direct.TryAcquire(t.Context(), key)
	require.NoError(t, err)
	require.NoError(t, lock.Release(t.Context()))
}

func TestReadersAndAWriter(t *testing.T) {
	t.Parallel()
	for name, config := range shapes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours, pool := newLocker(t, &config)
			theirs, _ := newLocker(t, &config)
			key := pgtest.Key(t)
			readers := make([]*pglock.Lock, 0, 3)
			for _, locker := range []*pglock.Locker{ours, ours, theirs} {
				lock, err := locker.TryAcquireShared(t.Context(), key)
				require.NoError(t, err)
				require.Zero(t, lock.Token())
				require.ErrorIs(t, lock.Claim(t.Context(), pool, "r"), pglock.ErrNoToken)
				readers = append(readers, lock)
			}
			for _, locker := range []*pglock.Locker{ours, theirs} {
				_, err := locker.TryAcquire(t.Context(), key)
				require.ErrorIs(t, err, pglock.ErrNotAcquired)
			}
			written := make(chan *pglock.Lock, 1)
			go func() {
				lock, err := ours.Acquire(t.Context(), key)
				if err != nil {
					t.Error(err)
				}
				written <- lock
			}()
			require.NoError(t, pgtest.Poll(t.Context(), "a writer that waits", func() bool { return ours.Stat().Waiters == 1 }))
			_, err := ours.TryAcquireShared(t.Context(), key)
			require.ErrorIs(t, err, pglock.ErrNotAcquired, "a reader does not overtake the writer of its process")
			for _, lock := range readers {
				require.NoError(t, lock.Release(t.Context()))
			}
			writer := <-written
			require.Positive(t, writer.Token())
			_, err = theirs.TryAcquireShared(t.Context(), key)
			require.ErrorIs(t, err, pglock.ErrNotAcquired)
			require.NoError(t, writer.Release(t.Context()))
		})
	}
}
