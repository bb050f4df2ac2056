package pglock

import (
	"sync"
	"time"
)

// A mutex is manager.mu. What was decided under it is done by whoever unlocks it, and afterwards: those who were answered are told,
// what is now asked of sessions whose owner was asleep is sent, and new sessions start. Told under the mutex they would crowd in front of it.
type mutex struct {
	sync.Mutex
	woken  []*session
	opened []*session
	told   *told
	spare  sync.Pool // of *told
}

// told are those who are to be told something.
type told struct {
	waiters []*waiter
	locks   []*Lock
}

// tell returns where those are put who are to be told something. manager.mu is held.
func (mu *mutex) tell() *told {
	if mu.told == nil {
		mu.told, _ = mu.spare.Get().(*told)
	}
	if mu.told == nil {
		mu.told = new(told)
	}
	return mu.told
}

// mostSent is how many requests a caller sends in the owner's place: a message that might not fit into the socket's buffer could
// keep it waiting for the network.
const mostSent = 200

// wake has something done for s. manager.mu is held.
func (s *session) wake() {
	if s.asleep || s.resting {
		s.kicked = s.resting
		s.asleep, s.resting = false, false
		s.m.mu.woken = append(s.m.mu.woken, s)
	}
}

// maySend reports whether somebody else than the owner may send what is asked for. manager.mu is held.
func (s *session) maySend() bool {
	return len(s.unlocks)+len(s.tries) <= mostSent && s.busy() && s.waitFor == nil && s.checkTrust() == nil
}

// outgoing is a message to be sent.
type outgoing struct {
	conn     *lockConn
	message  request
	deadline time.Time
}

// Unlock does not block for longer than sync.Mutex does.
func (mu *mutex) Unlock() {
	told := mu.told
	mu.told = nil
	for i, s := range mu.opened {
		mu.opened[i] = nil
		s.start()
	}
	mu.opened = mu.opened[:0]
	if len(mu.woken) == 0 {
		mu.Mutex.Unlock()
		mu.tellAll(told)
		return
	}
	var one [1]outgoing // usually it is one, which needs no memory then
	out := one[:0]
	for _, s := range mu.woken {
		switch {
		case s.kicked:
			s.kicked = false
			s.kick <- struct{}{} // does not block: there is one for each rest
		case !s.maySend():
			s.conn.hurry() // under the mutex, so that it ends no other read than this one
		default:
			s.compose()
			s.asked = true
			out = append(out, outgoing{s.conn, s.message, s.m.started.Add(s.trusted())})
		}
	}
	clear(mu.woken)
	mu.woken = mu.woken[:0]
	mu.Mutex.Unlock()
	for _, o := range out {
		o.conn.sendFor(o.message, o.deadline)
	}
	mu.tellAll(told)
}

// tellAll is called without the mutex.
func (mu *mutex) tellAll(t *told) {
	if t == nil {
		return
	}
	for _, w := range t.waiters {
		w.done <- true
	}
	for _, l := range t.locks {
		close(l.done)
	}
	clear(t.waiters)
	clear(t.locks)
	t.waiters, t.locks = t.waiters[:0], t.locks[:0]
	mu.spare.Put(t)
}
