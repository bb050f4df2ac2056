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
	handOver  handOverPlan
	takeOver  takeOverPlan
	fence     fencePlan
	many      int
	growth    growthPlan
	idle      idlePlan
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
		{workHandOver, func(ctx context.Context) error { return b.handOvers(ctx, p.handOver) }},
		{workTakeOver, func(ctx context.Context) error { return b.takeOvers(ctx, p.takeOver) }},
		{workFence, func(ctx context.Context) error { return b.fencedWrites(ctx, p.fence) }},
		{workMany, func(ctx context.Context) error { return b.manyKeys(ctx, p.many) }},
		{workGrowth, func(ctx context.Context) error { return b.growth(ctx, p.growth) }},
		{workIdle, func(ctx context.Context) error { return b.idle(ctx, p.idle) }},
	}
}

// quickPlan is one round of everything, short enough for each change.
func quickPlan() plan {
	return plan{
		name: "quick", rounds: 1,
		cycles:    cyclePlan{workers: []int{1, 64, 256}, turns: 3, turn: 60 * time.Millisecond, dedicated: 1},
		contended: contendedPlan{turns: 2, turn: 60 * time.Millisecond},
		warm:      warmPlan{soon: 30, tenTimes: 15},
		handOver:  handOverPlan{waiters: []int{1, 10, 100}, batches: 5},
		takeOver:  takeOverPlan{times: 1, lease: 2 * time.Second},
		fence:     fencePlan{writers: []int{1, 16}, turns: 3, turn: 120 * time.Millisecond},
		many:      10_000,
		growth:    growthPlan{held: []int{1, 100, 10_000}, waiters: []int{1, 100}, workers: 64, sweeps: 5, turn: 60 * time.Millisecond},
		idle:      idlePlan{dedicated: 20, shared: 2000, followers: 10, window: 6200 * time.Millisecond},
	}
}

// fullPlan is what docs/benchmarks.md shows.
func fullPlan() plan {
	return plan{
		name: "full", rounds: 7,
		cycles:    cyclePlan{workers: []int{1, 64, 256}, turns: 5, turn: 100 * time.Millisecond, dedicated: 256},
		contended: contendedPlan{turns: 5, turn: 100 * time.Millisecond},
		warm:      warmPlan{soon: 50, tenTimes: 20},
		handOver:  handOverPlan{waiters: []int{1, 10, 100}, batches: 20},
		takeOver:  takeOverPlan{times: 1, lease: 3 * time.Second},
		fence:     fencePlan{writers: []int{1, 16}, turns: 5, turn: 200 * time.Millisecond},
		many:      10_000,
		growth:    growthPlan{held: []int{1, 10, 100, 1000, 10_000, 100_000}, waiters: []int{1, 10, 100, 1000}, workers: 64, sweeps: 3, turn: 200 * time.Millisecond},
		idle:      idlePlan{dedicated: 100, shared: 10_000, followers: 20, window: 30 * time.Second},
	}
}
