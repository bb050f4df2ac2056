package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// writeDocs writes the tables and plots into the folder. What a person has written in benchmarks.md, from its first heading
// that is not ours, stays.
func (r *report) writeDocs(folder string) error {
	plots := filepath.Join(folder, "benchmarks")
	if err := os.MkdirAll(plots, 0o755); err != nil {
		return err
	}
	drawn, err := r.draw(plots)
	if err != nil {
		return err
	}
	file := filepath.Join(folder, "benchmarks.md")
	before, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.WriteFile(file, []byte(r.markdown(drawn)+kept(string(before))), 0o644)
}

// keptFrom is the heading from which benchmarks.md is written by hand.
const keptFrom = "\n## What was tried\n"

func kept(before string) string {
	if _, rest, ok := strings.Cut(before, keptFrom); ok {
		return keptFrom + rest
	}
	return ""
}

const intro = `# Benchmarks

` + "`make bench-full`" + ` writes this page: every figure is from one run on one machine, with real servers from packages on
127.0.0.1. The peers do the same work with the same number of workers, in short turns one after the other, so that what
disturbs the machine disturbs all alike. A figure is the median over the rounds; ± is half the distance between the best
and the worst round. A ratio is taken within each round. ` + "`make bench`" + ` is one short round of the same.

A time says little about another machine, a ratio more.
`

// markdown is the page without what is kept.
func (r *report) markdown(plots []string) string {
	var b strings.Builder
	b.WriteString(intro)
	fmt.Fprintf(&b, "\nMeasured on %s in %s, %d rounds, %d cores of %s, %s, Linux %s.\n\n", r.Date.Format("2 January 2006"), r.Took,
		r.Rounds, r.Machine.Cores, r.Machine.CPU, r.Machine.Memory, r.Machine.Kernel)
	for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
		fmt.Fprintf(&b, "- %s %s\n", name, r.Versions[name])
	}
	var settings []string
	for _, name := range slices.Sorted(maps.Keys(r.Settings)) {
		settings = append(settings, fmt.Sprintf("`%s = %s`", name, r.Settings[name]))
	}
	fmt.Fprintf(&b, "\nPostgreSQL has its defaults, `fsync` and `synchronous_commit` on, but for %s. For growth it has "+
		"`max_locks_per_transaction = %s`, for a table with room for 100,000 locks. Redis and etcd have their defaults: "+
		"Redis writes snapshots and no log, etcd syncs each write.\n", strings.Join(settings, ", "),
		growthSettings()["max_locks_per_transaction"])
	r.writeTargets(&b)
	writePeers(&b)
	r.writeFigures(&b)
	if len(plots) > 0 {
		b.WriteString("\n## Plots\n\n")
	}
	for _, name := range plots {
		fmt.Fprintf(&b, "![%s](benchmarks/%s)\n", strings.TrimSuffix(name, ".svg"), name)
	}
	return b.String()
}

func (r *report) writeTargets(b *strings.Builder) {
	b.WriteString("\n## Targets\n\n| target | figure | bound | |\n|---|--:|--:|---|\n")
	for _, t := range r.Targets {
		sign, verdict := "≤", "**short**"
		if t.Least {
			sign = "≥"
		}
		if t.ok() {
			verdict = "ok"
		}
		fmt.Fprintf(b, "| %s | %.2f | %s %.2f | %s |\n", t.Name, t.Figure, sign, t.Bound, verdict)
	}
}

func writePeers(b *strings.Builder) {
	b.WriteString("\n## What is compared\n\nWhat each gives beside one holder at a time, and how it is used here:\n\n" +
		"| | fencing token | a holder learns of its loss by | late writes are refused | a dead holder blocks the others for | used as |\n" +
		"|---|---|---|---|---|---|\n")
	for _, p := range peers() {
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s |\n", p.name, p.gives.token, p.gives.loss, p.gives.fence, p.gives.bound, p.gives.config)
	}
}

