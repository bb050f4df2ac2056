package pgtest_test

import (
	"cmp"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
)

func TestSharedServerAnswers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	var one int
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT 1").Scan(&one))
	require.Equal(t, 1, one)
}

func TestCrashes(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := pgtest.New(t, pgtest.Setting("deadlock_timeout", "123ms"))
	require.NoError(t, s.Exec(ctx, "", "CREATE TABLE kept(n int)"))

	require.NoError(t, s.CrashPostmaster(ctx))
	require.NoError(t, s.Exec(ctx, "", "INSERT INTO kept VALUES (1)"))
	text, err := s.LogText(ctx)
	require.NoError(t, err)
	require.Contains(t, text, "was interrupted")

	bystander, err := pgx.Connect(ctx, s.DSN(""))
	require.NoError(t, err)
	require.NoError(t, s.CrashBackend(ctx))
	require.Error(t, bystander.Ping(ctx))
	require.NoError(t, bystander.Close(ctx))

	require.NoError(t, s.Restart(ctx))
	conn, err := pgx.Connect(ctx, cmp.Or(s.SocketDSN(""), s.DSN("")))
	require.NoError(t, err)
	var n int
	var timeout string
	require.NoError(t, conn.QueryRow(ctx, "SELECT n, current_setting('deadlock_timeout') FROM kept").Scan(&n, &timeout))
	require.Equal(t, 1, n)
	require.Equal(t, "123ms", timeout)
	require.NoError(t, conn.Close(ctx))

	require.NoError(t, s.Close(ctx))
	require.NoError(t, s.Close(ctx))
	if s.Dir() != "" {
		require.NoDirExists(t, s.Dir())
	}
}

func TestDatabaseURLIsUsedButNeverCrashed(t *testing.T) {
	ctx := t.Context()
	own := pgtest.New(t)
	t.Setenv("DATABASE_URL", own.DSN(""))
	s, err := pgtest.Start(ctx)
	require.NoError(t, err)
	require.Equal(t, own.DSN("x"), s.DSN("x"))
	require.ErrorIs(t, s.CrashPostmaster(ctx), pgtest.ErrNotOurs)
	require.ErrorIs(t, s.CrashBackend(ctx), pgtest.ErrNotOurs)
	require.ErrorIs(t, s.Restart(ctx), pgtest.ErrNotOurs)
	require.NoError(t, s.Close(ctx))
	require.NoError(t, own.Exec(ctx, "", "SELECT 1"))
}

func TestNoServerToBeHadNamesAllThreeWays(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	for name, value := range map[string]string{
		"PGLOCK_PG_BIN":   t.TempDir(),
		"PGLOCK_PG_IMAGE": "localhost:1/no/such:image",
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PGLOCK_PG_BIN", "")
			t.Setenv("PGLOCK_PG_IMAGE", "")
			t.Setenv(name, value)
			t.Setenv("DOCKER_HOST", "unix:///nonexistent.sock")
			_, err := pgtest.Start(t.Context())
			require.ErrorContains(t, err, "DATABASE_URL")
			require.ErrorContains(t, err, "PGLOCK_PG_BIN")
			require.ErrorContains(t, err, "Docker")
		})
	}
}

func TestPasswordAuthentication(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := pgtest.New(t, pgtest.HBA("host all guest all scram-sha-256"))
	require.NoError(t, s.Exec(ctx, "", "CREATE ROLE guest LOGIN PASSWORD 'right'"))
	conn, err := pgx.Connect(ctx, s.UserDSN("guest", "right", ""))
	require.NoError(t, err)
	require.NoError(t, conn.Close(ctx))
	_, err = pgx.Connect(ctx, s.UserDSN("guest", "wrong", ""))
	require.ErrorContains(t, err, "28P01")
}
