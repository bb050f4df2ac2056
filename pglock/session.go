package pglock

import (
	"context"
	"runtime"
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
	values context.Context //nolint:containedctx // of the first caller
	ctx    context.Context //nolint:containedctx // of opening; it ends when nobody wants the session any more
	cancel context.CancelFunc
	mark   string // owner mark behind an allowed pooler

	room struct { // for a first try, which many sessions do not outlive
		tries, batch [1]*keyState
		keys         [1]int64
		kinds        [1]int
	}

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
	aborted  bool // so is ctx, if it has begun
	asleep   bool // the owner listens, or is about to; whoever clears it may send in its place
	asked    bool // somebody has
	resting  bool // the owner waits for a kick, and does not listen; whoever clears it sends one
	kicked   bool // one is to be sent
	driven   bool // a caller makes a round trip
	awaited  bool // and the owner waits for its end
	handed   handed
	active   time.Duration // of the last answer to a single request
	conn     *lockConn
	here     *candidate // what a caller asks on while opening

	hereUntil time.Duration // an answer that comes later is worth nothing

	watch    *time.Timer // runs while watching
	watching bool        // releases are watched

	kick chan struct{} // ends a rest

	// trust is the manager's time at which the session is no longer trusted; expired that somebody has said so.
	trust   atomic.Int64
	expired atomic.Bool

	// Of the owner, or of whoever sends in its place.
	batch   batch
	work    workArgs
	text    []byte
	args    args
	message request       // what is sent for the batch
	began   time.Duration // when
	name    string        // application_name

	// Of the owner alone, or of the caller that opens the session.
	first    *firstTry
	slowly   bool // the short way has led nowhere
	toUndo   bool // and may have left the lock held
	complete bool // all settings are made
	ready    bool // to unlock
	pid      uint32
	calls    functions
	sent     time.Duration // of the last request that was answered
	clock    clock
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

// start starts the owner. manager.mu is held.
func (s *session) start() {
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(s.values))
	if s.aborted {
		s.cancel()
	}
	go s.run() // ends with the session; Close waits for it
}

// abort ends the opening of s, whoever is at it. manager.mu is held.
func (s *session) abort() {
	s.aborted = true
	if s.cancel != nil {
		s.cancel()
	}
	if s.here != nil {
		s.here.wire.hurry()
	}
}

// run is the owner. It ends when the session has ended, and so outlives the call that started it.
//
//nolint:contextcheck // it outlives the call that started it
func (s *session) run() {
	defer s.m.wg.Done()
	defer s.cancel()
	if s.conn == nil { // else the caller has opened it
		if err := s.open(); err != nil || s.conn == nil {
			s.end(err)
			return
		}
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
	if !s.complete && !s.stop && (len(s.unlocks) == 0 || len(s.tries) > 0 || s.waitFor != nil) {
		m.mu.Unlock()
		return false, s.completeSettings()
	}
	if !s.ready && !s.stop && !s.busy() && s.waitFor == nil {
		m.mu.Unlock()
		return false, s.makeReady()
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
			if s.mayRest(wait) {
				return false, s.rest(wait) // unlocks
			}
			return false, s.sleep(wait) // unlocks
		}
	}
	s.compose()
	m.mu.Unlock()
	rows, err := s.conn.roundTrip(s.message, s.m.started.Add(s.trusted()))
	return false, s.received(rows, err)
}

// sleep listens to the server until something is to be done, at the latest at the given time, or until the answer comes to
// what others have sent meanwhile. It unlocks manager.mu.
func (s *session) sleep(until time.Duration) error {
	m := s.m
	s.conn.reset()
	s.asleep = true
	err := s.conn.net.SetReadDeadline(m.started.Add(min(until, s.trusted())))
	m.mu.Unlock()
	if err != nil {
		return err
	}
	rows, err := s.conn.receive()
	m.mu.Lock()
	s.asleep = false
	asked := s.asked
	s.asked = false
	m.mu.Unlock()
	switch {
	case asked && timedOut(err): // it was time for a heartbeat, which the request now is
		if err = s.conn.net.SetReadDeadline(m.started.Add(s.trusted())); err == nil {
			rows, err = s.conn.receive()
		}
		return s.received(rows, err)
	case asked:
		err = s.received(rows, err)
		runtime.Gosched() // who was answered goes first
		return err
	case timedOut(err):
		return s.checkTrust()
	}
	return errOr(err, errUnasked)
}

// waitSlice waits for ks for a moment.
func (s *session) waitSlice(ks *keyState, mode lockMode, slice time.Duration) error {
	m := s.m
	sent := m.now()
	rows, err := s.conn.roundTrip(s.waitRequest(ks.id, mode, slice), m.started.Add(s.trusted()))
	if err != nil {
		return classify(err)
	}
	defer runtime.Gosched() // who was granted the lock goes first
	token, raced, err := s.parseWait(rows[0][0], mode)
	if err != nil {
		return err
	}
	if err := s.extend(sent); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if token == 0 {
		return nil
	}
	m.stopWaiting(s)
	ks.front, ks.session, ks.mode = frontNone, nil, mode
	m.granted(s, ks, mode, token, raced)
	return nil
}
