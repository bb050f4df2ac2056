package history

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Now is CLOCK_MONOTONIC in nanoseconds.
func Now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // there is no machine without this clock
	}
	return ts.Nano()
}

// What an Event tells.
const (
	Call   = "call"
	Return = "return"
	Seen   = "seen" // the lock of Hold was seen held at Time
	Gone   = "gone" // the lock of Hold was seen ended
)

// What a client does.
const (
	Acquire    = "acquire"
	Try        = "try"
	AcquireAll = "acquire all" // one event for each of its keys
	TryAll     = "try all"
	Release    = "release"
	Write      = "write" // with the fence, and a row in the table of writes
	Claim      = "claim"
)

// Acquires returns the operations that take a lock.
func Acquires() []string { return []string{Acquire, Try, AcquireAll, TryAll} }

// How an operation ends.
const (
	OK      = "ok"
	Busy    = "busy"    // not acquired
	Lost    = "lost"    // refused by the library, because the lock has ended
	Stale   = "stale"   // refused by the fence
	Unknown = "unknown" // a connection broke: it may have happened or may yet happen
	Odd     = "odd"     // an error that no fault explains
)

// Event is a line in a client's log.
type Event struct {
	Kind    string `json:"kind"`
	Op      string `json:"op,omitempty"`
	ID      int64  `json:"id"` // of the operation in this process
	Worker  int    `json:"worker"`
	Key     string `json:"key,omitempty"`
	Hold    int64  `json:"hold,omitempty"` // the ID of the acquire
	Token   int64  `json:"token,omitempty"`
	Time    int64  `json:"time"`
	Outcome string `json:"outcome,omitempty"`
	Highest int64  `json:"highest,omitempty"` // what a fence that refused had
	Strict  bool   `json:"strict,omitempty"`  // of a hold: it is watched by Err, which goes by the clock, not by Context
	Error   string `json:"error,omitempty"`
}

// Process is one life of a client, from its start to its end.
type Process struct {
	Client int     `json:"client"`
	Life   int     `json:"life"`
	Killed bool    `json:"killed"`
	End    int64   `json:"end"` // when it was certainly gone
	Events []Event `json:"events"`
}

// Disturbance is a fault as it was done. It set in between Begin and Begun, and was
// taken back between Ending and Ended, which are zero where there is nothing to
// take back.
type Disturbance struct {
	Kind   string   `json:"kind"`
	Client int      `json:"client"`         // Everyone, or whom it hits
	Keys   []string `json:"keys,omitempty"` // of a terminated session: the locks it had
	Begin  int64    `json:"begin"`
	Begun  int64    `json:"begun"`
	Ending int64    `json:"ending,omitempty"`
	Ended  int64    `json:"ended,omitempty"`
	Unsure bool     `json:"unsure,omitempty"` // whether it happened at all is not known
}

// Everyone is the Client of a Disturbance that hits all.
const Everyone = -1

// Kinds of disturbances.
const (
	Kill         = "kill -9"
	Freeze       = "freeze"
	Partition    = "partition"
	Slow         = "slow link"
	Cut          = "reset connections"
	Terminate    = "terminate"
	Crash        = "crash"
	CrashBackend = "crash of a backend"
	Restart      = "restart"
)

// endsSessions tells whether the server ends sessions by itself in it.
func (d *Disturbance) endsSessions() bool {
	switch d.Kind {
	case Cut, Terminate, Crash, CrashBackend, Restart:
		return true
	default:
		return false
	}
}

// deafens tells whether a client cannot hear the server meanwhile.
func (d *Disturbance) deafens() bool { return d.Kind == Freeze || d.Kind == Partition }

func (d *Disturbance) hits(client int) bool { return d.Client == Everyone || d.Client == client }

// Row is a row of the table of writes, in the order of their numbers.
type Row struct {
	Seq   int64  `json:"seq"`
	ID    string `json:"id"` // WriteID
	Key   string `json:"key"`
	Token int64  `json:"token"`
}

// WriteID names a write in the table.
func WriteID(client, life int, id int64) string { return fmt.Sprintf("c%d.%d.%d", client, life, id) }

// Run is all that is known of a run.
type Run struct {
	Trust        int64         `json:"trust"` // Lease − TrustMargin in nanoseconds
	Processes    []*Process    `json:"processes"`
	Disturbances []Disturbance `json:"disturbances"`
	Rows         []Row         `json:"rows"`
}
