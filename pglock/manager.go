package pglock

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed35111a8b/pglock/internal/keyhash"
)

// minSlice is the shortest slice of waiting that is worth it: shorter ones cost more in statements than polling does.
const minSlice = 100 * time.Millisecond

// A manager is the connection manager: it owns every session, decides which one serves a request, and keeps the budgets.
// It is the part of a Locker that the callers' goroutines and the sessions' owners meet in.
type manager struct {
	config  Config
	pool    *pgxpool.Pool
	sql     statements
	started time.Time // origin of the monotonic times below
	app     string    // the service's own application_name
	wg      sync.WaitGroup
	open    context.Context //nolint:containedctx // ends when the Locker is closed
	shut    context.CancelFunc

	spareWaiters sync.Pool // that nobody refers to any more
	patient      atomic.Pointer[patience]

	// mu guards everything below, and the fields of sessions, keyStates and waiters that say so. Nothing that waits for
	// the network, for a user's function or for another goroutine may be done under it.
	mu          mutex
	closed      bool
	watch       *time.Timer // runs while watching
	watching    bool        // callers that open sessions are watched
	refilling   bool        // a refill is under way
	refillAgain bool        // a connection was taken meanwhile
	keys        map[keyhash.ID]*keyState
	sessions    map[*session]struct{}
	idle        []*session      // parked: open, without locks or requests; the last one was used last
	room        *session        // where the last lock found room, if LocksPerSession allows more there
	starved     []*keyState     // those whose next attempt waits for a budget
	closing     int             // sessions that hold nothing and whose connection is being closed
	waiting     int             // sessions that wait, or may be about to
	load        int             // locks held and tries under way
	tries       int             // tries under way
	waiters     int             // callers that wait
	tickets     uint64          // given to waiters so far
	running     int             // functions of Do and TryDo that run
	drained     chan struct{}   // closed when the Locker is closed and no function of Do runs
	gone        chan struct{}   // if somebody waits for it: closed when the next session is gone
	refused     map[string]bool // settings that this server knows and refuses
	verified    bool            // advisory locks and the sequence have been checked
	maxLocks    int             // Config.MaxLocks, or what the server's table suggests once it is known
	// unordered lets sets take their locks as they come, for the test that shows what the order is for.
	unordered bool
	slice     time.Duration // of waiting; 0 until a server said what it may be, negative where slices are too short
	count     counters
}

// counters are the totals of Stat.
type counters struct {
	acquired, notAcquired, released, lost, opened int64
}

func newManager(pool *pgxpool.Pool, config Config) *manager {
	open, shut := context.WithCancel(context.Background())
	return &manager{
		open:     open,
		shut:     shut,
		config:   config,
		pool:     pool,
		sql:      statementsOf(config.Schema),
		started:  time.Now(),
		app:      pool.Config().ConnConfig.RuntimeParams["application_name"],
		keys:     make(map[keyhash.ID]*keyState),
		sessions: make(map[*session]struct{}),
		drained:  make(chan struct{}),
		refused:  make(map[string]bool),
		maxLocks: config.MaxLocks,
	}
}

// now is the monotonic clock that trust is counted on.
func (m *manager) now() time.Duration { return time.Since(m.started) }

// sessionFor finds the session that serves the next try of w. m.mu is held.
func (m *manager) sessionFor(w *waiter) (*session, error) {
	if w.set == nil {
		return m.pick(w, 1)
	}
	if !w.set.session.usable() {
		return nil, errSessionGone
	}
	return w.set.session, m.roomFor(1)
}

// roomFor returns an error unless n more locks fit into the budget. m.mu is held.
func (m *manager) roomFor(n int) error {
	if m.maxLocks > 0 && m.load+n > m.maxLocks {
		return fmt.Errorf("%w: %d are wanted, %d are held or under way, %d may be", ErrTooManyLocks, n, m.load, m.maxLocks)
	}
	return nil
}

