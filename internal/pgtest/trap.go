package pgtest

import (
	"bytes"
	"slices"
)

// WholeMessage as Trap.Pass lets the message through before the trap acts: the
// server gets the request, and the client never hears of it.
const WholeMessage = -1

// Trap picks one message and acts on its connection in the middle of it.
type Trap struct {
	Direction Direction
	Type      byte   // 0: any type
	Contains  string // in the message's body, such as a piece of SQL
	Skip      int    // so many messages that match go through first
	Pass      int    // bytes of the message that still go through, or WholeMessage
	Cut       bool   // reset the connection rather than black-hole it
	PID       uint32 // only on the connection to this backend; 0: on any
}

type trap struct {
	Trap
	sprung chan *ProxyConn // gets the connection, then is closed
}

// Set arms a trap, for once. The channel yields the connection when the trap
// has acted on it, and is never closed if it does not come to that.
func (p *Proxy) Set(t Trap) <-chan *ProxyConn {
	armed := &trap{Trap: t, sprung: make(chan *ProxyConn, 1)}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.traps = append(p.traps, armed)
	return armed.sprung
}

// trapsSet tells whether messages of the direction must be seen whole.
func (p *Proxy) trapsSet(d Direction) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.traps, func(t *trap) bool { return t.Direction == d })
}

// spring removes and returns the trap that the message sets off, or nil.
func (p *Proxy) spring(c *ProxyConn, d Direction, typ byte, message []byte) *trap {
	pid := c.PID()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, t := range p.traps {
		if t.Direction != d || (t.Type != 0 && t.Type != typ) || (t.PID != 0 && t.PID != pid) ||
			!bytes.Contains(message, []byte(t.Contains)) {
			continue
		}
		if t.Skip > 0 {
			t.Skip--
			continue
		}
		p.traps = slices.Delete(p.traps, i, i+1)
		return t
	}
	return nil
}

func (t *trap) act(c *ProxyConn) {
	if t.Cut {
		c.Cut()
	} else {
		c.BlackHole()
	}
	t.sprung <- c
	close(t.sprung)
}
