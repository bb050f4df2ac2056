package main

import (
	"context"
	"math/rand/v2"
	"os/exec"
	"time"

	"github.com/seed35111a8b/pglock/internal/faults/history"
	"github.com/seed35111a8b/pglock/internal/pgtest"
)

// link is the way of a client to the server.
type link interface {
	dsn(r *runner, database string) string
	command(cmd *exec.Cmd) *exec.Cmd
	can(kind string) bool // whether the link has this fault
	blackHole(ctx context.Context, directions ...pgtest.Direction) error
	heal(ctx context.Context) error
	// deafness is for how long a client may hear nothing after a hole of that length
	// was healed.
	deafness(hole int64) int64
	slow(delay time.Duration) // at most; 0: no more
	cut()
	close() error
}

// proxyLink is a proxy on this machine, in front of the server or of a pooler.
type proxyLink struct{ *pgtest.Proxy }

func (l proxyLink) dsn(r *runner, database string) string { return r.server.Via(l.Addr(), database) }
func (l proxyLink) command(cmd *exec.Cmd) *exec.Cmd       { return cmd }
func (l proxyLink) can(string) bool                       { return true }
func (l proxyLink) cut()                                  { l.Cut() }
func (l proxyLink) close() error                          { return l.Close() }
func (l proxyLink) deafness(int64) int64                  { return 0 }

func (l proxyLink) blackHole(_ context.Context, directions ...pgtest.Direction) error {
	l.BlackHole(directions...)
	return nil
}

func (l proxyLink) heal(context.Context) error {
	l.Heal()
	return nil
}

func (l proxyLink) slow(delay time.Duration) {
	var f func() time.Duration
	if delay > 0 {
		f = func() time.Duration { return rand.N(delay) }
	}
	l.Delay(pgtest.ToServer, f)
	l.Delay(pgtest.ToClient, f)
}

// hostLink is a network namespace: packets are lost, and the kernel does what it
// does about that.
type hostLink struct {
	*pgtest.Host
	server string
}

func (l hostLink) dsn(r *runner, database string) string { return r.server.ViaHost(l.server, database) }
func (l hostLink) command(cmd *exec.Cmd) *exec.Cmd       { return l.Command(cmd) }
func (l hostLink) can(kind string) bool                  { return kind != history.Slow && kind != history.Cut }
func (l hostLink) heal(ctx context.Context) error        { return l.Heal(ctx) }
func (l hostLink) slow(time.Duration)                    {}
func (l hostLink) cut()                                  {}
func (l hostLink) close() error                          { return nil } // with the network

func (l hostLink) blackHole(ctx context.Context, directions ...pgtest.Direction) error {
	return l.BlackHole(ctx, directions...)
}

// deafness: TCP waits twice as long before each time that it sends again.
func (l hostLink) deafness(hole int64) int64 { return 2 * hole }
