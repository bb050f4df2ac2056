package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain lets the test binary be a node, as the bench's own is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == nodeCommand {
		if err := runNode(context.Background(), os.Args[2:], os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// smallPlan takes every path, whatever the figures.
func smallPlan() plan {
	p := quickPlan()
	p.name = "small"
	p.cycles = cyclePlan{workers: []int{1, 4}, turns: 1, turn: 20 * time.Millisecond, dedicated: 1}
	p.contended = contendedPlan{turns: 1, turn: 5 * time.Millisecond}
	p.warm = warmPlan{soon: 2, tenTimes: 2}
	p.handOver = handOverPlan{waiters: []int{1, 4}, batches: 2}
	p.takeOver = takeOverPlan{times: 1, lease: 2 * time.Second}
	p.fence = fencePlan{writers: []int{1, 2}, turns: 1, turn: 20 * time.Millisecond}
	p.many = 100
	p.growth = growthPlan{held: []int{1, 1000}, waiters: []int{1, 10}, workers: 4, sweeps: 1, turn: 10 * time.Millisecond}
	p.idle = idlePlan{dedicated: 2, shared: 10, followers: 2, window: 200 * time.Millisecond}
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
	require.NoError(t, r.writeDocs(folder))
	page, err := os.ReadFile(filepath.Join(folder, "benchmarks.md"))
	require.NoError(t, err)
	require.Contains(t, string(page), "| "+peerEtcd+" |")
	require.FileExists(t, filepath.Join(folder, "benchmarks", "growth.svg"))
	r.print(&out)
	require.Regexp(t, `(?m)^target parked .*: [0-9.]+ \(bound <= 1\.25\) (ok|short)$`, out.String())
}
