package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
)

func signalOf(err *exec.ExitError) syscall.Signal {
	status, _ := err.Sys().(syscall.WaitStatus)
	return status.Signal()
}

func TestRunHasTheExitCodeOfTheCommand(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	script := filepath.Join(t.TempDir(), "not-executable")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\n"), 0o600))
	for _, c := range []struct {
		args string
		want int
	}{
		{`run k -- true`, 0},
		{`run k -- sh -c 'exit 7'`, 7},
		{`run k -- sh -c 'exit 255'`, 255},
		{`run k -- sh -c 'kill -9 $$'`, 128 + 9},
		{`run k -- sh -c 'kill -TERM $$'`, 128 + 15},
		{`run k -- sh -c 'kill -INT $$'`, 128 + 2},
		{`run k -- no-such-command-here`, exitNotFound},
		{`run k -- ` + script, exitCannotRun},
		{`run k`, exitUsage},
		{`run k --`, exitUsage},
		{`run --try --wait 1s k -- true`, exitUsage},
		{`run '' -- true`, exitUsage},
		{`run --lease 1ms k -- true`, exitUsage},
		{`run --grace 2900ms k -- true`, exitUsage},
		{`run --grace 9s --lease 60s k -- true`, 0},
		{`run --schema nowhere k -- true`, exitUnsuitable},
		{`run --once yesterday k -- true`, exitUsage},
	} {
		r := h.sh(t, `"$PGLOCK" `+c.args)
		require.Equal(t, c.want, r.code, "%s\n%s", c.args, r.stderr)
		if c.want < 64 || c.want > 128 {
			require.Empty(t, r.stderr, c.args)
		} else {
			require.True(t, strings.HasPrefix(r.stderr, "pglock: "), r.stderr)
			require.Equal(t, 1, strings.Count(r.stderr, "\n"), "one line says why: %s", r.stderr)
		}
	}
	pgtest.NoAdvisoryLocks(t, h.pool(t))
}

func TestRunCannotConnect(t *testing.T) {
	t.Parallel()
	h := hostOn(t, "postgres://app:very-secret@127.0.0.1:1/app")
	for _, command := range []string{"run k -- echo ran", "run --try k -- echo ran", "run --wait 1s k -- echo ran"} {
		r := h.sh(t, `"$PGLOCK" `+command)
		require.Equal(t, exitUnavailable, r.code, r.stderr)
		require.Empty(t, r.stdout)
	}
}

func TestRunGivesTheCommandItsLock(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	const show = `-- sh -c 'echo "$PGLOCK_KEY $PGLOCK_LOCK_ID $PGLOCK_TOKEN"'`
	first := h.sh(t, `"$PGLOCK" run --namespace jobs "nightly export" `+show)
	second := h.sh(t, `PGLOCK_NAMESPACE=jobs "$PGLOCK" run "nightly export" `+show)
	var id int64
	require.NoError(t, h.pool(t).QueryRow(t.Context(), "SELECT pglock.key('jobs', 'nightly export')").Scan(&id))
	require.Equal(t, fmt.Sprintf("nightly export %d 1\n", id), first.stdout)
	require.Equal(t, fmt.Sprintf("nightly export %d 2\n", id), second.stdout, "tokens rise")
}

func TestRunLeavesStandardFilesAlone(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	r := h.sh(t, `printf 'b\nc\na\n' | "$PGLOCK" run k -- sort | head -n 2; printf '\0\377' | "$PGLOCK" run k -- od -An -tx1`)
	require.Equal(t, "a\nb\n 00 ff\n", r.stdout)
	r = h.sh(t, `exec 3<<END
from the third
END
"$PGLOCK" run k -- sh -c 'cat <&3; echo out; echo err >&2'`)
	require.Equal(t, "from the third\nout\n", r.stdout, "other files are inherited too")
	require.Equal(t, "err\n", r.stderr)
	r = h.sh(t, `"$PGLOCK" run k -- sh -c 'ls /proc/self/fd | wc -l'; ls /proc/self/fd | wc -l`)
	lines := strings.Fields(r.stdout)
	require.Equal(t, lines[1], lines[0], "and none is added")
	r = h.sh(t, `"$PGLOCK" run k -- yes | head -n 1`)
	require.Equal(t, "y\n", r.stdout, "the command sees that nobody reads")
}

