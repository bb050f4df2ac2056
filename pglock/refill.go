package pglock

import (
	"context"
	"math/rand/v2"
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

// warmUp has a new backend compile and touch what the next lock on it will need, which takes it as long as its start did, and gives
// the connection back as it was: all settings are rolled back, and no token is drawn. For a moment a lock is held that nobody else
// wants: less than the real thing leaves half of the work to the first lock.
func (m *manager) warmUp(ctx context.Context, c *candidate) {
	if m.config.AllowPooler { // it would be somebody else's backend
		c.giveBack()
		return
	}
	if m.takeBriefly(ctx, c) != nil {
		c.discard() // the next try finds out why
		return
	}
	c.giveBack()
}

func (m *manager) takeBriefly(ctx context.Context, c *candidate) error {
	m.mu.Lock()
	list := settings(m.config.Lease, "", sessionPrefix, m.refused)
	m.mu.Unlock()
	rows, err := c.exec(ctx, request{sql: m.sql.warmUp(c.pid(), list)})
	if err != nil {
		return err
	}
	f, err := parseFunctions(rows[0][0])
	if err != nil {
		return err
	}
	if (f != functions{}) {
		key := warmKey()
		rows, err = c.exec(ctx, c.args.acquire(&f, c.pid(), key, 0, sessionPrefix, true))
		if err == nil {
			if n, ok := binaryInt64(rows[0][0]); !ok || n >= 0 { // taken; the last token may be null
				_, err = c.exec(ctx, c.args.unlock(&f, c.pid(), key))
			}
		}
		c.functions, c.known = f, true
	}
	if err == nil {
		_, err = c.exec(ctx, request{sql: rollbackSQL})
	}
	return err
}

// warmKey is the lock that warmUp takes: one in 2 to the power of 64.
func warmKey() int64 { return int64(rand.Uint64()) }

// runRefill makes a connection, and another if one was taken meanwhile.
func (m *manager) runRefill() {
	for again := true; again; {
		if m.needsRefill() {
			ctx, cancel := context.WithTimeout(m.open, refillTimeout)
			if conn, err := m.pool.Acquire(ctx); err == nil {
				m.warmUp(ctx, pooledCandidate(conn, m.sql.schema))
			}
			cancel()
		}
		m.mu.Lock()
		again = m.refillAgain && !m.closed
		m.refilling, m.refillAgain = again, false
		m.mu.Unlock()
	}
}
