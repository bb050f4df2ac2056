package pglock_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// termSeen is a term from outside. Its context lived from granted, when Acquire
// returned, at the longest until over. A frozen process cannot say that it is
// over; its trust deadline counts, before which it would have known.
type termSeen struct {
	token          int64
	name           string
	granted, begun time.Duration
	over           time.Duration // 0 while it lasts
	deadline       time.Duration // of a frozen process, else 0
	killed         time.Duration // when its process was killed before it had said that it ended, else 0
	ended          bool          // fn has returned
	hitBy          string
	hitAt          time.Duration
	waiterToo      bool // the server has ended the session of a waiter too, who may have been next
}

// end is the latest time at which the term's context may have been alive.
func (s *termSeen) end() time.Duration {
	end := time.Duration(math.MaxInt64)
	for _, at := range []time.Duration{s.over, s.deadline, s.killed} {
		if at != 0 {
			end = min(end, at)
		}
	}
	return end
}

// take takes in a line.
func (f *field) take(t *testing.T, s said) {
	t.Helper()
	require.NotEqual(t, "beside", s.word, "a second fn beside the first, in %s, token %d", s.name, s.token)
	if s.word != "gone" {
		require.NoError(t, s.err)
	}
	term := f.terms[s.token]
	if s.token != 0 && s.word != "begin" {
		require.NotNil(t, term, "%s without a begin", s.word)
		require.Equal(t, term.name, s.name)
	}
	switch s.word {
	case "ready":
		f.ready = append(f.ready, s.name)
	case "begin":
		require.Nil(t, term, "the token %d came twice", s.token)
		term = &termSeen{token: s.token, name: s.name, granted: s.first, begun: s.last}
		f.terms[s.token] = term
		if f.last == nil || f.last.token < s.token {
			f.last = term
		}
	case "over":
		require.Zero(t, term.over, "over twice")
		term.over = s.last
	case "late":
		if s.truth {
			f.refused++
		} else {
			f.admitted++
		}
	case "end":
		require.False(t, term.ended, "ended twice")
		require.NotZero(t, term.over)
		term.ended = true
	case "gone":
		f.ready = slices.DeleteFunc(f.ready, func(name string) bool { return name == s.name })
		require.NotContains(t, f.running, s.name, "it was not told to end: %v", s.err)
	}
}

// hit does something to the leader, and in one case of four to another
// candidate too, and waits for the next term.
func (f *field) hit(t *testing.T, kind string, dice *rand.Rand) {
	t.Helper()
	f.hearRest(t)
	f.hear(t, "a leader and others", func() bool { return f.last != nil && f.last.over == 0 && len(f.ready) >= 3 })
	f.events++
	leader := f.last
	victims := []string{leader.name}
	if names := slices.Sorted(maps.Keys(f.running)); dice.IntN(4) == 0 {
		if other := names[dice.IntN(len(names))]; other != leader.name && slices.Contains(f.ready, other) {
			victims = append(victims, other)
		}
	}
	leader.hitBy = kind
	switch kind {
	case byKill:
		leader.hitAt = monotonic()
		f.markKilled(victims, leader.hitAt)
		f.signal(t, syscall.SIGKILL, victims)
	case byTERM:
		leader.hitAt = monotonic()
		f.signal(t, syscall.SIGTERM, victims)
	case byTerminate:
		f.terminate(t, leader, len(victims) > 1)
	case byFreeze:
		f.freeze(t, leader, victims)
	}
	f.hear(t, "a take-over after "+kind, func() bool { return f.last != leader })
	if leader.over == 0 || leader.over > leader.hitAt { // else it had lost the term by itself
		f.took[kind] = append(f.took[kind], f.last.begun-leader.hitAt)
		f.granted[kind] = append(f.granted[kind], f.last.granted-leader.hitAt)
	}
	for name := range f.frozen {
		require.NoError(t, f.running[name].Thaw())
		delete(f.frozen, name)
	}
}

// signal ends processes and starts others in their place.
func (f *field) signal(t *testing.T, sig syscall.Signal, names []string) {
	t.Helper()
	for _, name := range names {
		p := f.running[name]
		delete(f.running, name)
		f.ready = slices.DeleteFunc(f.ready, func(n string) bool { return n == name })
		require.NoError(t, p.Signal(sig))
	}
	for range names {
		f.spawn(t)
	}
}

// markKilled notes whose processes will say no more. One that lost its
// term to an earlier event may be killed before it has said so.
func (f *field) markKilled(names []string, at time.Duration) {
	for _, term := range f.terms {
		if !term.ended && slices.Contains(names, term.name) {
			term.killed = at
		}
	}
}

// terminate has the server end the leader's session, and one that waits.
func (f *field) terminate(t *testing.T, leader *termSeen, waiterToo bool) {
	t.Helper()
	holders, err := f.admin.Holders(f.ctx, f.key)
	require.NoError(t, err)
	leader.hitAt = monotonic()
	leader.waiterToo = waiterToo
	for i, h := range holders {
		if i == 0 || waiterToo && h.Waiting {
			_ = f.admin.Terminate(f.ctx, h) // it may have gone
			waiterToo = waiterToo && i == 0
		}
	}
}

