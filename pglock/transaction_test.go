package pglock_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// TestARefusedFenceLeavesTheConnectionAsItWas: the fence goes with BEGIN in one message, of whose transaction pgx knows nothing
// if it fails.
func TestARefusedFenceLeavesTheConnectionAsItWas(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	locker, pool := newLocker(t, nil)
	resource := pgtest.Key(t)
	fencer := locker.Fencer()
	pooled, err := pool.Acquire(ctx)
	require.NoError(t, err)
	defer pooled.Release()
	require.NoError(t, fencer.Claim(ctx, pool, 2, resource))
	conn, err := pgx.Connect(ctx, pgtest.Database(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(ctx)) }()
	tx, err := conn.Begin(ctx)
	require.NoError(t, err)
	never := func(pgx.Tx) error { return errors.New("fn was called") }
	before := pool.Stat().NewConnsCount()
	for name, db := range map[string]pglock.DB{"pool": pool, "connection of a pool": pooled, "savepoint": tx} {
		require.ErrorIs(t, fencer.FencedTx(ctx, db, 1, resource, never), pglock.ErrStaleToken, name)
		ran := false
		require.NoError(t, fencer.FencedTx(ctx, db, 2, resource, func(tx pgx.Tx) error {
			ran = true
			_, err := tx.Exec(ctx, "SELECT 1")
			return err
		}), name)
		require.True(t, ran, name)
	}
	require.Equal(t, before, pool.Stat().NewConnsCount(), "no connection was given up")
	require.NoError(t, tx.Commit(ctx))
	require.ErrorIs(t, fencer.FencedTx(ctx, conn, 1, resource, never), pglock.ErrStaleToken)
	require.EqualValues(t, 'I', conn.PgConn().TxStatus())
	failed := errors.New("no")
	require.ErrorIs(t, fencer.FencedTx(ctx, conn, 3, resource, func(pgx.Tx) error { return failed }), failed)
	require.NoError(t, fencer.FencedTx(ctx, conn, 2, resource, func(pgx.Tx) error { return nil }), "3 was rolled back")
}

// TestResourcesOfAnyNameAreFenced: the name of a resource is a literal in the message that begins.
func TestResourcesOfAnyNameAreFenced(t *testing.T) {
	t.Parallel()
	locker, pool := newLocker(t, nil)
	fencer := locker.Fencer()
	for _, suffix := range []string{"", " plain ~", "'", `"`, `\`, "$1", "é\n", "');--"} {
		resource := pgtest.Key(t) + suffix
		require.NoError(t, fencer.Claim(t.Context(), pool, 2, resource), resource)
		err := fencer.FencedTx(t.Context(), pool, 1, resource, func(pgx.Tx) error { return nil })
		stale, ok := pglock.AsStaleToken(err)
		require.True(t, ok, "%q: %v", resource, err)
		require.Equal(t, resource, stale.Resource)
	}
}
