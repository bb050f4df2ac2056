package history

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
)

// op is an operation with both of its ends.
type op struct {
	Event         // its return; for one that did not return, its call
	client, life  int
	called        int64
	returned      int64 // the end of time if it did not
	processKilled bool
}

func (o *op) id() string { return WriteID(o.client, o.life, o.ID) }

// hold is a lock as its holder saw it.
type hold struct {
	acquire *op
	granted int64 // the earliest time at which the server may have given it
	drawn   int64 // the latest time at which its token can have been drawn
	seen    int64 // last seen held; 0: never
	free    int64 // the earliest time at which another may have had it
	gone    int64 // when it had certainly ended
	how     string
}

func (h *hold) String() string {
	return fmt.Sprintf("c%d.%d token %d, acquire called %s, returned %s, last seen %s, counts until %s (%s)",
		h.acquire.client, h.acquire.life, h.acquire.Token, clock(h.acquire.called), clock(h.acquire.returned),
		clock(h.seen), clock(h.free), h.how)
}

// clock prints a time in seconds.
func clock(t int64) string { return fmt.Sprintf("%.6f", float64(t)/1e9) }

const endOfTime = math.MaxInt64

// operations pairs the calls and returns of a run.
func (r *Run) operations() []*op {
	var ops []*op
	for _, p := range r.Processes {
		open := map[int64]*op{}
		for _, e := range p.Events {
			switch e.Kind {
			case Call:
				o := &op{
					Event: e, client: p.Client, life: p.Life,
					called: e.Time, returned: endOfTime, processKilled: p.Killed,
				}
				o.Outcome = Unknown
				open[e.ID] = o
				ops = append(ops, o)
			case Return:
				if o := open[e.ID]; o != nil {
					o.Event, o.returned = e, e.Time
				}
			}
		}
	}
	slices.SortStableFunc(ops, func(a, b *op) int { return cmp.Compare(a.called, b.called) })
	return ops
}

// holds are the locks that clients know they had, by key, in the order of their
// tokens. What an acquire took whose client never heard of it is nobody's.
func (r *Run) holds(ops []*op) map[string][]*hold {
	type name struct {
		client, life int
		id           int64
	}
	byName := map[name]*hold{}
	byKey := map[string][]*hold{}
	for _, o := range ops {
		if slices.Contains(Acquires(), o.Op) && o.Outcome == OK {
			h := &hold{acquire: o, granted: o.called, free: o.called, gone: endOfTime, how: "never seen held"}
			byName[name{o.client, o.life, o.ID}] = h
			byKey[o.Key] = append(byKey[o.Key], h)
		}
	}
	for _, p := range r.Processes {
		for _, e := range p.Events {
			h := byName[name{p.Client, p.Life, e.Hold}]
			switch {
			case h == nil:
			case e.Kind == Seen:
				h.seen = max(h.seen, e.Time)
				h.free, h.how = max(h.free, h.seen), "seen held"
			case e.Kind == Gone:
				h.gone = min(h.gone, e.Time)
			}
		}
	}
	for _, o := range ops {
		if h := byName[name{o.client, o.life, o.Hold}]; o.Op == Release && h != nil {
			h.released(o)
		}
	}
	for _, hs := range byKey {
		for _, h := range hs {
			if h.gone == endOfTime {
				h.gone = max(h.free, r.process(h.acquire.client, h.acquire.life).End)
			}
		}
		slices.SortStableFunc(hs, func(a, b *hold) int { return cmp.Compare(a.acquire.Token, b.acquire.Token) })
	}
	boundDraws(byKey)
	return byKey
}

// boundDraws says when each token had been drawn at the latest: when its own client had it, or any client a higher one.
func boundDraws(byKey map[string][]*hold) {
	all := slices.Concat(slices.Collect(maps.Values(byKey))...)
	slices.SortFunc(all, func(a, b *hold) int { return cmp.Compare(b.acquire.Token, a.acquire.Token) })
	earliest := int64(endOfTime)
	for _, h := range all {
		earliest = min(earliest, h.acquire.returned)
		h.drawn = earliest
	}
}

// released ends the hold by its release. One that confirms the lock was held
// proves that it was until it was called; one that could not reach the server
// leaves the lock there for a while, where nobody has it.
func (h *hold) released(o *op) {
	if o.Outcome == OK || o.Outcome == Unknown && o.returned != endOfTime {
		h.free, h.how = max(h.free, o.called), "released"
	}
	h.gone = min(h.gone, o.returned)
}

func (r *Run) process(client, life int) *Process {
	i := slices.IndexFunc(r.Processes, func(p *Process) bool { return p.Client == client && p.Life == life })
	return r.Processes[i]
}

// excuse lets holds end as early as the server itself may have ended their
// sessions.
func (r *Run) excuse(holds map[string][]*hold) {
	for i := range r.Disturbances {
		d := &r.Disturbances[i]
		if !d.endsSessions() {
			continue
		}
		for _, hs := range holds {
			for _, h := range hs {
				if early := max(h.granted, d.Begin); h.free > d.Begin && d.mayEnd(h) && early < h.free {
					h.free, h.how = early, d.Kind
				}
			}
		}
	}
}

// mayEnd tells whether the disturbance may have ended the session of the hold: one
// that was asked for before it had set in, as far as anyone can tell. A session
// that was looked up before it was terminated may have taken another lock by then.
func (d *Disturbance) mayEnd(h *hold) bool {
	if !d.hits(h.acquire.client) || h.granted > d.Begun {
		return false
	}
	return d.Keys == nil || slices.Contains(d.Keys, h.acquire.Key) || h.acquire.returned >= d.Begin
}