// freeze stops processes. How long the leader may have trusted its lease the
// server knows: it has seen its last request.
func (f *field) freeze(t *testing.T, leader *termSeen, names []string) {
	t.Helper()
	holders, err := f.admin.Holders(f.ctx, f.key)
	require.NoError(t, err)
	leader.hitAt = monotonic()
	for _, name := range names {
		require.NoError(t, f.running[name].Freeze())
		f.frozen[name] = true
	}
	asked := monotonic() // before the server's clock is read: what the answer takes is none of the holder's trust
	lastSeen := asked
	if len(holders) > 0 && !holders[0].Waiting {
		var ago time.Duration
		if f.pool.QueryRow(f.ctx, "SELECT clock_timestamp() - query_start FROM pg_stat_activity WHERE pid = $1",
			holders[0].PID).Scan(&ago) == nil {
			lastSeen = asked - ago
		}
	}
	config := electionConfig()
	leader.deadline = lastSeen + config.Lease - config.TrustMargin
}

// endAll ends the rest one by one, as a service that is shut down.
func (f *field) endAll(t *testing.T) {
	t.Helper()
	f.hear(t, "all to listen to signals", func() bool { return len(f.ready) == len(f.running) })
	var gone []*pgtest.Process
	for _, p := range f.running {
		require.NoError(t, p.Signal(syscall.SIGTERM))
		gone = append(gone, p)
	}
	clear(f.running)
	for _, p := range gone {
		require.NoError(t, p.Wait(f.ctx))
	}
	f.hear(t, "the end of all", func() bool {
		return len(f.ready) == 0 && !slices.ContainsFunc(slices.Collect(maps.Values(f.terms)), func(s *termSeen) bool {
			return !s.ended && s.killed == 0
		})
	})
}

// check judges the history.
func (f *field) check(t *testing.T, each int) {
	t.Helper()
	terms := slices.SortedFunc(maps.Values(f.terms), func(a, b *termSeen) int { return int(a.granted - b.granted) })
	var overlaps []time.Duration // after pg_terminate_backend
	for i, next := range terms[1:] {
		term := terms[i]
		require.Less(t, term.token, next.token, "tokens of terms, in the order of their grants")
		overlap := term.end() - next.granted
		if overlap <= 0 {
			continue
		}
		// The server has ended the session, and tells the old leader and the next at
		// one time: who is scheduled first is not ours to say. The fence decides.
		ended := term.hitBy == byTerminate || i > 0 && terms[i-1].waiterToo
		require.True(t, ended, "terms %d of %s, hit by %s, and %d of %s overlap by %v",
			term.token, term.name, term.hitBy, next.token, next.name, overlap)
		overlaps = append(overlaps, overlap)
	}
	disorder := count(t, f.pool, "SELECT count(*) FROM (SELECT token < lag(token) OVER (ORDER BY n) AS back FROM "+f.table+") w WHERE back")
	require.Zero(t, disorder, "writes that were accepted after one of a later term")
	t.Logf("%d events, %d terms of %d processes; writes after the end of a term: %d refused, %d accepted before there was a next; none after a later one",
		f.events, len(terms), f.spawned, f.refused, f.admitted)
	if len(overlaps) > 0 {
		t.Logf("terms ended by the server, whose leader heard of it after the next was granted: %s", tail(overlaps))
		require.Less(t, slices.Max(overlaps), electionLease, "noticed at once, as far as the machine is free")
	}
	for _, kind := range []string{byKill, byTERM, byTerminate, byFreeze} {
		took := f.took[kind]
		require.NotEmpty(t, took)
		require.GreaterOrEqual(t, f.count(kind), each)
		t.Logf("%-20s from the event to the next grant: %s; to the next fn: %s", kind, tail(f.granted[kind]), tail(took))
		if kind == byFreeze {
			require.Less(t, slices.Max(took), electionLease+time.Second+busy, kind)
		} else {
			// 250 ms on a quiet machine. The median says that it is not the lease.
			require.Less(t, sorted(took)[len(took)/2], 500*time.Millisecond, kind)
			require.Less(t, sorted(took)[len(took)*99/100], electionLease+busy, kind)
		}
	}
}

// busy is what a machine that others use too may add.
const busy = time.Second

func (f *field) count(kind string) (n int) {
	for _, s := range f.terms {
		if s.hitBy == kind {
			n++
		}
	}
	return n
}

// tail names the percentiles up to the worst.
func tail(durations []time.Duration) string {
	at := sorted(durations)
	n := len(at)
	ms := func(i int) time.Duration { return at[i].Round(10 * time.Microsecond) }
	return fmt.Sprintf("n=%d p50=%v p90=%v p99=%v worst=%v", n, ms(n/2), ms(n*9/10), ms(n*99/100), ms(n-1))
}

var _ pglock.Tracer = (*grantClock)(nil)
