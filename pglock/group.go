package pglock

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// A group is what the tries of one set have in common: the session, and how many of them are wanted.
type group struct {
	session *session
	most    int // grants after which to stop; 0: stop at the first refusal; below 0: each try stands for itself
}

func (g *group) limit() int {
	if g == nil {
		return -1
	}
	return g.most
}

type wantedKey struct {
	key string
	id  LockID
}

// identifyAll checks the keys and leaves out those whose lock another of them names already.
func (m *manager) identifyAll(ctx context.Context, keys []string) ([]wantedKey, error) {
	if len(keys) == 0 {
		return nil, wrap(ErrInvalidKey, "no key was given")
	}
	wanted := make([]wantedKey, 0, len(keys))
	seen := make(map[LockID]struct{}, len(keys))
	for _, key := range keys {
		id, err := m.config.identify(key)
		if err != nil {
			return nil, fmt.Errorf("key %q: %w", shorten(m.label(key)), err)
		}
		if holds(ctx, m, id) {
			return nil, fmt.Errorf("key %q: %w", shorten(m.label(key)), ErrDeadlock)
		}
		if _, double := seen[id]; !double {
			seen[id] = struct{}{}
			wanted = append(wanted, wantedKey{key, id})
		}
	}
	if ctx.Err() != nil {
		return nil, waitEnded(ctx, nil)
	}
	return wanted, m.knowLimits(ctx)
}

// knowLimits asks the server how large its lock table is, before a set could fill it.
func (m *manager) knowLimits(ctx context.Context) error {
	m.mu.Lock()
	known := m.maxLocks > 0
	m.mu.Unlock()
	if known {
		return nil
	}
	candidate, err := openCandidate(ctx, m.pool, m.sql.schema)
	if err != nil {
		return err
	}
	rows, err := candidate.exec(ctx, request{sql: infoSQL})
	if err != nil {
		candidate.discard()
		return classify(err)
	}
	table, logged, deadlock := parseInfo(rows[0]) // the rows are the connection's
	candidate.giveBack()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.learn(table, logged, deadlock)
	return nil
}

// tryAll takes all locks or none.
func (m *manager) tryAll(ctx context.Context, wanted []wantedKey) ([]*Lock, error) {
	locks, err := m.tryGroup(ctx, wanted, &group{})
	if err != nil {
		return nil, err
	}
	if len(locks) < len(wanted) {
		_ = m.releaseAll(locks) // nobody has been told of them
		return nil, fmt.Errorf("%w: %q is held", ErrNotAcquired, shorten(m.label(wanted[len(locks)].key)))
	}
	return locks, nil
}

// waitForAll takes as many as are free, waits for the first that is not, and goes on from there. If the session ends, and
// with it what is held, it begins again.
func (m *manager) waitForAll(ctx context.Context, wanted []wantedKey) ([]*Lock, error) {
	g := &group{}
	var held []*Lock
	for len(held) < len(wanted) {
		more, err := m.tryGroup(ctx, wanted[len(held):], g)
		held = append(held, more...)
		if len(held) == 0 {
			g.session = nil // nothing ties the set to it
		}
		if errors.Is(err, ErrSessionLimit) || errors.Is(err, ErrTooManyLocks) && m.fits(len(wanted)) {
			err = nil // the wait for one key is also a wait for room
		}
		if err == nil && len(held) < len(wanted) {
			var lock *Lock
			if lock, err = m.waitForOne(ctx, wanted[len(held)], g); err == nil {
				held = append(held, lock)
				g.session = lock.session
			}
		}
		if err == nil && held[0].Err() == nil {
			continue
		}
		_ = m.releaseAll(held) // nobody has been told of them
		if err != nil && !errors.Is(err, errSessionGone) {
			return nil, err
		}
		held, g = nil, &group{}
	}
	return held, nil
}

// waitForOne waits for the lock of one key: on any session while nothing is held, on that of the others after that.
func (m *manager) waitForOne(ctx context.Context, key wantedKey, g *group) (*Lock, error) {
	w := &waiter{ctx: ctx, key: key.key, done: make(chan bool, 1)}
	if g.session != nil {
		w.set = &group{session: g.session, most: -1}
	}
	return m.submit(ctx, w, key.id)
}

