package supervise

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Config says what is to be run.
type Config struct {
	Path  string
	Args  []string // with the name that the command is called by
	Env   []string
	Grace time.Duration // between SIGTERM and SIGKILL
	Trust time.Duration // until when it may run, on the clock of Monotonic
}

// A Command is the wrapper's side of a command that runs. Its methods are safe for concurrent use.
type Command struct {
	guard  *exec.Cmd
	events chan Event

	mu     sync.Mutex // guards writes to orders
	orders *os.File
}

// Start starts the guard, and the guard the command. Whatever comes of that is an event. The command has this process's
// standard files and what else it has inherited. When Start has returned nil, the events must be read until they end.
func Start(config Config) (*Command, error) {
	if err := becomeReaper(); err != nil {
		return nil, fmt.Errorf("become the reaper of descendants: %w", err)
	}
	path, err := selfPath()
	if err != nil {
		return nil, err
	}
	theirOrders, orders, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = theirOrders.Close() }()
	reports, theirReports, err := os.Pipe()
	if err != nil {
		_ = orders.Close()
		return nil, err
	}
	defer func() { _ = theirReports.Close() }()

	// The guard's ends keep their numbers: those from 3 on may be files that the command is to inherit.
	guard := &exec.Cmd{
		Path: path,
		Args: append([]string{
			GuardName, fdArg(theirOrders), fdArg(theirReports), config.Grace.String(),
			strconv.FormatInt(int64(config.Trust), 10), config.Path,
		}, config.Args...),
		Env:   config.Env,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true},
	}
	for _, file := range []*os.File{theirOrders, theirReports} {
		if _, err = unix.FcntlInt(file.Fd(), unix.F_SETFD, 0); err != nil {
			break
		}
	}
	if err == nil {
		err = guard.Start()
	}
	if err != nil {
		_, _ = orders.Close(), reports.Close()
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	c := &Command{guard: guard, orders: orders, events: make(chan Event, 16)}
	go c.follow(reports)
	return c, nil
}

func fdArg(file *os.File) string { return strconv.Itoa(int(file.Fd())) }

// Events are what happens to the command. The last is Gone: then nothing of it is left, also if the guard was killed.
func (c *Command) Events() <-chan Event { return c.events }

// follow passes on what the guard reports, and takes its place if it is killed.
func (c *Command) follow(reports *os.File) {
	defer close(c.events)
	defer func() { _ = reports.Close() }()
	messages := make(chan Event)
	go receive(reports, messages)
	group, gone := 0, false
	for event := range messages {
		switch event.Kind {
		case Started:
			group = int(event.Number)
		case Gone:
			gone = true
			continue
		default:
		}
		c.events <- event
	}
	_ = c.guard.Wait() // how it ended is known from what it reported
	if !gone && group != 0 {
		tree{root: os.Getpid(), group: group}.killAll()
	}
	_ = c.orders.Close()
	c.events <- Event{Kind: Gone}
}

// Signal sends a signal to the command alone.
func (c *Command) Signal(sig syscall.Signal) { c.order(orderSignal, int64(sig)) }

// SignalGroup sends a signal to the command's group.
func (c *Command) SignalGroup(sig syscall.Signal) { c.order(orderGroup, int64(sig)) }

// Trust lets the command run until then, on the clock of Monotonic.
func (c *Command) Trust(until time.Duration) { c.order(orderTrust, int64(until)) }

// End ends the command and all that it has started: SIGTERM, after the grace SIGKILL.
func (c *Command) End() { c.order(orderEnd, 0) }

// order tells the guard. A guard that is gone has ended the command, or follow does.
func (c *Command) order(kind Kind, number int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = send(c.orders, kind, number)
}
