package pgtest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is another program that a test talks to in lines: it reads what we
// Tell it on its standard input, we read its standard output. It dies with
// this process on Linux. Its methods are safe for concurrent use, but one
// reader of lines makes sense at a time.
type Process struct {
	name   string
	child  *child
	stdin  io.WriteCloser
	stderr *lockedBuffer
	lines  *lineQueue
}

// Spawn starts cmd, which must not have been given files yet. On success the
// caller must see it to its end with Kill, or Wait.
func Spawn(cmd *exec.Cmd) (*Process, error) {
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	// The child has its own copy; ours would keep the reader from its end.
	defer func() { _ = in.Close() }()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		_ = out.Close()
		return nil, err
	}
	stderr := &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = in, stderr
	cmd.WaitDelay = time.Second // for heirs of its standard error
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	c, err := startChild(cmd, syscall.SIGKILL)
	if err != nil {
		_ = out.Close()
		return nil, err
	}
	p := &Process{name: cmd.String(), child: c, stdin: stdin, stderr: stderr, lines: newLineQueue()}
	go p.lines.fill(out)
	return p, nil
}

// PID is the process's id.
func (p *Process) PID() int { return p.child.pid() }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.child.done }

// Tell writes one line to the process.
func (p *Process) Tell(line string) error {
	_, err := io.WriteString(p.stdin, line+"\n")
	return err
}

// Line is the next line that the process wrote. After the last one it is an
// error that matches io.EOF and has the process's standard error in it; when
// ctx ends first, no line is lost.
func (p *Process) Line(ctx context.Context) (string, error) {
	line, err := p.lines.next(ctx)
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", p.name, err, p.stderr.String())
	}
	return line, nil
}

// Expect skips lines up to one whose first word is given and returns the rest
// of that line. Errors are those of Line.
func (p *Process) Expect(ctx context.Context, word string) (string, error) {
	for {
		line, err := p.Line(ctx)
		if err != nil {
			return "", fmt.Errorf("waiting for %q: %w", word, err)
		}
		if first, rest, _ := strings.Cut(line, " "); first == word {
			return rest, nil
		}
	}
}

// Stderr is what the process has written to its standard error.
func (p *Process) Stderr() string { return p.stderr.String() }

// Signal sends a signal to the process. It is no error if that has ended.
func (p *Process) Signal(sig syscall.Signal) error {
	err := p.child.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Freeze stops the process from running (SIGSTOP) until Thaw.
func (p *Process) Freeze() error { return p.Signal(syscall.SIGSTOP) }

// Thaw lets a frozen process go on (SIGCONT).
func (p *Process) Thaw() error { return p.Signal(syscall.SIGCONT) }

// Kill ends the process with SIGKILL and returns when it is gone: the kernel
// has closed its sockets by then. A second call does nothing.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.child.done
	_ = p.stdin.Close() // it is closed already if the process ended by itself
	p.lines.awaitEnd()
	return nil
}

// Wait closes the process's standard input and returns how the process ended:
// nil for exit status 0. When ctx ends first the process goes on.
func (p *Process) Wait(ctx context.Context) error {
	_ = p.stdin.Close()
	if err := p.child.wait(ctx); err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	p.lines.awaitEnd()
	if p.child.err != nil {
		return fmt.Errorf("%s: %w\n%s", p.name, p.child.err, p.stderr.String())
	}
	return nil
}

// lineQueue keeps lines until they are read, so that a process never blocks
// for want of a reader.
type lineQueue struct {
	ended chan struct{} // closed after the last line
	more  chan struct{} // has an element if lines may have grown

	mu    sync.Mutex // guards lines
	lines []string
}

func newLineQueue() *lineQueue {
	return &lineQueue{ended: make(chan struct{}), more: make(chan struct{}, 1)}
}

// fill reads until the end of r and closes it.
func (q *lineQueue) fill(r io.ReadCloser) {
	defer close(q.ended)
	defer func() { _ = r.Close() }()
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadString('\n')
		if line != "" {
			q.mu.Lock()
			q.lines = append(q.lines, strings.TrimSuffix(line, "\n"))
			q.mu.Unlock()
			select {
			case q.more <- struct{}{}:
			default:
			}
		}
		if err != nil {
			return
		}
	}
}

func (q *lineQueue) pop() (string, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.lines) == 0 {
		return "", false
	}
	line := q.lines[0]
	q.lines = q.lines[1:]
	return line, true
}

func (q *lineQueue) next(ctx context.Context) (string, error) {
	for {
		if line, ok := q.pop(); ok {
			return line, nil
		}
		select {
		case <-q.more:
		case <-q.ended:
			if line, ok := q.pop(); ok {
				return line, nil
			}
			return "", io.EOF
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

func (q *lineQueue) awaitEnd() { <-q.ended }

// lockedBuffer is a buffer that may be read while it is written.
type lockedBuffer struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
