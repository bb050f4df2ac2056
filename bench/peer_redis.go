package main

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// deleteIfMine is how Redis' own docs release a lock.
const deleteIfMine = `if redis.call("GET",KEYS[1]) == ARGV[1] then return redis.call("DEL",KEYS[1]) else return 0 end`

// errGone: the key had expired, or is somebody else's.
var errGone = errors.New("the lock was not held any more")

const redisBound = "kill, freeze, partition: TTL, which the holder does not see pass"

func goRedisPeer() peer {
	return peer{
		name: peerGoRedis, open: openGoRedis,
		gives: gives{
			token: "no", loss: "no", fence: "no", bound: redisBound,
			config: "default options; SET NX PX with a random value, compare-and-delete by EVALSHA",
		},
	}
}

type goRedisClient struct {
	client *redis.Client
	script *redis.Script
	ttl    time.Duration
}

func openGoRedis(_ context.Context, o opening) (client, error) {
	return &goRedisClient{
		client: redis.NewClient(&redis.Options{Addr: o.Redis}), script: redis.NewScript(deleteIfMine), ttl: o.lease,
	}, nil
}

func (c *goRedisClient) Try(ctx context.Context, _ int, key string) (held, error) {
	h := &goRedisLock{c: c, key: key, value: rand.Text()}
	err := c.client.SetArgs(ctx, key, h.value, redis.SetArgs{Mode: "NX", TTL: c.ttl}).Err()
	switch {
	case errors.Is(err, redis.Nil):
		return nil, errTaken
	case err != nil:
		return nil, err
	}
	return h, nil
}

func (c *goRedisClient) Wait(context.Context, int, string) (held, error) { return nil, errCannot }

func (c *goRedisClient) Close(context.Context) error { return c.client.Close() }

type goRedisLock struct {
	c          *goRedisClient
	key, value string
}

func (l *goRedisLock) Release(ctx context.Context) error {
	n, err := l.c.script.Run(ctx, l.c.client, []string{l.key}, l.value).Int()
	if err == nil && n == 0 {
		err = errGone
	}
	return err
}

func redislockPeer() peer {
	return peer{
		name: peerRedislock, open: openRedislock, waits: true,
		gives: gives{
			token: "no", loss: "no", fence: "no", bound: redisBound,
			config: "go-redis with default options; waits with LinearBackoff(100ms), as its README",
		},
	}
}

type redislockClient struct {
	redis  *redis.Client
	client *redislock.Client
	ttl    time.Duration
}

func openRedislock(_ context.Context, o opening) (client, error) {
	r := redis.NewClient(&redis.Options{Addr: o.Redis})
	return &redislockClient{redis: r, client: redislock.New(r), ttl: o.lease}, nil
}

func (c *redislockClient) Try(ctx context.Context, _ int, key string) (held, error) {
	return c.obtain(ctx, key, nil)
}

func (c *redislockClient) Wait(ctx context.Context, _ int, key string) (held, error) {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout) // without a deadline it would wait for one TTL
	defer cancel()
	return c.obtain(ctx, key, &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)})
}

func (c *redislockClient) obtain(ctx context.Context, key string, options *redislock.Options) (held, error) {
	lock, err := c.client.Obtain(ctx, key, c.ttl, options)
	switch {
	case err == nil:
		return lock, nil
	case errors.Is(err, redislock.ErrNotObtained):
		return nil, errTaken
	default:
		return nil, err
	}
}

func (c *redislockClient) Close(context.Context) error { return c.redis.Close() }

func redsyncPeer() peer {
	return peer{
		name: peerRedsync, open: openRedsync, waits: true,
		gives: gives{
			token: "no", loss: "no (Until tells the TTL's end)", fence: "no", bound: redisBound,
			config: "one Redis, go-redis with default options; waits with its default delays of 50 to 250 ms",
		},
	}
}

type redsyncClient struct {
	redis *redis.Client
	sync  *redsync.Redsync
	ttl   time.Duration
}

func openRedsync(_ context.Context, o opening) (client, error) {
	r := redis.NewClient(&redis.Options{Addr: o.Redis})
	return &redsyncClient{redis: r, sync: redsync.New(goredis.NewPool(r)), ttl: o.lease}, nil
}

func (c *redsyncClient) Try(ctx context.Context, _ int, key string) (held, error) {
	m := c.sync.NewMutex(key, redsync.WithExpiry(c.ttl))
	return redsyncResult(m, m.TryLockContext(ctx))
}

func (c *redsyncClient) Wait(ctx context.Context, _ int, key string) (held, error) {
	m := c.sync.NewMutex(key, redsync.WithExpiry(c.ttl), redsync.WithTries(1<<20))
	return redsyncResult(m, m.LockContext(ctx))
}

func redsyncResult(m *redsync.Mutex, err error) (held, error) {
	var taken *redsync.ErrTaken
	switch {
	case err == nil:
		return redsyncLock{m}, nil
	case errors.As(err, &taken), errors.Is(err, redsync.ErrFailed):
		return nil, errTaken
	default:
		return nil, err
	}
}

func (c *redsyncClient) Close(context.Context) error { return c.redis.Close() }

type redsyncLock struct{ mutex *redsync.Mutex }

func (l redsyncLock) Release(ctx context.Context) error {
	ok, err := l.mutex.UnlockContext(ctx)
	if err == nil && !ok {
		err = errGone
	}
	return err
}
