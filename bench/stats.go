package main

import (
	"math"
	"slices"
	"sync"
	"time"
)

// quantile returns the q-th quantile of sorted values, NaN if there are none.
func quantile[T int64 | float64](sorted []T, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	return float64(sorted[min(len(sorted)-1, int(q*float64(len(sorted))))])
}

// median returns the median of values, which it leaves as they are.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	if n := len(sorted); n > 0 && n%2 == 0 {
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return quantile(sorted, 0.5)
}

// A Series is one figure, measured once in each round.
type Series struct {
	Workload string    `json:"workload"`
	Case     string    `json:"case,omitempty"`
	Peer     string    `json:"peer"`
	Metric   string    `json:"metric"`
	Unit     string    `json:"unit"`
	Rounds   []float64 `json:"rounds"`
}

// A Curve is a distribution: the latencies at evenly spaced quantiles, in microseconds.
type Curve struct {
	Workload  string    `json:"workload"`
	Case      string    `json:"case,omitempty"`
	Peer      string    `json:"peer"`
	Quantiles []float64 `json:"quantiles"`
}

// figure names a Series.
type figure struct {
	workload, c, peer, metric, unit string
}

// results collects what a run measures. It is safe for concurrent use.
type results struct {
	mu     sync.Mutex // guards all below
	series []*Series
	index  map[figure]*Series
	pooled map[figure][]int64 // latencies of all rounds
	order  []figure           // of pooled
}

func newResults() *results {
	return &results{index: map[figure]*Series{}, pooled: map[figure][]int64{}}
}

// add appends one round's value to a figure.
func (r *results) add(f figure, value float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.index[f]
	if s == nil {
		s = &Series{Workload: f.workload, Case: f.c, Peer: f.peer, Metric: f.metric, Unit: f.unit}
		r.index[f] = s
		r.series = append(r.series, s)
	}
	s.Rounds = append(s.Rounds, value)
}

// maxPooled bounds what is kept of a distribution.
const maxPooled = 400_000

// addLatencies adds one round's latencies in nanoseconds: p50, p99, and to the distribution.
func (r *results) addLatencies(workload, c, peer string, nanos []int64) {
	slices.Sort(nanos)
	for _, q := range []struct {
		name string
		q    float64
	}{{metricP50, 0.5}, {metricP99, 0.99}} {
		r.add(figure{workload, c, peer, q.name, unitMicros}, quantile(nanos, q.q)/1e3)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	f := figure{workload: workload, c: c, peer: peer}
	if _, known := r.pooled[f]; !known {
		r.order = append(r.order, f)
	}
	if len(r.pooled[f]) < maxPooled {
		r.pooled[f] = append(r.pooled[f], nanos...)
	}
}

// rounds returns what was measured, nil if nothing was; the unit is not looked at.
func (r *results) rounds(f figure) []float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.series {
		if s.Workload == f.workload && s.Case == f.c && s.Peer == f.peer && s.Metric == f.metric {
			return slices.Clone(s.Rounds)
		}
	}
	return nil
}

// curves returns the distributions.
func (r *results) curves() []Curve {
	const points = 100
	r.mu.Lock()
	defer r.mu.Unlock()
	curves := make([]Curve, 0, len(r.order))
	for _, f := range r.order {
		sorted := slices.Sorted(slices.Values(r.pooled[f]))
		c := Curve{Workload: f.workload, Case: f.c, Peer: f.peer}
		for i := range points {
			c.Quantiles = append(c.Quantiles, math.Round(quantile(sorted, (float64(i)+0.5)/points)/10)/100)
		}
		curves = append(curves, c)
	}
	return curves
}

// Names of metrics and units.
const (
	metricP50   = "p50"
	metricP99   = "p99"
	metricRate  = "rate"
	metricTime  = "time"
	metricDrain = "each hand-over"
	unitMicros  = "µs"
	unitMillis  = "ms"
	unitRate    = "/s"
	unitKB      = "kB"
)

// ratios divides two figures round by round, so that each ratio is of one moment of the machine.
func ratios(a, b []float64) []float64 {
	out := make([]float64, 0, len(a))
	for i := range min(len(a), len(b)) {
		out = append(out, a[i]/b[i])
	}
	return out
}

// micros returns a duration in microseconds.
func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// spread returns how far the rounds go, as a fraction of their median to each side.
func spread(values []float64) float64 {
	if len(values) < 2 {
		return 0
	}
	return (slices.Max(values) - slices.Min(values)) / 2 / median(values)
}
