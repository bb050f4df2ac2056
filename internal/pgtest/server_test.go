package pgtest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
)

func TestSharedServerAnswers(t *testing.T) {
	pool := pgtest.Pool(t, pgtest.Database(t))
	var one int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT 1").Scan(&one))
	require.Equal(t, 1, one)
}

func TestCrashPostmaster(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	require.NoError(t, s.Exec(t.Context(), "", "CREATE TABLE kept(n int)"))
	require.NoError(t, s.CrashPostmaster(t.Context()))
	require.NoError(t, s.Exec(t.Context(), "", "INSERT INTO kept VALUES (1)"))
	require.NoError(t, s.Restart(t.Context()))
	require.NoError(t, s.Close(t.Context()))
	require.NoError(t, s.Close(t.Context()))
}
