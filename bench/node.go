package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed35111a8b/pglock/internal/pgtest"
)

// A node is another process of the bench, which uses one peer. It is told lines and answers with lines:
//
//	hold KEY            takes KEY:          held NANOS
//	wait N KEY MICROS   N workers wait for KEY, hold it for so long and release it:
//	                    waiting, then a line for each: grant GRANTED RELEASED, then done
//	release             releases what hold took: released NANOS, the time before the call
const nodeCommand = "node"

// nodeSetup is what a node is started with.
type nodeSetup struct {
	Addresses addresses     `json:"addresses"`
	Peer      string        `json:"peer"`
	Workers   int           `json:"workers"`
	Lease     time.Duration `json:"lease"`
}

// monotonic is CLOCK_MONOTONIC in nanoseconds, which all processes of a machine share.
func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // Linux always has the clock
	}
	return t.Nano()
}

// node is the state of this process as a node.
type node struct {
	client client
	lock   held

	mu  sync.Mutex // guards out
	out io.Writer
}

func (n *node) say(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fmt.Fprintf(n.out, format+"\n", args...)
}

// runNode does what it is told until there is no more.
func runNode(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	var setup nodeSetup
	if len(args) != 1 {
		return errors.New("a node is started by the bench itself")
	}
	if err := json.Unmarshal([]byte(args[0]), &setup); err != nil {
		return err
	}
	p, err := peerNamed(setup.Peer)
	if err != nil {
		return err
	}
	c, err := p.open(ctx, opening{addresses: setup.Addresses, workers: setup.Workers + 1, lease: setup.Lease})
	if err != nil {
		return err
	}
	n := &node{client: c, out: out}
	n.say("ready")
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		if err := n.do(ctx, lines.Text()); err != nil {
			return errors.Join(err, c.Close(ctx))
		}
	}
	return errors.Join(lines.Err(), c.Close(ctx))
}

// do carries out one line.
func (n *node) do(ctx context.Context, line string) error {
	command, rest, _ := strings.Cut(line, " ")
	switch command {
	case "hold":
		lock, err := n.client.Wait(ctx, 0, rest)
		if err != nil {
			return err
		}
		n.lock = lock
		n.say("held %d", monotonic())
		return nil
	case "release":
		before := monotonic()
		if err := n.lock.Release(ctx); err != nil {
			return err
		}
		n.say("released %d", before)
		return nil
	case "wait":
		var key string
		var workers, micros int
		if _, err := fmt.Sscan(rest, &workers, &key, &micros); err != nil {
			return err
		}
		return n.wait(ctx, workers, key, time.Duration(micros)*time.Microsecond)
	}
	return fmt.Errorf("%q is no command", line)
}

// wait lets workers wait for key, and each hold it for a moment.
func (n *node) wait(ctx context.Context, workers int, key string, hold time.Duration) error {
	var begun, ended sync.WaitGroup
	errs := make([]error, workers)
	begun.Add(workers)
	for w := range workers {
		ended.Go(func() {
			begun.Done()
			lock, err := n.client.Wait(ctx, w+1, key)
			if err != nil {
				errs[w] = err
				return
			}
			granted := monotonic()
			<-time.After(hold)
			released := monotonic()
			errs[w] = lock.Release(ctx)
			n.say("grant %d %d", granted, released)
		})
	}
	begun.Wait()
	n.say("waiting")
	go func() { // ends with the workers; the next line may come meanwhile
		ended.Wait()
		if err := errors.Join(errs...); err != nil {
			n.say("failed %v", err)
			return
		}
		n.say("done")
	}()
	return nil
}

// newKey returns a key that no other process uses, without a space.
func newKey(kind string) string { return kind + "/" + strconv.FormatUint(rand.Uint64(), 36) }

// startNode starts this program as a node. On success the caller must end it.
func (b *bench) startNode(ctx context.Context, peer string, workers int, lease time.Duration) (*pgtest.Process, error) {
	setup, err := json.Marshal(nodeSetup{Addresses: b.servers.addresses, Peer: peer, Workers: workers, Lease: lease})
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	process, err := pgtest.Spawn(exec.Command(program, nodeCommand, string(setup)))
	if err != nil {
		return nil, err
	}
	if err := expect(ctx, process, "ready"); err != nil {
		return nil, errors.Join(err, process.Kill())
	}
	return process, nil
}

// expect reads lines up to one that begins with word. It returns an error if the node fails before.
func expect(ctx context.Context, p *pgtest.Process, word string) error {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	for {
		line, err := p.Line(ctx)
		if err != nil {
			return fmt.Errorf("waiting for %q: %w", word, err)
		}
		switch first, rest, _ := strings.Cut(line, " "); first {
		case word:
			return nil
		case "failed":
			return errors.New(rest)
		}
	}
}
