package main

import (
	"context"
	"errors"
	"time"
)

// errTaken: somebody else holds the lock.
var errTaken = errors.New("somebody else holds the lock")

// waitTimeout bounds everything that waits for something to happen.
const waitTimeout = time.Minute

// errCannot: the peer has no such operation.
var errCannot = errors.New("this peer cannot do that")

// A held lock.
type held interface {
	Release(ctx context.Context) error
}

// A client is one process's use of a peer. Each worker has a number of its own; a worker does one thing at a time.
type client interface {
	// Try takes the lock if nobody has it, and else returns errTaken at once.
	Try(ctx context.Context, worker int, key string) (held, error)
	// Wait takes the lock as soon as nobody has it. It returns errCannot where the peer has no way to wait.
	Wait(ctx context.Context, worker int, key string) (held, error)
	// Close ends it, whatever becomes of ctx.
	Close(ctx context.Context) error
}

// addresses are where the servers are.
type addresses struct {
	Postgres string `json:"postgres"`
	Redis    string `json:"redis"`
	Etcd     string `json:"etcd"`
}

// opening is what a client is opened for.
type opening struct {
	addresses

	workers int
	lease   time.Duration // for which a dead or frozen holder keeps the lock
}

// A peer is one way to have locks.
type peer struct {
	name  string
	open  func(ctx context.Context, o opening) (client, error)
	waits bool // has a way of its own to wait
	gives gives
}

// gives says what a peer gives beside exclusion.
type gives struct {
	token  string // a number that rises from grant to grant
	loss   string // how a holder learns that it has lost the lock
	fence  string // whether something refuses a stale holder's write
	bound  string // how long a dead or frozen holder keeps the others waiting
	config string // how it is used here
}

// Names of the peers that the workloads and targets ask for.
const (
	peerRaw       = "raw statements"
	peerDedicated = "pglock, dedicated"
	peerParked    = "pglock, parked"
	peerShared    = "pglock, shared"
	peerGoRedis   = "SET NX on go-redis"
	peerRueidis   = "SET NX on rueidis"
	peerRedislock = "bsm/redislock"
	peerRedsync   = "redsync"
	peerRuLock    = "rueidislock"
	peerEtcd      = "etcd concurrency"
)

// peers are all of them, in the order of the tables.
func peers() []peer {
	return []peer{
		rawPeer(),
		pglockPeer(peerDedicated), pglockPeer(peerParked), pglockPeer(peerShared),
		goRedisPeer(), rueidisPeer(),
		redislockPeer(), redsyncPeer(), rueidislockPeer(), etcdPeer(),
	}
}

// peerNamed finds a peer.
func peerNamed(name string) (peer, error) {
	for _, p := range peers() {
		if p.name == name {
			return p, nil
		}
	}
	return peer{}, errors.New("no peer " + name)
}

// redisLibraries are the peers that are libraries of Redis locks.
func redisLibraries() []string { return []string{peerRedislock, peerRedsync, peerRuLock} }
