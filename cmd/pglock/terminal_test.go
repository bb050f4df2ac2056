package main

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
)

const ctrlC, ctrlZ = "\x03", "\x1a"

// A console is an interactive shell on a pseudo-terminal, and what it has written.
type console struct {
	tty *os.File

	mu   sync.Mutex // guards text
	text strings.Builder
	seen int // of text, by see
}

func newConsole(t *testing.T, h *host) *console {
	t.Helper()
	shell := h.command("bash", "--norc", "--noprofile", "--noediting", "-i")
	shell.Env = append(shell.Env, "PS1=$ ", "TERM=dumb", "BASH_SILENCE_DEPRECATION_WARNING=1", "HISTFILE=")
	tty, err := pty.StartWithSize(shell, &pty.Winsize{Rows: 24, Cols: 400})
	require.NoError(t, err)
	c := &console{tty: tty}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, 4096)
		for {
			n, err := tty.Read(buffer)
			c.mu.Lock()
			c.text.Write(buffer[:n])
			c.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = shell.Process.Kill()
		_ = shell.Wait()
		_ = tty.Close()
		<-done
		if t.Failed() {
			t.Logf("the console:\n%s", c.text.String())
		}
	})
	c.see(t, "$ ")
	return c
}

func (c *console) send(t *testing.T, text string) {
	t.Helper()
	_, err := c.tty.WriteString(text)
	require.NoError(t, err)
}

// enter types a line and sees its echo.
func (c *console) enter(t *testing.T, line string) {
	t.Helper()
	c.send(t, line+"\n")
	c.see(t, line+"\r\n")
}

// see waits for the text, after what was seen before.
func (c *console) see(t *testing.T, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := pgtest.Poll(ctx, text, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		_, after, found := strings.Cut(c.text.String()[c.seen:], text)
		if found {
			c.seen = c.text.Len() - len(after)
		}
		return found
	})
	require.NoError(t, err)
}

// code sees the exit code of what was run last.
func (c *console) code(t *testing.T, want string) {
	t.Helper()
	c.see(t, "$ ")
	c.enter(t, `echo "=$?="`)
	c.see(t, "="+want+"=")
	c.see(t, "$ ")
}

func TestRunOnATerminal(t *testing.T) {
	h := newHost(t)
	c := newConsole(t, h)

	t.Run("Ctrl-C", func(t *testing.T) {
		c.enter(t, `$PGLOCK run k -- sh -c 'sleep 1000 & echo rea''dy; wait'`)
		c.see(t, "ready")
		c.send(t, ctrlC)
		c.code(t, "130")
	})
	t.Run("Ctrl-C that the command catches", func(t *testing.T) {
		c.enter(t, `$PGLOCK run k -- sh -c 'trap "echo cau""ght; exit 3" INT; echo rea""dy; while :; do sleep 0.1; done'`)
		c.see(t, "ready")
		c.send(t, ctrlC)
		c.see(t, "caught")
		c.code(t, "3")
	})
	t.Run("Ctrl-C while waiting", func(t *testing.T) {
		other := h.start(t, `"$PGLOCK" run k -- sh -c 'echo held; cat'`)
		expect(t, other, "held")
		c.enter(t, `$PGLOCK run k -- echo never`)
		require.NoError(t, pgtest.WaitForWaiters(t.Context(), h.pool(t), 1))
		c.send(t, ctrlC)
		c.code(t, "130")
		require.Zero(t, wait(t, other))
	})
	t.Run("Ctrl-C ends a script", func(t *testing.T) {
		c.enter(t, `sh -c '$PGLOCK run k -- sh -c "echo rea\"\"dy; sleep 1000"; echo went-""on'`)
		c.see(t, "ready")
		c.send(t, ctrlC)
		c.see(t, "$ ")
		require.NotContains(t, c.text.String(), "went-on")
	})
	t.Run("an interactive program", func(t *testing.T) {
		c.enter(t, `$PGLOCK run k -- bash -c 'read -p "na""me? " x; echo "hel""lo $x"'`)
		c.see(t, "name? ")
		c.enter(t, "me")
		c.see(t, "hello me")
		c.code(t, "0")
	})
	t.Run("a pipeline whose first part reads the terminal", func(t *testing.T) {
		c.enter(t, `$PGLOCK run k -- bash -c 'read x; echo "hel""lo $x"' | cat`)
		c.enter(t, "you")
		c.see(t, "hello you")
		c.code(t, "0")
	})
	t.Run("a pipeline whose last part reads the terminal", func(t *testing.T) {
		c.enter(t, `$PGLOCK run k -- echo piped | bash -c 'read x; read y </dev/tty; echo "$x-$y"'`)
		c.enter(t, "typed")
		c.see(t, "piped-typed")
		c.code(t, "0")
	})
	t.Run("Ctrl-Z", func(t *testing.T) {
		c.enter(t, `$PGLOCK run k -- bash -c 'echo rea""dy; read x; echo "hel""lo $x"'`)
		c.see(t, "ready")
		c.send(t, ctrlZ)
		c.see(t, "Stopped")
		c.see(t, "$ ")
		c.enter(t, "fg")
		c.enter(t, "again")
		c.see(t, "hello again")
		c.code(t, "0")
	})
	t.Run("Ctrl-Z for longer than the lease", func(t *testing.T) {
		c.enter(t, `$PGLOCK run --lease 2s k -- bash -c 'echo rea""dy; read x; echo went-""on'`)
		c.see(t, "ready")
		c.send(t, ctrlZ)
		c.see(t, "Stopped")
		_, err := h.pool(t).Exec(t.Context(), "SELECT pg_advisory_lock(pglock.key('', 'k'))")
		require.NoError(t, err)
		require.Empty(t, h.running(), "it does not go on once another may have the lock")
		c.see(t, "$ ")
		c.enter(t, "fg")
		c.see(t, "lock lost")
		c.code(t, "75")
	})
}
