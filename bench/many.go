package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/rueidis"

	"github.com/seed35111a8b/pglock/pglock"
)

// A setTaker takes many locks at once and releases them.
type setTaker func(ctx context.Context, keys []string) error

// manyKeys measures locks that are taken all at once: one statement, one pipeline, one AcquireAll.
func (b *bench) manyKeys(ctx context.Context, n int) (err error) {
	conn, err := pgx.Connect(ctx, b.servers.Postgres)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	c, err := openLocker(ctx, b.servers.Postgres, &pglock.Config{LocksPerSession: n, MaxSessions: 2})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close(ctx)) }()
	opened, err := openRueidis(ctx, opening{addresses: b.servers.addresses, lease: defaultLease})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, opened.Close(ctx)) }()
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("many/%06d", i)
	}
	takers := []struct {
		name string
		take setTaker
	}{
		{peerRaw, func(ctx context.Context, keys []string) error { return rawSet(ctx, conn, keys) }},
		{peerShared, c.takeSet},
		{peerRueidis, func(ctx context.Context, keys []string) error { return rueidisSet(ctx, opened, keys) }},
	}
	for round := range b.rounds + 1 {
		for i := range takers {
			t := takers[(i+round)%len(takers)]
			start := time.Now()
			if err := t.take(ctx, keys); err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
			if round > 0 { // the first one makes the connection
				b.results.add(figure{workMany, keysCase(n), t.name, metricTime, unitMillis}, micros(time.Since(start))/1e3)
			}
		}
	}
	return nil
}

func keysCase(n int) string { return fmt.Sprintf("%d keys", n) }

// rawSet takes all locks in one statement and releases them in another.
func rawSet(ctx context.Context, conn *pgx.Conn, keys []string) error {
	ids := make([]int64, len(keys))
	for i, key := range keys {
		ids[i] = rawID(key)
	}
	for _, sql := range []string{
		"SELECT count(*) FILTER (WHERE pg_try_advisory_lock(id)) FROM unnest($1::bigint[]) id",
		"SELECT count(*) FILTER (WHERE pg_advisory_unlock(id)) FROM unnest($1::bigint[]) id",
	} {
		var got int
		if err := conn.QueryRow(ctx, sql, ids).Scan(&got); err != nil {
			return err
		}
		if got != len(ids) {
			return fmt.Errorf("%d of %d locks", got, len(ids))
		}
	}
	return nil
}

func (c *ourClient) takeSet(ctx context.Context, keys []string) error {
	set, err := c.locker.AcquireAll(ctx, keys...)
	if err != nil {
		return err
	}
	return set.Release(ctx)
}

// rueidisSet takes all locks in one pipeline and releases them in another.
func rueidisSet(ctx context.Context, opened client, keys []string) error {
	c, ok := opened.(*rueidisClient)
	if !ok {
		return errCannot
	}
	take := make(rueidis.Commands, len(keys))
	drop := make([]rueidis.LuaExec, len(keys))
	for i, key := range keys {
		take[i] = c.client.B().Set().Key(key).Value(key).Nx().PxMilliseconds(c.ttl.Milliseconds()).Build()
		drop[i] = rueidis.LuaExec{Keys: []string{key}, Args: []string{key}}
	}
	for _, answer := range c.client.DoMulti(ctx, take...) {
		if err := answer.Error(); err != nil {
			return err
		}
	}
	for _, answer := range c.script.ExecMulti(ctx, c.client, drop...) {
		if n, err := answer.AsInt64(); err != nil || n != 1 {
			return errors.Join(errGone, err)
		}
	}
	return nil
}
