package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"

	"github.com/seed35111a8b/pglock/internal/faults/history"
)

// report prints what was done and what came of it. Its last line is the verdict.
func report(out io.Writer, r *history.Run, violations []history.Violation) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	operations := printOperations(table, r)
	faults := printFaults(table, r)
	if err := table.Flush(); err != nil {
		return err
	}
	for _, v := range violations {
		fmt.Fprintf(out, "violation: %v\n", v)
	}
	fmt.Fprintf(out, "faults: %d operations, %d faults, %d violations\n", operations, faults, len(violations))
	if len(violations) > 0 {
		return errViolations
	}
	return nil
}

func printOperations(table io.Writer, r *history.Run) int {
	outcomes := []string{history.OK, history.Busy, history.Lost, history.Stale, history.Unknown, history.Odd}
	calls, counts := map[string]int{}, map[string]map[string]int{}
	for _, p := range r.Processes {
		for _, e := range p.Events {
			switch e.Kind {
			case history.Call:
				calls[e.Op]++
				if counts[e.Op] == nil {
					counts[e.Op] = map[string]int{}
				}
			case history.Return:
				counts[e.Op][e.Outcome]++
			}
		}
	}
	fmt.Fprint(table, "operation\tcalls\t")
	for _, outcome := range outcomes {
		fmt.Fprint(table, outcome, "\t")
	}
	fmt.Fprintln(table, "cut short\t")
	total := 0
	for _, name := range slices.Concat(history.Acquires(), []string{history.Release, history.Claim, history.Write}) {
		left := calls[name]
		fmt.Fprintf(table, "%s\t%d\t", name, calls[name])
		for _, outcome := range outcomes {
			fmt.Fprintf(table, "%d\t", counts[name][outcome])
			left -= counts[name][outcome]
		}
		fmt.Fprintf(table, "%d\t\n", left)
		total += calls[name]
	}
	return total
}

func printFaults(table io.Writer, r *history.Run) int {
	impacts := r.Impacts()
	fmt.Fprint(table, "fault\ttimes\tholds lost\tholds overlapped\t\n")
	for _, kind := range slices.Sorted(maps.Keys(impacts)) {
		i := impacts[kind]
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t\n", kind, i.Times, i.Lost, i.Overlaps)
	}
	return len(r.Disturbances)
}
