package pglock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// A Locker acquires locks on one database. It is safe for concurrent use; a service needs one per database and Config.
type Locker struct {
	m *manager
}

// New returns a Locker that takes its connections from pool. A nil config means all defaults. New does no I/O: a server
// that cannot be reached, or that lacks the migrations, is found by the first use.
//
// The error matches ErrInvalidConfig and lists everything that is wrong with config. The pool stays the caller's: close
// the Locker first, then the pool.
func New(pool *pgxpool.Pool, config *Config) (*Locker, error) {
	complete := config.withDefaults(pool)
	problems := complete.problems()
	if pool == nil {
		problems = []string{"pool is nil: open one with pgxpool.New"}
	}
	if len(problems) > 0 {
		return nil, &LockError{Op: "new", Err: fmt.Errorf("%w: %s", ErrInvalidConfig, strings.Join(problems, "; "))}
	}
	return &Locker{m: newManager(pool, complete)}, nil
}

// Close ends the Locker. New work is refused with ErrClosed, waits end with it, and the contexts of all locks end. Then it
// waits for the functions of Do and TryDo that still run, until ctx ends; after that their locks are released all the
// same. It returns when every connection of the Locker is closed and every goroutine of it has ended, at the latest
// Config.ReleaseTimeout after the wait.
//
// The error says how many functions were still running, or that a server did not answer in time; the locks are on their
// way out then too. Close is safe to call twice and from several goroutines. It must not be called by a function of Do,
// which it would wait for.
func (l *Locker) Close(ctx context.Context) error {
	m := l.m
	m.mu.Lock()
	m.refuse()
	locks := m.heldLocks()
	m.mu.Unlock()
	for _, lock := range locks {
		lock.end(&errClosing)
	}
	var problems []error
	select {
	case <-m.drained:
	case <-ctx.Done():
		m.mu.Lock()
		running := m.running
		m.mu.Unlock()
		if running > 0 {
			problems = append(problems, fmt.Errorf("%d functions of Do were still running when the wait for them ended: %w",
				running, ctx.Err()))
		}
	}
	if err := m.shutDown(); err != nil {
		problems = append(problems, err)
	}
	if len(problems) > 0 {
		return &LockError{Op: "close", Err: errors.Join(problems...)}
	}
	return nil
}

var errClosing = fmt.Errorf("%w: %w", ErrReleased, ErrClosed)

// refuse ends all waits and lets nothing new begin. m.mu is held.
func (m *manager) refuse() {
	if m.closed {
		return
	}
	m.closed = true
	m.shut()
	if m.running == 0 {
		close(m.drained)
	}
	for _, ks := range m.keys {
		for ks.queue.first != nil {
			m.answer(ks, ks.queue.first, nil, ErrClosed)
		}
		m.unwanted(ks)
	}
}

// heldLocks returns the locks of all sessions. m.mu is held.
func (m *manager) heldLocks() []*Lock {
	var locks []*Lock
	for s := range m.sessions {
		locks = append(locks, s.locks...)
	}
	return locks
}

// shutDown unlocks what is held, closes every session and waits for the owners, for at most ReleaseTimeout. Then the
// sockets are closed under those that still wait for the server.
func (m *manager) shutDown() error {
	m.mu.Lock()
	locks := m.heldLocks()
	for s := range m.sessions {
		for _, lock := range s.locks {
			m.startRelease(lock)
		}
		if s.state == opening {
			s.unwanted = true
			s.abort()
		}
		m.retire(s)
		s.wake()
	}
	m.mu.Unlock()

	done := make(chan struct{})
	go func() { // ends with the last owner; that is bounded, below
		m.wg.Wait()
		close(done)
	}()
	timer := time.NewTimer(m.config.ReleaseTimeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
	m.mu.Lock()
	stuck := make(map[*session]bool)
	for _, lock := range locks {
		if lock.overdue { // that timer was faster
			stuck[lock.session] = true
		}
	}
	for s := range m.sessions {
		stuck[s] = true
		s.cut()
	}
	m.mu.Unlock()
	<-done
	if len(stuck) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %d sessions did not answer within %v and were cut; their locks end when the server notices, "+
		"at the latest with their leases", ErrUnavailable, len(stuck), m.config.ReleaseTimeout)
}

// begin counts a function of Do. It reports false if the Locker is closed.
func (m *manager) begin() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false
	}
	m.running++
	return true
}

// finish is called when a function that begin counted has ended.
func (m *manager) finish() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running--
	if m.closed && m.running == 0 {
		close(m.drained)
	}
}