// pick finds a session for n locks that w wants: one with room, a parked one, or a new one. m.mu is held.
func (m *manager) pick(w *waiter, n int) (*session, error) {
	if err := m.roomFor(n); err != nil {
		return nil, err
	}
	if s := m.withRoom(n); s != nil {
		return s, nil
	}
	if len(m.idle) > 0 {
		m.room = m.takeIdle()
		return m.room, nil
	}
	if len(m.sessions) >= m.config.MaxSessions {
		return nil, fmt.Errorf("%w: %d sessions are in use", ErrSessionLimit, len(m.sessions))
	}
	s := m.newSession(w)
	if m.config.LocksPerSession > 1 {
		m.room = s
	} else if !w.try && m.mayWaitMore() {
		m.reserve(s) // it can go on waiting on the connection that its try was made on
	}
	return s, nil
}

// withRoom returns a session that can carry n more locks, nil if there is none. m.mu is held.
func (m *manager) withRoom(n int) *session {
	if m.config.LocksPerSession == 1 {
		return nil
	}
	before := m.config.LocksPerSession - n
	if m.room != nil && m.room.hasRoom(before) {
		return m.room
	}
	for s := range m.sessions {
		if s.hasRoom(before) && !s.parked {
			m.room = s
			return s
		}
	}
	return nil
}

// newSession makes a session that first tries for w. Whoever unlocks m.mu starts it. m.mu is held.
func (m *manager) newSession(w *waiter) *session {
	s := &session{m: m, values: w.ctx, key: w.key}
	s.tries, s.batch.tries = s.room.tries[:0], s.room.batch[:0]
	s.work.take.keys, s.work.take.kinds = s.room.keys[:0], s.room.kinds[:0]
	if m.config.AllowPooler {
		s.mark = rand.Text()
	}
	m.sessions[s] = struct{}{}
	m.count.opened++
	m.wg.Add(1)
	m.mu.opened = append(m.mu.opened, s)
	return s
}

// mayWaitMore reports whether one more session may wait. Where sessions are shared one is left for those that need not
// wait. m.mu is held.
func (m *manager) mayWaitMore() bool {
	return m.waiting < m.config.MaxWaiting && m.slice >= 0 &&
		(m.config.LocksPerSession == 1 || m.waiting < m.config.MaxSessions-1)
}

// reserve makes s a session that waits, or is about to. m.mu is held.
func (m *manager) reserve(s *session) {
	if !s.mayWait {
		s.mayWait = true
		m.waiting++
	}
}

// waitOn lets s wait for ks. m.mu is held.
func (m *manager) waitOn(s *session, ks *keyState) {
	m.reserve(s)
	s.waitFor = ks
	ks.front, ks.session = frontWaiting, s
	s.wake()
}

// takeIdle returns the parked session that was used last. m.mu is held.
func (m *manager) takeIdle() *session {
	last := len(m.idle) - 1
	s := m.idle[last]
	m.idle = m.idle[:last]
	s.parked = false
	return s
}

// startWaiting lets ks wait for a lock that somebody else holds: on s if nothing else is done on it, else on a session of
// its own, else by polling. m.mu is held.
func (m *manager) startWaiting(ks *keyState, s *session) {
	head := ks.queue.first
	switch {
	case head.set != nil || m.slice < minSlice:
		m.pause(ks, nil)
	case s.state == open && s.load == 0 && !s.stop && (s.mayWait || m.mayWaitMore()):
		m.waitOn(s, ks)
	case m.mayWaitMore() && len(m.idle) > 0:
		m.waitOn(m.takeIdle(), ks)
	case m.mayWaitMore() && len(m.sessions) < m.config.MaxSessions:
		own := m.newSession(head)
		m.reserve(own)
		m.tryOn(own, ks)
	default:
		m.pause(ks, nil)
	}
}

// stopWaiting takes the role of a waiting session from s. m.mu is held.
func (m *manager) stopWaiting(s *session) {
	s.waitFor = nil
	if s.mayWait {
		s.mayWait = false
		m.waiting--
	}
}

