package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed35111a8b/pglock/pglock"
)

type lsCommand struct{}

// Help is shown below the summary.
func (*lsCommand) Help() string {
	return `KEY is the name, where the session tells it; locks of other programs have only a LOCK ID. SINCE is when a waiter began to
wait, and when a holder's session began. SERVICE is how the session calls itself; pglock run puts its host and process ID there.
TOKEN is known for the leaders of elections. What belongs to other roles is shown to members of pg_read_all_stats.`
}

// Run is called by kong.
func (*lsCommand) Run(a *app) error {
	return a.withLocker(func(ctx context.Context, locker *pglock.Locker, _ *pgxpool.Pool) error {
		holders, err := locker.List(ctx)
		if err != nil {
			return err
		}
		return a.printHolders(ctx, locker, holders)
	})
}

type whoCommand struct {
	Key string `arg:"" help:"Name of the lock."`
}

// Help is shown below the summary.
func (*whoCommand) Help() string { return "The exit code is 1 if nobody holds it." }

// Run is called by kong.
func (c *whoCommand) Run(a *app) error {
	return a.withLocker(func(ctx context.Context, locker *pglock.Locker, _ *pgxpool.Pool) error {
		holders, err := locker.Holders(ctx, c.Key)
		if err != nil {
			return err
		}
		if err := a.printHolders(ctx, locker, holders); err != nil {
			return err
		}
		if len(holding(holders)) == 0 {
			return exitWith(exitNotAcquired)
		}
		return nil
	})
}

// holding returns those that do not wait.
func holding(holders []pglock.Holder) (held []pglock.Holder) {
	for _, h := range holders {
		if !h.Waiting {
			held = append(held, h)
		}
	}
	return held
}

// A holderView is a Holder as it is printed.
type holderView struct {
	Key     string    `json:"key,omitempty"`
	LockID  string    `json:"lock_id"`
	State   string    `json:"state"` // held, shared, waiting
	Since   time.Time `json:"since"`
	Host    string    `json:"host,omitempty"`
	PID     int       `json:"pid"`
	Started time.Time `json:"session_started"`
	User    string    `json:"user,omitempty"`
	Service string    `json:"service,omitempty"`
	Token   int64     `json:"token,omitempty"`
}

func (a *app) printHolders(ctx context.Context, locker *pglock.Locker, holders []pglock.Holder) error {
	views := make([]holderView, 0, len(holders))
	for _, h := range holders {
		v := holderView{
			Key: h.Key, LockID: h.LockID.String(), State: "held", Since: h.BackendStart, PID: h.PID, Started: h.BackendStart,
			User: h.User, Service: h.Service, Token: leaderToken(ctx, locker, h),
		}
		if v.Service == "" {
			v.Service = h.ApplicationName
		}
		if h.ClientAddr.IsValid() {
			v.Host = h.ClientAddr.String()
		}
		switch {
		case h.Waiting:
			v.State, v.Since = "waiting", h.WaitingSince
		case h.Shared:
			v.State = "shared"
		}
		views = append(views, v)
	}
	return a.print(views, func(w io.Writer) {
		row(w, "KEY", "LOCK ID", "STATE", "SINCE", "HOST", "PID", "USER", "SERVICE", "TOKEN")
		for _, v := range views {
			token := "-"
			if v.Token != 0 {
				token = fmt.Sprint(v.Token)
			}
			row(w, orDash(v.Key), v.LockID, v.State, when(v.Since), orDash(v.Host), v.PID, orDash(v.User), orDash(v.Service), token)
		}
	})
}

// leaderToken returns the token of a holder that leads an election, else 0.
func leaderToken(ctx context.Context, locker *pglock.Locker, h pglock.Holder) int64 {
	if h.Waiting || h.Key == "" {
		return 0
	}
	election, err := pglock.NewElection(locker, h.Key, nil)
	if err != nil {
		return 0
	}
	leader, err := election.Leader(ctx)
	if err != nil { // none leads, or the role may not read who does
		return 0
	}
	return leader.Token
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// when prints a time that the role may not see, which the library returns as the epoch, as unknown.
func when(t time.Time) string {
	if t.Unix() <= 0 {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

type keyCommand struct {
	Name string `arg:"" help:"The key."`
}

// Run is called by kong.
func (c *keyCommand) Run(a *app) error {
	if c.Name == "" {
		return usageError("the key is empty")
	}
	id := pglock.HashID(a.Namespace, c.Name)
	n, _ := id.Int64()
	view := struct {
		Namespace string `json:"namespace"`
		Key       string `json:"key"`
		LockID    string `json:"lock_id"`
		ClassID   uint32 `json:"classid"` // as pg_locks shows it
		ObjID     uint32 `json:"objid"`
	}{a.Namespace, c.Name, id.String(), uint32(uint64(n) >> 32), uint32(uint64(n))}
	return a.print(view, func(w io.Writer) { fmt.Fprintln(w, id) })
}

type terminateCommand struct {
	Key string `arg:"" help:"Name of the lock."`
	PID int    `help:"The backend's process ID, as ls shows it, where several hold the lock, or to end a waiter." name:"pid" placeholder:"N"`
}

// Help is shown below the summary.
func (*terminateCommand) Help() string {
	return `It ends the one session that it names, and no other: if that is gone by then, or another has its process ID, nothing is ended.
The holder learns of it at once, and another can have the lock. It takes the session's own role, or membership in pg_signal_backend;
and pg_read_all_stats to see sessions of other roles. A superuser's session takes a superuser.`
}

// Run is called by kong.
func (c *terminateCommand) Run(a *app) error {
	return a.withLocker(func(ctx context.Context, locker *pglock.Locker, _ *pgxpool.Pool) error {
		holders, err := locker.Holders(ctx, c.Key)
		if err != nil {
			return err
		}
		h, err := c.choose(holders)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("session %d, started %s, of %s at %s", h.PID, h.BackendStart.UTC().Format(time.RFC3339Nano),
			orDash(h.User), orDash(h.ClientAddr.String()))
		if h.BackendStart.Unix() <= 0 {
			return &exitError{Code: exitUnsuitable, Err: fmt.Errorf("this role may not see session %d, which holds the lock: "+
				"GRANT pg_read_all_stats, pg_signal_backend TO it, or connect as the session's own role", h.PID)}
		}
		if err := locker.Terminate(ctx, h); err != nil {
			if isPrivilege(err) {
				return &exitError{Code: exitUnsuitable, Err: fmt.Errorf("%s: it takes the session's own role, or the role "+
					"pg_signal_backend: %w", name, err)}
			}
			return err
		}
		view := struct {
			PID     int       `json:"pid"`
			Started time.Time `json:"session_started"`
			User    string    `json:"user"`
		}{h.PID, h.BackendStart, h.User}
		return a.print(view, func(w io.Writer) { fmt.Fprintln(w, "ended "+name) })
	})
}

func (c *terminateCommand) choose(holders []pglock.Holder) (pglock.Holder, error) {
	if c.PID != 0 {
		for _, h := range holders {
			if h.PID == c.PID {
				return h, nil
			}
		}
		return pglock.Holder{}, &exitError{Code: exitNotAcquired, Err: fmt.Errorf("no session %d holds %q or waits for it", c.PID, c.Key)}
	}
	held := holding(holders)
	switch len(held) {
	case 0:
		return pglock.Holder{}, &exitError{Code: exitNotAcquired, Err: fmt.Errorf("nobody holds %q", c.Key)}
	case 1:
		return held[0], nil
	}
	return pglock.Holder{}, &exitError{Code: exitUsage, Err: errors.New("several sessions hold it, in shared mode: choose one with --pid")}
}