func TestRunTwoHostsOnOneKey(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	log := filepath.Join(t.TempDir(), "log")
	const rounds = 8
	script := fmt.Sprintf(`sh -c 'for i in $(seq %d); do
  "$PGLOCK" run k -- sh -c "echo begin >>%s; sleep 0.02; echo end >>%s" || exit; done'`, rounds, log, log)
	one, two := h.start(t, script), h.start(t, script)
	require.Zero(t, wait(t, one))
	require.Zero(t, wait(t, two))
	text, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("begin\nend\n", 2*rounds), string(text))
}

func TestRunWhileAnotherHolds(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	holder := h.start(t, `"$PGLOCK" run k -- sh -c 'echo held; cat'`)
	expect(t, holder, "held")
	for args, want := range map[string]int{
		"--try": 1, "--try -E 9": 9, "--wait 200ms": 1, "--wait 200ms -E 0": 0, "--try --conflict-exit-code=33": 33,
	} {
		r := h.sh(t, `"$PGLOCK" run `+args+` k -- echo ran`)
		require.Equal(t, want, r.code, "%s: %s", args, r.stderr)
		require.Empty(t, r.stdout)
	}
	require.Zero(t, h.sh(t, `"$PGLOCK" run --try other -- true`).code)
	waiter := h.start(t, `"$PGLOCK" run k -- echo mine`)
	require.NoError(t, pgtest.WaitForWaiters(t.Context(), h.pool(t), 1))
	stopped := h.start(t, `"$PGLOCK" run k -- echo never`)
	require.NoError(t, pgtest.WaitForWaiters(t.Context(), h.pool(t), 2))
	require.NoError(t, stopped.Signal(syscall.SIGTERM))
	require.Equal(t, 128+15, wait(t, stopped))
	require.Zero(t, wait(t, holder), "the end of its input ends it")
	expect(t, waiter, "mine")
	require.Zero(t, wait(t, waiter))
}

func TestRunTakesOneConnection(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	holder := h.start(t, `"$PGLOCK" run k -- sh -c 'echo held; cat'`)
	expect(t, holder, "held")
	pool := h.pool(t)
	pgtest.Eventually(t, "one connection to be left", func() bool {
		backends, err := pgtest.Backends(t.Context(), pool, "%")
		return err == nil && len(backends) == 1 && strings.HasSuffix(backends[0].ApplicationName, " pglock:k")
	})
	require.Zero(t, wait(t, holder))
}

func TestRunPassesSignalsOn(t *testing.T) {
	h := newHost(t)
	t.Run("to end, to the group", func(t *testing.T) {
		p := h.start(t, `"$PGLOCK" run k -- sh -c 'sleep 1000 & echo ready; wait'`)
		expect(t, p, "ready")
		require.NoError(t, p.Signal(syscall.SIGTERM))
		require.Equal(t, 128+15, wait(t, p))
	})
	t.Run("others, to the command", func(t *testing.T) {
		p := h.start(t, `"$PGLOCK" run k -- sh -c 'trap "echo usr1" USR1; trap "echo hup; exit 5" HUP
sleep 1000 & echo ready; while :; do wait; done'`)
		expect(t, p, "ready")
		require.NoError(t, p.Signal(syscall.SIGUSR1))
		expect(t, p, "usr1")
		require.NoError(t, p.Signal(syscall.SIGHUP))
		expect(t, p, "hup")
		require.Equal(t, 5, wait(t, p))
	})
	t.Run("a command may ignore SIGTERM", func(t *testing.T) {
		p := h.start(t, `"$PGLOCK" run k -- sh -c 'trap "" TERM; echo ready; cat'`)
		expect(t, p, "ready")
		require.NoError(t, p.Signal(syscall.SIGTERM))
		require.Zero(t, wait(t, p), "it ends when it likes, and the lock with it")
	})
	t.Run("nohup", func(t *testing.T) {
		p := h.start(t, `sh -c 'trap "" HUP; exec "$PGLOCK" run k -- sh -c "kill -HUP \$\$; echo survived"'`)
		expect(t, p, "survived")
		require.Zero(t, wait(t, p))
	})
}

// family is a command with descendants of every kind: its group, a session of its own, an orphan.
const family = `sh -c 'trap "" TERM; sleep 1001 & setsid sleep 1002 & (setsid sh -c "trap \"\" TERM; sleep 1003; sleep 1004" &)
echo ready; while :; do sleep 1; done'`

