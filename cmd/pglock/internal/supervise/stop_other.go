//go:build !linux

package supervise

import "golang.org/x/sys/unix"

// StopGroup stops the group of this process, this process included. The function is called when it goes on.
func StopGroup() (restore func()) {
	_ = unix.Kill(0, unix.SIGSTOP) // our own group is there
	return func() {}
}
