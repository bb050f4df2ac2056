package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Dial connects from the host: it is a pgconn.DialFunc for goroutines of this
// process that are to live on the host's network. addr must be numeric.
func (h *Host) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	dialled := make(chan result, 1)
	go func() {
		// A socket belongs to the namespace of the thread that makes it. The
		// thread is given back only if it is where it was.
		runtime.LockOSThread()
		conn, err := h.dialOnThread(ctx, network, addr)
		if !errors.Is(err, errStranded) {
			runtime.UnlockOSThread()
		}
		dialled <- result{conn, err}
	}()
	r := <-dialled
	return r.conn, r.err
}

// errStranded means that the thread is still in another namespace.
var errStranded = errors.New("the thread could not leave the network namespace")

func (h *Host) dialOnThread(ctx context.Context, network, addr string) (net.Conn, error) {
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	defer func() { _ = home.Close() }()
	away, err := os.Open("/run/netns/" + h.name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = away.Close() }()
	if err := unix.Setns(int(away.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("setns: %w", err)
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, network, addr)
	if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back != nil {
		if conn != nil {
			_ = conn.Close()
		}
		return nil, fmt.Errorf("%w: %w", errStranded, back)
	}
	return conn, err
}
