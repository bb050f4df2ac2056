package pglock

import (
	"context"
	"errors"
)

// Do acquires the lock for key, waiting as Acquire does, calls fn, and releases the lock when fn has returned.
//
// fn's ctx ends with ctx or with the lock, whichever is first; fn should return soon after. If the lock could not be
// acquired fn is not called and Do returns the error of Acquire. Otherwise Do returns fn's error, joined with one that
// matches ErrLost if the lock was lost before fn returned: another may then have worked beside it. A release that fails
// after that is logged. If fn panics or calls runtime.Goexit the lock is released and the panic goes on.
//
// Asking for the same key with fn's ctx, or one below it, fails with ErrDeadlock.
func (l *Locker) Do(ctx context.Context, key string, fn func(ctx context.Context, lock *Lock) error) error {
	lock, err := l.acquire(ctx, "do", key, exclusive, false)
	if err != nil {
		return err
	}
	_, err = l.do(ctx, "do", lock, fn)
	return err
}

// TryDo is Do without the wait: if another holds the lock it returns false and nil. ran says whether fn was called, so that
// an error of fn's is not mistaken for one of acquiring.
func (l *Locker) TryDo(ctx context.Context, key string, fn func(ctx context.Context, lock *Lock) error) (ran bool, err error) {
	lock, err := l.acquire(ctx, "try do", key, exclusive, true)
	if errors.Is(err, ErrNotAcquired) && ctx.Err() == nil {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return l.do(ctx, "try do", lock, fn)
}

// do runs fn under lock and releases it.
func (l *Locker) do(ctx context.Context, op string, lock *Lock, fn func(context.Context, *Lock) error) (ran bool, err error) {
	m := l.m
	if !m.begin() {
		l.finish(ctx, lock)
		return false, m.lockError(op, lock.key, ErrClosed)
	}
	bound, cancel := lock.Bind(remember(ctx, lock))
	defer func() { // also when fn panics or calls Goexit
		if cause := lock.Err(); errors.Is(cause, ErrLost) {
			err = errors.Join(err, m.lockError(op, lock.key, cause))
		}
		cancel()
		l.finish(ctx, lock)
		m.finish()
	}()
	return true, fn(bound, lock)
}

// finish releases lock and logs a failure that nobody has been told of.
func (l *Locker) finish(ctx context.Context, lock *Lock) {
	known := lock.Err()
	if err := lock.Release(ctx); err != nil && !errors.Is(known, ErrLost) {
		l.m.config.Logger.Warn("pglock: release failed", "key", l.m.label(lock.key), "token", lock.token, "error", err)
	}
}

// held is found in the contexts of locks and of functions of Do: a lock, and those around it.
type held struct {
	lock  *Lock
	outer *held
}

type heldKey struct{}

// heldIn returns the innermost lock that ctx is below of, nil if there is none.
func heldIn(ctx context.Context) *held {
	h, _ := ctx.Value(heldKey{}).(*held)
	return h
}

// remember returns a context below which lock is known to be held, until it has ended.
func remember(ctx context.Context, lock *Lock) context.Context {
	return context.WithValue(ctx, heldKey{}, &held{lock, heldIn(ctx)})
}

// holds reports whether ctx is one below which id is held.
func holds(ctx context.Context, m *manager, id LockID) bool {
	for h := heldIn(ctx); h != nil; h = h.outer {
		if h.lock.m == m && h.lock.id == id && h.lock.Err() == nil {
			return true
		}
	}
	return false
}
