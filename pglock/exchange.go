package pglock

import (
	"fmt"
	"runtime"
	"strconv"

	"github.com/jackc/pgx/v5/pgconn"
)

// This file is what a session says to the server, and who says it. Requests that come while an answer is awaited go
// together in the next message, which the owner sends. One that finds the owner asleep is sent by whoever asks, so that
// one goroutine is woken for it and not two: that one, by the answer.

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

// takeBatch moves what is asked for into the batch. manager.mu is held.
func (s *session) takeBatch() {
	b, w := &s.batch, &s.work
	b.unlocks, s.unlocks = s.unlocks, b.unlocks[:0]
	s.takePings()
	w.unlock.reset()
	w.take.reset()
	w.again.reset()
	w.name, w.held = "", 0
	if s.mark != "" {
		w.held = len(s.locks)
	}
	last := len(b.unlocks) > 0 && len(s.locks) == len(b.unlocks)
	w.clean = last && s.m.config.MaxIdleSessions > 0
	for _, l := range b.unlocks {
		w.unlock.add(l.id, l.mode)
		if l.raced {
			w.clean = last
			if !last {
				w.again.add(l.id, l.mode)
			}
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

// takePings moves pings into the batch. A lock on its way out is not asked for, since its unlock may go first. manager.mu is held.
func (s *session) takePings() {
	for _, p := range s.pings {
		if p.lock.releasing {
			p.done <- errOr(p.lock.Err(), ErrReleased)
		} else {
			s.batch.pings = append(s.batch.pings, p)
		}
	}
	clear(s.pings)
	s.pings = s.pings[:0]
}

// takeTries moves tries into the batch: those of one set that are to stop at some point, or all up to such ones. manager.mu is
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

// compose makes a message of all that is asked for, or a heartbeat if nothing is. manager.mu is held.
func (s *session) compose() {
	s.takeBatch()
	s.began = s.m.now()
	if len(s.batch.pings) == 0 {
		if call, ok := s.args.work(&s.calls, &s.work); ok {
			s.message = call
			return
		}
	}
	s.text = s.m.sql.work(s.text[:0], &s.work)
	s.appendPings()
	s.message = request{sql: string(s.text)}
}

func (s *session) appendPings() {
	for _, p := range s.batch.pings {
		s.text = append(s.text, ';')
		s.text = append(s.text, verifySQL(p.lock.id, p.lock.mode)...)
	}
}

// received takes over what came back for the message, and hands out the answers.
func (s *session) received(rows [][][]byte, err error) error {
	called := s.message.call != nil
	if failed := statementError(err); failed != nil && called && len(s.batch.unlocks) == 0 {
		return s.undoOne(failed)
	}
	if err != nil {
		return classify(err)
	}
	if !called {
		reply, err := parseWork(rows[0])
		if err != nil {
			return err
		}
		return s.answered(reply, rows)
	}
	reply, err := parseCall(rows[0][0], &s.work)
	if err != nil {
		return err
	}
	if reply.outcome == outcomeAgain {
		if reply, rows, err = s.takeAgain(reply.unlocked); err != nil {
			return err
		}
	}
	return s.answered(reply, rows)
}

// undoOne answers a try whose statement failed, when nothing of it is left on the server.
func (s *session) undoOne(failed *pgconn.PgError) error {
	if s.work.name != "" {
		s.name = "" // was not set
	}
	rows, err := s.askInText(s.m.sql.undo(s.text[:0], &s.work.take))
	if err != nil {
		return classify(err)
	}
	if string(rows[0][0]) != strconv.FormatUint(uint64(s.pid), 10) {
		return (&reply{outcome: outcomePooler}).refusal()
	}
	return s.answered(reply{outcome: outcomeError, detail: failed.Code, message: failed.Message}, rows)
}

// takeAgain asks once more for what a call could not take, of the function that says why.
func (s *session) takeAgain(unlocked []bool) (reply, [][][]byte, error) {
	w := s.work
	w.unlock.reset()
	w.clean = false
	rows, err := s.askInText(s.m.sql.work(s.text[:0], &w))
	if err != nil {
		return reply{}, nil, classify(err)
	}
	again, err := parseWork(rows[0])
	again.unlocked = unlocked
	return again, rows, err
}

// askInText is a round trip of the owner in the middle of another.
func (s *session) askInText(text []byte) ([][][]byte, error) {
	s.text = text
	return s.conn.roundTrip(request{sql: string(text)}, s.m.started.Add(s.trusted()))
}

// answered takes over the answer to a batch.
func (s *session) answered(reply reply, rows [][][]byte) error {
	b := &s.batch
	if err := reply.refusal(); err != nil && reply.outcome != outcomeError {
		return err
	}
	if err := s.extend(s.began); err != nil {
		return err
	}
	if reply.clock != 0 {
		s.clock.check(s.m, reply.clock, s.began)
	}
	for _, row := range rows[len(rows)-len(b.pings):] {
		if string(row[0]) != "1" {
			return fmt.Errorf("%w: the server shows %s locks where there should be one", ErrLost, row[0])
		}
	}
	for _, p := range b.pings {
		p.done <- nil
	}
	b.pings = b.pings[:0]
	many := len(b.unlocks)+len(b.tries) > 1
	err := s.handOut(reply)
	if many {
		runtime.Gosched() // those who were answered ask again, and what they ask goes together
	}
	return err
}

// handOut gives the answers to those who asked.
func (s *session) handOut(reply reply) error {
	m, b := s.m, &s.batch
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(b.unlocks)+len(b.tries) == 1 {
		s.active = m.now()
	}
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
