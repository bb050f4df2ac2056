// Mutants breaks pglock on purpose, one mechanism at a time, in a temporary copy
// of the module, and fails unless a test fails each time: a test that nothing
// can make fail holds no promise.
//
//	go run ./internal/mutants [-name NAME]
//
// First the tests that are to catch something must pass on the module as it is.
// Each mutant must compile. A mutant whose text is not found exactly once is an
// error, so that none goes stale unseen when the code moves on.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() {
	name := flag.String("name", "", "run this mutant only")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, *name)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, name string) error {
	chosen := mutants()
	if name != "" {
		chosen = slices.DeleteFunc(chosen, func(m mutant) bool { return m.name != name })
		if len(chosen) == 0 {
			return fmt.Errorf("there is no mutant %q", name)
		}
	}
	w, err := newWorkshop(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = w.close() }() // a leftover in the temporary folder harms nobody
	began := time.Now()
	for _, b := range batches(chosen) {
		took, err := w.passes(ctx, b)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "not mutated: %d tests of %s pass, %v\n", len(b.tests), b.pkg, took)
	}
	results := make([]result, 0, len(chosen))
	survived := 0
	for _, m := range chosen {
		r, err := w.try(ctx, m)
		if err != nil {
			return fmt.Errorf("mutant %s: %w", m.name, err)
		}
		if len(r.caughtBy) == 0 {
			survived++
		}
		fmt.Fprintf(out, "%s: %s, %v\n", m.name, r.verdict(), r.took)
		results = append(results, r)
	}
	if err := report(out, results, time.Since(began)); err != nil {
		return err
	}
	if survived > 0 {
		return fmt.Errorf("%d of %d mutants were not caught", survived, len(chosen))
	}
	return nil
}

// A result is what came of one mutant.
type result struct {
	mutant   mutant
	caughtBy []string // names of the tests that failed
	why      string   // what the first of them said
	took     time.Duration
}

func (r result) verdict() string {
	if len(r.caughtBy) == 0 {
		return "NOT CAUGHT"
	}
	return "caught by " + strings.Join(r.caughtBy, ", ")
}

func report(out io.Writer, results []result, took time.Duration) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nmutant\tcaught by\twhich says\ttime")
	caught := 0
	for _, r := range results {
		by := "NOT CAUGHT"
		if len(r.caughtBy) > 0 {
			caught++
			by = strings.Join(r.caughtBy, " ")
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%v\n", r.mutant.name, by, r.why, r.took)
	}
	fmt.Fprintf(table, "\nmutants: %d, caught: %d, %v\n", len(results), caught, took.Round(time.Second))
	return table.Flush()
}

// A batch is the tests of one package that are to catch something.
type batch struct {
	pkg   string
	tests []string
}

// batches are the tests that the mutants name, each once.
func batches(list []mutant) []batch {
	var all []batch
	for _, m := range list {
		i := slices.IndexFunc(all, func(b batch) bool { return b.pkg == m.pkg })
		if i < 0 {
			i = len(all)
			all = append(all, batch{pkg: m.pkg})
		}
		if !slices.Contains(all[i].tests, m.test) {
			all[i].tests = append(all[i].tests, m.test)
		}
	}
	return all
}

var errNoSuchTest = errors.New("no such test")
