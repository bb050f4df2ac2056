// Command faults has many processes use pglock while it kills, freezes and cuts
// them off and crashes their server, and then judges what they saw: see package
// history for the rules, and plan.go for the faults.
//
//	faults [flags]       a run on a throwaway server; `make faults` is this
//	faults check FILE    judge a history again that a run has written
//
// Its last line is "faults: N operations, M faults, V violations", and it exits
// with 1 if there was a violation. A run's faults follow from its seed alone;
// what the clients are doing when one strikes does not.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/seed35111a8b/pglock/internal/faults/history"
)

// Exit codes.
const (
	exitFailure = 1
	exitUsage   = 2
	exitSignal  = 130 // as a shell reports a command that Ctrl-C ended
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the process at once
	os.Exit(execute(ctx, os.Args[1:], os.Stdout))
}

// errViolations: the run went wrong, which its last line has said.
var errViolations = errors.New("violations")

func execute(ctx context.Context, args []string, out io.Writer) int {
	command := ""
	if len(args) > 0 {
		command = args[0]
	}
	var err error
	switch command {
	case "client": // one of the processes of a run
		err = clientCommand(ctx, args[1:])
	case "check":
		err = checkCommand(args[1:], out)
	default:
		err = runCommand(ctx, args, out)
	}
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errViolations):
		return exitFailure
	case errors.Is(err, errUsage):
		return exitUsage
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "faults: interrupted")
		return exitSignal
	default:
		fmt.Fprintln(os.Stderr, "faults:", err)
		return exitFailure
	}
}

// errUsage: the command line is wrong, which has been said.
var errUsage = errors.New("usage")

// settings are what a run is given.
type settings struct {
	duration time.Duration
	seed     uint64
	clients  int
	sessions int    // LocksPerSession; 0: 1 for half of the clients, 1000 for the others
	dir      string // for histories
	keep     bool   // write the history also if all was well
}

func runCommand(ctx context.Context, args []string, out io.Writer) error {
	var s settings
	flags := flag.NewFlagSet("faults", flag.ContinueOnError)
	flags.DurationVar(&s.duration, "duration", time.Minute, "how long faults go on")
	flags.Uint64Var(&s.seed, "seed", 0, "of the faults; 0: a new one")
	flags.IntVar(&s.clients, "clients", 6, "processes that use the locks")
	flags.IntVar(&s.sessions, "sessions", 0, "LocksPerSession of all clients; 0: 1 and 1000 in turn")
	flags.StringVar(&s.dir, "dir", ".out/faults", "where histories are written")
	flags.BoolVar(&s.keep, "keep", false, "write the history even if it is good")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return errUsage
	}
	if flags.NArg() > 0 || s.clients < 1 || s.sessions < 0 {
		flags.Usage()
		return errUsage
	}
	if s.seed == 0 {
		s.seed = rand.Uint64N(1_000_000) + 1 // short enough to be typed
	}
	fmt.Fprintf(out, "faults: seed %d; again with: make faults DURATION=%v SEED=%d SESSIONS=%d CLIENTS=%d\n",
		s.seed, s.duration, s.seed, s.sessions, s.clients)
	return run(ctx, s, out)
}

// checkCommand judges a history that was written before.
func checkCommand(args []string, out io.Writer) error {
	if len(args) != 1 {
		fmt.Fprintln(os.Stderr, "usage: faults check FILE")
		return errUsage
	}
	r, err := history.Load(args[0])
	if err != nil {
		return err
	}
	violations, err := r.Check("")
	if err != nil {
		return err
	}
	return report(out, r, violations)
}
