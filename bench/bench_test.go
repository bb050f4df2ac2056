package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// smallPlan takes every path, whatever the figures.
func smallPlan() plan {
	p := quickPlan()
	p.name = "small"
	p.cycles = cyclePlan{workers: []int{1, 4}, turns: 1, turn: 20 * time.Millisecond, dedicated: 1}
	p.contended = contendedPlan{turns: 1, turn: 5 * time.Millisecond}
	p.warm = warmPlan{soon: 2, tenTimes: 2}
	return p
}

func TestAllWorkloadsRunAndAreReported(t *testing.T) {
	var out bytes.Buffer
	r, err := runAll(t.Context(), smallPlan(), regexp.MustCompile(""), &out)
	require.NoError(t, err, out.String())
	folder := t.TempDir()
	file := filepath.Join(folder, "out", "results.json")
	require.NoError(t, r.writeJSON(file))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, new(report)))
	for _, s := range r.Series {
		require.Len(t, s.Rounds, 1, "%v", s)
	}
	r.print(&out)
	require.Regexp(t, `(?m)^target parked .*: [0-9.]+ \(bound <= 1\.25\) (ok|short)$`, out.String())
}
