package pgtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// roleVar names the role that a re-executed test binary plays.
const roleVar = "PGTEST_ROLE"

// Role is what a test binary does instead of running tests when a test has
// spawned it by the role's name. An error becomes exit status 1.
type Role struct {
	Name string
	Run  func(ctx context.Context, self *Self) error
}

// Self is a role's side of its Process.
type Self struct {
	in *bufio.Reader
}

// Arg is the value that was given for the name to RoleCommand.
func (*Self) Arg(name string) string { return os.Getenv(name) }

// Say writes one line, beginning with the word that Process.Expect looks for.
func (*Self) Say(word string, values ...any) {
	_, _ = fmt.Fprintln(os.Stdout, append([]any{word}, values...)...)
}

// Hear is the next line that the test told us; io.EOF when it has no more, or
// is no more.
func (s *Self) Hear() (string, error) {
	line, err := s.in.ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}

// Barrier says that we are ready and returns when the test calls Release on
// us, together with all the others that it spawned.
func (s *Self) Barrier() error {
	s.Say(readyWord)
	for {
		line, err := s.Hear()
		if err != nil {
			return fmt.Errorf("at the barrier: %w", err)
		}
		if line == goWord {
			return nil
		}
	}
}

const (
	readyWord = "ready"
	goWord    = "go"
)

// Release waits until each process stands at its Barrier, then lets all go.
func Release(ctx context.Context, processes ...*Process) error {
	for _, p := range processes {
		if _, err := p.Expect(ctx, readyWord); err != nil {
			return err
		}
	}
	for _, p := range processes {
		if err := p.Tell(goWord); err != nil {
			return err
		}
	}
	return nil
}

// RoleCommand is this test binary in the role, for Spawn or for a Host's
// Command. Each arg is NAME=value, read by Self.Arg.
func RoleCommand(role string, args ...string) (*exec.Cmd, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), roleVar+"="+role)
	cmd.Env = append(cmd.Env, args...)
	return cmd, nil
}

// runRole plays the role that the environment names and exits; without one it
// returns.
func runRole(roles []Role) {
	name := os.Getenv(roleVar)
	if name == "" {
		return
	}
	err := fmt.Errorf("pgtest: no role %q was given to Main", name)
	for _, r := range roles {
		if r.Name == name {
			err = r.Run(context.Background(), &Self{in: bufio.NewReader(os.Stdin)})
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
