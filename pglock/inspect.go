package pglock

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// A Holder is a session that holds an advisory lock of this database, or waits for one, as the server saw it a moment ago.
// What the caller's role may not see of it is empty: that takes the role pg_read_all_stats.
type Holder struct {
	Key             string // where application_name tells it
	LockID          LockID
	Shared          bool
	Waiting         bool
	WaitingSince    time.Time // zero for a holder
	PID             int
	BackendStart    time.Time // with PID, names the session for good; zero where the role may not see it
	ApplicationName string
	Service         string // the service's own application_name, where the session is a Locker's
	User            string
	ClientAddr      netip.Addr // invalid for a unix socket
}

// List returns the sessions that hold advisory locks in this database, or wait for them, those of other programs too.
// Waiters that poll, and those between two slices, do not show.
func (l *Locker) List(ctx context.Context) ([]Holder, error) {
	holders, err := l.m.holders(ctx, listSQL)
	if err != nil {
		return nil, &LockError{Op: "list", Err: err}
	}
	return holders, nil
}

// Holders returns the sessions that hold the lock of key, and then those that wait for it.
func (l *Locker) Holders(ctx context.Context, key string) ([]Holder, error) {
	id, err := l.m.config.identify(key)
	if err != nil {
		return nil, l.m.lockError("holders", key, err)
	}
	classID, objID, objSubID := id.id.PgLocks()
	holders, err := l.m.holders(ctx, holdersOfSQL, int64(classID), int64(objID), objSubID)
	if err != nil {
		return nil, l.m.lockError("holders", key, err)
	}
	for i := range holders {
		holders[i].Key = key
	}
	return holders, nil
}

func (m *manager) holders(ctx context.Context, sql string, args ...any) ([]Holder, error) {
	rows, err := m.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, classify(err)
	}
	holders, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Holder, error) {
		var h Holder
		var classID, objID int64
		var objSubID int16
		var addr string
		err := row.Scan(&classID, &objID, &objSubID, &h.Shared, &h.Waiting, &h.WaitingSince, &h.PID, &h.BackendStart,
			&h.ApplicationName, &h.User, &addr)
		if err != nil {
			return h, err
		}
		h.LockID = lockIDFromPgLocks(uint32(classID), uint32(objID), objSubID)
		h.ClientAddr, _ = netip.ParseAddr(addr)
		h.BackendStart = orZero(h.BackendStart)
		h.Key = m.keyOf(h)
		if service, _, ok := strings.Cut(h.ApplicationName, sessionPrefix); ok {
			h.Service = strings.TrimSpace(service)
		}
		if !h.Waiting {
			h.WaitingSince = time.Time{}
		}
		return h, nil
	})
	return holders, classify(err)
}

// orZero returns the zero time for the epoch, which stands for a time that the role may not see.
func orZero(t time.Time) time.Time {
	if t.Unix() == 0 {
		return time.Time{}
	}
	return t
}

// keyOf returns the key that a session's name tells, if it is the key of this lock: names are cut, and can lie.
func (m *manager) keyOf(h Holder) string {
	_, key, ok := strings.Cut(h.ApplicationName, sessionPrefix+":")
	if !ok || checkKey(key) != nil || m.config.lockID(key) != h.LockID {
		return ""
	}
	return key
}

// Terminate ends the session of h, if it is still the one that was seen: all its locks are then lost. The error says so if it
// is gone. It takes the role pg_signal_backend, or the session's own role.
func (l *Locker) Terminate(ctx context.Context, h Holder) error {
	if h.BackendStart.IsZero() {
		return &LockError{Op: "terminate", Err: fmt.Errorf(
			"the start of session %d is not known, which tells it from a later one: it takes the role pg_read_all_stats", h.PID)}
	}
	var ended bool
	err := l.m.pool.QueryRow(ctx, terminateSQL, h.PID, h.BackendStart).Scan(&ended)
	if err == nil && !ended {
		err = fmt.Errorf("session %d, started %v, is gone", h.PID, h.BackendStart)
	}
	if err != nil {
		return &LockError{Op: "terminate", Err: classify(err)}
	}
	return nil
}
