package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// binaries are the programs of one PostgreSQL installation.
type binaries struct {
	dir     string
	version string // as `postgres --version` prints it
}

var errNoBinaries = errors.New("no PostgreSQL server binaries (set PGLOCK_PG_BIN to the folder that has initdb and postgres)")

// findBinaries looks in PGLOCK_PG_BIN alone if that is set; else in PATH, in
// `pg_config --bindir`, and where Debian and others put each major, newest
// first.
func findBinaries(ctx context.Context) (*binaries, error) {
	if dir := os.Getenv("PGLOCK_PG_BIN"); dir != "" {
		b, err := binariesIn(ctx, dir)
		if err != nil {
			return nil, fmt.Errorf("PGLOCK_PG_BIN: %w", err)
		}
		return b, nil
	}
	for _, dir := range candidateDirs(ctx) {
		if b, err := binariesIn(ctx, dir); err == nil {
			return b, nil
		}
	}
	return nil, errNoBinaries
}

// binariesIn checks that dir has a server that runs on this machine.
func binariesIn(ctx context.Context, dir string) (*binaries, error) {
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("%s/postgres --version: %w", dir, err)
	}
	return &binaries{dir: dir, version: strings.TrimSpace(string(out))}, nil
}

func candidateDirs(ctx context.Context) []string {
	var dirs []string
	if path, err := exec.LookPath("postgres"); err == nil {
		// PATH may have a link to the installation; initdb looks beside itself.
		if target, err := filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(target))
		}
		dirs = append(dirs, filepath.Dir(path))
	}
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",
		"/usr/pgsql-*/bin",
		"/opt/homebrew/opt/postgresql@*/bin",
		"/usr/local/opt/postgresql@*/bin",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			continue
		}
		slices.SortFunc(found, func(a, b string) int { return majorIn(b) - majorIn(a) })
		dirs = append(dirs, found...)
	}
	return dirs
}

// majorIn is the number in the last but one element of a path such as
// /usr/lib/postgresql/17/bin.
func majorIn(dir string) int {
	name := filepath.Base(filepath.Dir(dir))
	digits := strings.TrimLeft(name, "abcdefghijklmnopqrstuvwxyz@-")
	n, err := strconv.Atoi(digits)
	if err != nil {
		return 0
	}
	return n
}

// program is the path of a client program such as pg_dump, which a server-only
// folder may not have.
func (b *binaries) program(name string) (string, error) {
	path := filepath.Join(b.dir, name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is neither in %s nor in PATH", name, b.dir)
	}
	return path, nil
}
