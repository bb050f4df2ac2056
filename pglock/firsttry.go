package pglock

import (
	"context"
	"time"
)

// This file is the short way to a lock of its own on a connection of the pool that has been used for one before, or was made for it:
// one call, by the caller itself, of a function that is known to be there. If the lock is free the owner starts, and makes the
// rest of the settings. If anything is out of the ordinary, the long way in open.go is gone from the start.

// A firstTry is what a caller leaves to the owner: a connection, and perhaps an answer that it did not wait for.
type firstTry struct {
	candidate   *candidate
	outstanding bool
	sent        time.Duration
}

// openHere opens the session for the caller, if the pool has a connection at hand, as far as that goes without waiting.
func (s *session) openHere(ctx context.Context) {
	c := idleCandidate(s.m.patience(ctx), s.m.pool, s.m.sql.schema)
	if c == nil {
		s.goOn(nil)
		return
	}
	sent := s.m.now()
	s.name = s.m.sessionName(s.key)
	s.m.mu.Lock()
	s.takeTries()
	call, short := s.callFor(c)
	if short {
		s.here, s.hereUntil = c, sent+s.m.config.Lease-s.m.config.TrustMargin
		s.m.watchAsking()
		if s.aborted {
			c.wire.hurry()
		}
	}
	s.m.mu.Unlock()
	if !short {
		s.goOn(&firstTry{candidate: c})
		return
	}
	rows, err := c.ask(ctx, call, time.Time{})
	s.m.mu.Lock()
	s.here = nil
	s.m.mu.Unlock()
	if timedOut(err) && s.m.now() < s.hereUntil {
		s.goOn(&firstTry{c, true, sent})
		return
	}
	done, again, err := s.firstAnswer(c, sent, rows, err)
	switch {
	case !done || again:
		s.goOn(&firstTry{candidate: c})
	case s.conn != nil:
		s.goOn(nil)
	case brokeOff(err):
		s.takeBack()
		s.goOn(nil)
	default:
		s.end(err)
		s.m.wg.Done()
	}
}

// A timer that is set and stopped for each try wakes up another thread each time, to look after it. So what bounds such a try is
// shared: one timer for the answers, and one for connections of pools.

// watchAsking sees to it that no caller waits for an answer that would not be worth anything. m.mu is held.
func (m *manager) watchAsking() {
	switch {
	case m.watching:
		return
	case m.watch == nil:
		m.watch = time.AfterFunc(m.config.Lease-m.config.TrustMargin, m.checkAsking)
	default:
		m.watch.Reset(m.config.Lease - m.config.TrustMargin)
	}
	m.watching = true
}

// checkAsking ends what has taken too long, and looks again when the next will have.
func (m *manager) checkAsking() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, next := m.now(), time.Duration(-1)
	for s := range m.sessions {
		if s.here == nil {
			continue
		}
		left := s.hereUntil - now
		if left <= 0 {
			s.here.wire.hurry()
		} else if next < 0 || left < next {
			next = left
		}
	}
	if m.watching = next > 0 && !m.closed; m.watching {
		m.watch.Reset(next)
	}
}

// patience returns a context with the values of ctx that ends in a moment, after poolPatience or up to twice that.
func (m *manager) patience(ctx context.Context) context.Context {
	p := m.patient.Load()
	if p == nil || m.now() > p.until {
		ctx, cancel := context.WithTimeout(context.Background(), 2*poolPatience)
		p = &patience{ctx, cancel, m.now() + poolPatience}
		m.patient.Store(p)
	}
	return patientContext{p.ctx, ctx}
}

// patience is a context that several calls share.
type patience struct {
	ctx    context.Context //nolint:containedctx // that is what it is
	cancel context.CancelFunc
	until  time.Duration // for new calls
}

// patientContext has the end of the one and the values of the other.
type patientContext struct {
	context.Context                 //nolint:containedctx // for one call
	values          context.Context //nolint:containedctx // for one call
}

func (p patientContext) Value(key any) any { return p.values.Value(key) }

