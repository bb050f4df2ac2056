package pglock

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// A LockSet is several locks that are held together: acquired all or none, on one session, and lost together. It is safe
// for concurrent use.
type LockSet struct {
	m     *manager
	locks []*Lock          // in the order of their IDs
	byKey map[string]*Lock // two keys may have one lock
}

// AcquireAll acquires the locks of all keys, waiting for each as Acquire does. It takes them in the order of their lock IDs,
// so that callers of AcquireAll cannot deadlock with each other; they can with whoever holds one lock and asks for another
// in his own order. Keys that are given twice are taken once.
//
// While it waits for one it holds those before it. If it fails, or ctx ends, nothing is held; see Acquire for the errors.
func (l *Locker) AcquireAll(ctx context.Context, keys ...string) (*LockSet, error) {
	return l.acquireAll(ctx, "acquire all", keys, false)
}

// TryAcquireAll acquires the locks of all keys if nobody holds any of them, in one round trip. Otherwise the error matches
// ErrNotAcquired, and nothing is held.
func (l *Locker) TryAcquireAll(ctx context.Context, keys ...string) (*LockSet, error) {
	return l.acquireAll(ctx, "try acquire all", keys, true)
}

// TryAcquireSome acquires the locks of up to most of the keys, those that are free, in one round trip, and tries them in the
// given order: a worker that takes shards asks for all of them in an order of its own. Each lock is released by itself, but
// all are on one session and are lost together. If none is free it returns an empty slice and no error.
func (l *Locker) TryAcquireSome(ctx context.Context, most int, keys ...string) ([]*Lock, error) {
	const op = "try acquire some"
	if most < 1 {
		return nil, &LockError{Op: op, Err: fmt.Errorf("most is %d: it must be positive", most)}
	}
	wanted, err := l.m.identifyAll(ctx, keys)
	if err == nil {
		var locks []*Lock
		if locks, err = l.m.tryGroup(ctx, wanted, &group{most: most}); err == nil {
			return locks, nil
		}
	}
	return nil, &LockError{Op: op, Err: err}
}

func (l *Locker) acquireAll(ctx context.Context, op string, keys []string, try bool) (*LockSet, error) {
	m := l.m
	wanted, err := m.identifyAll(ctx, keys)
	if err != nil {
		return nil, &LockError{Op: op, Err: err}
	}
	if !m.unordered {
		slices.SortFunc(wanted, func(a, b wantedKey) int { return a.id.Compare(b.id) })
	}
	var locks []*Lock
	if try {
		locks, err = m.tryAll(ctx, wanted)
	} else {
		locks, err = m.waitForAll(ctx, wanted)
	}
	if err != nil {
		return nil, &LockError{Op: op, Err: err}
	}
	set := &LockSet{m: m, locks: locks, byKey: make(map[string]*Lock, len(keys))}
	byID := make(map[LockID]*Lock, len(locks))
	for _, lock := range locks {
		byID[lock.id] = lock
	}
	for _, key := range keys {
		set.byKey[key] = byID[m.config.lockID(key)]
	}
	return set, nil
}

// Keys returns the keys of the set, in no particular order.
func (s *LockSet) Keys() []string {
	keys := make([]string, 0, len(s.byKey))
	for key := range s.byKey {
		keys = append(keys, key)
	}
	return keys
}

// Token returns the fencing token of one key of the set, 0 for a key that is not in it.
func (s *LockSet) Token(key string) int64 {
	if lock := s.byKey[key]; lock != nil {
		return lock.token
	}
	return 0
}

// Context is Lock.Context for the set: it ends when the set is released or lost.
func (s *LockSet) Context() context.Context { return s.locks[0].Context() }

// Err is Lock.Err for the set.
func (s *LockSet) Err() error { return s.locks[0].Err() }

// Verify asks the server whether all locks of the set are still held: see Lock.Verify.
func (s *LockSet) Verify(ctx context.Context) error {
	for _, lock := range s.locks {
		if err := lock.Verify(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Release releases all locks of the set: see Lock.Release.
func (s *LockSet) Release(context.Context) error {
	if err := s.m.releaseAll(s.locks); err != nil {
		return &LockError{Op: "release", Err: err}
	}
	return nil
}

// FencedTx is Lock.FencedTx with each key of the set as a resource of that name, guarded by its own token.
func (s *LockSet) FencedTx(ctx context.Context, db DB, fn func(pgx.Tx) error) error {
	const op = "fenced tx"
	if err := s.Err(); err != nil {
		return &LockError{Op: op, Err: err}
	}
	keys := inFenceOrder(s.Keys())
	tokens := make([]int64, len(keys))
	for i, key := range keys {
		tokens[i] = s.byKey[key].token
	}
	fence := &fence{sql: s.m.sql, resources: keys, tokens: tokens, idleMillis: s.m.fencer().idleMillis()}
	return s.explain(ctx, fence.inTx(ctx, db, op, func(tx pgx.Tx) error {
		if err := fn(tx); err != nil {
			return err
		}
		if err := s.Err(); err != nil {
			return &LockError{Op: op, Err: err}
		}
		return nil
	}))
}

// explain adds the key, if it was the fence that refused.
func (s *LockSet) explain(ctx context.Context, err error) error {
	own, ok := err.(*LockError) //nolint:errorlint // only our own, not one of fn's
	if !ok || own.Key != "" {
		return err
	}
	if stale, ok := AsStaleToken(err); ok && s.byKey[stale.Resource] != nil {
		own.Key = s.m.label(stale.Resource)
		s.m.traceStaleToken(ctx, s.byKey[stale.Resource], err)
	}
	return err
}
