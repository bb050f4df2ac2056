package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/seed35111a8b/pglock/internal/faults/history"
	"github.com/seed35111a8b/pglock/internal/pgtest"
)

// seat is where a client sits: its link to the server, and one process after the
// other. Its methods belong to the goroutine that runs its plan, but for tell.
type seat struct {
	run      *runner
	number   int
	sessions int
	pooler   bool
	link     link
	dsn      string

	reading sync.WaitGroup
	log     *history.Process // of the present process; its reader writes it

	mu      sync.Mutex // guards process
	process *pgtest.Process
}

func (s *seat) name() string { return fmt.Sprintf("faults-c%d", s.number) }

// spawn starts the seat's next process.
func (s *seat) spawn(ctx context.Context, life int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "client", "-dsn", s.dsn, "-name", s.name(),
		"-number", strconv.Itoa(s.number), "-life", strconv.Itoa(life), "-seed", strconv.FormatUint(s.run.seed, 10),
		"-sessions", strconv.Itoa(s.sessions), "-pooler="+strconv.FormatBool(s.pooler),
		"-workers", strconv.Itoa(workers), "-keys", strings.Join(s.run.keys, ","))
	cmd.Env = append(os.Environ(), "GORACE=halt_on_error=1")
	process, err := pgtest.Spawn(s.link.command(cmd))
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.process = process
	s.mu.Unlock()
	s.log = &history.Process{Client: s.number, Life: life}
	log := s.log
	s.reading.Go(func() { s.read(context.WithoutCancel(ctx), process, log) })
	return nil
}

// read keeps what a process says, up to its end, which ends it.
func (s *seat) read(ctx context.Context, process *pgtest.Process, log *history.Process) {
	for {
		line, err := process.Line(ctx)
		if err != nil {
			if !errors.Is(err, io.EOF) {
				s.run.violation("client", s.name(), err.Error())
			}
			return
		}
		var e history.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			s.run.violation("client", s.name(), fmt.Sprintf("it wrote %q: %v", line, err))
			continue
		}
		log.Events = append(log.Events, e)
	}
}

// tell says a line to the process, if there is one.
func (s *seat) tell(line string) {
	s.mu.Lock()
	process := s.process
	s.mu.Unlock()
	if process != nil {
		_ = process.Tell(line) // it may have been killed
	}
}

// follow lets the plan's faults strike, until ctx ends.
func (s *seat) follow(ctx context.Context, plan []step) error {
	for _, step := range plan {
		wait(ctx, step.after)
		if over(ctx) || s.ended() { // stop finds out why it has ended
			break
		}
		if err := s.strike(ctx, step); err != nil {
			return fmt.Errorf("%s: %s: %w", s.name(), step.kind, err)
		}
	}
	return nil
}

func (s *seat) ended() bool {
	select {
	case <-s.process.Done():
		return true
	default:
		return false
	}
}

func (s *seat) strike(ctx context.Context, step step) error {
	if !s.link.can(step.kind) {
		step.kind = history.Partition // of no length, for a fault that had none
	}
	d := history.Disturbance{Kind: step.kind, Client: s.number, Begin: history.Now()}
	switch step.kind {
	case history.Kill:
		return s.kill(ctx, d)
	case history.Freeze:
		err := s.process.Freeze()
		d.Begun = history.Now()
		wait(ctx, step.lasts)
		d.Ending = history.Now()
		err = errors.Join(err, s.process.Thaw())
		s.run.disturbed(d, history.Now())
		return err
	case history.Partition:
		return s.partition(ctx, step, d)
	case history.Slow:
		s.link.slow(step.delay)
		d.Begun = history.Now()
		wait(ctx, step.lasts)
		d.Ending = history.Now()
		s.link.slow(0)
		s.run.disturbed(d, history.Now())
		return nil
	case history.Cut:
		s.link.cut()
		d.Begun = history.Now()
		s.run.disturbed(d, 0)
		return nil
	case history.Terminate:
		s.run.terminate(ctx, s)
		return nil
	}
	return fmt.Errorf("no such fault: %q", step.kind)
}

// kill ends the process and starts the next.
func (s *seat) kill(ctx context.Context, d history.Disturbance) error {
	if err := s.process.Kill(); err != nil {
		return err
	}
	d.Begun = history.Now()
	s.run.disturbed(d, 0)
	s.log.Killed = true
	s.close()
	return s.spawn(ctx, s.log.Life+1)
}

// close files the log of a process that has ended.
func (s *seat) close() {
	s.reading.Wait()
	s.log.End = history.Now()
	s.run.file(s.log)
}

// partition cuts the link off in silence. In some of them the session is
// terminated, of which the client hears nothing.
func (s *seat) partition(ctx context.Context, step step, d history.Disturbance) error {
	// A hole that has begun is healed, and a command is not left half done.
	whole := context.WithoutCancel(ctx)
	if err := s.link.blackHole(whole, step.directions...); err != nil {
		return err
	}
	d.Begun = history.Now()
	lasts := step.lasts
	if step.unheard {
		wait(ctx, lasts/4)
		s.run.terminate(ctx, s)
		lasts -= lasts / 4
	}
	wait(ctx, lasts)
	d.Ending = history.Now()
	err := s.link.heal(whole)
	s.run.disturbed(d, history.Now()+s.link.deafness(d.Ending-d.Begin))
	return err
}

// stopTimeout is how long a client may take to end when it is asked to: it has
// writes under way, releases, and a Locker to close.
const stopTimeout = 30 * time.Second

// stop ends the process in good order, and says if there was none.
func (s *seat) stop(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	err := s.process.Wait(bounded)
	if err != nil && ctx.Err() == nil {
		if errors.Is(err, context.DeadlineExceeded) {
			_ = s.process.Signal(syscall.SIGQUIT) // its goroutines, on its standard error
			wait(ctx, time.Second)
			err = fmt.Errorf("%w\n%s", err, s.process.Stderr())
		}
		s.run.violation("client", s.name(), err.Error())
	}
	err = s.process.Kill()
	s.close()
	return err
}
