package pgtest

import (
	"os/exec"
	"syscall"
)

// dieWithParent has the kernel send sig when the thread that starts cmd ends:
// for a child that outlives a call it must be a thread that stays.
func dieWithParent(cmd *exec.Cmd, sig syscall.Signal) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = sig
}
