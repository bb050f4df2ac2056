package pgtest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
)

// A server must not outlive the process that started it, whatever ended that.
func TestServerIsGoneWithItsProcess(t *testing.T) {
	t.Parallel()
	ends := map[string]func(*pgtest.Process) error{
		"SIGKILL": func(p *pgtest.Process) error { return p.Signal(syscall.SIGKILL) },
		"Ctrl-C":  func(p *pgtest.Process) error { return p.Signal(syscall.SIGINT) },
		"panic":   func(p *pgtest.Process) error { return p.Tell("panic") },
		"close":   func(p *pgtest.Process) error { return p.Tell("close") },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := pgtest.SpawnRole(t, "serve")
			place, err := p.Expect(t.Context(), "serving")
			require.NoError(t, err)
			require.NotEmpty(t, traces(t, place))

			require.NoError(t, end(p))
			<-p.Done()
			require.NoError(t, pgtest.Poll(t.Context(), "the server to go", func() bool {
				return len(traces(t, place)) == 0
			}))
		})
	}
}

// traces are what is left of a server: its folder and processes, or what
// Docker has of it.
func traces(t *testing.T, place string) []string {
	t.Helper()
	if !filepath.IsAbs(place) {
		out, err := exec.CommandContext(t.Context(), "sh", "-c",
			`docker ps -aq --filter name="$1"; docker volume ls -q --filter name="$1"`, "sh", place).Output()
		require.NoError(t, err)
		return strings.Fields(string(out))
	}
	found := processesBelow(t, place)
	if _, err := os.Stat(place); err == nil {
		found = append(found, place)
	}
	return found
}

// processesBelow lists processes that work in the folder or name it in their
// command line, a watchdog among them.
func processesBelow(t *testing.T, dir string) []string {
	t.Helper()
	procs, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(t, err)
	var found []string
	for _, proc := range procs {
		cwd, _ := os.Readlink(filepath.Join(proc, "cwd"))
		cmdline, _ := os.ReadFile(filepath.Join(proc, "cmdline"))
		if strings.HasPrefix(cwd, dir) || strings.Contains(string(cmdline), dir) {
			found = append(found, proc+" "+string(cmdline))
		}
	}
	return found
}
