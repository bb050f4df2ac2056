package pglock

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"
)

type sessionState uint8

const (
	opening sessionState = iota // its first try is made on a connection that is not ours yet
	open
	ended
)

// A session is one backend connection and the goroutine that owns it, from the first try on it to its close. The goroutine
// sits in a read on the socket, so that it hears at once when the server ends the session, and wakes for requests and
// heartbeats. Requests that come while a round trip is out go together in the next one. It never connects again.
type session struct {
	m      *manager
	ctx    context.Context //nolint:containedctx // of opening; it ends when nobody wants the session any more
	cancel context.CancelFunc
	mark   string // owner mark behind an allowed pooler

	// Guarded by manager.mu.
	state    sessionState
	key      string // of the first caller
	locks    []*Lock
	load     int // locks and tries under way
	unlocks  []*Lock
	tries    []*keyState
	pings    []*ping
	waitFor  *keyState // the key that the session waits for in slices
	mayWait  bool      // counted in manager.waiting
	parked   bool
	stop     bool // to be closed when the owner gets to it
	unwanted bool // cancelled while opening
	asleep   bool // the owner is in listen, or about to be
	conn     *lockConn

	// trust is the manager's time at which the session is no longer trusted; expired that somebody has said so.
	trust   atomic.Int64
	expired atomic.Bool

	// Of the owner alone.
	pid   uint32
	sent  time.Duration // of the last request that was answered
	name  string        // application_name
	clock clock
	work  workArgs
	text  []byte
	batch batch
}

// batch is what one round trip carries.
type batch struct {
	unlocks []*Lock
	tries   []*keyState
	pings   []*ping
}

// A ping asks whether a lock is held on the server.
type ping struct {
	lock *Lock
	done chan error // receives one value
}

// usable reports whether requests may be added to s. manager.mu is held.
func (s *session) usable() bool {
	return s.state != ended && !s.stop && !s.unwanted && s.waitFor == nil
}

// hasRoom reports whether s may take requests of anybody and carries at most load locks. manager.mu is held.
func (s *session) hasRoom(load int) bool {
	return s.usable() && !s.mayWait && s.load <= load
}

// wanted reports whether somebody waits for one of the tries of s. manager.mu is held.
func (s *session) wanted() bool {
	for _, ks := range slices.Concat(s.batch.tries, s.tries) {
		if ks.queue.first != nil {
			return true
		}
	}
	return false
}

// busy reports whether requests wait for the owner. manager.mu is held.
func (s *session) busy() bool {
	return len(s.unlocks) > 0 || len(s.tries) > 0 || len(s.pings) > 0
}

// wake lets the owner look for work. manager.mu is held.
func (s *session) wake() {
	if s.asleep {
		s.asleep = false
		s.conn.wake()
	}
}

// run is the owner. It ends when the session has ended, and so outlives the call that started it.
//
//nolint:contextcheck // it outlives the call that started it
func (s *session) run() {
	defer s.m.wg.Done()
	defer s.cancel()
	if err := s.open(); err != nil || s.conn == nil {
		s.end(err)
		return
	}
	for {
		stop, err := s.step()
		switch {
		case err != nil:
			s.lose(err)
			return
		case stop:
			s.conn.close()
			s.end(nil)
			return
		}
	}
}

// step does one thing: a slice of waiting, a round trip with whatever is asked for, or a sleep until something is.
func (s *session) step() (stop bool, err error) {
	m := s.m
	m.mu.Lock()
	m.settle(s) // after a slice or an adoption; the answers to a batch settle by themselves
	if s.stop && !s.busy() {
		m.mu.Unlock()
		return true, nil
	}
	if s.waitFor != nil {
		ks := s.waitFor
		if head, slice := ks.queue.first, m.slice; head != nil && head.set == nil && slice >= minSlice {
			mode := head.mode
			ks.asked = m.tickets
			m.mu.Unlock()
			return false, s.waitSlice(ks, mode, slice)
		}
		m.stopWaiting(s)
		ks.front, ks.session = frontNone, nil
		m.dispatch(ks)
		m.mu.Unlock()
		return false, nil
	}
	if !s.busy() {
		if wait := s.sent + m.config.HeartbeatInterval; m.now() < wait {
			return false, s.sleep(wait) // unlocks
		}
	}
	s.takeBatch()
	m.mu.Unlock()
	return false, s.roundTrip()
}

// sleep listens to the server until something is to be done, at the latest at the given time. It unlocks manager.mu.
func (s *session) sleep(until time.Duration) error {
	m := s.m
	s.asleep = true
	err := s.conn.net.SetReadDeadline(m.started.Add(min(until, s.trusted())))
	m.mu.Unlock()
	if err != nil {
		return err
	}
	err = s.conn.listen()
	m.mu.Lock()
	s.asleep = false
	m.mu.Unlock()
	if err != nil {
		return err
	}
	return s.checkTrust()
}

