// Command pglock runs programs under locks that PostgreSQL keeps, on any host that reaches the database, and shows and
// mends what is behind them. See docs/command.md, or pglock --help.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/seed35111a8b/pglock/cmd/pglock/internal/supervise"
	"github.com/seed35111a8b/pglock/pglock"
)

func main() {
	if os.Args[0] == supervise.GuardName {
		os.Exit(supervise.Guard(os.Args))
	}
	ctx, stop := untilSignal()
	code := execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// Exit codes, where they are not the command's own. Most are those of sysexits(3).
const (
	exitNotAcquired = 1  // or that of -E
	exitUsage       = 64 // EX_USAGE: the command line
	exitUnavailable = 69 // EX_UNAVAILABLE: no connection to the server
	exitInternal    = 70 // EX_SOFTWARE: whatever else
	exitLost        = 75 // EX_TEMPFAIL: the lock was lost while the command ran
	exitUnsuitable  = 78 // EX_CONFIG: the server is there, and cannot be used for locks as it is
	exitCannotRun   = 126
	exitNotFound    = 127
	exitSignal      = 128 // and the number of the signal
)

// An exitError ends the program with a code. Where Err is nil nothing is to be said.
type exitError struct {
	Code int
	Err  error
}

// Error returns the error's text.
func (e *exitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns the error that the code stands for.
func (e *exitError) Unwrap() error { return e.Err }

func exitWith(code int) error { return &exitError{Code: code} }

func usageError(format string, args ...any) error {
	return &exitError{Code: exitUsage, Err: fmt.Errorf(format, args...)}
}

// A signalError is the cause of a ctx that a signal has ended.
type signalError struct{ signal syscall.Signal }

func (e signalError) Error() string { return e.signal.String() }

// untilSignal returns a ctx that a signal to end ends, unless the signal was ignored when the program started.
func untilSignal() (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		if !signal.Ignored(sig) {
			signal.Notify(signals, sig)
		}
	}
	go func() { // ends with the program
		if sig, ok := (<-signals).(syscall.Signal); ok {
			cancel(signalError{sig})
		}
	}()
	return ctx, func() { cancel(nil) }
}

// execute runs a command line and returns the exit code.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	line := &commandLine{}
	a := &app{globals: &line.globals, stdout: stdout, stderr: stderr, ctx: ctx}
	args, a.argv = splitCommand(args)
	err := parse(line, a, args)
	if err == nil {
		return 0
	}
	if exit, ok := errors.AsType[*exitError](err); ok {
		if exit.Err != nil {
			a.complain(exit.Err)
		}
		return exit.Code
	}
	a.complain(err)
	return codeOf(ctx, err)
}

// version is that of the module which the program was built from, and of what built it.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "pglock, of an unknown version"
	}
	return strings.Join([]string{"pglock", info.Main.Version, info.GoVersion}, " ")
}

// helpShown is what kong's exit after --help or --version becomes.
type helpShown struct{}

func parse(line *commandLine, a *app, args []string) (err error) {
	parser, err := kong.New(line,
		kong.Name("pglock"), kong.Description(description),
		kong.Writers(a.stdout, a.stderr), kong.Vars{"version": version()},
		kong.Exit(func(int) { panic(helpShown{}) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true}),
		kong.ValueFormatter(func(value *kong.Value) string { return value.Help }))
	if err != nil {
		return err
	}
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(helpShown); !ok {
				panic(r)
			}
			err = nil
		}
	}()
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return usageError("%w (pglock --help says more)", err)
	}
	if a.argv != nil && parsed.Command() != "run <key>" {
		return usageError("only pglock run takes a command after --")
	}
	return parsed.Run(a)
}

// splitCommand cuts the command off that follows --. It is nil where there is no --.
func splitCommand(args []string) (own, command []string) {
	for i, arg := range args {
		if arg == "--" {
			return args[:i], append([]string{}, args[i+1:]...)
		}
	}
	return args, nil
}

// codeOf returns the exit code of an error that has not chosen its own.
func codeOf(ctx context.Context, err error) int {
	if sig, ok := errors.AsType[signalError](context.Cause(ctx)); ok {
		return exitSignal + int(sig.signal)
	}
	switch {
	case errors.Is(err, pglock.ErrInvalidKey), errors.Is(err, pglock.ErrInvalidConfig):
		return exitUsage
	case errors.Is(err, pglock.ErrLost):
		return exitLost
	case errors.Is(err, pglock.ErrUnavailable), errors.Is(err, pglock.ErrTooManyLocks):
		return exitUnavailable
	case errors.Is(err, pglock.ErrNotAcquired):
		return exitNotAcquired
	case errors.Is(err, pglock.ErrNotMigrated), errors.Is(err, pglock.ErrPooler), errors.Is(err, pglock.ErrReadOnly),
		errors.Is(err, pglock.ErrUnsupportedServer), isPrivilege(err):
		return exitUnsuitable
	}
	return exitInternal
}

// complain says what went wrong, on one line.
func (a *app) complain(err error) {
	text := strings.Join(strings.Fields(err.Error()), " ")
	fmt.Fprintln(a.stderr, "pglock: "+strings.TrimPrefix(a.hide(text), "pglock: "))
}
