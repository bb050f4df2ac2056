// Command bench measures pglock beside the limit, which is raw statements on an
// open connection, and beside other ways to have locks, all on this machine and
// in one run. It starts PostgreSQL, redis-server and etcd from their packages.
//
//	go run . [-quick] [-rounds N] [-json FILE] [-docs FOLDER] [-only REGEXP]
//
// The last lines are the targets:
//
//	target NAME: FIGURE (bound BOUND) ok|short
//
// A target that is short is no failure of the command; an error is.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the process at once
	err := execute(ctx, os.Args[1:], os.Stdin, os.Stdout)
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is one run.
type bench struct {
	servers *servers
	results *results
	rounds  int
	out     io.Writer
}

func execute(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	if len(args) > 0 && args[0] == nodeCommand {
		return runNode(ctx, args[1:], in, out)
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	quick := flags.Bool("quick", false, "one short round of everything")
	jsonFile := flags.String("json", "", "write the results to `FILE`")
	docs := flags.String("docs", "", "write benchmarks.md and plots to `FOLDER`")
	rounds := flags.Int("rounds", 0, "how many `ROUNDS`; 0: as many as the run has by itself")
	only := flags.String("only", "", "only the workloads whose names match `REGEXP`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	wanted, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	p := fullPlan()
	if *quick {
		p = quickPlan()
	}
	if *rounds > 0 {
		p.rounds = *rounds
	}
	r, err := runAll(ctx, p, wanted, out)
	if err != nil {
		return err
	}
	if *jsonFile != "" {
		if err := r.writeJSON(*jsonFile); err != nil {
			return err
		}
	}
	if *docs != "" {
		if err := r.writeDocs(*docs); err != nil {
			return err
		}
	}
	r.print(out)
	return nil
}

// runAll starts the servers, runs the workloads that are wanted one after the other, and ends the servers.
func runAll(ctx context.Context, p plan, wanted *regexp.Regexp, out io.Writer) (r *report, err error) {
	start := time.Now()
	s, err := startServers(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	b := &bench{servers: s, results: newResults(), rounds: p.rounds, out: out}
	for _, w := range p.workloads(b) {
		if !wanted.MatchString(w.name) {
			continue
		}
		began := time.Now()
		if err := w.run(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", w.name, err)
		}
		fmt.Fprintf(out, "%-28s %5.1f s\n", w.name, time.Since(began).Seconds())
	}
	return newReport(b, p, time.Since(start)), nil
}
