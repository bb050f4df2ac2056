package pgtest

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Querier is what the observers need of a pool or a connection.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// AdvisoryLock is a row of pg_locks in the Querier's database.
type AdvisoryLock struct {
	ClassID  uint32
	ObjID    uint32
	ObjSubID int16 // 1: one int64, 2: two int32
	Mode     string
	Granted  bool
	PID      int
}

// Int64 is the key of a lock on one int64.
func (a AdvisoryLock) Int64() int64 { return int64(uint64(a.ClassID)<<32 | uint64(a.ObjID)) }

// AdvisoryLocks lists the advisory locks, held and awaited, of the database.
func AdvisoryLocks(ctx context.Context, db Querier) ([]AdvisoryLock, error) {
	rows, err := db.Query(ctx, `
		SELECT classid, objid, objsubid, mode, granted, pid FROM pg_locks
		WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
		ORDER BY classid, objid, objsubid, granted DESC, pid`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[AdvisoryLock])
}

// Backend is a row of pg_stat_activity.
type Backend struct {
	PID             int
	ApplicationName string
	State           string
	WaitEvent       string
	Query           string
}

// Backends lists the sessions of clients in the database whose application
// name is LIKE the pattern, without the one that asks.
func Backends(ctx context.Context, db Querier, pattern string) ([]Backend, error) {
	rows, err := db.Query(ctx, `
		SELECT pid, application_name, coalesce(state, ''), coalesce(wait_event, ''), query FROM pg_stat_activity
		WHERE datname = current_database() AND backend_type = 'client backend'
		  AND application_name LIKE $1 AND pid <> pg_backend_pid()
		ORDER BY pid`, pattern)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Backend])
}

// WaitForWaiters returns when at least n sessions wait for advisory locks of
// the database.
func WaitForWaiters(ctx context.Context, db Querier, n int) error {
	return waitLocks(ctx, db, fmt.Sprintf("%d waiters for advisory locks", n), func(locks []AdvisoryLock) bool {
		waiting := 0
		for _, l := range locks {
			if !l.Granted {
				waiting++
			}
		}
		return waiting >= n
	})
}

// WaitForNoLocks returns when no advisory lock of the database is held or
// awaited; with ids, none of these int64 keys.
func WaitForNoLocks(ctx context.Context, db Querier, ids ...int64) error {
	return waitLocks(ctx, db, "advisory locks to go", func(locks []AdvisoryLock) bool {
		for _, l := range locks {
			if len(ids) == 0 {
				return false
			}
			for _, id := range ids {
				if l.ObjSubID == 1 && l.Int64() == id {
					return false
				}
			}
		}
		return true
	})
}

func waitLocks(ctx context.Context, db Querier, what string, cond func([]AdvisoryLock) bool) error {
	var locks []AdvisoryLock
	var queryErr error
	err := Poll(ctx, what, func() bool {
		var seen []AdvisoryLock
		if seen, queryErr = AdvisoryLocks(ctx, db); queryErr != nil {
			return true
		}
		locks = seen
		return cond(locks)
	})
	if err = errors.Join(err, queryErr); err != nil {
		return fmt.Errorf("%w; last seen: %+v", err, locks)
	}
	return nil
}