func TestRunWhatTheCommandLeavesBehindEndsWithIt(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p := h.start(t, `"$PGLOCK" run --lease 1500ms k -- sh -c '
(setsid sh -c "trap \"\" TERM; sleep 1000; sleep 1000" &); sleep 1000 & exit 4'`)
	require.Equal(t, 4, wait(t, p))
	require.Empty(t, h.processes(), "before pglock itself has ended")
}

func TestRunEndsTheWholeFamilyOnLoss(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p := h.start(t, `"$PGLOCK" run --lease 2500ms --grace 300ms k -- `+family)
	expect(t, p, "ready")
	begin := time.Now()
	h.terminateHolder(t)
	require.Equal(t, exitLost, wait(t, p))
	require.GreaterOrEqual(t, time.Since(begin), 300*time.Millisecond, "SIGTERM was ignored, the grace kept")
	require.Contains(t, p.Stderr(), "lock lost")
	require.Empty(t, h.processes(), "before pglock itself has ended")
}

func TestRunLetsTheCommandEndByItselfOnLoss(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p := h.start(t, `"$PGLOCK" run --lease 60s k -- sh -c 'trap "echo cleaned; exit 0" TERM; echo ready; while :; do sleep 0.1; done'`)
	expect(t, p, "ready")
	h.terminateHolder(t)
	expect(t, p, "cleaned")
	require.Equal(t, exitLost, wait(t, p), "a loss is no success, whatever the command says")
}

func TestRunServerKilled(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	h := hostOn(t, s.DSN(""))
	migrate(t, h.dsn)
	p := h.start(t, `"$PGLOCK" run --lease 1500ms k -- `+family)
	expect(t, p, "ready")
	require.NoError(t, s.Kill(t.Context()))
	require.Equal(t, exitLost, wait(t, p))
	require.Empty(t, h.processes())
}

func TestRunCutOffFromTheServer(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	h := newHost(t)
	proxy := pgtest.ProxyTo(t, s)
	direct := h.pool(t)
	h.dsn = s.Via(proxy.Addr(), direct.Config().ConnConfig.Database)
	p := h.start(t, `"$PGLOCK" run --lease 2s k -- `+family)
	expect(t, p, "ready")
	proxy.BlackHole()
	left := make(chan []string, 1)
	go func() {
		_, err := direct.Exec(t.Context(), "SELECT pg_advisory_lock(pglock.key('', 'k'))") // the next holder
		if err != nil {
			left <- []string{err.Error()}
			return
		}
		left <- h.commands()
	}()
	require.Equal(t, exitLost, wait(t, p))
	proxy.Heal()
	require.Empty(t, <-left, "the command was gone before the next had the lock")
}

func TestRunFrozenWrapper(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p := h.start(t, `"$PGLOCK" run --lease 2s k -- `+family)
	expect(t, p, "ready")
	require.NoError(t, p.Freeze())
	_, err := h.pool(t).Exec(t.Context(), "SELECT pg_advisory_lock(pglock.key('', 'k'))")
	require.NoError(t, err)
	require.Empty(t, h.commands(), "the guard has ended the command in time")
	require.NoError(t, p.Thaw())
	require.Equal(t, exitLost, wait(t, p))
}

func TestRunWrapperKilled(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p := h.start(t, `"$PGLOCK" run k -- `+family)
	expect(t, p, "ready")
	pgtest.Eventually(t, "the family to be complete", func() bool { return len(h.processes()) >= 6 })
	require.NoError(t, p.Kill())
	pgtest.Eventually(t, "the whole tree to end", func() bool { return len(h.processes()) == 0 })
	require.Zero(t, h.sh(t, `"$PGLOCK" run --wait 5s k -- true`).code, "the lock is free")
}

func TestRunGuardKilled(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	p := h.start(t, `"$PGLOCK" run k -- sh -c '`+strings.TrimPrefix(strings.Replace(family, "echo ready", "echo ready $PPID", 1), "sh -c '"))
	var guard int
	_, err := fmt.Sscan(expect(t, p, "ready"), &guard)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(guard, syscall.SIGKILL))
	require.Equal(t, exitInternal, wait(t, p))
	require.Empty(t, h.processes())
}
