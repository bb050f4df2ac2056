package main

import (
	"context"
	"errors"
	"hash/fnv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed35111a8b/pglock/pglock"
)

const (
	sqlTry    = "SELECT pg_try_advisory_lock($1)"
	sqlWait   = "SELECT pg_advisory_lock($1)"
	sqlUnlock = "SELECT pg_advisory_unlock($1)"
)

func rawPeer() peer {
	return peer{
		name: peerRaw, open: openRaw, waits: true,
		gives: gives{
			token: "no", loss: "no", fence: "no", bound: "kill: at once; freeze, partition: none",
			config: "an open pgx connection for each worker; pgx prepares each statement once",
		},
	}
}

// raw is the limit: each worker has an open connection and sends one prepared statement after the other.
type raw struct {
	dsn   string
	conns []*pgx.Conn // by worker; nil until the worker's first use
}

func openRaw(_ context.Context, o opening) (client, error) {
	return &raw{dsn: o.Postgres, conns: make([]*pgx.Conn, o.workers)}, nil
}

func (r *raw) conn(ctx context.Context, worker int) (conn *pgx.Conn, err error) {
	if r.conns[worker] == nil {
		r.conns[worker], err = pgx.Connect(ctx, r.dsn)
	}
	return r.conns[worker], err
}

func (r *raw) Try(ctx context.Context, worker int, key string) (held, error) {
	conn, err := r.conn(ctx, worker)
	if err != nil {
		return nil, err
	}
	h := &rawLock{conn, rawID(key)}
	var got bool
	if err := conn.QueryRow(ctx, sqlTry, h.id).Scan(&got); err != nil {
		return nil, err
	}
	if !got {
		return nil, errTaken
	}
	return h, nil
}

func (r *raw) Wait(ctx context.Context, worker int, key string) (held, error) {
	conn, err := r.conn(ctx, worker)
	if err != nil {
		return nil, err
	}
	h := &rawLock{conn, rawID(key)}
	if _, err := conn.Exec(ctx, sqlWait, h.id); err != nil {
		return nil, err
	}
	return h, nil
}

func (r *raw) Close(ctx context.Context) error {
	var errs []error
	for _, conn := range r.conns {
		if conn != nil {
			errs = append(errs, conn.Close(context.WithoutCancel(ctx)))
		}
	}
	return errors.Join(errs...)
}

// rawLock is a lock on a raw connection.
type rawLock struct {
	conn *pgx.Conn
	id   int64
}

func (l *rawLock) Release(ctx context.Context) error {
	var was bool
	if err := l.conn.QueryRow(ctx, sqlUnlock, l.id).Scan(&was); err != nil {
		return err
	}
	if !was {
		return errors.New("the lock was not held")
	}
	return nil
}

func rawID(key string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key)) // never fails
	return int64(h.Sum64())
}

func pglockPeer(name string) peer {
	config := map[string]string{
		peerDedicated: "the default: a connection for each lock, closed after its release",
		peerParked:    "MaxIdleSessions: sessions stay connected when their lock is released",
		peerShared:    "LocksPerSession 1,000: one session for all workers",
	}[name]
	return peer{
		name: name, waits: true,
		open: func(ctx context.Context, o opening) (client, error) { return openPglock(ctx, name, o) },
		gives: gives{
			token: "yes", loss: "context, before the lock can be another's", fence: "in the database", bound: "kill: at once; freeze, partition: lease",
			config: config,
		},
	}
}

// ourClient is pglock.
type ourClient struct {
	pool   *pgxpool.Pool
	locker *pglock.Locker
}

func openPglock(ctx context.Context, name string, o opening) (*ourClient, error) {
	config := &pglock.Config{Lease: o.lease, MaxSessions: o.workers + 8, MaxWaiting: 4}
	switch name {
	case peerParked:
		config.MaxIdleSessions = o.workers + 4
	case peerShared:
		config.LocksPerSession, config.MaxSessions = 1000, 8
		config.MaxIdleSessions = 2
	}
	return openLocker(ctx, o.Postgres, config)
}

// openLocker opens a pool that is as pgxpool makes it, and a Locker on it.
func openLocker(ctx context.Context, dsn string, config *pglock.Config) (*ourClient, error) {
	settings, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	settings.MaxConns = 16
	pool, err := pgxpool.NewWithConfig(ctx, settings)
	if err != nil {
		return nil, err
	}
	locker, err := pglock.New(pool, config)
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &ourClient{pool: pool, locker: locker}, nil
}

func (c *ourClient) Try(ctx context.Context, _ int, key string) (held, error) {
	return ourLock(c.locker.TryAcquire(ctx, key))
}

func (c *ourClient) Wait(ctx context.Context, _ int, key string) (held, error) {
	return ourLock(c.locker.Acquire(ctx, key))
}

// ourLock keeps a nil pointer from becoming a lock.
func ourLock(lock *pglock.Lock, err error) (held, error) {
	switch {
	case err == nil:
		return lock, nil
	case errors.Is(err, pglock.ErrNotAcquired):
		return nil, errTaken
	default:
		return nil, err
	}
}

func (c *ourClient) Close(ctx context.Context) error {
	err := c.locker.Close(context.WithoutCancel(ctx))
	c.pool.Close()
	return err
}