// writeFigures writes one table for each workload: a row for each case and peer, a column for each metric.
func (r *report) writeFigures(b *strings.Builder) {
	for _, workload := range r.workloads() {
		var metrics []string
		var rows []figure
		for _, s := range r.Series {
			if s.Workload != workload {
				continue
			}
			if head := metricHead(s); !slices.Contains(metrics, head) {
				metrics = append(metrics, head)
			}
			if row := (figure{c: s.Case, peer: s.Peer}); !slices.Contains(rows, row) {
				rows = append(rows, row)
			}
		}
		sortRows(rows)
		fmt.Fprintf(b, "\n## %s\n\n%s\n\n| | |", title(workload), explained(workload))
		for _, m := range metrics {
			b.WriteString(" " + m + " |")
		}
		b.WriteString("\n|---|---|" + strings.Repeat("--:|", len(metrics)) + "\n")
		for _, row := range rows {
			fmt.Fprintf(b, "| %s | %s |", row.c, row.peer)
			for _, m := range metrics {
				b.WriteString(" " + r.cell(workload, row, m) + " |")
			}
			b.WriteString("\n")
		}
	}
}

func metricHead(s *Series) string {
	if s.Unit == "" {
		return s.Metric
	}
	return s.Metric + ", " + strings.TrimPrefix(s.Unit, "/")
}

// sortRows brings the peers of a case together, in their order, and leaves the order of the cases.
func sortRows(rows []figure) {
	var cases, names []string
	for _, row := range rows {
		if !slices.Contains(cases, row.c) {
			cases = append(cases, row.c)
		}
	}
	for _, p := range peers() {
		names = append(names, p.name)
	}
	slices.SortStableFunc(rows, func(a, b figure) int {
		if a.c != b.c {
			return slices.Index(cases, a.c) - slices.Index(cases, b.c)
		}
		return slices.Index(names, a.peer) - slices.Index(names, b.peer)
	})
}

func (r *report) cell(workload string, row figure, head string) string {
	for _, s := range r.Series {
		if s.Workload != workload || s.Case != row.c || s.Peer != row.peer || metricHead(s) != head {
			continue
		}
		value := median(s.Rounds)
		if s.Unit == unitMicros && value >= micros(never) {
			return "never"
		}
		text := thousands(number(value))
		if len(s.Rounds) > 1 {
			text += fmt.Sprintf(" ± %.0f %%", 100*spread(s.Rounds))
		}
		return text
	}
	return ""
}

func (r *report) workloads() []string {
	var names []string
	for _, s := range r.Series {
		if !slices.Contains(names, s.Workload) {
			names = append(names, s.Workload)
		}
	}
	return names
}

func title(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// thousands separates them with commas.
func thousands(s string) string {
	whole, rest, _ := strings.Cut(s, ".")
	group := regexp.MustCompile(`^(-?\d+)(\d{3})`)
	for group.MatchString(whole) {
		whole = group.ReplaceAllString(whole, "$1,$2")
	}
	if rest == "" {
		return whole
	}
	return whole + "." + rest
}

// explained says what a workload does.
func explained(workload string) string {
	return map[string]string{
		workCycle: "Each worker takes and releases the lock of a key of its own, without a pause. Latencies are of a whole cycle; " +
			"pglock draws a token in each.",
		workContended: "One worker tries for a lock that another client holds, and is refused.",
		workWarm: "TryAcquire of a dedicated lock beside the raw statement, without the release and the close, on a pool that has a " +
			"connection: as soon as the one that the last lock took has been replaced, and ten times a second.",
		workHandOver: "One process holds a lock and workers of three processes wait for it; each holds it for 2 ms. The time is from " +
			"the call of a release to the next worker's having the lock, on the clock that all processes share. " +
			"The raw waiters block in pg_advisory_lock, which holds back vacuum for as long as they do. A round trip is that of one " +
			"statement, in a row and at the pace at which hand-overs come.",
		workTakeOver: "The time from the end of a holder to the grant of a waiter in another process. Leases and TTLs are of 3 s " +
			"(2 s in the short run), and the holder ends half of that after it has got the lock.",
		workFence: "A transaction of one UPDATE, on a server that syncs each commit, with and without the fence. Each writer has a row " +
			"of its own.",
		workMany: "All locks are taken at once and then released at once.",
		workGrowth: "Cycles of 64 workers in a shared session beside locks that the same Locker holds, 1,000 in a session; and cycles of " +
			"one worker beside goroutines that wait for another key. Hand-overs are those among these waiters, each of whom waits " +
			"again when it has had the lock.",
		workIdle: "Held locks and candidates of an Election that do nothing, with the default lease of 15 s, for each lock or follower. " +
			"A follower is a process: it has a pool of its own.",
	}[workload]
}
