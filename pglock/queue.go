package pglock

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// A waiter is one call of a method that acquires. Guarded by manager.mu, except for ctx, key, mode, try, set and done.
type waiter struct {
	ctx  context.Context //nolint:containedctx // the call that waits; it ends with it
	key  string
	mode lockMode
	try  bool      // wants an answer now
	set  *group    // nil for a lock that may be on any session
	done chan bool // receives one value when lock or err is set and the mutex unlocked

	lock       *Lock
	err        error
	last       error  // what the last attempt failed with, for the error of a wait that ctx ends
	ticket     uint64 // its place in the order of all calls
	queued     bool
	prev, next *waiter
}

// A waiterQueue holds waiters in the order of their arrival.
type waiterQueue struct {
	first, last *waiter
}

func (q *waiterQueue) push(w *waiter) {
	w.queued, w.prev = true, q.last
	if q.last == nil {
		q.first = w
	} else {
		q.last.next = w
	}
	q.last = w
}

func (q *waiterQueue) remove(w *waiter) {
	if w.prev == nil {
		q.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		q.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.queued, w.prev, w.next = false, nil, nil
}

// frontPhase says who asks the server for a key on behalf of all who want it in this process.
type frontPhase uint8

const (
	frontNone    frontPhase = iota
	frontTrying             // a try is under way on session
	frontWaiting            // session waits for it in slices
	frontPaused             // the next try comes when timer fires
	frontStarved            // the next try comes when a budget has room
)

// A keyState is what a process knows of one lock ID: who holds it here, who wants it here, and how the server is asked.
// At most one request for a key is under way at a time; whoever else wants it waits in memory, first in, first out. It
// exists as long as any of that does. Guarded by manager.mu.
type keyState struct {
	id       LockID
	holder   *Lock // exclusive
	readers  int   // locks in shared mode
	queue    waiterQueue
	front    frontPhase
	session  *session // of frontTrying and frontWaiting
	mode     lockMode // of the try under way
	set      *group   // of the try under way
	asked    uint64   // the last ticket when the request under way was sent
	timer    *time.Timer
	attempts int32 // polls since the last change, for the backoff
	failures int32 // of them in a row that were not answered
	listed   bool  // in manager.starved
}

// enqueue lets w have the lock as soon as it can. m.mu is held.
func (m *manager) enqueue(w *waiter, id LockID) {
	ks := m.keys[id.id]
	if ks == nil {
		ks = &keyState{id: id}
		m.keys[id.id] = ks
	}
	m.admit(ks, w)
	if w.try && !ks.mayTry(w) {
		err := ErrNotAcquired
		if last := ks.queue.first.last; last != nil && ks.holder == nil {
			err = last // those before it are not kept waiting by a holder
		}
		m.answer(ks, w, nil, err)
		return
	}
	m.dispatch(ks)
}

// admit puts w at the end of the queue. m.mu is held.
func (m *manager) admit(ks *keyState, w *waiter) {
	m.tickets++
	w.ticket = m.tickets
	m.waiters++
	ks.queue.push(w)
}

// takes reports whether w may have a lock on s.
func (w *waiter) takes(s *session) bool {
	return w.set == nil || w.set.session == s
}

// askedFor reports whether the request under way was sent after w came. An answer that is older than the call says nothing to
// it: the server may have ended the session since, and others may have had the lock.
func (ks *keyState) askedFor(w *waiter) bool { return w.ticket <= ks.asked }

// mayTry reports whether w has a chance to get the lock now, as far as this process knows: nobody here holds it, nobody
// waits in front, and no session of ours waits for it. A try that is under way is joined: if it fails for reasons of its
// own, w takes its turn.
func (ks *keyState) mayTry(w *waiter) bool {
	if ks.blocked(w.mode) || ks.front == frontWaiting || ks.front == frontPaused {
		return false
	}
	for other := ks.queue.first; other != w; other = other.next {
		if !other.try {
			return false
		}
	}
	return true
}

// blocked reports whether a holder in this process excludes mode.
func (ks *keyState) blocked(mode lockMode) bool {
	return ks.holder != nil || mode == exclusive && ks.readers > 0
}

// dispatch starts the next try for ks if one is wanted and none is under way. m.mu is held.
func (m *manager) dispatch(ks *keyState) {
	for ks.front == frontNone && ks.queue.first != nil && !ks.blocked(ks.queue.first.mode) {
		head := ks.queue.first
		s, err := m.sessionFor(head)
		if err == nil {
			m.tryOn(s, ks)
			return
		}
		if !head.try && !errors.Is(err, errSessionGone) || m.closing > 0 && errors.Is(err, ErrSessionLimit) {
			head.last = err
			ks.front = frontStarved
			if !ks.listed {
				ks.listed = true
				m.starved = append(m.starved, ks)
			}
			return
		}
		m.answer(ks, head, nil, err)
	}
	m.drop(ks)
}

// tryOn lets s ask the server for ks. m.mu is held.
func (m *manager) tryOn(s *session, ks *keyState) {
	head := ks.queue.first
	ks.front, ks.session, ks.mode, ks.set = frontTrying, s, head.mode, head.set
	m.load++
	m.tries++
	s.load++
	s.tries = append(s.tries, ks)
	s.wake()
}

// drop forgets ks once nothing is known of it. m.mu is held.
func (m *manager) drop(ks *keyState) {
	if ks.holder == nil && ks.readers == 0 && ks.queue.first == nil && ks.front == frontNone {
		delete(m.keys, ks.id.id)
	}
}

// answer ends the wait of w. m.mu is held.
func (m *manager) answer(ks *keyState, w *waiter, lock *Lock, err error) {
	ks.queue.remove(w)
	m.waiters--
	w.lock, w.err = lock, err
	switch {
	case lock != nil:
		m.count.acquired++
	case errors.Is(err, ErrNotAcquired):
		m.count.notAcquired++
	}
	told := m.mu.tell()
	told.waiters = append(told.waiters, w)
}

// tried takes the outcome of a try on s: a token (0: somebody else has it) or the error that kept the try from being
// answered. m.mu is held.
func (m *manager) tried(s *session, ks *keyState, token int64, err error) {
	ks.front, ks.session = frontNone, nil
	m.load--
	m.tries--
	s.load--
	switch {
	case err != nil && s.unwanted || errors.Is(err, errSessionGone):
		// Whoever came after the session was given up has not been asked for; and the end of one that was open says nothing
		// of the next. A connection that cannot be opened ends this.
		m.dispatch(ks)
	case err != nil:
		m.failed(ks, err)
	case token != 0:
		m.granted(s, ks, ks.mode, token, false)
	default:
		m.denied(ks)
		if head := ks.queue.first; head != nil && !head.try && !ks.blocked(head.mode) {
			m.startWaiting(ks, s)
		} else {
			m.dispatch(ks)
		}
	}
}

// granted gives the lock that s has taken to the first who wanted it, in that mode, when it was asked for. If all of them
// have gone it is unlocked. m.mu is held.
func (m *manager) granted(s *session, ks *keyState, mode lockMode, token int64, raced bool) {
	ks.attempts, ks.failures = 0, 0
	lock := &Lock{
		m: m, session: s, state: ks, id: ks.id, mode: mode, token: max(token, 0), raced: raced,
	}
	m.load++
	s.load++
	lock.index = len(s.locks)
	s.locks = append(s.locks, lock)
	if mode == exclusive {
		ks.holder = lock
	} else {
		ks.readers++
	}
	w := ks.queue.first
	for w != nil && (w.mode != mode || !w.takes(s) || !ks.askedFor(w)) {
		w = w.next
	}
	if w == nil {
		m.startRelease(lock)
		return
	}
	lock.key, lock.values = w.key, w.ctx
	m.answer(ks, w, lock, nil)
	if mode == exclusive {
		m.denied(ks)
	}
	m.dispatch(ks)
}

// denied answers those that want an answer now and cannot have the lock, because somebody has it or others are before
// them. m.mu is held.
func (m *manager) denied(ks *keyState) {
	ahead := false
	for w := ks.queue.first; w != nil; {
		next := w.next
		switch {
		case !w.try:
			ahead = true
		case ahead || ks.holder != nil || ks.askedFor(w) && (w.mode == exclusive || ks.mode == shared):
			m.answer(ks, w, nil, ErrNotAcquired)
		}
		w = next
	}
}

// failed ends the wait of those that want an answer now with err, and of all if err cannot heal. The others wait for better
// times. m.mu is held.
func (m *manager) failed(ks *keyState, err error) {
	heals := canHeal(err)
	for w := ks.queue.first; w != nil; {
		next := w.next
		if w.try || !heals {
			m.answer(ks, w, nil, err)
		}
		w = next
	}
	if head := ks.queue.first; head != nil {
		head.last = err
		m.pause(ks, err)
		return
	}
	m.drop(ks)
}

// pause tries again later: soon at first, then less often, and never in step with other processes. m.mu is held.
func (m *manager) pause(ks *keyState, err error) {
	const shortest, longest, longestAfterError = 5 * time.Millisecond, 200 * time.Millisecond, time.Second
	most := longest
	ks.failures++
	if err == nil {
		ks.failures = 0
	} else {
		most = longestAfterError
	}
	delay := min(shortest<<min(ks.attempts, 10), most)
	delay = delay/2 + rand.N(delay)/2
	ks.attempts++
	ks.front, ks.session = frontPaused, nil
	failures, key := ks.failures, ks.queue.first.key
	ks.timer = time.AfterFunc(delay, func() {
		if failures >= toleratedFailures {
			m.logFailures(key, failures, err)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if ks.front == frontPaused {
			ks.front = frontNone
			m.dispatch(ks)
		}
	})
}

// toleratedFailures is a second or two of them.
const toleratedFailures = 8

// logFailures says what keeps somebody from getting a lock that would otherwise wait for it without a word: less and less often.
func (m *manager) logFailures(key string, failures int32, err error) {
	if failures&(failures-1) == 0 { // a power of two
		m.config.Logger.Warn("pglock: acquire keeps failing", "key", m.label(key), "failures", failures, "error", err)
	}
}

// giveUp ends the wait of w, whose ctx has ended, unless the answer was faster. It reports whether there is one.
func (m *manager) giveUp(w *waiter, id LockID) (answered bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !w.queued {
		return true
	}
	ks := m.keys[id.id]
	ks.queue.remove(w)
	m.waiters--
	m.count.notAcquired++
	m.unwanted(ks)
	return false
}

// unwanted stops what is done for a key that nobody wants any more, and lets those try whom the one who left was in the
// way of. m.mu is held.
func (m *manager) unwanted(ks *keyState) {
	if ks.queue.first != nil {
		m.dispatch(ks)
		return
	}
	switch ks.front {
	case frontPaused:
		ks.timer.Stop()
		ks.front = frontNone
	case frontStarved:
		ks.front = frontNone // feed skips it
	case frontNone, frontWaiting: // a waiting session sees for itself that nobody is left
	case frontTrying:
		if s := ks.session; s.state == opening && !s.wanted() {
			s.unwanted = true
			s.abort()
		}
	}
	m.drop(ks)
}
