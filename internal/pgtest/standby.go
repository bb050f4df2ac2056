package pgtest

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// StandbyConfig says how a standby follows its primary.
type StandbyConfig struct {
	// Synchronous makes the primary wait for it (synchronous_standby_names).
	Synchronous bool
	// Options configure the standby's server.
	Options []Option
}

// Standby is a server that follows another by streaming replication until it
// is promoted.
type Standby struct {
	*Server
	primary *Server
	name    string
}

// standbyNumber makes names, since a primary tells standbys apart by name.
var standbyNumber atomic.Int64 //nolint:gochecknoglobals // a counter of the process

// Standby makes a standby of this server from a base backup and returns when
// it is streaming and lets clients read. The caller closes it, before or after
// the primary. Otherwise nothing is left.
func (s *Server) Standby(ctx context.Context, config StandbyConfig) (*Standby, error) {
	name := "standby" + strconv.FormatInt(standbyNumber.Add(1), 10)
	conninfo, err := s.replicationDSN(ctx, name)
	if err != nil {
		return nil, err
	}
	backup, err := s.BaseBackup(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = backup.Close() }() // a leftover is removed with the process
	opts := append(
		[]Option{FromBackup(backup), Setting("primary_conninfo", conninfo), asStandby()},
		config.Options...,
	)
	server, err := Start(ctx, opts...)
	if err != nil {
		return nil, err
	}
	sb := &Standby{Server: server, primary: s, name: name}
	if err := sb.join(ctx, config.Synchronous); err != nil {
		return nil, errors.Join(err, server.Close(ctx))
	}
	return sb, nil
}

// asStandby has the server start in standby mode.
func asStandby() Option {
	return func(o *options) { o.standby = true }
}

func (sb *Standby) join(ctx context.Context, synchronous bool) error {
	if synchronous {
		if err := sb.primary.Reload(ctx, map[string]string{"synchronous_standby_names": sb.name}); err != nil {
			return err
		}
	}
	return sb.AwaitStreaming(ctx, synchronous)
}

// AwaitStreaming returns when the primary sees the standby stream, and, if so
// asked, waits for it at commit.
func (sb *Standby) AwaitStreaming(ctx context.Context, synchronous bool) error {
	sql := "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND application_name = '" + sb.name + "'"
	if synchronous {
		sql += " AND sync_state IN ('sync', 'quorum')"
	}
	return awaitTrue(ctx, sb.primary, "the standby to stream", "SELECT 0 < ("+sql+")")
}

// AwaitCaughtUp returns when the standby has replayed all that the primary has
// written by now.
func (sb *Standby) AwaitCaughtUp(ctx context.Context) error {
	var lsn string
	if err := sb.primary.queryRow(ctx, "SELECT pg_current_wal_lsn()::text", &lsn); err != nil {
		return err
	}
	return awaitTrue(ctx, sb.Server, "the standby to catch up",
		"SELECT coalesce(pg_last_wal_replay_lsn() >= '"+lsn+"'::pg_lsn, false)")
}

// PauseReceive cuts the standby off from the primary's log, so that it lags by
// all that is written from now on, also if it is promoted. With a synchronous
// standby the primary's commits hang from then on.
func (sb *Standby) PauseReceive(ctx context.Context) error {
	if err := sb.Reload(ctx, map[string]string{"primary_conninfo": " "}); err != nil {
		return err
	}
	return awaitTrue(ctx, sb.Server, "the standby's receiver to end", "SELECT 0 = (SELECT count(*) FROM pg_stat_wal_receiver)")
}

// ResumeReceive undoes PauseReceive and returns when the standby streams.
func (sb *Standby) ResumeReceive(ctx context.Context) error {
	if err := sb.Reload(ctx, map[string]string{"primary_conninfo": ""}); err != nil {
		return err
	}
	return sb.AwaitStreaming(ctx, false)
}

// PauseReplay keeps what the standby receives from being seen by its readers.
// A promotion replays it all the same.
func (sb *Standby) PauseReplay(ctx context.Context) error {
	if err := sb.Exec(ctx, "", "SELECT pg_wal_replay_pause()"); err != nil {
		return err
	}
	return awaitTrue(ctx, sb.Server, "replay to pause", "SELECT pg_get_wal_replay_pause_state() = 'paused'")
}

// ResumeReplay undoes PauseReplay.
func (sb *Standby) ResumeReplay(ctx context.Context) error {
	return sb.Exec(ctx, "", "SELECT pg_wal_replay_resume()")
}

// Promote makes the standby a primary and returns when it accepts writes. The
// old primary is left as it is.
func (sb *Standby) Promote(ctx context.Context) error {
	if err := sb.Exec(ctx, "", "SELECT pg_promote(false)"); err != nil {
		return err
	}
	return awaitTrue(ctx, sb.Server, "the promotion", "SELECT NOT pg_is_in_recovery()")
}

// MultiHostDSN is a DSN that names several servers and, with
// target_session_attrs=read-write, finds the one that accepts writes.
func MultiHostDSN(database, sessionAttrs string, servers ...*Server) string {
	if len(servers) == 0 {
		return ""
	}
	addrs := make([]string, len(servers))
	for i, s := range servers {
		addrs[i] = s.Addr()
	}
	u := *servers[0].base
	u.Host = strings.Join(addrs, ",")
	if database != "" {
		u.Path = "/" + database
	}
	query := u.Query()
	query.Set("target_session_attrs", sessionAttrs)
	u.RawQuery = query.Encode()
	return u.String()
}

// awaitTrue polls a query for one boolean.
func awaitTrue(ctx context.Context, s *Server, what, sql string) (err error) {
	conn, err := pgx.Connect(ctx, s.DSN(""))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	var queryErr error
	err = Poll(ctx, what, func() bool {
		var done bool
		queryErr = conn.QueryRow(ctx, sql).Scan(&done)
		return done || queryErr != nil
	})
	return errors.Join(err, queryErr)
}
