// Package pglocktest helps to test code that uses pglock: with a throwaway PostgreSQL, a key that somebody else holds, and a
// lock that is lost at the moment of your choice. All of it is real: there is no fake of pglock that could behave better
// than the real one.
//
// The server is the one at DATABASE_URL if that is set, else one of the server programs on this machine, else one in Docker;
// it is gone when the test process ends. Test binaries alone should import this package: it links testcontainers.
package pglocktest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// timeout bounds what should take milliseconds.
const timeout = 30 * time.Second

// NewDatabase returns a pool on a new database with pglock's migrations in it. All tests of a process share a server. The
// pool is closed and the database dropped when the test ends; close your Lockers before that, with t.Cleanup or defer.
func NewDatabase(tb testing.TB) *pgxpool.Pool {
	tb.Helper()
	pool := pgtest.Pool(tb, pgtest.NewDatabase(tb, pgtest.Shared(tb)))
	locker := newLocker(tb, pool, nil)
	if err := locker.Migrate(tb.Context()); err != nil {
		tb.Fatalf("pglocktest: %v", err)
	}
	return pool
}

// HoldElsewhere lets a session that is not yours hold key, until the function that it returns is called or the test ends.
// config must share keys with yours: Namespace, Schema and KeyFunc count. nil means the defaults.
func HoldElsewhere(tb testing.TB, pool *pgxpool.Pool, config *pglock.Config, key string) (release func()) {
	tb.Helper()
	locker := newLocker(tb, pool, config)
	ctx, cancel := context.WithTimeout(tb.Context(), timeout)
	defer cancel()
	lock, err := locker.Acquire(ctx, key)
	if err != nil {
		tb.Fatalf("pglocktest: %v", err)
	}
	return func() {
		tb.Helper()
		if err := lock.Release(context.Background()); err != nil {
			tb.Errorf("pglocktest: %v", err)
		}
	}
}

// Lose ends the session of lock as an administrator would, with all the locks that share it, and returns when lock's context
// has ended.
func Lose(tb testing.TB, locker *pglock.Locker, lock *pglock.Lock) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), timeout)
	defer cancel()
	holders, err := locker.Holders(ctx, lock.Key())
	if err != nil {
		tb.Fatalf("pglocktest: %v", err)
	}
	for _, holder := range holders {
		if !holder.Waiting {
			if err := locker.Terminate(ctx, holder); err != nil {
				tb.Fatalf("pglocktest: %v", err)
			}
		}
	}
	select {
	case <-lock.Context().Done():
	case <-ctx.Done():
		tb.Fatalf("pglocktest: %q is still held", lock.Key())
	}
}

// newLocker returns a Locker that is closed when the test ends.
func newLocker(tb testing.TB, pool *pgxpool.Pool, config *pglock.Config) *pglock.Locker {
	tb.Helper()
	locker, err := pglock.New(pool, config)
	if err != nil {
		tb.Fatalf("pglocktest: %v", err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		if err := locker.Close(ctx); err != nil {
			tb.Errorf("pglocktest: %v", err)
		}
	})
	return locker
}
