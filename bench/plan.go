package main

import (
	"context"
	"time"
)

// plan is how much of everything is measured.
type plan struct {
	name      string
	rounds    int
	cycles    cyclePlan
	contended contendedPlan
	warm      warmPlan
}

// workload is one part of a run.
type workload struct {
	name string
	run  func(ctx context.Context) error
}

func (p plan) workloads(b *bench) []workload {
	return []workload{
		{workCycle, func(ctx context.Context) error { return b.cycles(ctx, p.cycles) }},
		{workContended, func(ctx context.Context) error { return b.contended(ctx, p.contended) }},
		{workWarm, func(ctx context.Context) error { return b.warm(ctx, p.warm) }},
	}
}

// quickPlan is one round of everything, short enough for each change.
func quickPlan() plan {
	return plan{
		name: "quick", rounds: 1,
		cycles:    cyclePlan{workers: []int{1, 64, 256}, turns: 3, turn: 60 * time.Millisecond, dedicated: 1},
		contended: contendedPlan{turns: 2, turn: 60 * time.Millisecond},
		warm:      warmPlan{soon: 30, tenTimes: 15},
	}
}

// fullPlan is what docs/benchmarks.md shows.
func fullPlan() plan {
	return plan{
		name: "full", rounds: 7,
		cycles:    cyclePlan{workers: []int{1, 64, 256}, turns: 5, turn: 100 * time.Millisecond, dedicated: 256},
		contended: contendedPlan{turns: 5, turn: 100 * time.Millisecond},
		warm:      warmPlan{soon: 50, tenTimes: 20},
	}
}
