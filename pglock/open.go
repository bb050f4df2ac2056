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
		candidate, err := s.nextCandidate()
		if err != nil {
			return err
		}
		err = s.openOn(candidate)
		// The pool may hand out connections of a server that has been restarted since.
		if stale := candidate.fromPool && brokeOff(err); !stale || attempt >= s.m.pool.Config().MaxConns || s.ctx.Err() != nil {
			return err
		}
		s.takeBack()
	}
}

// nextCandidate returns the connection that the caller has begun on, or another.
func (s *session) nextCandidate() (*candidate, error) {
	if s.first != nil {
		return s.first.candidate, nil
	}
	return openCandidate(s.ctx, s.m.pool, s.m.sql.schema)
}

// takeBack lets what was asked for on a connection that is gone be asked for once more.
func (s *session) takeBack() {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.tries = slices.Concat(s.batch.tries, s.tries)
	s.batch.tries = s.batch.tries[:0]
}

// openOn is open on one candidate.
func (s *session) openOn(candidate *candidate) error {
	for {
		if len(s.batch.tries) == 0 {
			s.m.mu.Lock()
			s.takeTries()
			s.m.mu.Unlock()
		}
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
	if done, again, err := s.firstCall(c); done {
		return again, err
	}
	reply, sent, err := s.askCandidate(c)
	switch {
	case err != nil:
		c.discard()
		return false, err
	case reply.outcome == outcomeOK:
		s.complete = true
		return false, s.adopt(c, reply, sent)
	case reply.outcome == outcomeHeld:
		c.functions = reply.functions
		return s.held(c), nil
	case reply.outcome == outcomeError:
		c.discard()
	default:
		c.giveBack()
	}
	return false, reply.refusal()
}

// held answers tries that found every lock taken. The connection goes back to the pool first, so that whoever is answered finds
// it there, unless others were asked for meanwhile.
func (s *session) held(c *candidate) (again bool) {
	if s.lastTries() {
		c.giveBack()
	}
	return s.allHeld()
}

// askCandidate sends the first tries, and what has to come before them on a server that says so. The statement is bounded
// by the trust that its answer could give.
func (s *session) askCandidate(c *candidate) (reply, time.Duration, error) {
	args := acquireArgs{pid: c.pid(), owner: s.mark, take: &s.work.take, most: s.work.most}
	if s.mark != "" {
		args.pid = 0
	}
	s.m.mu.Lock()
	args.adopt, args.first = s.mayWait, !s.m.verified
	s.m.mu.Unlock()
	s.name = s.m.sessionName(s.key)
	ask := func(sql string) ([][][]byte, error) {
		ctx, cancel := context.WithTimeout(s.ctx, s.m.config.Lease-s.m.config.TrustMargin)
		defer cancel()
		return c.exec(ctx, request{sql: sql})
	}
	if s.toUndo {
		if _, err := ask(string(s.m.sql.undo(nil, &s.work.take))); err != nil {
			return reply{}, 0, classify(err)
		}
		s.toUndo = false
	}
	return s.acquire(args, ask)
}

// acquire asks the function acquire, and does what that finds missing: a reign, or less settings.
func (s *session) acquire(args acquireArgs, ask func(sql string) ([][][]byte, error)) (reply, time.Duration, error) {
	m := s.m
	for range maxRefused {
		m.mu.Lock()
		args.settings = settings(m.config.Lease, s.mark, s.name, m.refused)
		m.mu.Unlock()
		sent := m.now()
		rows, err := ask(m.sql.acquire(args))
		if err != nil {
			return reply{}, 0, classify(err)
		}
		answer, err := parseAcquire(rows[len(rows)-1])
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
			if _, err := ask(m.sql.newReign()); err != nil {
				return reply{}, 0, classify(err)
			}
		case answer.outcome == "setting" && answer.detail != "idle_session_timeout":
			m.config.Logger.Info("pglock: setting refused", "setting", answer.detail, "error", answer.message)
		default:
			return answer, sent, nil
		}
	}
	return reply{}, 0, fmt.Errorf("%w: the session settings or the reign cannot be set", ErrUnsupportedServer)
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
	s.pid, s.calls = reply.backend, reply.functions
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
	s.conn, s.kick = conn, make(chan struct{}, 1)
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
