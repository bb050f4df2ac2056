package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed35111a8b/pglock/cmd/pglock/internal/supervise"
	"github.com/seed35111a8b/pglock/pglock"
)

const interrupt = unix.SIGINT

// A job is a command that runs under a lock.
type job struct {
	app      *app
	lock     *pglock.Lock
	trust    time.Duration // how long the lock is good for after a heartbeat was sent
	interval time.Duration // between heartbeats

	command  *supervise.Command
	terminal *supervise.Terminal
	signals  chan os.Signal
	group    int
	had      bool // the command had the terminal when it ended
	lost     error
	failed   error // why it could not be started
	status   supervise.Event
}

// run returns the exit code when the command and all that it has started have ended.
func (j *job) run(ctx context.Context, config supervise.Config) (int, error) {
	sent := supervise.Monotonic()
	if err := j.lock.Verify(ctx); err != nil {
		return 0, err
	}
	j.terminal = supervise.OpenTerminal()
	defer j.terminal.Close()
	interactive := j.terminal.Interactive()
	j.signals = make(chan os.Signal, 64)
	notifyAll(j.signals)
	defer signal.Stop(j.signals)
	config.Trust = sent + j.trust
	var err error
	if j.command, err = supervise.Start(config); err != nil {
		return 0, err
	}
	beating, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	go j.heartbeat(beating)
	j.watch(ctx, interactive)
	return j.code(config.Path)
}

// heartbeat tells the guard how long the lock is good for, as this process knows it. Each request to the server that is
// answered is a heartbeat of the lock's session; the lease counts from when it was sent, at the earliest.
func (j *job) heartbeat(ctx context.Context) {
	ticker := time.NewTicker(j.interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		case <-j.lock.Context().Done():
			return
		}
		sent := supervise.Monotonic()
		if j.lock.Verify(ctx) == nil {
			j.command.Trust(sent + j.trust)
		}
	}
}

// watch returns when nothing of the command is left.
func (j *job) watch(ctx context.Context, interactive bool) {
	lost := j.lock.Context().Done()
	early := ctx.Done()
	for {
		select {
		case event := <-j.command.Events():
			if event.Kind == supervise.Gone {
				return
			}
			j.follow(event, interactive)
		case sig := <-j.signals:
			if sig, ok := sig.(syscall.Signal); ok {
				j.forward(sig)
			}
		case <-early: // a signal that came before all were caught
			early = nil
		case <-lost:
			lost = nil
			j.lose(j.lock.Err())
			j.command.End()
		}
	}
}

func (j *job) follow(event supervise.Event, interactive bool) {
	switch event.Kind {
	case supervise.Started:
		j.group = int(event.Number)
		if interactive {
			j.terminal.Give(j.group)
		}
	case supervise.Failed:
		j.failed = unix.Errno(event.Number)
	case supervise.Stopped:
		j.stopped(unix.Signal(event.Number))
	case supervise.Overdue:
		j.lose(errors.New("no heartbeat was answered in time"))
	case supervise.Exited, supervise.Killed:
		j.status = event
		j.had = j.terminal.TakeBack(j.group)
		if err := j.lock.Err(); err != nil {
			j.lose(err)
		}
	default: // watch has seen Gone
	}
}

// lose notes the first reason for a loss, unless the command had ended before.
func (j *job) lose(err error) {
	if j.lost != nil || j.status.Kind != "" {
		return
	}
	j.lost = err
	if !errors.Is(err, pglock.ErrLost) {
		j.lost = fmt.Errorf("%w: %w", pglock.ErrLost, err)
	}
	j.app.complain(fmt.Errorf("%w; the command is being ended", j.lost))
}

// forward passes a signal on: to the group, if it asks to end, stop or go on, as the terminal would; else to the command.
func (j *job) forward(sig syscall.Signal) {
	switch sig {
	case unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGHUP, unix.SIGTSTP, unix.SIGCONT:
		j.command.SignalGroup(sig)
	default:
		j.command.Signal(sig)
	}
}

// resumeTimeout bounds the wait for SIGCONT where the kernel does not let us stop, since no shell would let us go on.
const resumeTimeout = 200 * time.Millisecond

// stopped deals with a command that the terminal has stopped. One that wants to read from it gets it, if it is ours to give.
// Otherwise we stop too, with our group, so that the shell sees it; when the shell lets us go on the command does,
// unless the lock was lost meanwhile.
func (j *job) stopped(sig unix.Signal) {
	switch sig {
	case unix.SIGTTIN, unix.SIGTTOU:
		if j.terminal.Give(j.group) { // or has been given it since it asked
			j.command.SignalGroup(unix.SIGCONT)
			return
		}
	case unix.SIGTSTP:
	default: // not by the terminal: whoever did it knows how to go on
		return
	}
	had := j.terminal.TakeBack(j.group)
	restore := supervise.StopGroup()
	timer := time.NewTimer(resumeTimeout)
	defer timer.Stop()
	for going := false; !going; {
		select {
		case sig := <-j.signals:
			going = sig == unix.SIGCONT
		case <-timer.C:
			going = true
		}
	}
	restore()
	if j.lock.Err() != nil {
		return // watch ends the command, which does not run again before that
	}
	if had {
		j.terminal.Give(j.group)
	}
	j.command.SignalGroup(unix.SIGCONT)
}

// code returns the exit code of a command that has ended.
func (j *job) code(path string) (int, error) {
	switch {
	case j.failed != nil:
		code := exitCannotRun
		if errors.Is(j.failed, os.ErrNotExist) {
			code = exitNotFound
		}
		return 0, &exitError{Code: code, Err: fmt.Errorf("%s: %w", path, j.failed)}
	case j.lost != nil:
		return exitLost, exitWith(exitLost)
	case j.status.Kind == supervise.Killed:
		return exitSignal + int(j.status.Number), nil
	case j.status.Kind == supervise.Exited:
		return int(j.status.Number), nil
	}
	return 0, errors.New("the guard was killed, and the command with it")
}

// passOnInterrupt ends this process as the command was ended, by Ctrl-C: a shell script that runs us ends with that, and
// would go on if we exited. If the command had the terminal, the script has not got the signal yet.
func (j *job) passOnInterrupt() {
	signal.Reset(interrupt)
	if j.had {
		_ = unix.Kill(0, interrupt)
	} else {
		_ = unix.Kill(os.Getpid(), interrupt)
	}
	<-time.After(resumeTimeout) // it is on its way, unless it is ignored
}

// notifyAll catches every signal that can be passed on, but those that were ignored when we started.
func notifyAll(signals chan os.Signal) {
	const last = 64
	for sig := syscall.Signal(1); sig <= last; sig++ {
		switch sig {
		case unix.SIGKILL, unix.SIGSTOP, unix.SIGCHLD, unix.SIGURG, unix.SIGPIPE, unix.SIGTTIN, unix.SIGTTOU,
			unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGTRAP:
			continue // ours, or not to be caught; SIGURG is the Go runtime's
		default:
		}
		if !signal.Ignored(sig) {
			signal.Notify(signals, sig)
		}
	}
}
