package supervise

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// A tree is a command's process group and, on Linux, all other descendants of root.
type tree struct {
	root  int
	group int
}

// killPause is the time between two rounds of killing what was forked meanwhile.
const killPause = 10 * time.Millisecond

// empty reports whether nothing is left, given that root has no children.
func (t tree) empty() bool { return errors.Is(unix.Kill(-t.group, 0), unix.ESRCH) }

// killAll kills the tree, as often as it takes, and reaps what becomes a child of root, which is this process.
func (t tree) killAll() {
	for {
		t.signal(unix.SIGKILL)
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if errors.Is(err, unix.ECHILD) && t.empty() {
				return
			}
			if err != nil || pid == 0 {
				break
			}
		}
		<-time.After(killPause)
	}
}
