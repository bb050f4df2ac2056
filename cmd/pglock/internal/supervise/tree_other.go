//go:build !linux

package supervise

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

func selfPath() (string, error) { return os.Executable() }

func becomeReaper() error { return nil }

func commandAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// signal signals the group.
func (t tree) signal(sig unix.Signal) { _ = unix.Kill(-t.group, sig) }
