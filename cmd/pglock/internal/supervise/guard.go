package supervise

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// GuardName is the name by which this program is called when it is to be a guard.
const GuardName = "pglock-guard"

// settle is how long an order that was sent in time may take to be read, after a pause of the whole machine.
const settle = 10 * time.Millisecond

// A guard stands between the wrapper and the command.
type guard struct {
	orders  <-chan Event
	reports *os.File
	reaped  <-chan reaped
	tree    tree
	grace   time.Duration
	command int // its process ID; 0 when it has ended

	trusted time.Duration // on the clock of Monotonic
	timer   *time.Timer   // of the present phase
	phase   phase
}

type phase int

const (
	running  phase = iota // until trusted
	doubting              // trusted has passed, an order may be under way
	ending                // SIGTERM was sent
	killing               // SIGKILL is sent again and again
)

type reaped struct {
	pid    int
	status unix.WaitStatus
}

// Guard is the main function of a guard. Its arguments are those that Start gives it, its name included.
func Guard(args []string) (code int) {
	// The kernel ends the command with the thread that started it.
	runtime.LockOSThread()
	g, path, argv, err := newGuard(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "pglock: guard:", err)
		return 70
	}
	surviveSignals()
	if err := becomeReaper(); err != nil {
		fmt.Fprintln(os.Stderr, "pglock: guard: become the reaper of descendants:", err)
		return 70
	}
	attr := &os.ProcAttr{Env: os.Environ(), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: commandAttr()}
	command, err := os.StartProcess(path, argv, attr)
	if err != nil {
		number, _ := errors.AsType[syscall.Errno](err)
		g.report(Failed, int64(number))
		g.report(Gone, 0)
		return 0
	}
	g.command = command.Pid
	g.tree = tree{root: os.Getpid(), group: command.Pid}
	g.report(Started, int64(command.Pid))
	g.reaped = reap()
	g.watch()
	g.report(Gone, 0)
	return 0
}

func newGuard(args []string) (g *guard, path string, argv []string, err error) {
	if len(args) < 7 {
		return nil, "", nil, errors.New("this program is started by pglock run")
	}
	ordersFD, err1 := strconv.Atoi(args[1])
	reportsFD, err2 := strconv.Atoi(args[2])
	grace, err3 := time.ParseDuration(args[3])
	trusted, err4 := strconv.ParseInt(args[4], 10, 64)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, "", nil, err
	}
	unix.CloseOnExec(ordersFD) // the command must not hold them
	unix.CloseOnExec(reportsFD)
	orders := make(chan Event)
	go receive(os.NewFile(uintptr(ordersFD), "orders"), orders)
	g = &guard{
		orders: orders, reports: os.NewFile(uintptr(reportsFD), "reports"),
		grace: grace, trusted: time.Duration(trusted),
	}
	g.timer = time.NewTimer(g.trusted - Monotonic())
	return g, args[5], args[6:], nil
}

// surviveSignals keeps the guard alive. It catches signals rather than ignoring them, since the command would inherit that;
// one that is ignored already, as nohup does, it leaves to the command.
func surviveSignals() {
	caught := make(chan os.Signal, 1) // nobody reads it
	for _, sig := range []os.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGTSTP} {
		if !signal.Ignored(sig) {
			signal.Notify(caught, sig)
		}
	}
}

// reap waits for all children, on Linux those too that have lost their parent. The channel is closed when there are none.
func reap() <-chan reaped {
	into := make(chan reaped)
	go func() {
		defer close(into)
		for {
			var status unix.WaitStatus
			pid, err := unix.Wait4(-1, &status, unix.WUNTRACED, nil)
			switch {
			case errors.Is(err, unix.EINTR):
			case err != nil:
				return
			default:
				into <- reaped{pid: pid, status: status}
			}
		}
	}()
	return into
}

// watch returns when nothing of the command is left.
func (g *guard) watch() {
	for {
		select {
		case order, ok := <-g.orders:
			if !ok { // the wrapper is gone, and its lock with it
				g.orders = nil
				g.kill()
				continue
			}
			g.obey(order)
		case child, ok := <-g.reaped:
			if !ok {
				g.reaped = nil
			} else if child.pid == g.command {
				g.follow(child.status)
			}
		case <-g.timer.C:
			g.next()
		}
		if g.reaped == nil && g.tree.empty() {
			return
		}
	}
}

func (g *guard) obey(order Event) {
	sig := unix.Signal(order.Number)
	switch order.Kind {
	case orderTrust:
		g.trusted = time.Duration(order.Number)
		if g.phase <= doubting {
			g.phase = running
			g.timer.Reset(g.trusted - Monotonic())
		}
	case orderSignal:
		if g.command != 0 {
			_ = unix.Kill(g.command, sig)
		}
	case orderGroup:
		if g.command != 0 {
			_ = unix.Kill(-g.tree.group, sig)
		}
	case orderEnd:
		g.end()
	default: // an event is no order
	}
}

// follow reports what the command did. When it has ended, what it has left behind ends too: it would go on without the lock.
func (g *guard) follow(status unix.WaitStatus) {
	switch {
	case status.Stopped():
		g.report(Stopped, int64(status.StopSignal()))
		return
	case status.Signaled():
		g.report(Killed, int64(status.Signal()))
	default:
		g.report(Exited, int64(status.ExitStatus()))
	}
	g.command = 0
	g.end()
}

// next goes on when the time of the present phase is over.
func (g *guard) next() {
	switch g.phase {
	case running:
		g.phase = doubting
		g.timer.Reset(settle)
	case doubting:
		g.report(Overdue, 0)
		g.end()
	case ending, killing:
		g.kill()
	}
}

// end asks everything to end, those processes too that are stopped.
func (g *guard) end() {
	if g.phase >= ending {
		return
	}
	g.phase = ending
	g.timer.Reset(g.grace)
	g.tree.signal(unix.SIGTERM)
	g.tree.signal(unix.SIGCONT)
}

func (g *guard) kill() {
	g.phase = killing
	g.tree.signal(unix.SIGKILL)
	g.timer.Reset(killPause)
}

// report tells the wrapper, unless that is gone.
func (g *guard) report(kind Kind, number int64) { _ = send(g.reports, kind, number) }
