package pglock

import (
	"context"
	"errors"
	"iter"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A Leader is a candidate that leads, as it has introduced itself.
type Leader struct {
	Name  string
	Host  string
	PID   int
	Token int64 // of the term
	Since time.Time
}

// take shuts the leader before out of the resources and makes the term known. It is bounded: a writer of that leader that
// goes on holds the resource's row for as long as its transaction lives, and a term that does not begin helps nobody.
func (e *Election) take(ctx context.Context, lock *Lock) error {
	ctx, cancel := context.WithTimeout(ctx, e.m.config.Lease)
	defer cancel()
	host, _ := os.Hostname() // the name says enough
	introduce := func(db execer) error {
		_, err := db.Exec(ctx, e.m.sql.introduce(), e.id(), lock.token, e.config.Name, host, os.Getpid())
		return classify(err)
	}
	switch {
	case len(e.config.Resources) == 0:
		return introduce(e.m.pool)
	case e.config.DB == DB(e.m.pool): // both at once
		return lock.claim(ctx, e.m.pool, e.config.Resources, func(tx pgx.Tx) error { return introduce(tx) })
	}
	if err := lock.Claim(ctx, e.config.DB, e.config.Resources...); err != nil {
		return err
	}
	return introduce(e.m.pool)
}

// execer is a pool or a transaction.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// id names the election in the table leaders: by its lock, which Namespace is part of.
func (e *Election) id() string { return e.m.config.lockID(e.key).String() }

// Leader returns who leads now. The error matches ErrNoLeader if nobody does. Candidates and mere observers may ask.
func (e *Election) Leader(ctx context.Context) (Leader, error) {
	leader, err := e.leader(ctx)
	if err != nil {
		return Leader{}, e.m.lockError("leader", e.key, err)
	}
	return leader, nil
}

func (e *Election) leader(ctx context.Context) (Leader, error) {
	classID, objID, objSubID := e.m.config.lockID(e.key).id.PgLocks()
	var l Leader
	err := e.m.pool.QueryRow(ctx, e.m.sql.leader(),
		e.id(), int64(classID), int64(objID), objSubID).Scan(&l.Name, &l.Host, &l.PID, &l.Token, &l.Since)
	if errors.Is(err, pgx.ErrNoRows) {
		return Leader{}, ErrNoLeader
	}
	return l, classify(err)
}

// Observe yields the leader, and then each change of it, until ctx ends or the loop is left: the zero Leader while nobody
// leads. It asks once per Config.HeartbeatInterval. An error is yielded too, and does not end it.
func (e *Election) Observe(ctx context.Context) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		var last Leader
		for first := true; ; first = false {
			leader, err := e.leader(ctx)
			if errors.Is(err, ErrNoLeader) {
				err = nil
			}
			if ctx.Err() != nil {
				return
			}
			if err != nil || first || leader != last {
				if err != nil {
					leader, err = last, e.m.lockError("observe", e.key, err)
				}
				if !yield(leader, err) {
					return
				}
				last = leader
			}
			if !pauseFor(ctx, e.m.config.HeartbeatInterval) {
				return
			}
		}
	}
}
