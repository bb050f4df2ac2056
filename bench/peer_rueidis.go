package main

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

func rueidisPeer() peer {
	return peer{
		name: peerRueidis, open: openRueidis,
		gives: gives{
			token: "no", loss: "no", fence: "no", bound: redisBound,
			config: "default options: one connection, requests of all workers are pipelined; the same two commands",
		},
	}
}

type rueidisClient struct {
	client rueidis.Client
	script *rueidis.Lua
	ttl    time.Duration
}

func openRueidis(_ context.Context, o opening) (client, error) {
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{o.Redis}})
	if err != nil {
		return nil, err
	}
	return &rueidisClient{client: c, script: rueidis.NewLuaScript(deleteIfMine), ttl: o.lease}, nil
}

func (c *rueidisClient) Try(ctx context.Context, _ int, key string) (held, error) {
	h := &rueidisLock{c: c, key: key, value: rand.Text()}
	err := c.client.Do(ctx, c.client.B().Set().Key(key).Value(h.value).Nx().PxMilliseconds(c.ttl.Milliseconds()).Build()).Error()
	switch {
	case rueidis.IsRedisNil(err):
		return nil, errTaken
	case err != nil:
		return nil, err
	}
	return h, nil
}

func (c *rueidisClient) Wait(context.Context, int, string) (held, error) { return nil, errCannot }

func (c *rueidisClient) Close(context.Context) error {
	c.client.Close()
	return nil
}

type rueidisLock struct {
	c          *rueidisClient
	key, value string
}

func (l *rueidisLock) Release(ctx context.Context) error {
	n, err := l.c.script.Exec(ctx, l.c.client, []string{l.key}, []string{l.value}).AsInt64()
	if err == nil && n == 0 {
		err = errGone
	}
	return err
}

func rueidislockPeer() peer {
	return peer{
		name: peerRuLock, open: openRueidislock, waits: true,
		gives: gives{
			token: "no", loss: "context, when an extension fails", fence: "no",
			bound:  "kill, freeze, partition: TTL; the holder extends it by itself",
			config: "KeyMajority 1 for one Redis and NoLoopTracking, as its README",
		},
	}
}

type rueidislockClient struct {
	locker rueidislock.Locker
}

func openRueidislock(_ context.Context, o opening) (client, error) {
	locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{o.Redis}},
		KeyMajority:  1, NoLoopTracking: true, KeyValidity: o.lease,
		TryNextAfter: time.Second, // its 20 ms are for the next of several Redis; here they would only make busy ones fail
	})
	if err != nil {
		return nil, err
	}
	return &rueidislockClient{locker}, nil
}

func (c *rueidislockClient) Try(ctx context.Context, _ int, key string) (held, error) {
	_, release, err := c.locker.TryWithContext(ctx, key)
	switch {
	case errors.Is(err, rueidislock.ErrNotLocked):
		return nil, errTaken
	case err != nil:
		return nil, err
	}
	return rueidislockLock(release), nil
}

func (c *rueidislockClient) Wait(ctx context.Context, _ int, key string) (held, error) {
	_, release, err := c.locker.WithContext(ctx, key)
	if err != nil {
		return nil, err
	}
	return rueidislockLock(release), nil
}

func (c *rueidislockClient) Close(context.Context) error {
	c.locker.Close()
	return nil
}

// rueidislockLock is a CancelFunc that returns when the key is deleted.
type rueidislockLock context.CancelFunc

func (l rueidislockLock) Release(context.Context) error {
	l()
	return nil
}
