package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/seed35111a8b/pglock/pglock"
)

// view writes what happens, a line an event, beside who holds which lock at that time.
type view struct {
	w      io.Writer
	start  time.Time
	jobs   []job
	locker *pglock.Locker   // to ask the database
	began  map[string]event // the last run that began, by job
}

func newView(w io.Writer, jobs []job, locker *pglock.Locker) *view {
	return &view{w: w, start: time.Now(), jobs: jobs, locker: locker, began: map[string]event{}}
}

const columnWidth = 14

// header says what the columns are.
func (v *view) header() {
	fmt.Fprintf(v.w, "\nWho holds the lock of each job (from pg_locks; #n is the fencing token), and what happens:\n\n%9s", "time")
	for _, j := range v.jobs {
		fmt.Fprintf(v.w, "  %-*s", columnWidth, j.name)
	}
	fmt.Fprintln(v.w)
}

// heading begins a part of the demo.
func (v *view) heading(format string, args ...any) {
	fmt.Fprintf(v.w, "\n--- %s\n", fmt.Sprintf(format, args...))
}

// say writes a line.
func (v *view) say(ctx context.Context, format string, args ...any) {
	fmt.Fprintf(v.w, "%8.3fs", time.Since(v.start).Seconds())
	holders := v.holders(ctx)
	for _, j := range v.jobs {
		fmt.Fprintf(v.w, "  %-*s", columnWidth, v.cell(j.name, holders[j.name]))
	}
	fmt.Fprintf(v.w, "  %s\n", fmt.Sprintf(format, args...))
}

func (v *view) cell(job, holder string) string {
	began := v.began[job]
	switch holder {
	case "":
		return "-"
	case began.Replica:
		return fmt.Sprintf("%s #%d", holder, began.Token)
	}
	return holder
}

// holders asks the database which replica holds which lock. If it does not answer nobody is shown.
func (v *view) holders(ctx context.Context) map[string]string {
	list, err := v.locker.List(ctx)
	if err != nil {
		return nil
	}
	holders := map[string]string{}
	for _, h := range list {
		if !h.Waiting {
			holders[h.Key] = replicaOf(h)
		}
	}
	return holders
}

// replicaOf is the replica that a session belongs to: the name of its pool, which pglock puts before the key.
func replicaOf(h pglock.Holder) string {
	name, _, _ := strings.Cut(h.ApplicationName, " ")
	return name
}

// event writes the line of an event, if it is worth one.
func (v *view) event(ctx context.Context, e event) {
	what := e.Replica + " "
	switch e.Msg {
	case evReady:
		what += "is ready"
	case evLeads:
		what += fmt.Sprintf("leads (#%d)", e.Token)
	case evBegan:
		v.began[e.Job] = e
		what += fmt.Sprintf("begins %s %s", e.Job, clock(e.Tick))
	case evDone:
		what += fmt.Sprintf("has done %s %s", e.Job, clock(e.Tick))
	case evLost:
		what += fmt.Sprintf("hears that its lock of %s (#%d) is lost", e.Job, e.Token)
	case evRefused:
		what += fmt.Sprintf("wants to write %s %s: the library refuses, the lock is lost", e.Job, clock(e.Tick))
	case evRejected:
		what += fmt.Sprintf("writes %s %s all the same: REJECTED by the database, #%d is stale, #%d was accepted",
			e.Job, clock(e.Tick), e.Token, e.Highest)
	case evAccepted:
		what += fmt.Sprintf("writes %s %s all the same: ACCEPTED, though #%d is stale", e.Job, clock(e.Tick), e.Token)
	case evBye:
		what += "has ended cleanly"
	case evEnded:
		return
	default:
		what += strings.TrimSpace(strings.Join([]string{e.Msg, e.Job, e.Error}, " "))
	}
	v.say(ctx, "%s", what)
}
