package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed35111a8b/pglock/internal/faults/history"
	"github.com/seed35111a8b/pglock/pglock"
)

// held is a lock, or a set of locks that are held together.
type held struct {
	calls   []history.Event // the acquire, of each key
	ctx     context.Context //nolint:containedctx // the lock's
	err     func() error
	release func(ctx context.Context) error
	write   fencedTx
	claim   func(ctx context.Context) error // nil if there is none
}

// fencedTx runs fn in a transaction that the fence guards.
type fencedTx func(ctx context.Context, fn func(pgx.Tx) error) error

// acquire tries, waits, or waits with a ctx that ends at once: for a lock, or now
// and then for several.
func (w *worker) acquire(ctx context.Context) *held {
	strict := w.rand.IntN(2) == 0
	bound := between(w.rand, 100*time.Millisecond, lease)
	try := false
	switch n := w.rand.IntN(10); {
	case n < 3:
		try = true
	case n < 5:
		bound = between(w.rand, 0, 25*time.Millisecond)
	}
	many := 1
	if w.rand.IntN(8) == 0 {
		many = 2 + w.rand.IntN(2)
	}
	var events []history.Event
	for _, n := range w.rand.Perm(len(w.keys))[:min(many, len(w.keys))] {
		events = append(events, history.Event{Key: w.keys[n], Strict: strict})
	}
	bounded, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	if len(events) == 1 {
		return w.acquireOne(bounded, events, try)
	}
	return w.acquireAll(bounded, events, try)
}

func (w *worker) acquireOne(ctx context.Context, events []history.Event, try bool) *held {
	take := w.locker.Acquire
	events[0].Op = history.Acquire
	if try {
		take, events[0].Op = w.locker.TryAcquire, history.Try
	}
	var lock *pglock.Lock
	w.do(events, func(events []history.Event) (err error) {
		if lock, err = take(ctx, events[0].Key); err == nil {
			events[0].Token = lock.Token()
		}
		return err
	})
	if lock == nil {
		return nil
	}
	key := events[0].Key
	return &held{
		calls: events, ctx: lock.Context(), err: lock.Err, release: lock.Release,
		write: func(ctx context.Context, fn func(pgx.Tx) error) error { return lock.FencedTx(ctx, w.pool, key, fn) },
		claim: func(ctx context.Context) error { return lock.Claim(ctx, w.pool, key) },
	}
}

func (w *worker) acquireAll(ctx context.Context, events []history.Event, try bool) *held {
	take, op := w.locker.AcquireAll, history.AcquireAll
	if try {
		take, op = w.locker.TryAcquireAll, history.TryAll
	}
	keys := make([]string, len(events))
	for i := range events {
		events[i].Op = op
		keys[i] = events[i].Key
	}
	var set *pglock.LockSet
	w.do(events, func(events []history.Event) (err error) {
		if set, err = take(ctx, keys...); err == nil {
			for i := range events {
				events[i].Token = set.Token(events[i].Key)
			}
		}
		return err
	})
	if set == nil {
		return nil
	}
	return &held{
		calls: events, ctx: set.Context(), err: set.Err, release: set.Release,
		write: func(ctx context.Context, fn func(pgx.Tx) error) error { return set.FencedTx(ctx, w.pool, fn) },
	}
}
