package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// report is what a run brought.
type report struct {
	Date     time.Time         `json:"date"`
	Plan     string            `json:"plan"`
	Rounds   int               `json:"rounds"`
	Took     string            `json:"took"`
	Machine  machine           `json:"machine"`
	Versions map[string]string `json:"versions"`
	Settings map[string]string `json:"postgres_settings"`
	Targets  []target          `json:"targets"`
	Series   []*Series         `json:"series"`
	Curves   []Curve           `json:"curves"`
	results  *results
}

func newReport(b *bench, p plan, took time.Duration) *report {
	return &report{
		Date: time.Now().UTC().Truncate(time.Second), Plan: p.name, Rounds: p.rounds, Took: took.Round(time.Second).String(),
		Machine: thisMachine(), Versions: versions(b.servers.versions), Settings: postgresSettings(),
		Targets: targets(b.results), Series: b.results.series, Curves: b.results.curves(), results: b.results,
	}
}

func (r *report) writeJSON(file string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// print writes the figures and then the targets.
func (r *report) print(out io.Writer) {
	last := ""
	for _, s := range r.Series {
		if head := s.Workload + ", " + s.Case; head != last {
			fmt.Fprintf(out, "\n%s\n", head)
			last = head
		}
		fmt.Fprintf(out, "  %-20s %-24s %12s %-3s ± %.0f %%\n", s.Peer, s.Metric, number(median(s.Rounds)), s.Unit, 100*spread(s.Rounds))
	}
	fmt.Fprintln(out)
	for _, t := range r.Targets {
		fmt.Fprintln(out, t)
	}
}

// number writes a figure with as many digits as make sense.
func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}
