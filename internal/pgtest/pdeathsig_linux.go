package pgtest

import (
	"os/exec"
	"syscall"
)

// dieWithParent has the kernel send SIGQUIT, PostgreSQL's immediate shutdown,
// when the thread that starts cmd ends: for a child that outlives a call it
// must be a thread that stays.
func dieWithParent(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT
}
