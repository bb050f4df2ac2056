package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/jackc/pgx/v5"
)

const superuser = "postgres"

// ErrNotOurs is what a method that needs the server's processes returns for a
// server that DATABASE_URL names.
var ErrNotOurs = errors.New("the server is the one that DATABASE_URL names, which is not ours to touch; unset it to have one started")

// ErrNotLocal is what a method that needs the data folder or the server's
// programs returns for a server in a container.
var ErrNotLocal = errors.New("the server runs in a container; set PGLOCK_PG_BIN to the folder of server binaries of this machine")

// driver is where a server runs: processes of this machine, a container, or
// somebody else's server.
type driver interface {
	start(ctx context.Context) error // also after stop and kill; returns when clients are let in
	stop(ctx context.Context) error  // fast shutdown
	kill(ctx context.Context) error  // SIGKILL to every process; returns when none is left
	signal(ctx context.Context, pid int, sig syscall.Signal) error
	log(ctx context.Context) (string, error)
	close(ctx context.Context) error // as stop, and leaves nothing behind
}

// Server is a PostgreSQL server. Its methods are safe for concurrent use as
// far as they make sense at once; those that stop or start the server wait for
// each other.
type Server struct {
	driver driver
	base   *url.URL // of the database postgres
	local  *local   // nil unless the server's processes are on this machine

	life   sync.Mutex // held by what starts or stops the server
	closed bool       // guarded by life
}

// Start returns a server that accepts connections. It tries, in this order:
//
//   - DATABASE_URL: that server, which cannot be crashed or configured. It is
//     passed over if an option asks for a server of our own.
//   - PGLOCK_PG_BIN: server binaries in that folder, and nothing else.
//   - PGLOCK_PG_IMAGE: a container of that image, by testcontainers, and nothing
//     else.
//   - server binaries in PATH, `pg_config --bindir`, /usr/lib/postgresql/*/bin.
//   - a container of postgres:17-alpine.
//
// If none works, one error names all three ways and what came of those tried. ctx
// bounds the start only. The server is gone when Close has returned or the
// process has ended, however that came about.
func Start(ctx context.Context, opts ...Option) (*Server, error) {
	o := newOptions(opts)
	if dsn := os.Getenv("DATABASE_URL"); dsn != "" && !o.own {
		return startExternal(ctx, dsn)
	}
	tried := []error{errors.New("no PostgreSQL for tests; any of three ways will do: set DATABASE_URL to a server you have, " +
		"install server binaries (Debian: apt-get install postgresql; or set PGLOCK_PG_BIN), or run Docker")}
	for _, w := range o.ways() {
		s, err := w.start(ctx, o)
		if err == nil {
			return s, nil
		}
		tried = append(tried, fmt.Errorf("%s: %w", w.name, err))
	}
	return nil, errors.Join(tried...)
}

// way is one of the places where a server of our own can run.
type way struct {
	name  string
	start func(context.Context, *options) (*Server, error)
}

// ways are those to try, in order. What the caller or the environment names is
// the only one: the failure of it must not be papered over by another.
func (o *options) ways() []way {
	local, docker := way{"server binaries", startLocal}, way{"Docker", startContainer}
	switch {
	case o.backup != nil && o.backup.container != nil:
		return []way{docker}
	case o.binDir != "" || os.Getenv("PGLOCK_PG_BIN") != "":
		return []way{local}
	case os.Getenv("PGLOCK_PG_IMAGE") != "":
		return []way{docker}
	default:
		return []way{local, docker}
	}
}

// DSN is a URL for the database on TCP; "" is the database postgres, or the
// one that DATABASE_URL names.
func (s *Server) DSN(database string) string {
	u := *s.base
	if database != "" {
		u.Path = "/" + database
	}
	return u.String()
}

// UserDSN is DSN for another role.
func (s *Server) UserDSN(user, password, database string) string {
	u, err := url.Parse(s.DSN(database))
	if err != nil {
		return ""
	}
	u.User = url.UserPassword(user, password)
	return u.String()
}

// Addr is the server's host and port on TCP.
func (s *Server) Addr() string {
	if s.base.Port() == "" {
		return net.JoinHostPort(s.base.Hostname(), "5432")
	}
	return s.base.Host
}

// Via is DSN with another address, such as a proxy's, in place of the server's.
func (s *Server) Via(addr, database string) string {
	u, err := url.Parse(s.DSN(database))
	if err != nil {
		return ""
	}
	u.Host = addr
	return u.String()
}

