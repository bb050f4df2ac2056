package main

import (
	"encoding/json"
	"log/slog"
	"time"
)

// What a replica logs, as the messages of its log records. The demo follows them.
const (
	evReady    = "ready"
	evLeads    = "leads"
	evBegan    = "began"
	evDone     = "done"
	evRefused  = "refused here"      // the library knew that the lock was lost
	evRejected = "rejected"          // the fence refused the write
	evAccepted = "accepted late"     // and if it did not
	evFailed   = "failed"            // anything else
	evLost     = "pglock: lock lost" // logged by the library
	evBye      = "bye"
	evEnded    = "ended" // not logged: the process has ended
)

// event is such a log record. Fields that do not apply are zero.
type event struct {
	Msg     string    `json:"msg"`
	Replica string    `json:"replica"`
	Job     string    `json:"job"`
	Key     string    `json:"key"` // the library's word for the job
	Tick    time.Time `json:"tick"`
	Token   int64     `json:"token"`
	Highest int64     `json:"highest"`
	Error   string    `json:"error"`
}

// parseEvent reads a line of a replica's log. What is no log record is an event of its own kind.
func parseEvent(replica, line string) event {
	e := event{Replica: replica}
	if err := json.Unmarshal([]byte(line), &e); err != nil {
		return event{Msg: line, Replica: replica}
	}
	if e.Job == "" {
		e.Job = e.Key
	}
	return e
}

// attrs are the fields of a log record about a run.
func (a *attempt) attrs(more ...any) []any {
	return append([]any{slog.String("job", a.job), slog.Time("tick", a.tick), slog.Int64("token", a.token)}, more...)
}
