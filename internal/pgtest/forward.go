package pgtest

import "net"

// forward counts the messages in b and passes it on, up to where a trap has it
// stop.
func (c *ProxyConn) forward(p *pipe, dst *net.TCPConn, b []byte) error {
	segments, err := p.frames.feed(b)
	if err != nil {
		return err
	}
	var out []byte // what goes in one write, as it came in one read
	for _, s := range segments {
		if s.start {
			c.proxy.count(p.direction, s.typ)
			p.message = p.message[:0]
			p.whole = c.proxy.trapsSet(p.direction)
		}
		p.message = append(p.message, s.data...)
		if s.end {
			c.noteBackend(s.typ, p.message)
		}
		switch {
		case s.typ == typeEncryption:
			if s.end {
				if err := c.send(c.pipes[ToClient], c.destination(ToClient), []byte("N")); err != nil {
					return err
				}
			}
			continue
		case !p.whole:
			out = append(out, s.data...)
			continue
		case !s.end:
			continue
		}
		if out, err = c.passTraps(p, dst, s.typ, out); err != nil {
			return err
		}
	}
	return c.send(p, dst, out)
}

// passTraps adds a whole message to out, unless it springs a trap: then it
// sends what still may go, acts, and returns what is left for after a heal.
func (c *ProxyConn) passTraps(p *pipe, dst *net.TCPConn, typ byte, out []byte) ([]byte, error) {
	t := c.proxy.spring(c, p.direction, typ, p.message)
	if t == nil {
		return append(out, p.message...), nil
	}
	pass := len(p.message)
	if t.Pass != WholeMessage {
		pass = min(t.Pass, pass)
	} else if p.direction == ToServer {
		// Before the message goes out, or its reply could come in before act.
		c.BlackHole(ToClient)
	}
	if err := c.send(p, dst, append(out, p.message[:pass]...)); err != nil {
		return nil, err
	}
	t.act(c)
	return append([]byte(nil), p.message[pass:]...), nil
}
