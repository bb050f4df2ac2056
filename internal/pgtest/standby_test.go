package pgtest_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
)

func count(ctx context.Context, t *testing.T, dsn string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(ctx, dsn)
	require.NoError(t, err)
	require.NoError(t, conn.QueryRow(ctx, "SELECT count(*) FROM t").Scan(&n))
	require.NoError(t, conn.Close(ctx))
	return n
}

func TestStandbyLagsAndIsPromoted(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	primary := pgtest.New(t)
	require.NoError(t, primary.Exec(ctx, "", "CREATE TABLE t(n int); INSERT INTO t VALUES (1)"))
	sb := pgtest.NewStandby(t, primary, pgtest.StandbyConfig{Synchronous: true})
	require.NoError(t, sb.PauseReplay(ctx))
	require.NoError(t, primary.Exec(ctx, "", "INSERT INTO t VALUES (2)"))
	require.Equal(t, 1, count(ctx, t, sb.DSN("")), "replay is paused")
	require.NoError(t, sb.ResumeReplay(ctx))
	require.NoError(t, sb.AwaitCaughtUp(ctx))
	require.Equal(t, 2, count(ctx, t, sb.DSN("")))

	require.NoError(t, sb.PauseReceive(ctx))
	require.NoError(t, sb.ResumeReceive(ctx))
	require.NoError(t, primary.Reload(ctx, map[string]string{"synchronous_standby_names": ""}))
	require.NoError(t, sb.PauseReceive(ctx))
	require.NoError(t, primary.Exec(ctx, "", "INSERT INTO t VALUES (3)"))
	require.NoError(t, sb.Promote(ctx))
	require.Equal(t, 2, count(ctx, t, sb.DSN("")), "it never received the last row")
	require.NoError(t, sb.Exec(ctx, "", "INSERT INTO t VALUES (4)"))
	require.Equal(t, 3, count(ctx, t, primary.DSN("")), "the old primary lives on")

	require.NoError(t, primary.Stop(ctx))
	require.Equal(t, 3, count(ctx, t, pgtest.MultiHostDSN("", "read-write", primary, sb.Server)))
}

func TestBackupAndDumpBringBackWhatWas(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := pgtest.New(t)
	require.NoError(t, s.Exec(ctx, "", "CREATE TABLE t(n int); INSERT INTO t VALUES (1)"))
	backup, err := s.BaseBackup(ctx)
	require.NoError(t, err)
	dump, err := s.Dump(ctx, "")
	require.NoError(t, err)
	require.NoError(t, s.Exec(ctx, "", "INSERT INTO t VALUES (2)"))

	older := pgtest.New(t, pgtest.FromBackup(backup))
	require.NoError(t, backup.Close())
	require.Equal(t, 1, count(ctx, t, older.DSN("")))

	db, err := s.CreateDatabase(ctx)
	require.NoError(t, err)
	conn, err := pgx.ParseConfig(db)
	require.NoError(t, err)
	require.NoError(t, s.Restore(ctx, conn.Database, dump))
	require.Equal(t, 1, count(ctx, t, db))

	if s.Bin() == "" {
		return // in Docker a server that is down cannot be copied
	}
	require.NoError(t, s.Stop(ctx))
	stopped, err := s.Snapshot(ctx)
	require.NoError(t, err)
	twin := pgtest.New(t, pgtest.FromBackup(stopped))
	require.NoError(t, stopped.Close())
	require.Equal(t, 2, count(ctx, t, twin.DSN("")))
}
