package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed35111a8b/pglock/internal/faults/history"
	"github.com/seed35111a8b/pglock/pglock"
)

// worker is a goroutine of a client that takes locks, works under them and lets
// go of them, one after the other.
type worker struct {
	*client
	number int
	rand   *rand.Rand
}

func (w *worker) run(ctx context.Context) {
	for ctx.Err() == nil {
		if lock, call := w.acquire(ctx); lock != nil {
			w.hold(ctx, lock, call)
		}
		wait(ctx, between(w.rand, 0, 4*time.Millisecond))
	}
}

// do runs an operation and writes down when it was called, when it returned and
// how that went.
func (w *worker) do(e history.Event, f func(id int64) (token int64, err error)) history.Event {
	e.ID, e.Worker = w.ids.Add(1), w.number
	e.Kind, e.Time = history.Call, history.Now()
	w.log.write(e)
	token, err := f(e.ID)
	e.Kind, e.Time = history.Return, history.Now()
	if token != 0 {
		e.Token = token
	}
	e.Outcome = outcome(err)
	if err != nil {
		e.Error = err.Error()
	}
	if stale, ok := pglock.AsStaleToken(err); ok {
		e.Highest = stale.Highest
	}
	w.log.write(e)
	return e
}

// outcome sorts errors. Those that no fault here can cause are odd.
func outcome(err error) string {
	switch {
	case err == nil:
		return history.OK
	case errors.Is(err, pglock.ErrStaleToken):
		return history.Stale
	case errors.Is(err, pglock.ErrLost), errors.Is(err, pglock.ErrReleased):
		return history.Lost
	}
	for _, odd := range []error{
		pglock.ErrPooler, pglock.ErrUnsupportedServer, pglock.ErrNotMigrated, pglock.ErrNoToken, pglock.ErrClosed,
		pglock.ErrInvalidKey, pglock.ErrTooManyLocks, pglock.ErrDeadlock, pglock.ErrReadOnly,
	} {
		if errors.Is(err, odd) {
			return history.Odd
		}
	}
	if errors.Is(err, pglock.ErrNotAcquired) {
		return history.Busy
	}
	return history.Unknown
}

// acquire tries, waits, or waits with a ctx that ends at once.
func (w *worker) acquire(ctx context.Context) (*pglock.Lock, history.Event) {
	e := history.Event{Op: history.Acquire, Key: w.keys[w.rand.IntN(len(w.keys))], Strict: w.rand.IntN(2) == 0}
	take := w.locker.Acquire
	bound := between(w.rand, 100*time.Millisecond, lease)
	switch n := w.rand.IntN(10); {
	case n < 3:
		e.Op, take = history.Try, w.locker.TryAcquire
	case n < 5:
		bound = between(w.rand, 0, 25*time.Millisecond)
	}
	bounded, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	var lock *pglock.Lock
	e = w.do(e, func(int64) (int64, error) {
		var err error
		if lock, err = take(bounded, e.Key); err != nil {
			return 0, err
		}
		return lock.Token(), nil
	})
	return lock, e
}

// hold works under the lock and releases it. Now and then it writes once more
// afterwards, as a holder does that was never told.
func (w *worker) hold(ctx context.Context, lock *pglock.Lock, call history.Event) {
	working, cancel := lock.Bind(ctx)
	defer cancel()
	var watching sync.WaitGroup
	watching.Go(func() { w.watch(lock, call) })
	defer watching.Wait()

	if w.rand.IntN(3) == 0 && !w.quiet.Load() {
		w.claim(ctx, lock, call)
	}
	for range w.rand.IntN(4) {
		wait(working, w.holdTime())
		w.write(ctx, lock.FencedTx, call)
	}
	wait(working, w.holdTime())

	if w.rand.IntN(3) == 0 {
		cancel() // Release works all the same
	}
	w.do(history.Event{Op: history.Release, Key: call.Key, Hold: call.ID, Token: call.Token}, func(int64) (int64, error) {
		return 0, lock.Release(working)
	})
	if w.rand.IntN(4) == 0 {
		wait(ctx, between(w.rand, 0, 40*time.Millisecond))
		w.write(ctx, func(ctx context.Context, db pglock.DB, resource string, fn func(pgx.Tx) error) error {
			return pglock.Fencer{IdleTimeout: lease}.FencedTx(ctx, db, call.Token, resource, fn)
		}, call)
	}
}

// holdTime is mostly short, sometimes longer than the lease.
func (w *worker) holdTime() time.Duration {
	switch n := w.rand.IntN(1000); {
	case n < 700:
		return between(w.rand, 0, 3*time.Millisecond)
	case n < 960:
		return between(w.rand, 0, 30*time.Millisecond)
	case n < 995:
		return between(w.rand, 30*time.Millisecond, 300*time.Millisecond)
	default:
		return between(w.rand, lease/2, 2*lease)
	}
}

// watchInterval is how often a lock is looked at.
const watchInterval = 10 * time.Millisecond

// watch writes down when the lock was seen held, until it has ended. Half of the
// locks are watched by Err, the others by Context alone, as most users do: asking
// Err would end the Context too. A Context is ended by a timer, which a process
// that has just been frozen has not run yet: what such a look sees does not count.
func (w *worker) watch(lock *pglock.Lock, call history.Event) {
	ctx := lock.Context()
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	e := history.Event{Kind: history.Seen, Worker: w.number, Key: call.Key, Hold: call.ID}
	before := history.Now()
	for {
		e.Time = history.Now()
		stalled := e.Time-before > int64(10*watchInterval)
		before = e.Time
		held := ctx.Err() == nil
		if call.Strict {
			held = lock.Err() == nil
		}
		if !held {
			e.Kind, e.Time = history.Gone, history.Now()
			w.log.write(e)
			return
		}
		if call.Strict || !stalled {
			w.log.write(e)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// writeTimeout bounds a write. It is longer than any trust.
const writeTimeout = 2 * lease

// fencedTx is FencedTx of a lock or of a fencer.
type fencedTx func(ctx context.Context, db pglock.DB, resource string, fn func(pgx.Tx) error) error

// write puts a row into the table of writes, guarded by the hold's token.
func (w *worker) write(ctx context.Context, tx fencedTx, call history.Event) {
	if w.quiet.Load() {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	thinking := max(0, between(w.rand, -20*time.Millisecond, 20*time.Millisecond))
	e := history.Event{Op: history.Write, Key: call.Key, Hold: call.ID, Token: call.Token}
	w.do(e, func(id int64) (int64, error) {
		return 0, tx(bounded, w.pool, call.Key, func(tx pgx.Tx) error {
			wait(bounded, thinking)
			_, err := tx.Exec(bounded, "INSERT INTO writes (id, key, token) VALUES ($1, $2, $3)",
				history.WriteID(w.client.number, w.life, id), call.Key, call.Token)
			return err
		})
	})
}

func (w *worker) claim(ctx context.Context, lock *pglock.Lock, call history.Event) {
	bounded, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	e := history.Event{Op: history.Claim, Key: call.Key, Hold: call.ID, Token: call.Token}
	w.do(e, func(int64) (int64, error) { return 0, lock.Claim(bounded, w.pool, call.Key) })
}
