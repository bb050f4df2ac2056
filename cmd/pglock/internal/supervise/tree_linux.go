package supervise

import (
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// selfPath is this program, also when its file has been replaced since.
func selfPath() (string, error) { return "/proc/self/exe", nil }

// becomeReaper makes this process the parent of descendants whose own has ended.
func becomeReaper() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// commandAttr puts the command into a group of its own; it is killed when the thread that starts it ends.
func commandAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
}

// signal signals the group, and the descendants of root that have left it.
func (t tree) signal(sig unix.Signal) {
	inGroup := false
	for _, p := range descendants(t.root) {
		if p.group == t.group {
			inGroup = true
		} else {
			_ = unix.Kill(p.pid, sig) // an error means that it has ended
		}
	}
	// A group that is empty may be another's by now.
	if inGroup {
		_ = unix.Kill(-t.group, sig)
	}
}

type process struct{ pid, parent, group int }

func descendants(root int) []process {
	all := processes()
	children := map[int][]process{}
	for _, p := range all {
		children[p.parent] = append(children[p.parent], p)
	}
	found := children[root]
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i].pid]...)
	}
	return found
}

// processes reads what /proc shows; what ends meanwhile is left out.
func processes() []process {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var all []process
	for _, name := range names {
		pid, err := strconv.Atoi(name.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name.Name() + "/stat")
		if err != nil {
			continue
		}
		// pid (name) state parent group …; the name may hold anything, a parenthesis too.
		text := string(stat)
		fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
		if len(fields) < 3 {
			continue
		}
		p := process{pid: pid}
		p.parent, _ = strconv.Atoi(fields[1])
		p.group, _ = strconv.Atoi(fields[2])
		all = append(all, p)
	}
	return all
}