// ViaHost is DSN with another address of the server's own machine, on which it
// listens too, and the same port.
func (s *Server) ViaHost(host, database string) string {
	_, port, err := net.SplitHostPort(s.Addr())
	if err != nil {
		return ""
	}
	return s.Via(net.JoinHostPort(host, port), database)
}

// SocketDSN is a URL for the database on the server's Unix socket, "" if we
// know of none.
func (s *Server) SocketDSN(database string) string {
	if s.local == nil {
		return ""
	}
	query := url.Values{"host": {s.local.folder.path}, "port": {strconv.Itoa(s.local.port)}, "sslmode": {"disable"}}
	u := url.URL{Scheme: "postgres", User: url.User(superuser), Path: "/" + orSuperuser(database), RawQuery: query.Encode()}
	return u.String()
}

// orSuperuser is the database that "" stands for.
func orSuperuser(database string) string {
	if database == "" {
		return superuser
	}
	return database
}

// Dir is the folder that has the server's data, socket and log, "" if it is
// not on this machine. Close removes it.
func (s *Server) Dir() string {
	if s.local == nil {
		return ""
	}
	return s.local.folder.path
}

// Container is the name of the server's container, "" if it is in none.
func (s *Server) Container() string {
	if c, ok := s.driver.(*container); ok {
		return c.name
	}
	return ""
}

// Bin is the folder of the server's programs, "" if they are not on this
// machine.
func (s *Server) Bin() string {
	if s.local == nil {
		return ""
	}
	return s.local.bin.dir
}

// Version is the server's version number, 150014 for 15.14.
func (s *Server) Version(ctx context.Context) (int, error) {
	var version string
	if err := s.queryRow(ctx, "SHOW server_version_num", &version); err != nil {
		return 0, err
	}
	return strconv.Atoi(version)
}

// Major is the server's major version, 15 for 15.14.
func (s *Server) Major(ctx context.Context) (int, error) {
	version, err := s.Version(ctx)
	return version / 10000, err
}

// Stop shuts the server down (fast: clients are cut off, a checkpoint is
// written). On success it is down; Restart brings it back.
func (s *Server) Stop(ctx context.Context) error {
	s.life.Lock()
	defer s.life.Unlock()
	return s.driver.stop(ctx)
}

// Restart stops the server unless it is down, and starts it again on the same
// address and data.
func (s *Server) Restart(ctx context.Context) error {
	s.life.Lock()
	defer s.life.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	if err := s.driver.stop(ctx); err != nil {
		return err
	}
	return s.driver.start(ctx)
}

// Kill ends every process of the server with SIGKILL at once, as a power
// failure would, and returns when none is left. Restart brings the server back,
// by way of crash recovery.
func (s *Server) Kill(ctx context.Context) error {
	s.life.Lock()
	defer s.life.Unlock()
	return s.driver.kill(ctx)
}

// CrashPostmaster is Kill and Restart: it returns when the server accepts
// connections again after crash recovery.
func (s *Server) CrashPostmaster(ctx context.Context) error {
	s.life.Lock()
	defer s.life.Unlock()
	if s.closed {
		return net.ErrClosed
	}
	if err := s.driver.kill(ctx); err != nil {
		return err
	}
	return s.driver.start(ctx)
}

// SignalBackend sends the signal to one process of the server, by the pid that
// pg_stat_activity shows.
func (s *Server) SignalBackend(ctx context.Context, pid int, sig syscall.Signal) error {
	return s.driver.signal(ctx, pid, sig)
}

// Close stops the server and removes what it left. A second call does nothing.
// When ctx ends first the server is killed rather than left.
func (s *Server) Close(ctx context.Context) error {
	s.life.Lock()
	defer s.life.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return s.driver.close(ctx)
}

// Exec runs SQL in the database as the superuser, on a connection of its own;
// without args it may be several statements.
func (s *Server) Exec(ctx context.Context, database, sql string, args ...any) (err error) {
	conn, err := pgx.Connect(ctx, s.DSN(database))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	if _, err := conn.Exec(ctx, sql, args...); err != nil {
		return fmt.Errorf("%s: %w", strings.TrimSpace(sql), err)
	}
	return nil
}

func (s *Server) queryRow(ctx context.Context, sql string, dest ...any) (err error) {
	conn, err := pgx.Connect(ctx, s.DSN(""))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	return conn.QueryRow(ctx, sql).Scan(dest...)
}
