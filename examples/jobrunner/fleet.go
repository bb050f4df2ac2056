package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/seed35111a8b/pglock/internal/pgtest"
)

// fleet is the demo's replicas: processes of this same program.
type fleet struct {
	dsn       string
	lease     time.Duration
	processes map[string]*pgtest.Process // by name; those that should be running
	ending    map[string]*pgtest.Process // those that were told to end
	events    chan event                 // of all
}

func newFleet(dsn string, lease time.Duration) *fleet {
	return &fleet{
		dsn: dsn, lease: lease, events: make(chan event, 256),
		processes: map[string]*pgtest.Process{}, ending: map[string]*pgtest.Process{},
	}
}

// start starts a replica, whose events come until ctx ends.
func (f *fleet) start(ctx context.Context, name string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "run", "-name", name, "-lease", f.lease.String(), "-log", "json", "-careless")
	cmd.Env = append(os.Environ(), "DATABASE_URL="+f.dsn)
	p, err := pgtest.Spawn(cmd)
	if err != nil {
		return fmt.Errorf("replica %s: %w", name, err)
	}
	f.processes[name] = p
	go f.follow(ctx, name, p)
	return nil
}

// follow passes on what a replica logs, and its end.
func (f *fleet) follow(ctx context.Context, name string, p *pgtest.Process) {
	for {
		e := event{Msg: evEnded, Replica: name}
		line, err := p.Line(ctx)
		if err == nil {
			e = parseEvent(name, line)
		} else {
			e.Error = p.Stderr()
		}
		select {
		case f.events <- e:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// kill ends a replica with SIGKILL. It returns when the kernel has closed its sockets.
func (f *fleet) kill(name string) error {
	p := f.processes[name]
	delete(f.processes, name)
	return p.Kill()
}

// terminate sends SIGTERM to a replica.
func (f *fleet) terminate(name string) error {
	p := f.processes[name]
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("replica %s: %w", name, err)
	}
	f.ending[name] = p
	delete(f.processes, name)
	return nil
}

// close kills what is still running.
func (f *fleet) close() error {
	var errs []error
	for _, list := range []map[string]*pgtest.Process{f.processes, f.ending} {
		for _, p := range list {
			errs = append(errs, p.Kill())
		}
	}
	return errors.Join(errs...)
}
