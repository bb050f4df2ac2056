package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// print writes the audit. The last line begins with "audit: ok" or "audit: FAILED".
func (a audit) print(w io.Writer) {
	fmt.Fprintf(w, "\naudit, from the database, of all ticks up to %s\n\n", clock(a.until))
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "job\tticks\truns\tduplicates\tmissed\tstarts\tlatest start\t"+
		"stale: rejected\taccepted\trunning total\tsum of runs\t")
	for _, j := range a.jobs {
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%d\t%s\t%d\t%d\t%d\t%d\t\n", j.job, j.ticks, j.runs, j.duplicates,
			len(j.missed), j.attempts, ms(j.latest), j.rejected, j.disorder, j.total, j.sum)
	}
	flush(table)
	if len(a.faults) > 0 {
		fmt.Fprintln(w)
		table = tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(table, "what was done\tto\tjob\ttoken\ttaken over by\tafter\tbound\tlate writes rejected\t")
	}
	for _, f := range a.faults {
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%d\t\n", f.kind, f.replica, f.job, f.token,
			f.successor, ms(f.takeOver), ms(f.bound), f.rejected)
	}
	flush(table)
	fmt.Fprintf(w, "\n%s\n", a.verdict())
}

// verdict is the last line.
func (a audit) verdict() string {
	if problems := a.problems(); len(problems) > 0 {
		return "audit: FAILED: " + strings.Join(problems, "; ")
	}
	var runs, rejected int
	for _, j := range a.jobs {
		runs += j.runs
		rejected += j.rejected
	}
	var takeOvers []string
	for _, f := range a.faults {
		takeOvers = append(takeOvers, f.kind+" "+ms(f.takeOver))
	}
	line := fmt.Sprintf("audit: ok: %d ticks, each run once; %d stale writes rejected, none accepted; totals right", runs, rejected)
	if len(takeOvers) > 0 {
		line += "; take-over after " + strings.Join(takeOvers, ", ")
	}
	return line
}

// flush writes the table. What cannot be written to the terminal is not worth an error.
func flush(table *tabwriter.Writer) { _ = table.Flush() }

func ms(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

func clock(t time.Time) string { return t.UTC().Format(time.TimeOnly) }
