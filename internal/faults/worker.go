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
		if h := w.acquire(ctx); h != nil {
			w.hold(ctx, h)
		}
		wait(ctx, between(w.rand, 0, 4*time.Millisecond))
	}
}

// do runs an operation and writes down when it was called, when it returned and
// how that went: for each key of its own, where it is about several. f sets tokens
// in the events it is given.
func (w *worker) do(events []history.Event, f func(events []history.Event) error) {
	for i := range events {
		events[i].ID, events[i].Worker = w.ids.Add(1), w.number
	}
	w.note(events, history.Call)
	err := f(events)
	for i := range events {
		e := &events[i]
		e.Outcome = outcome(err)
		if err != nil {
			e.Error = err.Error()
		}
		if stale, ok := pglock.AsStaleToken(err); ok && stale.Resource == e.Key {
			e.Highest = stale.Highest
		} else if ok {
			e.Outcome = history.Unknown // another key's fence refused them all
		}
	}
	w.note(events, history.Return)
}

func (w *worker) note(events []history.Event, kind string) {
	w.noteAt(events, kind, history.Now())
}

func (w *worker) noteAt(events []history.Event, kind string, at int64) {
	for i := range events {
		events[i].Kind, events[i].Time = kind, at
		w.log.write(events[i])
	}
}

// outcome sorts errors. Those that no fault here can cause are odd.
func outcome(err error) string {
	switch {
	case err == nil:
		return history.OK
	case errors.Is(err, pglock.ErrCommitUnknown):
		return history.Unknown
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

// hold works under the lock and releases it. Now and then it writes once more
// afterwards, as a holder does that was never told.
func (w *worker) hold(ctx context.Context, h *held) {
	working, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(h.ctx, cancel) //nolint:contextcheck // the lock's ctx, beside our own
	defer stop()
	var watching sync.WaitGroup
	watching.Go(func() { w.watch(h) })
	defer watching.Wait()

	if h.claim != nil && w.rand.IntN(3) == 0 && !w.quiet.Load() {
		w.claim(ctx, h)
	}
	for range w.rand.IntN(4) {
		wait(working, w.holdTime())
		w.write(ctx, h.write, h.calls)
	}
	wait(working, w.holdTime())

	if w.rand.IntN(3) == 0 {
		cancel() // Release works all the same
	}
	w.do(under(h.calls, history.Release), func([]history.Event) error { return h.release(working) })
	if w.rand.IntN(4) == 0 {
		wait(ctx, between(w.rand, 0, 40*time.Millisecond))
		n := w.rand.IntN(len(h.calls))
		call := h.calls[n]
		w.write(ctx, func(ctx context.Context, fn func(pgx.Tx) error) error {
			return pglock.Fencer{IdleTimeout: lease}.FencedTx(ctx, w.pool, call.Token, call.Key, fn)
		}, h.calls[n:n+1])
	}
}

// under are the events of an operation under the locks that the calls took.
func under(calls []history.Event, op string) []history.Event {
	events := make([]history.Event, len(calls))
	for i, call := range calls {
		events[i] = history.Event{Op: op, Key: call.Key, Hold: call.ID, Token: call.Token}
	}
	return events
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

// stall is a pause after which a process may have been frozen, and the time that its
// timers then take.
const stall = 10 * watchInterval

// watch writes down when the lock was seen held, until it has ended. Half of the
// locks are watched by Err, the others by Context alone, as most users do: asking
// Err would end the Context too. A Context is ended by a timer, which a process
// that was frozen a moment ago may not have run yet: what such a look sees does not
// count.
func (w *worker) watch(h *held) {
	strict := h.calls[0].Strict
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	seen := under(h.calls, "")
	for i := range seen {
		seen[i].Worker = w.number
	}
	before, settled := h.calls[0].Time, int64(0) // of the return: a freeze may have come since
	for {
		now := history.Now()
		if now-before > int64(stall) {
			settled = now + int64(stall)
		}
		before = now
		held := h.ctx.Err() == nil
		if strict {
			held = h.err() == nil
		}
		if !held {
			w.note(seen, history.Gone)
			return
		}
		if strict || now >= settled {
			w.noteAt(seen, history.Seen, now)
		}
		select {
		case <-tick.C:
		case <-h.ctx.Done():
		}
	}
}

// writeTimeout bounds a write. It is longer than any trust.
const writeTimeout = 2 * lease

// write puts a row for each lock into the table of writes, in a transaction.
func (w *worker) write(ctx context.Context, tx fencedTx, calls []history.Event) {
	if w.quiet.Load() {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	thinking := max(0, between(w.rand, -20*time.Millisecond, 20*time.Millisecond))
	w.do(under(calls, history.Write), func(events []history.Event) error {
		return tx(bounded, func(tx pgx.Tx) error {
			wait(bounded, thinking)
			for _, e := range events {
				if _, err := tx.Exec(bounded, "INSERT INTO writes (id, key, token) VALUES ($1, $2, $3)",
					history.WriteID(w.client.number, w.life, e.ID), e.Key, e.Token); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func (w *worker) claim(ctx context.Context, h *held) {
	bounded, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	w.do(under(h.calls, history.Claim), func([]history.Event) error { return h.claim(bounded) })
}
