package main

import (
	"fmt"
	"math"
)

// A target is what a figure must reach. Figures are medians of ratios, each of one round.
type target struct {
	Name   string  `json:"name"`
	Figure float64 `json:"figure"`
	Bound  float64 `json:"bound"`
	Least  bool    `json:"least"` // the figure must be at least the bound, and else at most
}

func (t target) ok() bool {
	if t.Least {
		return t.Figure >= t.Bound
	}
	return t.Figure <= t.Bound
}

func (t target) String() string {
	sign, verdict := "<=", "short"
	if t.Least {
		sign = ">="
	}
	if t.ok() {
		verdict = "ok"
	}
	return fmt.Sprintf("target %s: %.2f (bound %s %.2f) %s", t.Name, t.Figure, sign, t.Bound, verdict)
}

// targets judges what was measured; what was not is left out.
func targets(r *results) []target {
	var list []target
	add := func(name string, ratios []float64, bound float64, least bool) {
		if len(ratios) > 0 {
			list = append(list, target{name, median(ratios), bound, least})
		}
	}
	one := workersCase(1)
	add("parked acquire+release / two raw statements",
		ratios(r.rounds(figure{workCycle, one, peerParked, metricP50, ""}), r.rounds(figure{workCycle, one, peerRaw, metricP50, ""})), 1.25, false)
	add("contended try / one raw statement",
		ratios(r.rounds(figure{workContended, "", peerParked, metricP50, ""}), r.rounds(figure{workContended, "", peerRaw, metricP50, ""})), 1.25, false)
	for _, c := range []string{warmSoon, warmTenTimes} {
		add("dedicated try on a warm pool / one raw statement, "+c,
			ratios(r.rounds(figure{workWarm, c, peerDedicated, metricP50, ""}), r.rounds(figure{workWarm, c, peerRaw, metricP50, ""})), 1.5, false)
	}
	for _, c := range []struct {
		workers            int
		libraries, rueidis float64
	}{{64, 2.5, 1}, {256, 5, 1.5}} {
		n := workersCase(c.workers)
		shared := r.rounds(figure{workCycle, n, peerShared, metricRate, ""})
		add("shared session / fastest Redis lock library, "+n, ratios(shared, fastest(r, n)), c.libraries, true)
		add("shared session / pipelined rueidis, "+n, ratios(shared, r.rounds(figure{workCycle, n, peerRueidis, metricRate, ""})), c.rueidis, true)
	}
	for _, c := range []int{1, 10, 100} {
		own := r.rounds(figure{workHandOver, waitersCase(c), peerDedicated, metricP50, ""})
		add("hand-over / round trip, "+waitersCase(c), ratios(own, r.rounds(figure{workHandOver, caseRoundTrip, peerRaw, metricP50, ""})), 5, false)
		add("hand-over / round trip at the same pace, "+waitersCase(c),
			ratios(own, r.rounds(figure{workHandOver, casePaced, peerRaw, metricP50, ""})), 5, false)
		add("hand-over / that of the fastest peer, "+waitersCase(c), ratios(own, shortestHandOver(r, waitersCase(c))), 1, false)
	}
	fenced := func(c, metric string) []float64 {
		return ratios(r.rounds(figure{workFence, c, peerFenced, metric, ""}), r.rounds(figure{workFence, c, peerUnfenced, metric, ""}))
	}
	add("fenced write / unfenced, 1 writer", fenced(writersCase(1), metricP50), 1.3, false)
	add("rate of fenced writes / unfenced, 16 writers of one resource", fenced(writersCase(16), metricRate), 0.7, true)
	for _, g := range growths(r) {
		add("growth: "+g.name+", relative change", flatness(r, g), 0.25, false)
	}
	return list
}

// shortestHandOver returns the p50 of the fastest peer that is neither pglock nor the limit in each round.
func shortestHandOver(r *results, c string) []float64 {
	var best []float64
	for _, name := range []string{peerRedislock, peerRedsync, peerRuLock, peerEtcd} {
		for i, p50 := range r.rounds(figure{workHandOver, c, name, metricP50, ""}) {
			if i == len(best) {
				best = append(best, math.Inf(1))
			}
			best[i] = min(best[i], p50)
		}
	}
	return best
}

// fastest returns the rate of the fastest Redis lock library in each round.
func fastest(r *results, c string) []float64 {
	var best []float64
	for _, name := range redisLibraries() {
		for i, rate := range r.rounds(figure{workCycle, c, name, metricRate, ""}) {
			if i == len(best) {
				best = append(best, 0)
			}
			best[i] = max(best[i], rate)
		}
	}
	return best
}
