package pglock

import (
	"context"
)

// TryAcquire acquires the lock for key if nobody holds it, in one round trip where a connection is at hand.
//
// If another session or another goroutine of this process holds it, the error matches ErrNotAcquired, at once. Other
// errors say what else kept it from being acquired: see the list of errors. Whenever an error is returned nothing is held.
// ctx bounds the call alone; it does not end the lock.
func (l *Locker) TryAcquire(ctx context.Context, key string) (*Lock, error) {
	return l.acquire(ctx, "try acquire", key, exclusive, true)
}

// Acquire acquires the lock for key, and waits for it while another holds it. Among the goroutines of one process the first
// to wait is the first to get it; there is no order among processes.
//
// If ctx ends first the error matches ErrNotAcquired and ctx.Err(), and whatever kept the last attempt from succeeding. A
// connection that breaks while it waits is replaced; what waiting cannot heal, such as a wrong password or a missing
// migration, ends the wait with its own error. Whenever an error is returned nothing is held. ctx bounds the call alone;
// it does not end the lock.
func (l *Locker) Acquire(ctx context.Context, key string) (*Lock, error) {
	return l.acquire(ctx, "acquire", key, exclusive, false)
}

// TryAcquireShared is TryAcquire in shared mode: it excludes exclusive locks of the key and is excluded by them, but not by
// other shared ones. The Lock has no token.
func (l *Locker) TryAcquireShared(ctx context.Context, key string) (*Lock, error) {
	return l.acquire(ctx, "try acquire shared", key, shared, true)
}

// AcquireShared is Acquire in shared mode: see TryAcquireShared. In one process a waiter in shared mode does not overtake a
// waiter in exclusive mode.
func (l *Locker) AcquireShared(ctx context.Context, key string) (*Lock, error) {
	return l.acquire(ctx, "acquire shared", key, shared, false)
}

// acquire is what all of them do.
func (l *Locker) acquire(ctx context.Context, op, key string, mode lockMode, try bool) (*Lock, error) {
	m := l.m
	if m.config.Tracer != nil {
		ctx = m.config.Tracer.TraceAcquireStart(ctx, TraceAcquireStartData{Op: op, Key: m.label(key)})
	}
	lock, err := m.acquire(ctx, key, mode, try)
	if err != nil {
		err = m.lockError(op, key, err)
	}
	if m.config.Tracer != nil {
		m.config.Tracer.TraceAcquireEnd(ctx, TraceAcquireEndData{Lock: lock, Err: err})
	}
	return lock, err
}

func (m *manager) acquire(ctx context.Context, key string, mode lockMode, try bool) (*Lock, error) {
	id, err := m.config.identify(key)
	if err != nil {
		return nil, err
	}
	if holds(ctx, m, id) {
		return nil, ErrDeadlock
	}
	if ctx.Err() != nil {
		return nil, waitEnded(ctx, nil)
	}
	w, _ := m.spareWaiters.Get().(*waiter)
	if w == nil {
		w = &waiter{done: make(chan bool, 1)}
	}
	*w = waiter{ctx: ctx, key: key, mode: mode, try: try, done: w.done}
	lock, err := m.submit(ctx, w, id)
	*w = waiter{done: w.done}
	m.spareWaiters.Put(w)
	return lock, err
}

// submit queues w and returns its answer.
func (m *manager) submit(ctx context.Context, w *waiter, id LockID) (*Lock, error) {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil, ErrClosed
	}
	m.enqueue(w, id)
	m.unlockAsking(ctx, m.config.Lease)
	return m.await(ctx, w, id)
}

// await returns the answer to w, or ends its wait with ctx.
func (m *manager) await(ctx context.Context, w *waiter, id LockID) (*Lock, error) {
	select {
	case <-w.done:
	case <-ctx.Done():
		if !m.giveUp(w, id) {
			return nil, waitEnded(ctx, w.last)
		}
		<-w.done
	}
	return w.lock, w.err
}
