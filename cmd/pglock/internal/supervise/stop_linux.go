package supervise

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// sigaction is the kernel's struct on every architecture that Go has for Linux but mips; a longer one does no harm.
type sigaction struct {
	handler, flags, restorer uintptr
	mask                     [2]uint64
}

// StopGroup stops the group of this process as Ctrl-Z does, this process included. The Go runtime ignores SIGTSTP where nobody
// asked for it, so that it takes the kernel's own action, which also knows that a group that no shell could let go on
// is not to be stopped. The function gives the signal back to the runtime, when the process goes on.
func StopGroup() (restore func()) {
	var before, byDefault sigaction
	act := func(action, old *sigaction) {
		const setSize = 8 // bytes of the kernel's signal set
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGTSTP),
			uintptr(unsafe.Pointer(action)), uintptr(unsafe.Pointer(old)), setSize, 0, 0)
	}
	act(&byDefault, &before)
	_ = unix.Kill(0, unix.SIGTSTP) // our own group is there
	return func() { act(&before, nil) }
}
