package main

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

func etcdPeer() peer {
	return peer{
		name: peerEtcd, open: openEtcd, waits: true,
		gives: gives{
			token: "yes (revision)", loss: "Session.Done, when the lease has run out", fence: "for writes to etcd (IsOwner)",
			bound:  "kill, freeze, partition: TTL",
			config: "one member with its defaults; one session for locks of own keys, one for each waiter",
		},
	}
}

type etcdClient struct {
	client *clientv3.Client
	ttl    int

	mu       sync.Mutex // guards sessions
	sessions map[int]*concurrency.Session
}

// anyWorker is the session of locks that are not waited for.
const anyWorker = -1

func openEtcd(ctx context.Context, o opening) (client, error) {
	c, err := openEtcdClient(o.Etcd)
	if err != nil {
		return nil, err
	}
	e := &etcdClient{client: c, ttl: int(math.Ceil(o.lease.Seconds())), sessions: map[int]*concurrency.Session{}}
	if _, err := e.session(ctx, anyWorker); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return e, nil
}

func openEtcdClient(endpoint string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
}

// session returns the worker's session: to etcd two waiters of one session for one key are one.
func (c *etcdClient) session(ctx context.Context, worker int) (*concurrency.Session, error) {
	c.mu.Lock()
	s := c.sessions[worker]
	c.mu.Unlock()
	if s != nil {
		return s, nil
	}
	s, err := concurrency.NewSession(c.client, concurrency.WithTTL(c.ttl), concurrency.WithContext(context.WithoutCancel(ctx)))
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sessions[worker] = s
	return s, nil
}

func (c *etcdClient) Try(ctx context.Context, _ int, key string) (held, error) {
	s, err := c.session(ctx, anyWorker)
	if err != nil {
		return nil, err
	}
	m := concurrency.NewMutex(s, key)
	err = m.TryLock(ctx)
	switch {
	case errors.Is(err, concurrency.ErrLocked):
		return nil, errTaken
	case err != nil:
		return nil, err
	}
	return etcdLock{m}, nil
}

func (c *etcdClient) Wait(ctx context.Context, worker int, key string) (held, error) {
	s, err := c.session(ctx, worker)
	if err != nil {
		return nil, err
	}
	m := concurrency.NewMutex(s, key)
	if err := m.Lock(ctx); err != nil {
		return nil, err
	}
	return etcdLock{m}, nil
}

func (c *etcdClient) Close(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, s := range c.sessions {
		errs = append(errs, s.Close())
	}
	return errors.Join(append(errs, c.client.Close())...)
}

type etcdLock struct{ mutex *concurrency.Mutex }

func (l etcdLock) Release(ctx context.Context) error { return l.mutex.Unlock(ctx) }