// takeBatch moves what is asked for to the owner. manager.mu is held.
func (s *session) takeBatch() {
	b, w := &s.batch, &s.work
	b.unlocks, s.unlocks = s.unlocks, b.unlocks[:0]
	b.pings, s.pings = s.pings, b.pings[:0]
	w.unlock.reset()
	w.take.reset()
	w.name, w.held = "", 0
	if s.mark != "" {
		w.held = len(s.locks)
	}
	w.clean = len(b.unlocks) > 0 && len(s.locks) == len(b.unlocks)
	for _, l := range b.unlocks {
		w.unlock.add(l.id, l.mode)
		if l.raced && !w.clean {
			w.again.add(l.id, l.mode)
		}
	}
	if len(w.again.keys) > 0 {
		return // nothing may be taken in the message that unlocks once more
	}
	s.takeTries()
	if len(b.tries) == 1 && s.m.config.LocksPerSession == 1 && (w.clean || len(s.locks) == 0) && b.tries[0].queue.first != nil {
		if name := s.m.sessionName(b.tries[0].queue.first.key); name != s.name {
			w.name, s.name = name, name
		}
	}
}

// takeTries moves tries to the owner: those of one set that are to stop at some point, or all up to such ones. manager.mu is
// held.
func (s *session) takeTries() {
	b, w := &s.batch, &s.work
	b.tries = b.tries[:0]
	w.take.reset()
	w.most = -1
	for i, ks := range s.tries {
		if i == 0 {
			w.most = ks.set.limit()
		} else if limit := ks.set.limit(); limit != w.most || limit >= 0 && ks.set != s.tries[0].set {
			break
		}
		ks.asked = s.m.tickets
		b.tries = append(b.tries, ks)
		w.take.add(ks.id, ks.mode)
	}
	s.tries = append(s.tries[:0], s.tries[len(b.tries):]...)
}

// roundTrip sends one message with all of the batch, or a heartbeat if there is nothing in it, and hands out the answers.
func (s *session) roundTrip() error {
	b, w := &s.batch, &s.work
	s.text = s.m.sql.work(s.text[:0], w)
	if len(w.again.keys) > 0 {
		s.text = s.m.sql.undo(s.text, &w.again)
		w.again.reset()
	}
	for _, p := range b.pings {
		s.text = append(s.text, ';')
		s.text = append(s.text, verifySQL(p.lock.id, p.lock.mode)...)
	}
	sent := s.m.now()
	rows, err := s.conn.roundTrip(string(s.text), s.m.started.Add(s.trusted()))
	if err != nil {
		return classify(err)
	}
	return s.answered(sent, rows)
}

// answered takes over the answer to a batch.
func (s *session) answered(sent time.Duration, rows [][][]byte) error {
	b := &s.batch
	reply, err := parseReply(rows[0])
	if err != nil {
		return err
	}
	if err := reply.refusal(); err != nil && reply.outcome != "error" {
		return err
	}
	if err := s.extend(sent); err != nil {
		return err
	}
	if reply.clock != 0 {
		s.clock.check(s.m, reply.clock, sent)
	}
	for i, p := range b.pings {
		count := rows[len(rows)-len(b.pings)+i][0]
		if string(count) != "1" {
			return fmt.Errorf("%w: the server shows %s locks where there should be one", ErrLost, count)
		}
		p.done <- nil
	}
	b.pings = b.pings[:0]
	return s.handOut(reply)
}

// handOut gives the answers to those who asked.
func (s *session) handOut(reply reply) error {
	m, b := s.m, &s.batch
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, l := range b.unlocks {
		if !reply.unlockedAt(i) {
			return fmt.Errorf("%w: the server says that the lock was not held", ErrLost)
		}
		m.unlocked(l, nil)
	}
	b.unlocks = b.unlocks[:0]
	for i, ks := range b.tries {
		m.tried(s, ks, reply.tokenAt(i), reply.refusal())
	}
	b.tries = b.tries[:0]
	m.settle(s) // in the same breath, so that whoever was just answered finds the session parked
	return nil
}

// waitSlice waits for ks for a moment.
func (s *session) waitSlice(ks *keyState, mode lockMode, slice time.Duration) error {
	m := s.m
	sent := m.now()
	rows, err := s.conn.roundTrip(m.sql.wait(s.pid, s.mark, slice, ks.id, mode), m.started.Add(s.trusted()))
	if err != nil {
		return classify(err)
	}
	reply, err := parseReply(rows[0])
	if err != nil {
		return err
	}
	if err := reply.refusal(); err != nil {
		return err
	}
	if err := s.extend(sent); err != nil {
		return err
	}
	token := reply.tokenAt(0)
	m.mu.Lock()
	defer m.mu.Unlock()
	if token == 0 {
		return nil
	}
	m.stopWaiting(s)
	ks.front, ks.session, ks.mode = frontNone, nil, mode
	m.granted(s, ks, mode, token, reply.detail == racedDetail)
	return nil
}
