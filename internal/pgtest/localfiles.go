package pgtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

var errPortTaken = errors.New("the port is taken")

// startError turns what a server wrote before it gave up into an error.
func startError(log string) error {
	if strings.Contains(log, "Address already in use") {
		return fmt.Errorf("%w: %s", errPortTaken, log)
	}
	return fmt.Errorf("the server did not start:\n%s", log)
}

// freePort picks a port below the range from which the kernel takes those of
// outgoing connections, so that it is still free after a crash.
func freePort() (int, error) {
	var err error
	for range 50 {
		port := 20000 + rand.IntN(12000)
		var ln net.Listener
		if ln, err = net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port)); err == nil {
			return port, ln.Close()
		}
	}
	return 0, fmt.Errorf("no free port: %w", err)
}

// writeConfig replaces postgresql.conf and pg_hba.conf. Settings are not given
// on the command line, where ALTER SYSTEM could not override them.
func (l *local) writeConfig() error {
	conf := l.opts.conf(map[string]string{
		"listen_addresses":        strings.Join(append([]string{"127.0.0.1"}, l.opts.listen...), ","),
		"port":                    strconv.Itoa(l.port),
		"unix_socket_directories": l.folder.path,
		"logging_collector":       "off",
	})
	hba := slices.Clone(l.opts.hba)
	hba = append(
		hba,
		"local all all trust",
		"local replication all trust",
		"host all all 127.0.0.1/32 trust",
		"host replication all 127.0.0.1/32 trust",
	)
	if len(l.opts.listen) > 0 {
		hba = append(hba, "host all all all trust", "host replication all all trust")
	}
	return errors.Join(
		l.writeData("postgresql.conf", conf),
		l.writeData("pg_hba.conf", strings.Join(hba, "\n")+"\n"),
	)
}

// writeData writes a file of the data folder.
func (l *local) writeData(name, content string) error {
	path := filepath.Join(l.dataDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return err
	}
	return l.acct.give(path)
}

// pidFile returns the postmaster's pid and its status, "ready" when it lets
// clients in; zero and "" if it has none yet.
func (l *local) pidFile() (pid int, status string) {
	const pidLine, statusLine = 0, 7
	content, err := os.ReadFile(filepath.Join(l.dataDir(), "postmaster.pid"))
	if err != nil {
		return 0, ""
	}
	lines := strings.Split(string(content), "\n")
	if len(lines) <= statusLine {
		return 0, ""
	}
	pid, err = strconv.Atoi(strings.TrimSpace(lines[pidLine]))
	if err != nil {
		return 0, ""
	}
	return pid, strings.TrimSpace(lines[statusLine])
}

// processesIn lists the processes whose working folder is dir, which for a
// data folder are the server's; zombies have none. Where there is no /proc it
// finds nothing.
func processesIn(dir string) []int {
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		return nil
	}
	var pids []int
	for _, link := range links {
		if cwd, err := os.Readlink(link); err != nil || cwd != dir {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
