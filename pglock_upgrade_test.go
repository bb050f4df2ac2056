//go:build pgupgrade

package pglock_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
)

// It needs the programs of two majors: make test-upgrade OLD=… NEW=….
func TestP6_TokensIncreaseOverPgUpgrade(t *testing.T) {
	t.Parallel()
	ctx := patient(t)
	older, newer := os.Getenv("PGLOCK_PG_OLD"), os.Getenv("PGLOCK_PG_NEW")
	require.NotEmpty(t, older, "PGLOCK_PG_OLD")
	require.NotEmpty(t, newer, "PGLOCK_PG_NEW")
	before, after := pgtest.New(t, pgtest.BinDir(older)), pgtest.New(t, pgtest.BinDir(newer))
	require.NoError(t, before.Exec(ctx, "", "CREATE DATABASE "+failoverDB))
	require.NoError(t, migrate(before.DSN(failoverDB)))
	require.NoError(t, before.Exec(ctx, failoverDB, plainSequence))
	h := histories{key: pgtest.Key(t)}
	h.grow(t, before.DSN(failoverDB), 100)
	versions := make([]int, 2)
	for i, s := range []*pgtest.Server{before, after} {
		var err error
		versions[i], err = s.Version(ctx)
		require.NoError(t, err)
		require.NoError(t, s.Stop(ctx))
	}
	last := h.granted.last()

	// A cluster of 18 or newer has checksums unless told otherwise, an older one
	// may have none. It fails where there are none already.
	_ = inServer(ctx, after, filepath.Join(newer, "pg_checksums"), "--disable", "-D", dataOf(after))
	err := inServer(ctx, after, filepath.Join(newer, "pg_upgrade"), "-U", "postgres",
		"-b", older, "-B", newer, "-d", dataOf(before), "-D", dataOf(after), "-s", after.Dir())
	require.NoError(t, err)
	require.NoError(t, after.Restart(ctx))
	h.laterReign(t, after.DSN(failoverDB))
	h.grow(t, after.DSN(failoverDB), 100)
	require.NoError(t, h.granted.check())
	t.Logf("pg_upgrade of %d to %d: tokens up to %d before, up to %d after", versions[0], versions[1], last, h.granted.last())
}

func dataOf(s *pgtest.Server) string { return filepath.Join(s.Dir(), "data") }

// inServer runs a program as the owner of the server's data, in its folder.
func inServer(ctx context.Context, s *pgtest.Server, program string, args ...string) error {
	info, err := os.Stat(dataOf(s))
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = s.Dir()
	if owner, ok := info.Sys().(*syscall.Stat_t); ok && int(owner.Uid) != os.Getuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}
