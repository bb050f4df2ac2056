package supervise

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// A Terminal is the one that controls this process. Its foreground group may read from it and gets the signals of its keys.
type Terminal struct {
	tty *os.File
	own int // the group of this process
}

// OpenTerminal returns nil where there is none, as under cron. The methods do nothing on nil.
func OpenTerminal() *Terminal {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	return &Terminal{tty: tty, own: unix.Getpgrp()}
}

// Close closes it.
func (t *Terminal) Close() {
	if t != nil {
		_ = t.tty.Close()
	}
}

// Ours reports whether the group of this process has it.
func (t *Terminal) Ours() bool { return t != nil && t.foreground() == t.own }

// Interactive reports whether a shell has given it to this process alone: it leads its group, and its standard input and
// output are terminals. In a pipeline or a script others have a use for it too.
func (t *Terminal) Interactive() bool {
	return t.Ours() && os.Getpid() == t.own && isTerminal(os.Stdin) && isTerminal(os.Stdout)
}

// Give hands it from this process's group to another, and reports whether that has it now.
func (t *Terminal) Give(group int) bool {
	if t.Ours() {
		t.set(group)
		return true
	}
	return t != nil && t.foreground() == group
}

// TakeBack takes it from the group, and reports whether that had it.
func (t *Terminal) TakeBack(group int) bool {
	if t == nil || t.foreground() != group {
		return false
	}
	t.set(t.own)
	return true
}

func (t *Terminal) foreground() int {
	group, err := unix.IoctlGetInt(int(t.tty.Fd()), unix.TIOCGPGRP)
	if err != nil {
		return 0 // the terminal has gone away
	}
	return group
}

// set would be stopped for doing this from the background. SIGTTOU is not ignored for longer, or children would inherit it.
func (t *Terminal) set(group int) {
	signal.Ignore(syscall.SIGTTOU)
	defer signal.Reset(syscall.SIGTTOU)
	_ = unix.IoctlSetPointerInt(int(t.tty.Fd()), unix.TIOCSPGRP, group) // a group that has ended, a terminal that is gone
}

func isTerminal(file *os.File) bool {
	_, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	return err == nil
}
