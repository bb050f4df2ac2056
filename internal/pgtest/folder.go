package pgtest

import (
	"fmt"
	"os"
	"path/filepath"
)

// maxSocketPath is what sockaddr_un leaves for a path: 107 bytes on Linux, 103
// elsewhere.
const maxSocketPath = 103

// folder is a temporary folder that belongs to the server's account and is
// gone with this process, together with the daemon whose pid file is in it.
type folder struct {
	path string
	dog  *watchdog
}

// reapScript waits for the daemon of pid file $2 to go, which Pdeathsig has
// told to on Linux, helps where that does not exist, and removes folder $1.
// Only a process that runs in the folder is ours: a pid can have been reused.
const reapScript = `
ours() { [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null && { [ ! -d /proc/self ] || case $(readlink "/proc/$pid/cwd") in "$dir"*) true;; *) false;; esac; }; }
dir=$1; pid=
[ -f "$2" ] && read -r pid <"$2"
n=0
while ours && [ $n -lt 200 ]; do
  [ $n -eq 10 ] && { kill -CONT "$pid"; kill -QUIT "$pid"; }
  [ $n -eq 100 ] && kill -KILL "$pid"
  n=$((n+1)); sleep 0.05
done
rm -rf "$dir"
[ ! -e "$dir" ] || { sleep 1; rm -rf "$dir"; }
`

// newFolder makes the folder. pidFile is relative to it.
func newFolder(acct *account, pattern, pidFile string) (*folder, error) {
	path, err := makeTempDir(acct, pattern)
	if err != nil {
		return nil, err
	}
	dog, err := newWatchdog(reapScript, path, filepath.Join(path, pidFile))
	if err != nil {
		_ = os.RemoveAll(path)
		return nil, err
	}
	return &folder{path: path, dog: dog}, nil
}

// makeTempDir tries the system's temporary folder, then /tmp, because TMPDIR
// may be too deep for a socket path or closed to the server's account.
func makeTempDir(acct *account, pattern string) (string, error) {
	var lastErr error
	for _, parent := range []string{os.TempDir(), "/tmp"} {
		if len(parent)+len("/")+len(pattern)+len("0123456789/.s.PGSQL.65535") > maxSocketPath {
			lastErr = fmt.Errorf("%s is too long for a socket path", parent)
			continue
		}
		if !enterableByAll(parent) && acct != nil {
			lastErr = fmt.Errorf("%s cannot be entered by the user that runs the server", parent)
			continue
		}
		path, err := os.MkdirTemp(parent, pattern)
		if err != nil {
			lastErr = err
			continue
		}
		if err := acct.give(path); err != nil {
			_ = os.RemoveAll(path)
			return "", err
		}
		return path, nil
	}
	return "", fmt.Errorf("temporary folder: %w", lastErr)
}

// enterableByAll tells whether every element of the path has its x bit for
// others. Without the check the failure reads "fork/exec: permission denied".
func enterableByAll(path string) bool {
	for {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		parent := filepath.Dir(path)
		if parent == path {
			return true
		}
		path = parent
	}
}

// close removes the folder. Whatever runs in it must have ended before.
func (f *folder) close() error {
	return f.dog.close()
}
