package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// pollInterval is the period of every look at something that sends no event.
const pollInterval = 5 * time.Millisecond

// local is a server whose processes are children of ours.
type local struct {
	bin    *binaries
	acct   *account
	folder *folder
	port   int
	opts   *options

	mu         sync.Mutex // guards postmaster
	postmaster *child     // the newest one; nil before the first start
}

// startLocal makes a data folder and starts the server on it.
func startLocal(ctx context.Context, o *options) (*Server, error) {
	bin, err := o.binaries(ctx)
	if err != nil {
		return nil, err
	}
	acct, err := serverAccount()
	if err != nil {
		return nil, err
	}
	dir, err := newFolder(acct, "pgtest-", "data/postmaster.pid")
	if err != nil {
		return nil, err
	}
	l := &local{bin: bin, acct: acct, folder: dir, opts: o}
	if err := l.setUp(ctx); err != nil {
		return nil, errors.Join(err, l.close(ctx))
	}
	base := &url.URL{
		Scheme: "postgres", User: url.User(superuser), Host: "127.0.0.1:" + strconv.Itoa(l.port),
		Path: "/postgres", RawQuery: "sslmode=disable",
	}
	return &Server{driver: l, base: base, local: l}, nil
}

func (o *options) binaries(ctx context.Context) (*binaries, error) {
	if o.binDir != "" {
		return binariesIn(ctx, o.binDir)
	}
	return findBinaries(ctx)
}

// setUp fills the data folder and starts the server, on another port if
// somebody was faster to take the one chosen.
func (l *local) setUp(ctx context.Context) error {
	var err error
	if l.opts.backup != nil {
		err = copyTree(ctx, l.acct, l.opts.backup.dataDir(), l.dataDir())
	} else {
		err = makeDataDir(ctx, l.bin, l.acct, l.dataDir())
	}
	if err == nil && l.opts.standby {
		err = l.writeData("standby.signal", "")
	}
	if err != nil {
		return err
	}
	for range 5 {
		if l.port, err = freePort(); err != nil {
			return err
		}
		if err = l.writeConfig(); err != nil {
			return err
		}
		if err = l.start(ctx); !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return err
}

func (l *local) dataDir() string { return filepath.Join(l.folder.path, "data") }
func (l *local) logFile() string { return filepath.Join(l.folder.path, "log") }

func (l *local) current() *child {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.postmaster
}

// start runs the postmaster and returns when it lets clients in. If it does
// not come up, or ctx ends first, no process is left.
func (l *local) start(ctx context.Context) error {
	if c := l.current(); c != nil && !c.ended() {
		return errors.New("the server is running")
	}
	out, err := os.OpenFile(l.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }() // the server has its own descriptor
	mark := l.logSize()
	cmd := exec.Command(filepath.Join(l.bin.dir, "postgres"), "-D", l.dataDir(), "-k", l.folder.path)
	cmd.Stdout, cmd.Stderr = out, out
	l.acct.apply(cmd)
	c, err := startChild(cmd, syscall.SIGQUIT) // an immediate shutdown
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.postmaster = c
	l.mu.Unlock()
	if err := l.awaitReady(ctx, c, mark); err != nil {
		return errors.Join(err, l.kill(context.WithoutCancel(ctx)))
	}
	return nil
}

// awaitReady polls the status line that the postmaster keeps in its pid file.
func (l *local) awaitReady(ctx context.Context, c *child, mark int64) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		pid, status := l.pidFile()
		if pid == c.pid() && status == "ready" {
			return nil
		}
		select {
		case <-c.done:
			return startError(l.logSince(mark))
		case <-ctx.Done():
			return fmt.Errorf("waiting for the server: %w\n%s", ctx.Err(), l.logSince(mark))
		case <-tick.C:
		}
	}
}

// stop is a fast shutdown; a server that is down already stays so.
func (l *local) stop(ctx context.Context) error {
	c := l.current()
	if c == nil || c.ended() {
		return nil
	}
	if err := c.cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	if err := c.wait(ctx); err != nil {
		return fmt.Errorf("waiting for the server to stop: %w", err)
	}
	return nil
}

// kill ends all of the server's processes. The postmaster is stopped first, so
// that it forks none behind our back; the others are found by their working
// folder, because each is in a session of its own and an orphan has no parent
// to be found by.
func (l *local) kill(ctx context.Context) error {
	c := l.current()
	if c == nil {
		return nil
	}
	if !c.ended() {
		_ = c.cmd.Process.Signal(syscall.SIGSTOP) // an error means that it has just ended
		_ = c.cmd.Process.Signal(syscall.SIGKILL)
		if err := c.wait(ctx); err != nil {
			return err
		}
	}
	return Poll(ctx, "the killed server's processes to go", func() bool {
		left := processesIn(l.dataDir())
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		return len(left) == 0
	})
}

// signal reaches only processes of this server.
func (l *local) signal(_ context.Context, pid int, sig syscall.Signal) error {
	if !slices.Contains(processesIn(l.dataDir()), pid) {
		return fmt.Errorf("process %d is not one of the server's", pid)
	}
	return syscall.Kill(pid, sig)
}

func (l *local) close(ctx context.Context) error {
	// What ctx leaves of an orderly stop is killed: nothing may stay behind.
	err := errors.Join(l.stop(ctx), l.kill(context.WithoutCancel(ctx)))
	return errors.Join(err, l.folder.close())
}
