package pglock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// A Lock is a lock that is held, or was: there is no Lock that has not been acquired. It is safe for concurrent use.
//
// A Lock ends by Release, or when it is lost: because the server ended the session, because the connection broke, or
// because no heartbeat was answered until the trust deadline. It does not come back.
type Lock struct {
	m       *manager
	session *session
	state   *keyState
	key     string
	id      LockID
	mode    lockMode
	token   int64
	values  context.Context //nolint:containedctx // the acquirer's, for its values; its end is not the lock's
	raced   bool            // may be counted twice on the server

	// Guarded by manager.mu.
	index     int // in session.locks
	releasing bool
	began     time.Duration // when the release did
	overdue   bool          // it has taken too long, and the connection is closed
	out       bool          // of the books
	done      chan struct{} // made by a release; closed when the lock is out of the books and the mutex unlocked
	failure   error         // of the release

	cause atomic.Pointer[error] // why it ended; nil while held

	mu     sync.Mutex      // guards the two below; nothing else is done under it
	ctx    context.Context //nolint:containedctx // the lock's own life
	cancel context.CancelCauseFunc
}

// Key returns the key that was acquired.
func (l *Lock) Key() string { return l.key }

// LockID returns what PostgreSQL locks for the key.
func (l *Lock) LockID() LockID { return l.id }

// Token returns the fencing token: at least 1, and higher than that of every earlier grant of this key. In shared mode it is
// 0, which is none.
func (l *Lock) Token() int64 { return l.token }

// Context returns a context that has the values of the ctx that the lock was acquired with, but not its end: it ends with
// the lock. Its cause is then an error that matches ErrReleased or ErrLost. Asking for the same key with it, or with a context
// below it, fails with ErrDeadlock, unless the lock is in shared mode.
//
// When the holder is cut off from the server the context ends TrustMargin before the server can give the lock to another.
func (l *Lock) Context() context.Context {
	l.mu.Lock()
	if l.ctx == nil {
		values := context.WithoutCancel(l.values)
		if l.mode == exclusive {
			values = remember(values, l)
		}
		l.ctx, l.cancel = context.WithCancelCause(values)
	}
	ctx, cancel := l.ctx, l.cancel
	l.mu.Unlock()
	if err := l.Err(); err != nil {
		cancel(err)
	}
	return ctx
}

// Bind returns a context that ends with ctx or with the lock, whichever is first, and has ctx's values. Its cause is that of
// the one that ended. The CancelFunc frees what it holds and must be called.
func (l *Lock) Bind(ctx context.Context) (context.Context, context.CancelFunc) {
	bound, cancel := context.WithCancelCause(ctx)
	held := l.Context()
	stop := context.AfterFunc(held, func() { cancel(context.Cause(held)) })
	if held.Err() != nil {
		cancel(context.Cause(held)) // at once, not when the AfterFunc gets to run
	}
	return bound, func() {
		stop()
		cancel(context.Canceled)
	}
}

// Err returns nil while the lock is held, and else an error that matches ErrReleased or ErrLost. It goes by the clock
// itself: past the trust deadline the lock is lost, even if nothing else in this process has run yet to notice. It does no
// I/O and never blocks.
func (l *Lock) Err() error {
	if cause := l.cause.Load(); cause != nil {
		return *cause
	}
	if err := l.session.checkTrust(); err != nil {
		l.lose(err)
		return *l.cause.Load()
	}
	return nil
}

// Verify asks the server whether the lock is still held, in one round trip. It returns nil if it is; an error that matches
// ErrLost or ErrReleased if it is not; an error that matches ctx.Err() if ctx ended first, which says nothing of the lock.
func (l *Lock) Verify(ctx context.Context) error {
	if err := l.Err(); err != nil {
		return l.wrap("verify", err)
	}
	p := &ping{lock: l, done: make(chan error, 1)}
	l.m.mu.Lock()
	s := l.session
	if l.releasing || s.stop || s.state == ended {
		l.m.mu.Unlock()
		return l.wrap("verify", errOr(l.Err(), ErrLost))
	}
	s.pings = append(s.pings, p)
	s.wake()
	l.m.mu.Unlock()
	select {
	case err := <-p.done:
		return l.wrap("verify", errOr(l.Err(), err))
	case <-ctx.Done():
		return l.wrap("verify", ctx.Err())
	}
}

