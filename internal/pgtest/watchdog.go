package pgtest

import (
	"fmt"
	"io"
	"os/exec"
	"syscall"
)

// watchdog is a shell in a session of its own that runs a cleanup script once
// our end of a pipe is closed: by close, or by the kernel however we died. The
// same path serves both, so the one that no program can test from inside is
// taken on every ordinary end too.
type watchdog struct {
	cmd  *exec.Cmd
	pipe io.Closer
}

// newWatchdog starts the shell. The script sees args as $1, $2 and so on.
func newWatchdog(script string, args ...string) (*watchdog, error) {
	// `read` returns at the end of the pipe; nobody ever writes to it.
	full := "trap '' HUP INT TERM\nread -r line\n" + script
	cmd := exec.Command("/bin/sh", append([]string{"-c", full, "pgtest-watchdog"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Dir = "/"
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("watchdog: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("watchdog: %w", err)
	}
	return &watchdog{cmd: cmd, pipe: pipe}, nil
}

// close lets the script run and waits for its end.
func (w *watchdog) close() error {
	if err := w.pipe.Close(); err != nil {
		return fmt.Errorf("watchdog: %w", err)
	}
	if err := w.cmd.Wait(); err != nil {
		return fmt.Errorf("watchdog: %w", err)
	}
	return nil
}
