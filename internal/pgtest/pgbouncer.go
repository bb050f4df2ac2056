package pgtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// PoolMode is PgBouncer's pool_mode.
type PoolMode string

// The modes: a client keeps its backend for the session, for a transaction, or
// for one statement.
const (
	SessionPooling     PoolMode = "session"
	TransactionPooling PoolMode = "transaction"
	StatementPooling   PoolMode = "statement"
)

// PgBouncer is a connection pooler in front of a server.
type PgBouncer struct {
	server *Server
	folder *folder
	port   int
	child  *child
}

// StartPgBouncer starts the machine's pgbouncer in front of the server and
// returns when it accepts connections. The settings go into its [pgbouncer]
// section. On success the caller closes it; it is gone with the process, as a
// server is.
func StartPgBouncer(ctx context.Context, s *Server, mode PoolMode, settings map[string]string) (*PgBouncer, error) {
	program, err := findPgBouncer()
	if err != nil {
		return nil, err
	}
	acct, err := serverAccount()
	if err != nil {
		return nil, err
	}
	dir, err := newFolder(acct, "pgtest-bouncer-", "pgbouncer.pid")
	if err != nil {
		return nil, err
	}
	b := &PgBouncer{server: s, folder: dir}
	if b.port, err = freePort(); err == nil {
		err = b.run(ctx, program, acct, mode, settings)
	}
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// findPgBouncer also looks where Debian keeps it, which is not in the PATH of
// users other than root.
func findPgBouncer() (string, error) {
	if path, err := exec.LookPath("pgbouncer"); err == nil {
		return path, nil
	}
	const debian = "/usr/sbin/pgbouncer"
	if _, err := os.Stat(debian); err == nil {
		return debian, nil
	}
	return "", errors.New("pgbouncer is not on this machine (Debian: apt-get install pgbouncer)")
}

func (b *PgBouncer) run(ctx context.Context, program string, acct *account, mode PoolMode, settings map[string]string) error {
	ini := filepath.Join(b.folder.path, "pgbouncer.ini")
	users := filepath.Join(b.folder.path, "users")
	for path, content := range map[string]string{ini: b.config(mode, settings), users: b.users()} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return err
		}
		if err := acct.give(path); err != nil {
			return err
		}
	}
	out, err := os.Create(b.logFile())
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }() // pgbouncer has its own descriptor
	cmd := exec.Command(program, ini)
	cmd.Dir = b.folder.path
	cmd.Stdout, cmd.Stderr = out, out
	acct.apply(cmd)
	if b.child, err = startChild(cmd, syscall.SIGKILL); err != nil { // it keeps nothing that an orderly end would save
		return err
	}
	err = Poll(ctx, "pgbouncer to listen", func() bool { return b.child.ended() || b.answers(ctx) })
	if err != nil || b.child.ended() {
		return errors.Join(err, fmt.Errorf("pgbouncer did not start:\n%s", b.LogText()))
	}
	return nil
}

func (b *PgBouncer) answers(ctx context.Context) bool {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", b.Addr())
	if err != nil {
		return false
	}
	return conn.Close() == nil
}

func (b *PgBouncer) config(mode PoolMode, settings map[string]string) string {
	all := map[string]string{
		"pool_mode":         string(mode),
		"listen_addr":       "127.0.0.1",
		"listen_port":       strconv.Itoa(b.port),
		"unix_socket_dir":   b.folder.path,
		"auth_type":         "trust",
		"auth_file":         filepath.Join(b.folder.path, "users"),
		"admin_users":       b.user(),
		"pidfile":           filepath.Join(b.folder.path, "pgbouncer.pid"),
		"max_client_conn":   "500",
		"default_pool_size": "100",
	}
	maps.Copy(all, settings)
	host, port, err := net.SplitHostPort(b.server.Addr())
	if err != nil {
		host, port = b.server.Addr(), "5432"
	}
	var ini strings.Builder
	fmt.Fprintf(&ini, "[databases]\n* = host=%s port=%s\n[pgbouncer]\n", host, port)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&ini, "%s = %s\n", name, all[name])
	}
	return ini.String()
}

func (b *PgBouncer) user() string { return b.server.base.User.Username() }

func (b *PgBouncer) users() string {
	password, _ := b.server.base.User.Password()
	quote := func(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }
	return quote(b.user()) + " " + quote(password) + "\n"
}

// Addr is where it listens.
func (b *PgBouncer) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port)) }

// DSN is a URL for the database by way of the pooler.
func (b *PgBouncer) DSN(database string) string { return b.server.Via(b.Addr(), database) }

// LogText is everything that it has logged.
func (b *PgBouncer) LogText() string {
	text, err := os.ReadFile(b.logFile())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (b *PgBouncer) logFile() string { return filepath.Join(b.folder.path, "log") }

// Signal sends it a signal, such as SIGSTOP.
func (b *PgBouncer) Signal(sig syscall.Signal) error { return b.child.cmd.Process.Signal(sig) }

// Close ends it at once and removes its files. Call it once.
func (b *PgBouncer) Close() error {
	if b.child != nil {
		_ = b.child.cmd.Process.Kill() // an error means that it has ended
		<-b.child.done
	}
	return b.folder.close()
}
