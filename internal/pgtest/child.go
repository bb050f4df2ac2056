package pgtest

import (
	"context"
	"os/exec"
	"runtime"
	"syscall"
)

// child is a daemon that we started directly and that dies with us.
type child struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has been reaped
	err  error         // how it ended; read it after done
}

// startChild starts cmd from a thread that lives as long as the process does,
// because the kernel sends Pdeathsig when the thread ends that started it.
// sig is what a child gets then.
func startChild(cmd *exec.Cmd, sig syscall.Signal) (*child, error) {
	dieWithParent(cmd, sig)
	c := &child{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			c.err = cmd.Wait()
		}
		close(c.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// wait returns when the process has ended, or with ctx's error.
func (c *child) wait(ctx context.Context) error {
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ended tells whether the process has been reaped.
func (c *child) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}
