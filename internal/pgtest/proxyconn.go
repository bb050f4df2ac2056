package pgtest

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// ProxyConn is one connection through a Proxy.
type ProxyConn struct {
	proxy  *Proxy
	pipes  [2]*pipe
	pid    atomic.Uint32
	done   <-chan struct{} // closed by stop
	stop   context.CancelFunc
	ending context.Context //nolint:containedctx // for the dial, which is no call of a user's

	mu     sync.Mutex // guards both sockets until they are set and closed
	client *net.TCPConn
	server *net.TCPConn // nil until dialled
}

// pipe is one direction of a connection.
type pipe struct {
	direction Direction
	gate      gate
	frames    framer
	packets   chan packet

	message []byte // the one in progress, for whoever must see it whole
	whole   bool   // it is held until complete, because a trap is set
}

// packet is what one read returned.
type packet struct {
	data []byte
	err  error // the end of the stream, after data
	due  time.Time
}

func newProxyConn(p *Proxy, client net.Conn) *ProxyConn {
	ctx, stop := context.WithCancel(context.Background())
	c := &ProxyConn{proxy: p, ending: ctx, done: ctx.Done(), stop: stop}
	c.client, _ = client.(*net.TCPConn) // a TCP listener makes no other
	for _, d := range bothDirections {
		c.pipes[d] = &pipe{direction: d, packets: make(chan packet, 256)}
	}
	c.pipes[ToServer].frames.untyped = true
	return c
}

// PID is that of the backend, 0 until it has said so.
func (c *ProxyConn) PID() uint32 { return c.pid.Load() }

// BlackHole is Proxy.BlackHole for this connection.
func (c *ProxyConn) BlackHole(directions ...Direction) {
	if len(directions) == 0 {
		directions = bothDirections
	}
	for _, d := range directions {
		c.pipes[d].gate.shut(func() {
			if dst := c.destination(d); dst != nil {
				_ = dst.SetWriteDeadline(time.Unix(1, 0)) // fails only on a closed socket
			}
		})
	}
}

// Heal is Proxy.Heal for this connection.
func (c *ProxyConn) Heal() {
	for _, p := range c.pipes {
		p.gate.open()
	}
}

// Cut is Proxy.Cut for this connection.
func (c *ProxyConn) Cut() {
	c.stop()
	c.proxy.forget(c)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range []*net.TCPConn{c.client, c.server} {
		if conn != nil {
			_ = conn.SetLinger(0) // makes Close send a reset
			_ = conn.Close()
		}
	}
}

func (c *ProxyConn) destination(d Direction) *net.TCPConn {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d == ToServer {
		return c.server
	}
	return c.client
}

// run is the connection's life. It ends when both directions have, or when one
// fails, or at Cut.
func (c *ProxyConn) run() {
	defer c.Cut() // by then it has ended in order, or this ends it
	if !c.dial() {
		return
	}
	var all sync.WaitGroup
	for _, p := range c.pipes {
		src := c.destination(1 - p.direction)
		all.Go(func() { c.read(p, src) })
		all.Go(func() { c.write(p, c.destination(p.direction)) })
	}
	all.Wait()
}

// dial connects to the server once the way there is open.
func (c *ProxyConn) dial() bool {
	way := &c.pipes[ToServer].gate
	if !way.enter(c.done) {
		return false
	}
	way.leave()
	var dialer net.Dialer
	conn, err := dialer.DialContext(c.ending, "tcp", c.proxy.target())
	if err != nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server, _ = conn.(*net.TCPConn) // "tcp" makes no other
	if c.ending.Err() != nil {
		_ = conn.Close() // Cut came before it could see the socket
		return false
	}
	return true
}

// read takes packets off the source until its end, whether or not they can be
// passed on: only so does the time at which each came decide when it is due.
func (c *ProxyConn) read(p *pipe, src *net.TCPConn) {
	defer close(p.packets)
	for {
		buf := make([]byte, 16<<10)
		n, err := src.Read(buf)
		pkt := packet{data: buf[:n], err: err, due: time.Now().Add(c.proxy.delayNow(p.direction))}
		select {
		case p.packets <- pkt:
		case <-c.done:
			return
		}
		if err != nil {
			return
		}
	}
}

// write passes packets on when they are due and the gate is open.
func (c *ProxyConn) write(p *pipe, dst *net.TCPConn) {
	for pkt := range p.packets {
		if !c.sleepUntil(pkt.due) {
			return
		}
		if err := c.forward(p, dst, pkt.data); err != nil {
			c.Cut()
			return
		}
		if pkt.err == nil {
			continue
		}
		if !p.gate.enter(c.done) {
			return
		}
		p.gate.leave()
		if !errors.Is(pkt.err, io.EOF) || dst.CloseWrite() != nil {
			c.Cut() // a reset on one side is one on the other
		}
		return
	}
}

func (c *ProxyConn) sleepUntil(t time.Time) bool {
	left := time.Until(t)
	if left <= 0 {
		return true
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.done:
		return false
	}
}

// send writes all of b through the gate. A black hole kicks a blocked write
// out by a deadline in the past; the rest is written after the heal.
func (c *ProxyConn) send(p *pipe, dst *net.TCPConn, b []byte) error {
	for len(b) > 0 {
		if !p.gate.enter(c.done) {
			return net.ErrClosed
		}
		n, err := dst.Write(b)
		p.gate.leave()
		b = b[n:]
		if errors.Is(err, os.ErrDeadlineExceeded) {
			// Outside the gate: inside, it could undo the next kick.
			err = dst.SetWriteDeadline(time.Time{})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// noteBackend learns the backend's pid from BackendKeyData.
func (c *ProxyConn) noteBackend(typ byte, message []byte) {
	if typ == typeBackendKey && len(message) >= headerSize+lengthSize {
		c.pid.Store(binary.BigEndian.Uint32(message[headerSize:]))
	}
}
