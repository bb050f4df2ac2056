package pglock

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// extend moves the trust deadline after the answer to a request that was sent at the given time. The server's timer
// started after it had received the request, so that counting from the sending errs on the safe side. An answer that
// comes after the deadline changes nothing: somebody may have been told of the loss.
func (s *session) extend(sent time.Duration) error {
	if err := s.checkTrust(); err != nil {
		return err
	}
	s.sent = sent
	s.trust.Store(int64(sent + s.m.config.Lease - s.m.config.TrustMargin))
	return s.checkTrust()
}

func (s *session) trusted() time.Duration { return time.Duration(s.trust.Load()) }

// checkTrust returns the loss if the trust deadline has passed. It needs no lock and does no I/O.
func (s *session) checkTrust() error {
	if s.m.now() >= s.trusted() {
		s.expired.Store(true)
	}
	if s.expired.Load() {
		return errTrustOver
	}
	return nil
}

var errTrustOver = errors.New("no heartbeat was answered in time")

// lose ends a session that broke, or that is no longer trusted: first the contexts of its locks, then the socket, then
// the requests that were under way.
func (s *session) lose(err error) {
	m := s.m
	m.mu.Lock()
	m.retire(s)
	locks := slices.Clone(s.locks)
	m.mu.Unlock()

	locks = slices.DeleteFunc(locks, func(l *Lock) bool { return !l.lose(err) }) // those that had ended are not lost
	if len(locks) > 0 {
		m.logLoss(s, locks, err)
	}
	s.conn.abandon()
	s.end(err)
}

// end takes the session out of the manager and answers whatever was still asked of it: with err, or by letting it be
// asked elsewhere.
func (s *session) end(err error) {
	m := s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range slices.Concat(s.batch.pings, s.pings) {
		p.done <- fmt.Errorf("%w: %w", ErrLost, err)
	}
	tries := slices.Concat(s.batch.tries, s.tries)
	locks := s.locks
	s.batch, s.unlocks, s.tries, s.pings, s.locks = batch{}, nil, nil, nil, nil
	waited := s.waitFor
	m.forget(s)
	for _, l := range locks {
		m.unlocked(l, fmt.Errorf("%w: %w", ErrLost, err))
	}
	if s.conn != nil {
		err = errSessionGone
	}
	for _, ks := range tries {
		m.tried(s, ks, 0, err)
	}
	if waited != nil {
		waited.front, waited.session = frontNone, nil
		m.dispatch(waited)
	}
}

// errUnasked ends a session whose server answers what nobody asked.
var errUnasked = errors.New("an answer came without a request")

// errSessionGone is the outcome of a try that met a session on its way out. It leads to a try on another session, and is
// never seen by a caller.
var errSessionGone = errors.New("the session has ended")

func (m *manager) logLoss(s *session, locks []*Lock, err error) {
	args := []any{"error", err, "locks", len(locks), "backend", s.pid}
	if len(locks) == 1 {
		args = append(args, "key", m.label(locks[0].key), "token", locks[0].token)
	}
	m.config.Logger.Warn("pglock: lock lost", args...)
	for _, l := range locks {
		m.traceLoss(l, err)
	}
}
