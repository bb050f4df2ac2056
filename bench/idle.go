package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// idlePlan says what the cost of doing nothing is measured on, and for how long.
type idlePlan struct {
	dedicated, shared, followers int
	window                       time.Duration
}

// idler is one thing that does nothing, through a proxy that counts.
type idler struct {
	name  string
	n     int // locks or followers
	setUp func(ctx context.Context, dsn string) (tearDown func(context.Context) error, err error)
}

const (
	idleDedicated = "lock with a session of its own"
	idleShared    = "lock in shared sessions"
	idleInLine    = "follower that waits in line"
	idlePolling   = "follower that polls (PollInterval 5 s)"
)

// idle measures statements, connections and memory of locks that are only held, and of candidates that only follow. All of
// them do so at the same time.
func (b *bench) idle(ctx context.Context, plan idlePlan) error {
	idlers := []idler{
		{idleDedicated, plan.dedicated, func(ctx context.Context, dsn string) (func(context.Context) error, error) {
			return holdMany(ctx, dsn, &pglock.Config{MaxSessions: plan.dedicated}, plan.dedicated)
		}},
		{idleShared, plan.shared, func(ctx context.Context, dsn string) (func(context.Context) error, error) {
			return holdMany(ctx, dsn, &pglock.Config{LocksPerSession: 1000, MaxSessions: plan.shared/1000 + 2}, plan.shared)
		}},
		{idleInLine, plan.followers, func(ctx context.Context, dsn string) (func(context.Context) error, error) {
			return b.follow(ctx, dsn, "in-line", &pglock.ElectionConfig{}, plan.followers)
		}},
		{idlePolling, plan.followers, func(ctx context.Context, dsn string) (func(context.Context) error, error) {
			return b.follow(ctx, dsn, "polling", &pglock.ElectionConfig{PollInterval: 5 * time.Second}, plan.followers)
		}},
	}
	var downs []func(context.Context) error
	down := func(ctx context.Context) error {
		var errs []error
		for _, f := range downs {
			errs = append(errs, f(ctx))
		}
		return errors.Join(errs...)
	}
	var watching sync.WaitGroup
	watch := make([]func(), len(idlers))
	for i, one := range idlers {
		before := pgtest.Heap()
		proxy, err := pgtest.NewProxy(ctx, b.servers.postgres.Addr())
		if err != nil {
			return errors.Join(err, down(context.WithoutCancel(ctx)))
		}
		tearDown, err := one.setUp(ctx, through(b.servers.Postgres, b.servers.postgres, proxy))
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", one.name, err), proxy.Close(), down(context.WithoutCancel(ctx)))
		}
		downs = append(downs, func(ctx context.Context) error { return errors.Join(tearDown(ctx), proxy.Close()) })
		b.results.add(figure{workIdle, "", one.name, "memory of the process", unitKB}, float64(pgtest.Heap()-before)/1024/float64(one.n))
		watch[i] = func() { b.watch(one, proxy, plan.window) }
	}
	for _, f := range watch {
		watching.Go(f)
	}
	watching.Wait()
	return down(context.WithoutCancel(ctx))
}

// through is the DSN of the server's database by way of the proxy.
func through(dsn string, server *pgtest.Server, proxy *pgtest.Proxy) string {
	return server.Via(proxy.Addr(), databaseOf(dsn))
}

// watch counts what goes through the proxy for a while.
func (b *bench) watch(one idler, proxy *pgtest.Proxy, window time.Duration) {
	before := proxy.Counts()
	<-time.After(window)
	trips := float64(proxy.Counts().Since(before).RoundTrips())
	conns := proxy.Conns()
	var memory float64
	for _, c := range conns {
		memory += privateMemory(c.PID())
	}
	n := float64(one.n)
	b.results.add(figure{workIdle, "", one.name, "statements", unitRate}, trips/window.Seconds()/n)
	b.results.add(figure{workIdle, "", one.name, "connections", ""}, float64(len(conns))/n)
	b.results.add(figure{workIdle, "", one.name, "memory of the server", unitKB}, memory/n)
}

// privateMemory returns what a backend has for itself, in kB.
func privateMemory(pid uint32) float64 {
	text, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(pid), 10) + "/smaps_rollup")
	if err != nil {
		return 0
	}
	var kB float64
	_, _ = fmt.Sscan(lineAfter(string(text), "Private_Dirty:"), &kB) // 0 where the kernel does not tell
	return kB
}

// holdMany acquires so many locks.
func holdMany(ctx context.Context, dsn string, config *pglock.Config, n int) (func(context.Context) error, error) {
	c, err := openLocker(ctx, dsn, config)
	if err != nil {
		return nil, err
	}
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() { _, errs[i] = c.locker.Acquire(ctx, "idle/"+newKey(strconv.Itoa(i))) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(err, c.Close(ctx))
	}
	return c.Close, nil
}

// follow starts candidates behind a leader that has a connection of its own.
func (b *bench) follow(ctx context.Context, dsn, key string, config *pglock.ElectionConfig, n int) (func(context.Context) error, error) {
	leader, err := openLocker(ctx, b.servers.Postgres, &pglock.Config{})
	if err != nil {
		return nil, err
	}
	lock, err := leader.locker.Acquire(ctx, key)
	if err != nil {
		return nil, errors.Join(err, leader.Close(ctx))
	}
	clients := []*ourClient{leader}
	stopping, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	down := func(ctx context.Context) error {
		stop()
		running.Wait()
		errs := []error{lock.Release(ctx)}
		for _, c := range clients {
			errs = append(errs, c.Close(ctx))
		}
		return errors.Join(errs...)
	}
	for range n {
		c, err := openLocker(ctx, dsn, &pglock.Config{MaxSessions: 2})
		if err != nil {
			return nil, errors.Join(err, down(ctx))
		}
		clients = append(clients, c)
		election, err := pglock.NewElection(c.locker, key, config)
		if err != nil {
			return nil, errors.Join(err, down(ctx))
		}
		running.Go(func() {
			_ = election.Run(stopping, func(ctx context.Context, _ *pglock.Term) error { <-ctx.Done(); return nil }) // ends with its ctx
		})
	}
	if err := awaitFollowers(ctx, clients[1:]); err != nil {
		return nil, errors.Join(err, down(ctx))
	}
	return down, nil
}

// awaitFollowers returns when each waits in line, or has asked once.
func awaitFollowers(ctx context.Context, followers []*ourClient) error {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	for _, c := range followers {
		if err := pgtest.Poll(ctx, "a candidate to follow", func() bool {
			stat := c.locker.Stat()
			return stat.WaitingSessions > 0 || stat.NotAcquired > 0
		}); err != nil {
			return err
		}
	}
	return nil
}
