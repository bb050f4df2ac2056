package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/cmd/pglock/internal/supervise"
	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// program is the built binary. It stays where it is, so that the next run of the tests need not link it again.
var program = sync.OnceValues(func() (string, error) {
	path, err := filepath.Abs("../../.out/test/pglock")
	if err != nil {
		return "", err
	}
	out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

// mark is the environment variable by which the processes of one test are known, whatever they have become.
const mark = "PGLOCK_TEST_MARK"

// A host runs the program with an environment of its own.
type host struct {
	path, dsn, mark string
	env             []string
}

// newHost is a host on a migrated database of the test's own.
func newHost(t *testing.T) *host {
	t.Helper()
	h := hostOn(t, pgtest.NewDatabase(t, pgtest.Shared(t)))
	migrate(t, h.dsn)
	return h
}

// hostOn is a host on the database as it is. At the end of the test none of its processes is left.
func hostOn(t *testing.T, dsn string) *host {
	t.Helper()
	path, err := program()
	require.NoError(t, err)
	h := &host{path: path, dsn: dsn, mark: pgtest.Key(t)}
	t.Cleanup(func() {
		pgtest.Eventually(t, "no process to be left", func() bool { return len(h.processes()) == 0 })
	})
	return h
}

func migrate(t *testing.T, dsn string) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), dsn)
	require.NoError(t, err)
	defer pool.Close()
	locker, err := pglock.New(pool, nil)
	require.NoError(t, err)
	require.NoError(t, locker.Migrate(t.Context()))
	require.NoError(t, locker.Close(t.Context()))
}

// terminateHolder ends the session that holds k. That is not the only lock for a moment, while the pool's next connection is made ready.
func (h *host) terminateHolder(t *testing.T) {
	t.Helper()
	tag, err := h.pool(t).Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND objsubid = 1 AND (classid::bigint << 32 | objid::bigint) = pglock.key('', 'k')`)
	require.NoError(t, err)
	require.EqualValues(t, 1, tag.RowsAffected())
}

// command is a command with the host's environment; $PGLOCK is the program.
func (h *host) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PG") && !strings.HasPrefix(v, "DATABASE_URL=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "PGLOCK="+h.path, "DATABASE_URL="+h.dsn, mark+"="+h.mark)
	cmd.Env = append(cmd.Env, h.env...)
	return cmd
}

// A result is how a program ended.
type result struct {
	code           int
	stdout, stderr string
}

// pglock runs the program to its end.
func (h *host) pglock(t *testing.T, args ...string) result {
	t.Helper()
	return h.finish(t, h.command(h.path, args...))
}

// sh runs a line of shell to its end.
func (h *host) sh(t *testing.T, script string) result {
	t.Helper()
	return h.finish(t, h.command("sh", "-c", script))
}

func (h *host) finish(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	return result{code: exitCode(t, cmd.Run()), stdout: stdout.String(), stderr: stderr.String()}
}

// start runs a line of shell as pglock run would be started by cron: without a terminal, and with no signal ignored, whatever the
// tests themselves were started by. The shell becomes it.
func (h *host) start(t *testing.T, script string) *pgtest.Process {
	t.Helper()
	return pgtest.SpawnCommand(t, h.command("env", "--default-signal", "sh", "-c", "exec "+script))
}

// patience bounds the waits for what a process does.
const patience = time.Minute

// exitCode is what a shell calls $?.
func exitCode(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	exit, ok := errors.AsType[*exec.ExitError](err)
	require.True(t, ok, "%v", err)
	if exit.ExitCode() < 0 {
		return 128 + int(signalOf(exit))
	}
	return exit.ExitCode()
}

func wait(t *testing.T, p *pgtest.Process) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return exitCode(t, p.Wait(ctx))
}

func expect(t *testing.T, p *pgtest.Process, word string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	rest, err := p.Expect(ctx, word)
	require.NoError(t, err)
	return rest
}

// processes lists what is left of the host: every process with its mark in the environment.
func (h *host) processes() []string {
	var found []string
	paths, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range paths {
		env, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(env, []byte(mark+"="+h.mark+"\x00")) {
			continue
		}
		line, _ := os.ReadFile(filepath.Dir(path) + "/cmdline")
		found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
	}
	return found
}

// running lists what pglock has started, without the shells of a console.
func (h *host) running() []string {
	return slices.DeleteFunc(h.commands(), func(line string) bool { return strings.Contains(line, "--norc") })
}

// commands lists what is left but pglock itself and its guard.
func (h *host) commands() []string {
	return slices.DeleteFunc(h.processes(), func(line string) bool {
		return strings.HasPrefix(line, h.path+" ") || strings.HasPrefix(line, supervise.GuardName+" ")
	})
}

func (h *host) pool(t *testing.T) *pgxpool.Pool {
	t.Helper()
	return pgtest.Pool(t, h.dsn)
}
