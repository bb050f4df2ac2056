package pglock

import (
	"maps"
	"slices"
)

// A Stat is a snapshot of a Locker.
type Stat struct {
	Sessions        int // connections in use, among them
	IdleSessions    int // parked ones and
	WaitingSessions int // those that wait
	Held            int // locks
	Waiters         int // calls that want a lock and have no answer yet

	Acquired       int64 // locks acquired so far
	NotAcquired    int64 // attempts refused because another held the lock, or ended by their ctx
	Released       int64
	Lost           int64
	SessionsOpened int64

	// RefusedSettings are the settings of a lock session, by name, that the server knows and did not let this role set.
	// Locks are taken without them; docs/operations.md says what each is for. idle_session_timeout is never among them:
	// without it no lock is granted.
	RefusedSettings []string
}

// Stat returns a snapshot. It does no I/O.
func (l *Locker) Stat() Stat {
	m := l.m
	m.mu.Lock()
	defer m.mu.Unlock()
	return Stat{
		Sessions:        len(m.sessions),
		IdleSessions:    len(m.idle),
		WaitingSessions: m.waiting,
		Held:            m.load - m.tries,
		Waiters:         m.waiters,
		Acquired:        m.count.acquired,
		NotAcquired:     m.count.notAcquired,
		Released:        m.count.released,
		Lost:            m.count.lost,
		SessionsOpened:  m.count.opened,
		RefusedSettings: slices.Sorted(maps.Keys(m.refused)),
	}
}
