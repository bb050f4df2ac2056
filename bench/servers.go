package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// servers are those that a run measures, all of them on 127.0.0.1.
type servers struct {
	addresses

	postgres *pgtest.Server
	others   []*pgtest.Process
	dir      string
	versions map[string]string
}

// startTimeout bounds the start of all servers.
const startTimeout = time.Minute

// postgresSettings differ from PostgreSQL's own defaults. The server is as durable as one in production.
func postgresSettings() map[string]string {
	return map[string]string{
		"max_connections": "1000", // 256 workers with a connection each, twice
		"shared_buffers":  "128MB",
		"max_wal_size":    "1GB",
		"wal_keep_size":   "0",
	}
}

// startServers starts PostgreSQL, Redis and etcd. On success the caller must close them.
func startServers(ctx context.Context) (s *servers, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s = &servers{versions: map[string]string{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(ctx))
		}
	}()
	if s.dir, err = os.MkdirTemp("", "pglock-bench-"); err != nil {
		return s, err
	}
	for _, start := range []func(context.Context) error{s.startPostgres, s.startRedis, s.startEtcd} {
		if err = start(ctx); err != nil {
			return s, err
		}
	}
	return s, nil
}

func (s *servers) startPostgres(ctx context.Context) (err error) {
	s.postgres, s.Postgres, err = newPostgres(ctx, postgresSettings())
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, s.Postgres)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	var version string
	err = conn.QueryRow(ctx, "SHOW server_version").Scan(&version)
	s.versions["PostgreSQL"] = version
	return err
}

// newPostgres starts a server of our own, with fsync on, and makes a database with the migrations.
func newPostgres(ctx context.Context, settings map[string]string) (server *pgtest.Server, dsn string, err error) {
	server, err = pgtest.Start(ctx, pgtest.Durable(), pgtest.Settings(settings))
	if err != nil {
		return nil, "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, server.Close(ctx))
			server = nil
		}
	}()
	if dsn, err = server.CreateDatabase(ctx); err != nil {
		return server, "", err
	}
	c, err := openLocker(ctx, dsn, &pglock.Config{})
	if err != nil {
		return server, "", err
	}
	return server, dsn, errors.Join(c.locker.Migrate(ctx), c.Close(ctx))
}

// startRedis starts a server with its own defaults: it writes snapshots, and no log of its commands.
func (s *servers) startRedis(ctx context.Context) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	s.Redis = "127.0.0.1:" + strconv.Itoa(port)
	if err := s.spawn("redis-server", "redis-server", "--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", s.dir); err != nil {
		return err
	}
	client := redis.NewClient(&redis.Options{Addr: s.Redis})
	defer func() { _ = client.Close() }()
	var info string
	err = pgtest.Poll(ctx, "Redis to answer", func() bool {
		info, err = client.Info(ctx, "server").Result()
		return err == nil
	})
	s.versions["Redis"] = lineAfter(info, "redis_version:")
	return err
}

// startEtcd starts one member with etcd's own defaults, which sync each write to disk.
func (s *servers) startEtcd(ctx context.Context) error {
	clients, err := freePort()
	if err != nil {
		return err
	}
	peersPort, err := freePort()
	if err != nil {
		return err
	}
	url, peerURL := "http://127.0.0.1:"+strconv.Itoa(clients), "http://127.0.0.1:"+strconv.Itoa(peersPort)
	s.Etcd = "127.0.0.1:" + strconv.Itoa(clients)
	err = s.spawn("etcd-server", "etcd", "--data-dir", filepath.Join(s.dir, "etcd"), "--name", "bench",
		"--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peerURL,
		"--initial-advertise-peer-urls", peerURL, "--initial-cluster", "bench="+peerURL, "--logger", "zap", "--log-level", "error")
	if err != nil {
		return err
	}
	client, err := openEtcdClient(s.Etcd)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	return pgtest.Poll(ctx, "etcd to answer", func() bool {
		attempt, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		status, err := client.Status(attempt, s.Etcd)
		if err == nil {
			s.versions["etcd"] = status.Version
		}
		return err == nil
	})
}

// spawn starts a program of the Debian package, which dies with this process.
func (s *servers) spawn(debian, name string, args ...string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return fmt.Errorf("%w: apt-get install %s", err, debian)
	}
	cmd := exec.Command(path, args...)
	cmd.Dir = s.dir
	process, err := pgtest.Spawn(cmd)
	if err != nil {
		return err
	}
	s.others = append(s.others, process)
	return nil
}

// close ends the servers and removes what they left.
func (s *servers) close(ctx context.Context) error {
	var errs []error
	for _, p := range s.others {
		errs = append(errs, p.Kill())
	}
	if s.postgres != nil {
		errs = append(errs, s.postgres.Close(context.WithoutCancel(ctx)))
	}
	if s.dir != "" {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	return errors.Join(errs...)
}

// freePort returns a port that nobody listened on a moment ago.
func freePort() (port int, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	if addr, ok := l.Addr().(*net.TCPAddr); ok {
		port = addr.Port
	}
	return port, l.Close()
}

// databaseOf returns the database of a DSN that is a URL.
func databaseOf(dsn string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		return ""
	}
	return strings.TrimPrefix(u.Path, "/")
}

// lineAfter returns the rest of the line that begins with prefix.
func lineAfter(text, prefix string) string {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, prefix); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}
