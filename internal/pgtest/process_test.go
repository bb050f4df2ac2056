package pgtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
)

func TestProcessesTalkFreezeAndDie(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	a, b := pgtest.SpawnRole(t, "echo"), pgtest.SpawnRole(t, "echo")
	require.NoError(t, pgtest.Release(ctx, a, b))
	require.NoError(t, a.Tell("hello there"))
	said, err := a.Expect(ctx, "echo")
	require.NoError(t, err)
	require.Equal(t, "hello there", said)

	require.NoError(t, a.Freeze())
	require.NoError(t, a.Tell("late"))
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	_, err = a.Line(short)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, a.Thaw())
	said, err = a.Expect(ctx, "echo")
	require.NoError(t, err)
	require.Equal(t, "late", said)

	require.NoError(t, a.Kill())
	require.NoError(t, a.Kill())
	require.ErrorContains(t, a.Wait(ctx), "killed")
	require.NoError(t, b.Wait(ctx))
}
