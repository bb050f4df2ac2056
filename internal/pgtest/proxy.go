package pgtest

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"time"
)

// Direction is one way through a Proxy.
type Direction int

// The directions, named after where they lead.
const (
	ToServer Direction = iota
	ToClient
)

var bothDirections = []Direction{ToServer, ToClient} //nolint:gochecknoglobals // a constant

// Proxy stands in front of a server on TCP. It knows the protocol (without
// encryption, which it refuses on the server's behalf), counts messages, and
// can slow, hold, freeze and cut connections. Its methods are safe for
// concurrent use.
type Proxy struct {
	listener net.Listener
	running  sync.WaitGroup // every goroutine of the proxy

	mu       sync.Mutex // guards all below
	upstream string
	conns    map[*ProxyConn]struct{}
	held     [2]bool                 // directions in which new connections begin held
	delay    [2]func() time.Duration // nil: none
	traps    []*trap
	counts   Counts
	closed   bool
}

// Counts are numbers of messages that went through, by type.
type Counts struct {
	Connections int
	FromClient  map[byte]int // TypeStartup and TypeCancel among them
	FromServer  map[byte]int
}

// RoundTrips is how many requests the server has answered: its ReadyForQuery
// messages. One more than the requests of a connection, for its start.
func (c Counts) RoundTrips() int { return c.FromServer[TypeReadyForQuery] }

// Since is what has been counted after before.
func (c Counts) Since(before Counts) Counts {
	diff := c.clone()
	diff.Connections -= before.Connections
	for typ, n := range before.FromClient {
		diff.FromClient[typ] -= n
	}
	for typ, n := range before.FromServer {
		diff.FromServer[typ] -= n
	}
	return diff
}

func (c Counts) clone() Counts {
	return Counts{c.Connections, maps.Clone(c.FromClient), maps.Clone(c.FromServer)}
}

// NewProxy listens on a free port of 127.0.0.1 and forwards to the upstream
// address. ctx bounds the start only; Close ends it.
func NewProxy(ctx context.Context, upstream string) (*Proxy, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		listener: listener,
		upstream: upstream,
		conns:    map[*ProxyConn]struct{}{},
		counts:   Counts{FromClient: map[byte]int{}, FromServer: map[byte]int{}},
	}
	p.running.Go(p.accept)
	return p, nil
}

// Addr is where the proxy listens, for Server.Via.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Close cuts every connection and returns when nothing of the proxy runs. A
// second call does nothing.
func (p *Proxy) Close() error {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	p.mu.Unlock()
	var err error
	if first {
		err = p.listener.Close()
	}
	p.Cut()
	p.running.Wait()
	return err
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // the client gave up
		}
		p.serve(client)
	}
}

// serve starts a connection's goroutines unless the proxy is being closed.
func (p *Proxy) serve(client net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = client.Close()
		return
	}
	c := newProxyConn(p, client)
	for _, d := range bothDirections {
		if p.held[d] {
			c.pipes[d].gate.shut(func() {})
		}
	}
	p.conns[c] = struct{}{}
	p.counts.Connections++
	p.running.Go(c.run)
}

func (p *Proxy) forget(c *ProxyConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// Conns are the connections that are open now, in no order.
func (p *Proxy) Conns() []*ProxyConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.conns))
}

// Conn is the open connection to the backend of that pid, nil if there is none.
func (p *Proxy) Conn(pid uint32) *ProxyConn {
	for _, c := range p.Conns() {
		if c.PID() == pid {
			return c
		}
	}
	return nil
}

// SetUpstream sends new connections to another address.
func (p *Proxy) SetUpstream(addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.upstream = addr
}

func (p *Proxy) target() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.upstream
}

// Delay holds every packet of the direction for as long as the function says,
// which is called once for each and must be safe for concurrent use; packets
// stay in order. nil ends it.
func (p *Proxy) Delay(d Direction, f func() time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay[d] = f
}

func (p *Proxy) delayNow(d Direction) time.Duration {
	p.mu.Lock()
	f := p.delay[d]
	p.mu.Unlock()
	if f == nil {
		return 0
	}
	return f()
}

// BlackHole holds what is sent in the given directions, both if none is, on
// present and future connections: no byte, no end and no reset comes through
// from when it has returned until Heal. A new connection is accepted, as the
// kernel does for a listener, but reaches no server.
func (p *Proxy) BlackHole(directions ...Direction) {
	if len(directions) == 0 {
		directions = bothDirections
	}
	p.mu.Lock()
	for _, d := range directions {
		p.held[d] = true
	}
	p.mu.Unlock()
	for _, c := range p.Conns() {
		c.BlackHole(directions...)
	}
}

// Heal lets everything through again, on every connection; what was held
// arrives now, as what TCP sends again does after a real partition.
func (p *Proxy) Heal() {
	p.mu.Lock()
	p.held = [2]bool{}
	p.mu.Unlock()
	for _, c := range p.Conns() {
		c.Heal()
	}
}

// Cut resets every open connection on both of its sides, held or not.
func (p *Proxy) Cut() {
	for _, c := range p.Conns() {
		c.Cut()
	}
}

// Counts are the numbers of messages so far. A message is counted before it is
// passed on, so whoever has read an answer finds it counted.
func (p *Proxy) Counts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts.clone()
}

func (p *Proxy) count(d Direction, typ byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d == ToServer {
		p.counts.FromClient[typ]++
	} else {
		p.counts.FromServer[typ]++
	}
}
