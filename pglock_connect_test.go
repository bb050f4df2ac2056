package pglock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// What keeps a connection from being made.

func TestP10_WrongPasswordAndNoSuchDatabase(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t, pgtest.HBA("host all guest all scram-sha-256"))
	dsn := ownDatabase(t, s)
	db := databaseName(t, dsn)
	require.NoError(t, s.Exec(t.Context(), db, "CREATE ROLE guest SUPERUSER LOGIN PASSWORD 'right'"))
	var login atomic.Pointer[[2]string]
	pool := newPool(t, s.UserDSN("guest", "x", db), func(c *pgxpool.Config) {
		c.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
			c.Password, c.Database = login.Load()[0], login.Load()[1]
			return nil
		}
	})
	locker := newLocker(t, pool, nil)
	key := pgtest.Key(t)
	for state, with := range map[string][2]string{"28P01": {"wrong", db}, "3D000": {"right", "nowhere"}} {
		login.Store(&with)
		requireRefused(t, locker, pool, key, pglock.ErrUnavailable)
		_, err := locker.TryAcquire(t.Context(), key)
		require.Equal(t, state, sqlState(err), "%v", err)
		t.Log(err)
	}
	login.Store(&[2]string{"right", db})
	requireUsable(t, locker, key)
}

// What keeps a connection from being made is told, however long it takes to find
// out, and not tried again and again.
func TestP10_SlowFailuresToConnectAreTold(t *testing.T) {
	t.Parallel()
	ctx := timed(t)
	s := pgtest.New(t, pgtest.HBA("host all guest all scram-sha-256"))
	db := databaseName(t, ownDatabase(t, s))
	require.NoError(t, s.Exec(ctx, db, "CREATE ROLE guest SUPERUSER LOGIN PASSWORD 'right'"))
	proxy := pgtest.ProxyTo(t, s)
	proxy.Delay(pgtest.ToClient, func() time.Duration { return 100 * time.Millisecond })
	service := errors.New("no token from the token service")
	for name, c := range map[string]struct {
		password, db string
		slow         func(context.Context) error
		state        string
		most         int // connections for one call: one of the pool's, and one that tells
	}{
		"a wrong password": {"wrong", db, nil, "28P01", 2},
		"no such database": {"right", "nowhere", nil, "3D000", 2},
		"a hook that fails": {"right", db, func(ctx context.Context) error {
			select {
			case <-time.After(300 * time.Millisecond):
				return service
			case <-ctx.Done():
				return ctx.Err()
			}
		}, "", 0},
	} {
		pool := newPool(t, s.UserDSN("guest", c.password, c.db), through(t, proxy.Addr()), func(config *pgxpool.Config) {
			if c.slow != nil {
				config.BeforeConnect = func(ctx context.Context, _ *pgx.ConnConfig) error { return c.slow(ctx) }
			}
		})
		locker := newLocker(t, pool, nil)
		before, began := proxy.Counts(), time.Now()
		_, err := locker.TryAcquire(ctx, pgtest.Key(t))
		require.ErrorIs(t, err, pglock.ErrUnavailable, name)
		require.NotErrorIs(t, err, pglock.ErrNotAcquired, name)
		require.Equal(t, c.state, sqlState(err), name)
		if c.slow != nil {
			require.ErrorIs(t, err, service)
			continue
		}
		require.LessOrEqual(t, proxy.Counts().Since(before).Connections, c.most, name)
		_, err = locker.Acquire(ctx, pgtest.Key(t))
		require.Equal(t, c.state, sqlState(err), name)
		t.Logf("%s: told within %v, both times", name, time.Since(began).Round(time.Millisecond))
	}
}

// A closed pool never opens again: nobody waits for it.
func TestP10_ClosedPoolIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	ctx := timed(t)
	pool := newPool(t, database(t))
	locker, key := newLocker(t, pool, nil), pgtest.Key(t)
	held, err := newLocker(t, newPool(t, database(t)), nil).Acquire(ctx, key)
	require.NoError(t, err)
	waiting := acquire(ctx, locker, key)
	require.NoError(t, pgtest.WaitForWaiters(ctx, newPool(t, database(t)), 1))
	pool.Close()
	for op, attempt := range attempts(locker) {
		requireErrors(t, attempt(ctx, key+op), op, key+op, pglock.ErrClosed, pglock.ErrUnavailable)
	}
	require.ErrorIs(t, campaign(ctx, locker, key+"2", 0), pglock.ErrClosed)
	require.ErrorIs(t, campaign(ctx, locker, key+"3", time.Second), pglock.ErrClosed)
	require.NoError(t, held.Release(ctx))
	lock := await(t, "the wait that was under way", waiting).held(t)
	require.NoError(t, lock.Release(ctx))
}
