// Command jobrunner is the example of pglock that several replicas run: cron jobs of which each tick runs once, whichever
// replica works, and also when a replica is killed, cut off or frozen in the middle of a job.
//
//	jobrunner migrate    create the tables
//	jobrunner run        be one replica, until SIGTERM
//	jobrunner demo       start three, be hard on them, and audit the result
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the process at once
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

const usage = `usage: jobrunner <command> [flags]

  migrate   create or update the tables in the database of DATABASE_URL
  run       be one replica on the database of DATABASE_URL, until SIGTERM
  demo      start three replicas, kill, cut off and freeze holders, audit the result;
            on a throwaway PostgreSQL, or in a database of its own on the server of DATABASE_URL

jobrunner <command> -h lists the flags of a command.
`

// Exit codes.
const (
	exitFailure = 1
	exitUsage   = 2
	exitSignal  = 130 // as a shell reports a command that Ctrl-C ended
)

// errUsage: the command line is wrong, which has been said.
var errUsage = errors.New("usage")

// execute runs a command line and returns the exit code.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var command string
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	var err error
	switch command {
	case "migrate":
		err = migrateCommand(ctx, args, stdout, stderr)
	case "run":
		err = runCommand(ctx, args, stdout, stderr)
	case "demo":
		err = demoCommand(ctx, args, stdout, stderr)
	case "help", "-h", "-help", "--help":
		fmt.Fprint(stdout, usage)
		return 0
	case "":
		fmt.Fprint(stderr, usage)
		return exitUsage
	default:
		fmt.Fprintf(stderr, "jobrunner: unknown command %q\n\n%s", command, usage)
		return exitUsage
	}
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		return exitUsage
	case errors.Is(err, errAudit): // the audit's last line has said it
		return exitFailure
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		fmt.Fprintf(stderr, "jobrunner %s: interrupted\n", command)
		return exitSignal
	}
	fmt.Fprintf(stderr, "jobrunner %s: %v\n", command, err)
	return exitFailure
}

// newFlags are the flags of a command; what is wrong with them is said on stderr.
func newFlags(command string, stderr io.Writer) *flag.FlagSet {
	flags := flag.NewFlagSet("jobrunner "+command, flag.ContinueOnError)
	flags.SetOutput(stderr)
	return flags
}

// parse reads the command line of a command that takes no arguments but flags.
func parse(flags *flag.FlagSet, args []string) error {
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return errUsage
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(flags.Output(), "%s takes no arguments: %q\n", flags.Name(), flags.Arg(0))
		return errUsage
	}
	return nil
}