// tryGroup tries for locks on one session, in one statement, and returns those that were taken. Keys that this process has a
// use for already count as held by somebody else. It sets g.session.
func (m *manager) tryGroup(ctx context.Context, wanted []wantedKey, g *group) ([]*Lock, error) {
	pinned := g.session != nil
	for {
		locks, err := m.tryGroupOnce(ctx, wanted, g)
		switch {
		case errors.Is(err, errSessionGone) && !pinned:
			g.session = nil // a parked session had ended; the next one is asked
		case errors.Is(err, ErrSessionLimit) && m.awaitClosing(ctx):
		default:
			return locks, err
		}
	}
}

func (m *manager) tryGroupOnce(ctx context.Context, wanted []wantedKey, g *group) ([]*Lock, error) {
	waiters, err := m.enqueueGroup(ctx, wanted, g)
	if err != nil {
		return nil, err
	}
	var locks []*Lock
	var failed error
	for i, w := range waiters {
		if w == nil {
			continue
		}
		lock, err := m.await(ctx, w, wanted[i].id)
		if err == nil {
			locks = append(locks, lock)
		} else if !errors.Is(err, ErrNotAcquired) || ctx.Err() != nil {
			failed = err
		}
	}
	if failed != nil {
		_ = m.releaseAll(locks) // nobody has been told of them
		return nil, failed
	}
	return locks, nil
}

// enqueueGroup asks for the locks that nobody here holds or wants; for all of them if the set stops at the first refusal.
// It returns a waiter for each key that was asked for, nil for the others.
func (m *manager) enqueueGroup(ctx context.Context, wanted []wantedKey, g *group) ([]*waiter, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, ErrClosed
	}
	waiters := make([]*waiter, len(wanted))
	asked := 0
	for i, key := range wanted {
		if m.keys[key.id.id] != nil {
			if g.most == 0 {
				break
			}
			continue
		}
		waiters[i] = &waiter{ctx: ctx, key: key.key, try: true, set: g, done: make(chan bool, 1)}
		asked++
	}
	if asked == 0 {
		return nil, nil
	}
	if err := m.sessionOfGroup(waiters, g, asked); err != nil {
		return nil, err
	}
	for i, w := range waiters {
		if w != nil {
			ks := &keyState{id: wanted[i].id}
			m.keys[ks.id.id] = ks
			m.admit(ks, w)
			m.tryOn(g.session, ks)
		}
	}
	return waiters, nil
}

// sessionOfGroup finds a session for n locks, unless the group has one. m.mu is held.
func (m *manager) sessionOfGroup(waiters []*waiter, g *group, n int) error {
	if g.session != nil {
		if !g.session.usable() {
			return errSessionGone
		}
		return m.roomFor(n)
	}
	first := slices.IndexFunc(waiters, func(w *waiter) bool { return w != nil })
	if g.most > 0 {
		n = min(n, g.most)
	}
	s, err := m.pick(waiters[first], n)
	g.session = s
	return err
}

// fits reports whether n locks can ever be held at a time.
func (m *manager) fits(n int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.maxLocks == 0 || n <= m.maxLocks
}

// awaitClosing waits for the next connection to be closed if one is on its way. It reports false if none is, or ctx ended.
func (m *manager) awaitClosing(ctx context.Context) bool {
	m.mu.Lock()
	if m.gone == nil {
		m.gone = make(chan struct{})
	}
	closing, gone := m.closing, m.gone
	m.mu.Unlock()
	if closing == 0 {
		return false
	}
	select {
	case <-gone:
		return true
	case <-ctx.Done():
		return false
	}
}

// releaseAll releases locks, within ReleaseTimeout. Failures end with the session, as a Lock's own release says.
func (m *manager) releaseAll(locks []*Lock) error {
	for _, l := range locks {
		_ = l.Err() // what is past its trust is lost, not released
		l.end(&ErrReleased)
	}
	m.mu.Lock()
	for _, l := range locks {
		m.startRelease(l)
	}
	m.mu.Unlock()
	var failed error
	for _, l := range locks {
		if err := l.released(); err != nil && failed == nil {
			failed = err
		}
	}
	return failed
}
