package pgtest

import "sync"

// gate lets writers through while it is open. Once shut has returned no writer
// is inside, so that nothing passes after a black hole has begun.
type gate struct {
	mu      sync.Mutex // guards all below; never held while waiting
	closed  bool
	inside  int
	opened  chan struct{} // closed when the gate opens; nil while it is open
	drained chan struct{} // closed when the last writer leaves; nil if nobody waits
}

// enter waits until the gate is open and is then inside until leave. It is
// false if stop was closed first.
func (g *gate) enter(stop <-chan struct{}) bool {
	for {
		g.mu.Lock()
		if !g.closed {
			g.inside++
			g.mu.Unlock()
			return true
		}
		opened := g.opened
		g.mu.Unlock()
		select {
		case <-opened:
		case <-stop:
			return false
		}
	}
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	if g.inside == 0 && g.drained != nil {
		close(g.drained)
		g.drained = nil
	}
}

// shut closes the gate and waits for the writers inside, whom kick must get
// out even if they are blocked.
func (g *gate) shut(kick func()) {
	g.mu.Lock()
	if !g.closed {
		g.closed = true
		g.opened = make(chan struct{})
	}
	if g.inside > 0 && g.drained == nil {
		g.drained = make(chan struct{})
	}
	drained := g.drained
	g.mu.Unlock()
	if drained != nil {
		kick()
		<-drained
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		g.closed = false
		close(g.opened)
		g.opened = nil
	}
}
