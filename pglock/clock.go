package pglock

import "time"

// A clock watches the server's clock against ours. The server's timers use its wall clock, so that a step of it ends
// leases early or late; nothing can be done about it here but to say so.
type clock struct {
	seen  bool
	ahead time.Duration // of the manager's time
}

// minStep is the least step that is worth a word: well above what a slow answer looks like.
const minStep = time.Second

// check compares the server's time, in microseconds since the epoch, with the time at which it was asked.
func (c *clock) check(m *manager, micros int64, sent time.Duration) {
	answered := m.now()
	ahead := time.Duration(micros)*time.Microsecond - (sent+answered)/2
	step := ahead - c.ahead
	if c.seen && step.Abs() > minStep+(answered-sent)/2 {
		m.config.Logger.Warn("pglock: server clock stepped", "step", step,
			"effect", "leases that run now may end early or late by as much")
	}
	c.seen, c.ahead = true, ahead
}
