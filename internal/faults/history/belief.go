package history

import (
	"fmt"
	"time"
)

const (
	// hearing is how long a client that can hear may take to learn that its session
	// has ended: a busy machine runs it late. It is above the longest delay of a
	// slow link, and below the trust that it would have left.
	hearing = int64(time.Second)
	// stopping is how long a process may still run after SIGSTOP was sent.
	stopping = int64(50 * time.Millisecond)
	// lateness is how late a timer may end a Context where Err has said so already.
	lateness = int64(300 * time.Millisecond)
)

// checkBelief checks how long clients believed in a lock that they could not have:
// without the server, no longer than they may trust a lease whose last heartbeat
// was sent before (P3); with a session that the server ended, no longer than it
// takes to hear of it (P5).
func (r *Run) checkBelief(holds map[string][]*hold) []Violation {
	var found []Violation
	for i := range r.Disturbances {
		d := &r.Disturbances[i]
		for key, hs := range holds {
			for _, h := range hs {
				var text string
				switch {
				case !d.hits(h.acquire.client) || h.seen == 0:
				case d.deafens():
					text = r.overtrusted(d, h)
				case d.endsSessions():
					text = r.unheard(d, h)
				}
				if text != "" {
					found = append(found, Violation{Check: "trust", Key: key, Text: text + "\n  " + h.String()})
				}
			}
		}
	}
	return found
}

// overtrusted is about a lock that was seen held although nothing that was sent
// within the trusted time can have been answered. An acquire that was called before and returned after may have asked once
// more when it could be heard again: then its token was drawn not long before it returned.
func (r *Run) overtrusted(d *Disturbance, h *hold) string {
	deadline := d.Begun + r.Trust
	if d.Kind == Freeze {
		deadline += stopping
	}
	if !h.acquire.Strict {
		deadline += lateness
	}
	if h.acquire.called > d.Begun || h.seen <= deadline || d.Ending <= deadline {
		return ""
	}
	if h.acquire.returned >= d.Ending && h.acquire.returned <= h.drawn+deadline-d.Begun {
		return ""
	}
	return fmt.Sprintf("the client could not hear from %s to %s, and still believed in its lock %.3f ms after the trust deadline",
		clock(d.Begun), clock(d.Ending), float64(h.seen-deadline)/1e6)
}

// unheard is about a lock that was seen held although the session had ended and
// the client could hear.
func (r *Run) unheard(d *Disturbance, h *hold) string {
	named := d.Keys == nil
	for _, key := range d.Keys {
		named = named || key == h.acquire.Key
	}
	if d.Unsure || !named || h.acquire.returned >= d.Begin || h.seen <= d.Begun+hearing {
		return ""
	}
	for i := range r.Disturbances {
		other := &r.Disturbances[i]
		if other.deafens() && other.hits(h.acquire.client) && other.Begin <= d.Begun+hearing && other.Ended >= d.Begin {
			return ""
		}
	}
	return fmt.Sprintf("the session ended between %s and %s (%s), and the client, which could hear, believed in its lock for %.3f ms",
		clock(d.Begin), clock(d.Begun), d.Kind, float64(h.seen-d.Begun)/1e6)
}
