package pglock

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// open makes the session's first tries on a connection that is not ours yet. If one succeeds, or if the session is to
// wait, the connection becomes ours (s.conn is set). If none does it goes back untouched and the session is over.
func (s *session) open() error {
	for attempt := int32(0); ; attempt++ {
		candidate, err := openCandidate(s.ctx, s.m.pool)
		if err != nil {
			return err
		}
		err = s.openOn(candidate)
		// The pool may hand out connections of a server that has been restarted since.
		if stale := candidate.fromPool && brokeOff(err); !stale || attempt >= s.m.pool.Config().MaxConns || s.ctx.Err() != nil {
			return err
		}
		s.m.mu.Lock()
		s.tries = slices.Concat(s.batch.tries, s.tries)
		s.m.mu.Unlock()
	}
}

// openOn is open on one candidate.
func (s *session) openOn(candidate *candidate) error {
	for {
		s.m.mu.Lock()
		s.takeTries()
		s.m.mu.Unlock()
		again, err := s.firstTries(candidate)
		if err != nil || !again {
			return err
		}
	}
}

// maxRefused bounds the settings of a server that are tried and refused one after the other.
const maxRefused = 20

// firstTries asks for the batch on the candidate and hands out the answers. It reports whether more was asked meanwhile,
// with the connection still not ours.
func (s *session) firstTries(c *candidate) (again bool, err error) {
	reply, sent, err := s.askCandidate(c)
	switch {
	case err != nil:
		c.discard()
		return false, err
	case reply.outcome == outcomeOK:
		return false, s.adopt(c, reply, sent)
	case reply.outcome == outcomeHeld:
		// Back to the pool first, so that whoever is answered finds it there.
		if s.lastTries() {
			c.giveBack()
		}
		return s.allHeld(), nil
	case reply.outcome == outcomeError:
		c.discard()
	default:
		c.giveBack()
	}
	return false, reply.refusal()
}

// askCandidate sends the first tries, and what has to come before them on a server that says so. The statement is bounded
// by the trust that its answer could give.
func (s *session) askCandidate(c *candidate) (reply, time.Duration, error) {
	m := s.m
	args := acquireArgs{pid: c.pid(), owner: s.mark, take: &s.work.take, most: s.work.most}
	if s.mark != "" {
		args.pid = 0
	}
	s.name = m.sessionName(s.key)
	for range maxRefused {
		m.mu.Lock()
		args.adopt, args.first = s.mayWait, !m.verified
		args.settings = settings(m.config.Lease, s.mark, s.name, m.refused)
		m.mu.Unlock()
		sent := m.now()
		rows, err := s.execBounded(c, m.sql.acquire(args))
		if err != nil {
			return reply{}, 0, err
		}
		answer, err := parseReply(rows[len(rows)-1])
		if err != nil {
			return reply{}, 0, err
		}
		m.mu.Lock()
		if len(rows) > 1 {
			m.learn(parseInfo(rows[0]))
		}
		m.verified = m.verified || answer.outcome == outcomeOK && answer.tookSome()
		if answer.outcome == "setting" && answer.detail != "idle_session_timeout" {
			m.refused[answer.detail] = true
		}
		m.mu.Unlock()
		switch {
		case answer.outcome == "reign":
			if _, err := s.execBounded(c, m.sql.newReign()); err != nil {
				return reply{}, 0, err
			}
		case answer.outcome == "setting" && answer.detail != "idle_session_timeout":
			m.config.Logger.Info("pglock: setting refused", "setting", answer.detail, "error", answer.message)
		default:
			return answer, sent, nil
		}
	}
	return reply{}, 0, fmt.Errorf("%w: the session settings or the reign cannot be set", ErrUnsupportedServer)
}

func (s *session) execBounded(c *candidate, sql string) ([][][]byte, error) {
	ctx, cancel := context.WithTimeout(s.ctx, s.m.config.Lease-s.m.config.TrustMargin)
	defer cancel()
	rows, err := c.exec(ctx, sql)
	if err != nil {
		return nil, classify(err)
	}
	return rows, nil
}

// lastTries reports whether nothing else was asked meanwhile, and sees to it that nothing will be.
func (s *session) lastTries() bool {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.unwanted = len(s.tries) == 0
	return s.unwanted
}

// allHeld answers tries that found every lock taken, and reports whether others were asked for meanwhile.
func (s *session) allHeld() (again bool) {
	m := s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, ks := range s.batch.tries {
		m.tried(s, ks, 0, nil)
	}
	s.batch.tries = s.batch.tries[:0]
	if !s.unwanted {
		return true
	}
	m.forget(s)
	return false
}

// adopt makes the candidate's connection ours and hands out what was taken on it.
func (s *session) adopt(c *candidate, reply reply, sent time.Duration) error {
	m := s.m
	s.pid = reply.backend
	s.work.pid, s.work.owner = s.pid, s.mark
	s.sent = sent
	s.trust.Store(int64(sent + m.config.Lease - m.config.TrustMargin))
	if err := s.checkTrust(); err != nil {
		c.discard()
		return fmt.Errorf("%w: the lock was granted too late to be trusted", ErrUnavailable)
	}
	conn := c.adopt()
	if c.pooled != nil {
		defer m.refill()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.conn = conn
	s.state = open
	s.unwanted = false // whoever comes now can have it
	for i, ks := range s.batch.tries {
		m.tried(s, ks, reply.tokenAt(i), nil)
	}
	s.batch.tries = s.batch.tries[:0]
	if s.waitFor == nil {
		m.stopWaiting(s)
	}
	return nil
}

// refillTimeout bounds a refill.
const refillTimeout = 10 * time.Second

// refill lets the pool replace in the background the connection that a session took from it, if it has no other at hand, so
// that the next try need not wait for one.
func (m *manager) refill() {
	if !m.needsRefill() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	if m.refilling {
		m.refillAgain = true // the connection that was just made may be the one that was taken
		return
	}
	m.refilling = true
	m.wg.Go(m.runRefill) // ends with the connection, or with the Locker; Close waits for it
}

// needsRefill reports whether the pool has no connection at hand and may make one.
func (m *manager) needsRefill() bool {
	stat := m.pool.Stat()
	return stat.IdleConns() == 0 && stat.TotalConns() < stat.MaxConns()
}

// warmUp has a new backend compile what the next lock on it will need, which takes it as long as its start did, and gives the
// connection back as it was: everything is rolled back, and no lock is taken.
func (m *manager) warmUp(ctx context.Context, c *candidate) {
	m.mu.Lock()
	list := settings(m.config.Lease, "", sessionPrefix, m.refused)
	m.mu.Unlock()
	if _, err := c.exec(ctx, m.sql.warmUp(c.pid(), list)); err != nil {
		c.discard() // the next try finds out why
		return
	}
	c.giveBack()
}

// runRefill makes a connection, and another if one was taken meanwhile.
func (m *manager) runRefill() {
	for again := true; again; {
		if m.needsRefill() {
			ctx, cancel := context.WithTimeout(m.open, refillTimeout)
			if conn, err := m.pool.Acquire(ctx); err == nil {
				m.warmUp(ctx, pooledCandidate(conn))
			}
			cancel()
		}
		m.mu.Lock()
		again = m.refillAgain && !m.closed
		m.refilling, m.refillAgain = again, false
		m.mu.Unlock()
	}
}