// settle decides what becomes of an open session that may have run out of work: it is parked or told to close. m.mu is held.
func (m *manager) settle(s *session) {
	if s.waitFor != nil || s.load > 0 || s.busy() || s.stop || s.parked || s.state != open {
		return
	}
	m.stopWaiting(s)
	if m.closed || len(m.idle) >= m.config.MaxIdleSessions {
		m.retire(s)
		return
	}
	if m.room == s {
		m.room = nil
	}
	s.parked = true
	m.idle = append(m.idle, s)
	m.feed()
}

// retire lets no more requests come to s. m.mu is held.
func (m *manager) retire(s *session) {
	if s.stop {
		return
	}
	s.stop = true
	m.closing++
	m.unpark(s)
	if m.room == s {
		m.room = nil
	}
}

// unpark takes s from the parked sessions if it is one of them. m.mu is held.
func (m *manager) unpark(s *session) {
	if i := slices.Index(m.idle, s); i >= 0 {
		m.idle = slices.Delete(m.idle, i, i+1)
	}
	s.parked = false
}

// forget removes a session that has ended and lets those go on that waited for its place. m.mu is held.
func (m *manager) forget(s *session) {
	if s.state == ended {
		return
	}
	s.state = ended
	m.stopWaiting(s)
	if s.stop {
		m.closing--
	}
	if s.watching {
		s.watch.Stop()
	}
	delete(m.sessions, s)
	if m.gone != nil {
		close(m.gone)
		m.gone = nil
	}
	m.unpark(s)
	if m.room == s {
		m.room = nil
	}
	m.feed()
}

// feed gives those another try that a budget stopped. m.mu is held.
func (m *manager) feed() {
	if len(m.starved) == 0 {
		return
	}
	list := m.starved
	m.starved = nil
	for _, ks := range list {
		ks.listed = false
		if ks.front == frontStarved {
			ks.front = frontNone
			m.dispatch(ks)
		}
	}
}

// learn takes over what a server said of its lock table and its time-outs. m.mu is held.
func (m *manager) learn(table int64, logged, deadlock time.Duration) {
	if m.config.MaxLocks == 0 && table > 0 {
		m.maxLocks = int(max(1, table/4))
	}
	m.slice = sliceLength(m.config.Lease, logged, deadlock)
}

// sliceLength returns how long one slice of waiting may be, negative if that is too short to be worth it. A slice must end
// before the server looks for deadlocks, which it also logs with log_lock_waits, before it would log the statement, and
// well within the lease. logged is negative where nothing is logged.
func sliceLength(lease, logged, deadlock time.Duration) time.Duration {
	slice := min(400*time.Millisecond, deadlock/2, lease/3)
	if logged >= 0 {
		slice = min(slice, logged)
	}
	slice = slice * 8 / 10
	if slice < minSlice {
		return -1
	}
	return slice.Truncate(time.Millisecond)
}

// sessionPrefix follows the service's own name in the application_name of a session.
const sessionPrefix = "pglock"

// sessionName is the application_name of a session: the service's own and, where it carries one lock, the key.
func (m *manager) sessionName(key string) string {
	const most = 63
	name := sessionPrefix
	if m.config.LocksPerSession == 1 {
		name += ":" + m.label(key)
	}
	if m.app != "" {
		name = m.app + " " + name
	}
	name = shortenTo(name, 4*most)
	if strings.IndexFunc(name, notPlain) >= 0 {
		name = strings.Map(func(r rune) rune {
			if notPlain(r) {
				return '?'
			}
			return r
		}, name)
	}
	return shortenTo(name, most)
}

func notPlain(r rune) bool { return r < ' ' || r > '~' }

func shortenTo(s string, most int) string {
	return s[:min(len(s), most)]
}

// label is how a key appears where others can read it.
func (m *manager) label(key string) string {
	if m.config.HideKeys {
		return m.config.lockID(key).String()
	}
	return key
}

// lockError wraps err for the method op.
func (m *manager) lockError(op, key string, err error) error {
	return &LockError{Op: op, Key: m.label(key), Err: err}
}