// goOn starts the owner, which goes on where the caller stops.
func (s *session) goOn(begun *firstTry) {
	s.first = begun
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.start()
}

// askedUntil is when the answer to a first request would no longer be worth anything.
func (s *session) askedUntil(sent time.Duration) time.Time {
	return s.m.started.Add(sent + s.m.config.Lease - s.m.config.TrustMargin)
}

// callFor returns the call for the batch on c, if there is a short way. m.mu is held.
func (s *session) callFor(c *candidate) (call request, short bool) {
	if c.functions.acquireOne == 0 || s.slowly || s.mark != "" || len(s.work.take.keys) != 1 || s.work.take.mixed {
		return request{}, false
	}
	lease := s.m.config.Lease
	if !s.m.verified {
		lease = -1 // the first lock is looked at, on the long way
	}
	return c.args.acquire(&c.functions, c.pid(), s.work.take.keys[0], lease, s.name, c.known), true
}

// firstCall goes the short way, or on with what a caller has begun. It reports whether that has led to an answer.
func (s *session) firstCall(c *candidate) (done, again bool, err error) {
	begun := s.first
	s.first = nil
	var rows [][][]byte
	switch {
	case begun == nil:
		s.name = s.m.sessionName(s.key)
		s.m.mu.Lock()
		call, short := s.callFor(c)
		s.m.mu.Unlock()
		if !short {
			return false, false, nil
		}
		begun = &firstTry{candidate: c, sent: s.m.now()}
		rows, err = c.ask(s.ctx, call, s.askedUntil(begun.sent))
	case begun.outstanding:
		rows, err = c.await(s.ctx, s.askedUntil(begun.sent))
	default:
		return false, false, nil
	}
	if timedOut(err) && s.ctx.Err() != nil { // the answer is cheaper than a new connection, and waits for nothing on the server
		rows, err = c.await(context.Background(), time.Now().Add(closeTimeout))
	}
	return s.firstAnswer(c, begun.sent, rows, err)
}

// firstAnswer takes over the answer to the call.
func (s *session) firstAnswer(c *candidate, sent time.Duration, rows [][][]byte, err error) (done, again bool, _ error) {
	if statementError(err) != nil {
		s.slowly, s.toUndo = true, true
		return false, false, nil //nolint:nilerr // the long way says why
	}
	if err != nil {
		c.discard()
		return true, false, classify(err)
	}
	token, ok := binaryInt64(rows[0][0])
	other, refused := otherAnswer(token)
	switch {
	case !ok:
		c.discard()
		return true, false, errAnswer
	case refused:
		c.giveBack()
		return true, false, other.refusal()
	case token == callFailed || token == 0 && s.mayWait: // the long way makes the connection ours in either case
		s.slowly = true
		return false, false, nil
	case token == 0:
		return true, s.held(c), nil
	}
	s.ready = c.known
	return true, false, s.adopt(c, reply{outcome: outcomeOK, backend: c.pid(), tokens: []int64{token}, functions: c.functions}, sent)
}

// completeSettings makes the settings of a session that was opened the short way.
func (s *session) completeSettings() error {
	m := s.m
	args := acquireArgs{pid: s.pid, take: &lockArgs{}, most: -1, adopt: true}
	reply, sent, err := s.acquire(args, func(sql string) ([][][]byte, error) {
		return s.conn.roundTrip(request{sql: sql}, m.started.Add(s.trusted()))
	})
	if err == nil {
		err = reply.refusal()
	}
	if err != nil {
		return err
	}
	s.complete = true
	return s.extend(sent)
}

// makeReady has the backend compile what a release needs, while there is time. A session of many locks does so soon enough by itself.
func (s *session) makeReady() error {
	s.ready = true
	if s.mark != "" || s.m.config.LocksPerSession > 1 {
		return nil
	}
	sent := s.m.now()
	if _, err := s.conn.roundTrip(s.args.ready(&s.calls, s.pid), s.m.started.Add(s.trusted())); err != nil {
		return classify(err)
	}
	return s.extend(sent)
}
