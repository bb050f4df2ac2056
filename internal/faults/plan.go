package main

import (
	"math/rand/v2"
	"time"

	"github.com/seed35111a8b/pglock/internal/faults/history"
	"github.com/seed35111a8b/pglock/internal/pgtest"
)

// lease is short, so that a run sees many of them end. Everything else has its
// default.
const (
	lease  = 2 * time.Second
	margin = lease / 5
)

// step is one fault that will strike.
type step struct {
	after      time.Duration // since the one before has ended
	kind       string
	lasts      time.Duration
	directions []pgtest.Direction // of a partition; nil: both
	delay      time.Duration      // of a slow link, at most
	unheard    bool               // of a partition: the session is terminated in it; P3's exception
	quiet      time.Duration      // of a crash: so long before, nobody writes
}

// weighted is a kind and how often it is drawn.
type weighted struct {
	kind   string
	weight int
}

func draw(r *rand.Rand, kinds []weighted) string {
	sum := 0
	for _, k := range kinds {
		sum += k.weight
	}
	n := r.IntN(sum)
	for _, k := range kinds {
		if n -= k.weight; n < 0 {
			return k.kind
		}
	}
	return ""
}

func between(r *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(r.Int64N(int64(high-low)))
}

// clientPlan are the faults of one client. Each client's follow from the seed and
// its number, so that one more client changes nothing for the others.
func clientPlan(seed uint64, client int, total time.Duration) []step {
	r := rand.New(rand.NewPCG(seed, uint64(client)+1))
	kinds := []weighted{
		{history.Kill, 14},
		{history.Freeze, 20},
		{history.Partition, 30},
		{history.Terminate, 14},
		{history.Slow, 10},
		{history.Cut, 6},
	}
	var plan []step
	for planned := time.Duration(0); planned < total; {
		s := step{after: between(r, 300*time.Millisecond, 4500*time.Millisecond), kind: draw(r, kinds)}
		switch s.kind {
		case history.Freeze:
			s.lasts = pause(r)
		case history.Partition:
			s.lasts = pause(r)
			s.unheard = r.IntN(3) == 0
			s.directions = [][]pgtest.Direction{nil, nil, {pgtest.ToServer}, {pgtest.ToClient}}[r.IntN(4)]
		case history.Slow:
			s.lasts = between(r, 400*time.Millisecond, 2*time.Second)
			s.delay = between(r, 5*time.Millisecond, 120*time.Millisecond)
		}
		planned += s.after + s.lasts
		plan = append(plan, s)
	}
	return plan
}

// pause is as often longer than the lease as it is shorter.
func pause(r *rand.Rand) time.Duration {
	if r.IntN(2) == 0 {
		return between(r, 20*time.Millisecond, lease/2)
	}
	return between(r, lease-margin, 3*lease/2)
}

// serverPlan are the faults of the server, in rounds that have each kind. Before
// most of its crashes nobody writes for a while: see quieten.
func serverPlan(seed uint64, total time.Duration) []step {
	r := rand.New(rand.NewPCG(seed, 0))
	kinds := []string{history.Crash, history.CrashBackend, history.Restart, history.Crash, history.CrashBackend}
	var plan []step
	for planned := time.Duration(0); planned < total; {
		for _, n := range r.Perm(len(kinds)) {
			s := step{after: between(r, 3*time.Second, 9*time.Second), kind: kinds[n]}
			if s.kind != history.Restart && r.IntN(5) > 0 {
				s.quiet = between(r, 600*time.Millisecond, 1600*time.Millisecond)
			}
			planned += s.after + s.quiet
			plan = append(plan, s)
		}
	}
	return plan
}
