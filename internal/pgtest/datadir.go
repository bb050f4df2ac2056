package pgtest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
)

// makeDataDir fills dir, which must not exist, with an empty cluster. It is a
// copy of one that initdb made for this version and user on this machine: the
// copy takes a fifth of the time.
func makeDataDir(ctx context.Context, bin *binaries, acct *account, dir string) error {
	template, err := templateDir(ctx, bin, acct, dir+".template")
	if err != nil {
		return err
	}
	return copyTree(ctx, acct, template, dir)
}

// templateDir returns the prepared cluster and makes it first if need be, in
// scratch, moved into its place by one rename so that no half-made one is seen
// and many processes can do so at once.
func templateDir(ctx context.Context, bin *binaries, acct *account, scratch string) (string, error) {
	sum := sha256.Sum256([]byte(bin.dir + "\x00" + bin.version))
	root := filepath.Dir(filepath.Dir(scratch))
	place := filepath.Join(root, fmt.Sprintf("pgtest-template-%x-%s", sum[:6], acct.key()))
	if usableTemplate(acct, place) {
		return place, nil
	}
	if err := initdb(ctx, bin, acct, scratch); err != nil {
		return "", err
	}
	err := os.Rename(scratch, place)
	if err == nil || usableTemplate(acct, place) {
		return place, nil
	}
	// Somebody else's folder is in the way: ours serves this server alone.
	return scratch, nil
}

func usableTemplate(acct *account, dir string) bool {
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() || info.Mode().Perm() != 0o700 || !acct.owns(info) {
		return false
	}
	// A cleaner of old temporary files may have taken some of the files.
	for _, name := range []string{"PG_VERSION", "global/pg_control", "base/1/PG_VERSION", "pg_wal", "pg_notify", "pg_tblspc"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

// initdb makes a cluster whose superuser is postgres.
func initdb(ctx context.Context, bin *binaries, acct *account, dir string) error {
	return run(ctx, acct, filepath.Join(bin.dir, "initdb"), "-D", dir, "-U", superuser,
		"--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
}

// copyTree copies a folder as the account, which then owns the copy.
func copyTree(ctx context.Context, acct *account, from, to string) error {
	return run(ctx, acct, "cp", "-a", from, to)
}
