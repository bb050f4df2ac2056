package pgtest_test

import (
	"os"
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
			p := pgtest.SpawnRole(t, "serve")
			said, err := p.Expect(t.Context(), "serving")
			require.NoError(t, err)
			_, dir, _ := strings.Cut(said, " ")
			require.DirExists(t, dir)
			require.NotEmpty(t, processesBelow(t, dir))

			require.NoError(t, end(p))
			<-p.Done()
			pgtest.Eventually(t, "server and folder to go", func() bool {
				_, err := os.Stat(dir)
				return os.IsNotExist(err) && len(processesBelow(t, dir)) == 0
			})
		})
	}
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