// errOr returns the first that is not nil.
func errOr(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Release ends the lock: first its context, with the cause ErrReleased, then the lock on the server, so that another can
// have it when Release returns. It returns nil, also when the lock was released before. It returns an error that matches
// ErrLost if the lock had been lost; whatever was done under it may then have been done beside another holder.
//
// ctx's values are used, but not its end, so that a deferred Release works: it takes at most Config.ReleaseTimeout. If the
// server has not answered by then the connection is closed, which ends the lock as soon as the server hears of it, at the
// latest when the lease is over; the error says so.
func (l *Lock) Release(ctx context.Context) error {
	m := l.m
	ctx = m.traceReleaseStart(ctx, l)
	err := l.release(context.WithoutCancel(ctx))
	m.traceReleaseEnd(ctx, l, err)
	return l.wrap("release", err)
}

func (l *Lock) release(ctx context.Context) error {
	_ = l.Err() // a lock whose trust is over is lost, not released
	l.end(&ErrReleased)
	m := l.m
	m.mu.Lock()
	m.startRelease(l)
	m.unlockAsking(ctx, m.config.ReleaseTimeout)
	return l.released()
}

// released waits until a release that has begun is answered, or has taken too long.
func (l *Lock) released() error {
	if cause := *l.cause.Load(); errors.Is(cause, ErrLost) {
		return cause
	}
	<-l.done
	return l.failure // written before done was closed
}

// end marks the lock as ended for the given reason and ends its context. It reports false if it had ended before.
func (l *Lock) end(cause *error) bool {
	if !l.cause.CompareAndSwap(nil, cause) {
		return false
	}
	l.mu.Lock()
	cancel := l.cancel
	l.mu.Unlock()
	if cancel != nil {
		cancel(*cause)
	}
	return true
}

// lose ends the lock against its holder's will.
func (l *Lock) lose(err error) bool {
	if !errors.Is(err, ErrLost) {
		err = fmt.Errorf("%w: %w", ErrLost, err)
	}
	return l.end(&err)
}

func (l *Lock) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return l.m.lockError(op, l.key, err)
}

// startRelease lets the owner unlock l. A waiter of this process goes on in the same session, in the same message. m.mu is
// held.
func (m *manager) startRelease(l *Lock) {
	s, ks := l.session, l.state
	if l.done == nil { // not before, since where many locks are held all that belongs to them is looked at again and again
		l.done = make(chan struct{})
		if l.out {
			close(l.done)
		}
	}
	if l.releasing || s.state == ended {
		return // on its way out, or out already
	}
	l.releasing, l.began = true, m.now()
	s.watchReleases()
	s.unlocks = append(s.unlocks, l)
	if head := ks.queue.first; l.mode == exclusive && ks.front == frontNone && head != nil && head.takes(s) && !s.stop {
		m.tryOn(s, ks)
	}
	s.wake()
}

// unlocked takes l out of the books: it was unlocked, or lost with its session. m.mu is held.
func (m *manager) unlocked(l *Lock, err error) {
	s, ks := l.session, l.state
	m.load--
	s.load--
	if l.mode == exclusive {
		ks.holder = nil
	} else {
		ks.readers--
	}
	if n := len(s.locks) - 1; l.index <= n && s.locks[l.index] == l {
		s.locks[l.index] = s.locks[n]
		s.locks[l.index].index = l.index
		s.locks[n] = nil
		s.locks = s.locks[:n]
	}
	if err == nil {
		m.count.released++
	} else {
		m.count.lost++
	}
	if l.overdue {
		err = fmt.Errorf("%w: the release was not confirmed within %v; the connection is closed, and the lock ends when "+
			"the server notices, at the latest with its lease", ErrUnavailable, m.config.ReleaseTimeout)
	}
	l.failure, l.out = err, true
	if l.done != nil {
		told := m.mu.tell()
		told.locks = append(told.locks, l)
	}
	if ks.front == frontNone {
		m.dispatch(ks)
	}
	m.feed()
}

// watchReleases sees to it that no release of a lock of s takes longer than ReleaseTimeout. manager.mu is held.
func (s *session) watchReleases() {
	switch {
	case s.watching:
		return
	case s.watch == nil:
		s.watch = time.AfterFunc(s.m.config.ReleaseTimeout, s.checkReleases)
	default:
		s.watch.Reset(s.m.config.ReleaseTimeout)
	}
	s.watching = true
}

// checkReleases closes the connection if a release has taken too long, and looks again when the next would have.
func (s *session) checkReleases() {
	m := s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	now, next := m.now(), time.Duration(-1)
	for _, l := range s.locks {
		if !l.releasing {
			continue
		}
		left := l.began + m.config.ReleaseTimeout - now
		l.overdue = l.overdue || left <= 0
		if next < 0 || left < next {
			next = max(0, left)
		}
	}
	switch {
	case next == 0:
		s.cut()
	case next > 0:
		s.watch.Reset(next)
	default:
		s.watching = false
	}
}

// cut closes the socket from outside, where the owner cannot be waited for. What it holds is lost. manager.mu is held.
func (s *session) cut() {
	s.abort()
	if s.conn != nil {
		_ = s.conn.net.Close() // the owner finds it closed
	}
}
