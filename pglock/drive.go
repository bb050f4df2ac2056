package pglock

import (
	"context"
	"time"
)

// This file lets a caller make a whole round trip itself. For a moment after a request its session rests: nobody listens to the
// server, and whoever asks next sends and hears the answer, without waking another goroutine for either. That is worth as much
// as the server's own work, since a goroutine that is woken is another thread of the system's, often on another processor.

// restTime is how long a session rests. What the server says unasked is heard that much later.
const restTime = time.Millisecond

// handed is what a caller leaves to the owner.
type handed struct {
	outstanding bool       // the answer has not come yet
	answered    bool       // it has, and something else has to be asked for it
	rows        [][][]byte // the answer
	err         error
}

// nothing reports whether there is nothing for the owner to do.
func (h handed) nothing() bool { return !h.outstanding && !h.answered && h.err == nil }

// mayRest reports whether the owner need not listen now. manager.mu is held.
func (s *session) mayRest(until time.Duration) bool {
	now := s.m.now()
	return now < s.active+restTime && now+restTime < min(until, s.trusted())
}

// rest waits for whoever has something to do for the owner, or until nothing has been asked for a while; then it listens. It
// unlocks manager.mu.
func (s *session) rest(until time.Duration) error {
	m := s.m
	s.resting = true
	m.mu.Unlock()
	timer := time.NewTimer(restTime)
	defer timer.Stop()
	for {
		select {
		case <-s.kick:
			return s.takeOver()
		case <-timer.C:
		}
		m.mu.Lock()
		switch {
		case s.driven:
			s.awaited = true // the caller kicks when it is done
		case s.resting && s.mayRest(until):
			timer.Reset(s.active + restTime - m.now())
		case s.resting:
			s.resting = false
			return s.sleep(until) // unlocks
		}
		m.mu.Unlock()
	}
}

// takeOver goes on where a caller has stopped.
func (s *session) takeOver() error {
	m := s.m
	m.mu.Lock()
	left := s.handed
	s.handed = handed{}
	m.mu.Unlock()
	if left.answered {
		return s.received(left.rows, left.err)
	}
	if !left.outstanding {
		return left.err
	}
	if err := s.conn.net.SetReadDeadline(m.started.Add(s.trusted())); err != nil {
		return err
	}
	rows, err := s.conn.receive()
	return s.received(rows, err)
}

// unlockAsking unlocks manager.mu. What was asked for the caller does itself if it is to be asked of one session alone, which rests or
// is new, unless ctx ends first or it takes too long: then the owner goes on, and the answer comes later.
func (m *manager) unlockAsking(ctx context.Context, timeout time.Duration) {
	mu := &m.mu
	told := mu.told
	switch {
	case len(mu.woken) == 0 && len(mu.opened) == 1:
		s := mu.opened[0]
		mu.opened, mu.told = append(mu.opened[:0], nil)[:0], nil
		mu.Mutex.Unlock()
		mu.tellAll(told)
		s.openHere(ctx)
	case len(mu.woken) == 1 && len(mu.opened) == 0 && mu.woken[0].kicked && mu.woken[0].maySend() && !mu.woken[0].stop:
		s := mu.woken[0]
		mu.woken, mu.told = append(mu.woken[:0], nil)[:0], nil
		s.kicked, s.driven = false, true
		s.compose()
		mu.Mutex.Unlock()
		mu.tellAll(told)
		s.driveFor(ctx, timeout)
	default:
		mu.Unlock()
	}
}

// driveFor makes the round trip, and leaves the session resting or to its owner.
func (s *session) driveFor(ctx context.Context, timeout time.Duration) {
	left := s.drive(ctx, timeout)
	s.m.mu.Lock()
	s.driven = false
	if left.nothing() && !s.awaited && !s.busy() && s.waitFor == nil && !s.stop {
		s.resting = true
	} else {
		s.handed, s.awaited = left, false
		s.kick <- struct{}{}
	}
	s.m.mu.Unlock()
}

// drive is the round trip.
func (s *session) drive(ctx context.Context, timeout time.Duration) handed {
	trusted := s.m.started.Add(s.trusted())
	if err := s.conn.net.SetWriteDeadline(trusted); err != nil {
		return handed{err: err}
	}
	if until := time.Now().Add(timeout); until.Before(trusted) {
		trusted = until
	}
	if err := s.conn.net.SetReadDeadline(trusted); err != nil {
		return handed{err: err}
	}
	s.conn.reset()
	if err := s.conn.send(s.message); err != nil {
		return handed{err: err}
	}
	rows, err := s.conn.hear(ctx)
	if timedOut(err) {
		return handed{outstanding: true}
	}
	if statementError(err) != nil || err == nil && failedCall(rows[0][0]) {
		return handed{answered: true, rows: rows, err: err}
	}
	return handed{err: s.received(rows, err)}
}
