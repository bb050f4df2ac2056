package main

import "fmt"

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
		ratios(r.rounds(workCycle, one, peerParked, metricP50), r.rounds(workCycle, one, peerRaw, metricP50)), 1.25, false)
	add("contended try / one raw statement",
		ratios(r.rounds(workContended, "", peerParked, metricP50), r.rounds(workContended, "", peerRaw, metricP50)), 1.25, false)
	for _, c := range []string{warmSoon, warmTenTimes} {
		add("dedicated try on a warm pool / one raw statement, "+c,
			ratios(r.rounds(workWarm, c, peerDedicated, metricP50), r.rounds(workWarm, c, peerRaw, metricP50)), 1.5, false)
	}
	for _, c := range []struct {
		workers            int
		libraries, rueidis float64
	}{{64, 2.5, 1}, {256, 5, 1.5}} {
		n := workersCase(c.workers)
		shared := r.rounds(workCycle, n, peerShared, metricRate)
		add("shared session / fastest Redis lock library, "+n, ratios(shared, fastest(r, n)), c.libraries, true)
		add("shared session / pipelined rueidis, "+n, ratios(shared, r.rounds(workCycle, n, peerRueidis, metricRate)), c.rueidis, true)
	}
	return list
}

// fastest returns the rate of the fastest Redis lock library in each round.
func fastest(r *results, c string) []float64 {
	var best []float64
	for _, name := range redisLibraries() {
		for i, rate := range r.rounds(workCycle, c, name, metricRate) {
			if i == len(best) {
				best = append(best, 0)
			}
			best[i] = max(best[i], rate)
		}
	}
	return best
}
