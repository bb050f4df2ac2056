package pgtest

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"
)

// account is the user that runs the server. It is nil unless we are root, whom
// PostgreSQL and PgBouncer refuse.
type account struct {
	uid, gid uint32
}

// serverAccount finds a user with a passwd entry: a bare uid fails, because
// initdb looks up its own name.
func serverAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("uid of %s: %w", name, err)
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("gid of %s: %w", name, err)
		}
		return &account{uid: uint32(uid), gid: uint32(gid)}, nil
	}
	return nil, fmt.Errorf("PostgreSQL refuses to run as root, and there is neither a user postgres nor nobody")
}

// key tells apart folders of different users.
func (a *account) key() string {
	if a == nil {
		return strconv.Itoa(os.Geteuid())
	}
	return strconv.FormatUint(uint64(a.uid), 10)
}

// owns tells whether the file is the account's, so that nobody else's folder
// in a world-writable place is trusted.
func (a *account) owns(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && strconv.FormatUint(uint64(stat.Uid), 10) == a.key()
}

// give hands a file or folder of ours to the account.
func (a *account) give(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// apply makes cmd run as the account, in a session of its own so that Ctrl-C
// on the terminal reaches us alone, and without PG* variables of the caller.
func (a *account) apply(cmd *exec.Cmd) {
	attr := &syscall.SysProcAttr{Setsid: true}
	if a != nil {
		attr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	cmd.SysProcAttr = attr
	cmd.Env = serverEnv()
	if cmd.Dir == "" {
		cmd.Dir = "/" // our own working folder may be one that the account cannot enter
	}
}

func serverEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		if strings.HasPrefix(kv, "PG") || strings.HasPrefix(kv, "LC_") || strings.HasPrefix(kv, "LANG") {
			continue
		}
		env = append(env, kv)
	}
	return append(env, "LC_ALL=C")
}
