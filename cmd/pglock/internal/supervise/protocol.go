package supervise

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Kind says what has happened to a command, or what its guard is to do. On the pipes a message is a line: its kind, and a
// number.
type Kind string

// Events.
const (
	Started Kind = "started" // the number is its process ID, and that of its group
	Failed  Kind = "failed"  // it could not be started; an errno
	Stopped Kind = "stopped" // by a signal, such as that of Ctrl-Z
	Exited  Kind = "exited"  // with a status
	Killed  Kind = "killed"  // by a signal
	Overdue Kind = "overdue" // its time has passed, and it is being ended
	Gone    Kind = "gone"    // nothing of it is left
)

// Orders.
const (
	orderTrust  Kind = "trust"  // it may run until then, on the clock of Monotonic
	orderSignal Kind = "signal" // to the command alone
	orderGroup  Kind = "group"  // a signal to its whole group
	orderEnd    Kind = "end"    // SIGTERM, the grace, SIGKILL
)

// An Event is one of the kinds above, and its number.
type Event struct {
	Kind   Kind
	Number int64
}

func send(w io.Writer, kind Kind, number int64) error {
	_, err := fmt.Fprintf(w, "%s %d\n", kind, number)
	return err
}

// receive reads messages into the channel until there are no more, and closes it.
func receive(r io.Reader, into chan<- Event) {
	defer close(into)
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		kind, number, _ := strings.Cut(lines.Text(), " ")
		n, _ := strconv.ParseInt(number, 10, 64) // written by send
		into <- Event{Kind: Kind(kind), Number: n}
	}
}

// Monotonic is a clock that all processes of this machine share, and that nobody sets.
func Monotonic() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // every unix has it
	}
	return time.Duration(t.Nano())
}
