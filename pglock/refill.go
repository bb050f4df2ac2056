package pglock

import (
	"context"
	"time"
)

// This file has a pool replace the connections that sessions take from it, and makes the new ones ready for a lock.

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
	rows, err := c.exec(ctx, m.sql.warmUp(c.pid(), list))
	if err != nil {
		c.discard() // the next try finds out why
		return
	}
	if f, err := parseFunctions(rows[0][0]); err == nil {
		c.learn(m.sql.schema, f, true)
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
