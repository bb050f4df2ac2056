//go:build !linux

package pgtest

import (
	"os/exec"
	"syscall"
)

// dieWithParent does nothing where the kernel has no such signal; the
// watchdogs are what is left.
func dieWithParent(*exec.Cmd, syscall.Signal) {}
