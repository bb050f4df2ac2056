package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed35111a8b/pglock/migrations"
	"github.com/seed35111a8b/pglock/pglock"
)

// This file has all SQL of the command that the library has no method for.

// querier is a pool or a connection.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// serverTime returns the server's clock.
func serverTime(ctx context.Context, db querier) (now time.Time, err error) {
	err = db.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now)
	if err != nil {
		return now, fmt.Errorf("the server's time: %w", err)
	}
	return now, nil
}

const existsSQL = `SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = $1 AND c.relname = $2)`

// appliedMigrations returns when each version was applied. A role that may not read that sees which are there, with no time.
func appliedMigrations(ctx context.Context, db querier, schema string) (map[int]time.Time, error) {
	applied := map[int]time.Time{}
	var exists bool
	if err := db.QueryRow(ctx, existsSQL, schema, "migrations").Scan(&exists); err != nil || !exists {
		return applied, err
	}
	type row struct {
		Version int
		At      time.Time
	}
	rows, err := db.Query(ctx, "SELECT version, applied_at FROM "+pgx.Identifier{schema, "migrations"}.Sanitize())
	var list []row
	if err == nil {
		list, err = pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	}
	for _, r := range list {
		applied[r.Version] = r.At
	}
	if !isPrivilege(err) {
		return applied, err
	}
	for version, table := range map[int]string{
		migrations.Locks: "reign", migrations.Fence: "fenced_writes", migrations.Schedules: "ticks",
	} {
		if err := db.QueryRow(ctx, existsSQL, schema, table).Scan(&exists); err != nil {
			return nil, err
		}
		if exists {
			applied[version] = time.Time{}
		}
	}
	return applied, nil
}

// migrateDown undoes what is applied, in one transaction, the last first.
func migrateDown(ctx context.Context, db pglock.DB, all []migrations.Migration, applied map[int]time.Time) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		for _, m := range slices.Backward(all) {
			if _, ok := applied[m.Version]; !ok {
				continue
			}
			if _, err := tx.Conn().PgConn().Exec(ctx, m.Down).ReadAll(); err != nil {
				return fmt.Errorf("version %d, %s: %w", m.Version, m.Name, err)
			}
		}
		return nil
	})
}

// serverFacts are what the doctor asks of any server, with any role.
type serverFacts struct {
	Backend                   uint32
	Version                   int
	VersionText, Role         string
	Standby, ReadOnly         bool
	Superuser                 bool
	MaxConnections            int64
	Reserved, Connections     int64
	RoleLimit, DatabaseLimit  int64
	RoleCount, DatabaseCount  int64
	LockTable, LocksHeld      int64
	SchemaThere, SchemaUsable bool
}

func readFacts(ctx context.Context, db querier, schema string) (f serverFacts, err error) {
	err = db.QueryRow(ctx, `SELECT pg_backend_pid(), current_setting('server_version_num')::int, current_setting('server_version'),
  current_user::text, pg_is_in_recovery(), current_setting('transaction_read_only')::bool, r.rolsuper,
  current_setting('max_connections')::bigint,
  current_setting('superuser_reserved_connections')::bigint + coalesce(current_setting('reserved_connections', true)::bigint, 0),
  (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
  r.rolconnlimit, d.datconnlimit,
  (SELECT count(*) FROM pg_stat_activity WHERE usesysid = r.oid), (SELECT count(*) FROM pg_stat_activity WHERE datid = d.oid),
  current_setting('max_locks_per_transaction')::bigint
    * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint),
  (SELECT count(*) FROM pg_locks WHERE NOT fastpath AND locktype <> 'virtualxid'),
  EXISTS (SELECT FROM pg_namespace WHERE nspname = $1),
  coalesce((SELECT has_schema_privilege(oid, 'USAGE') FROM pg_namespace WHERE nspname = $1), false)
  FROM pg_roles r, pg_database d WHERE r.rolname = current_user AND d.datname = current_database()`, schema).Scan(
		&f.Backend, &f.Version, &f.VersionText, &f.Role, &f.Standby, &f.ReadOnly, &f.Superuser, &f.MaxConnections, &f.Reserved,
		&f.Connections, &f.RoleLimit, &f.DatabaseLimit, &f.RoleCount, &f.DatabaseCount, &f.LockTable, &f.LocksHeld,
		&f.SchemaThere, &f.SchemaUsable)
	return f, err
}

// A grant is a privilege that an application's role needs.
type grant struct{ Privilege, Kind, Name string }

// missingGrants returns what the role lacks, of what is there to be granted.
func missingGrants(ctx context.Context, db querier, schema string) (missing []grant, err error) {
	rows, err := db.Query(ctx, `SELECT p, k, n FROM (VALUES
    ('USAGE', 'SEQUENCE', 'tokens'), ('SELECT', '', 'reign'),
    ('SELECT', '', 'fenced_writes'), ('INSERT', '', 'fenced_writes'), ('UPDATE', '', 'fenced_writes'),
    ('SELECT', '', 'leaders'), ('INSERT', '', 'leaders'), ('UPDATE', '', 'leaders'),
    ('SELECT', '', 'ticks'), ('INSERT', '', 'ticks')) AS g(p, k, n)
  JOIN pg_class c ON c.relname = n JOIN pg_namespace s ON s.oid = c.relnamespace AND s.nspname = $1
  WHERE NOT CASE k WHEN 'SEQUENCE' THEN has_sequence_privilege(c.oid, p) ELSE has_table_privilege(c.oid, p) END`, schema)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[grant])
}

// A sequenceState is how the sequence of tokens counts.
type sequenceState struct {
	Cache, Increment int64
	Cycle            bool
}

// readSequence returns false if there is none.
func readSequence(ctx context.Context, db querier, schema string) (s sequenceState, found bool, err error) {
	err = db.QueryRow(ctx, `SELECT q.seqcache, q.seqincrement, q.seqcycle FROM pg_sequence q JOIN pg_class c ON c.oid = q.seqrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = 'tokens'`, schema).Scan(&s.Cache, &s.Increment, &s.Cycle)
	if errors.Is(err, pgx.ErrNoRows) {
		return s, false, nil
	}
	return s, err == nil, err
}

// A changedSetting is a session default that is not PostgreSQL's own.
type changedSetting struct{ Name, Value, Source string }

// changedSettings returns those that bear on locks and fenced transactions, as a session of this role gets them.
func changedSettings(ctx context.Context, db querier) ([]changedSetting, error) {
	rows, err := db.Query(ctx, `SELECT name, current_setting(name), source FROM pg_settings
  WHERE name IN ('statement_timeout', 'transaction_timeout', 'lock_timeout', 'idle_session_timeout',
    'idle_in_transaction_session_timeout', 'synchronous_commit', 'default_transaction_read_only', 'default_transaction_isolation')
    AND source IN ('configuration file', 'database', 'user', 'database user', 'command line', 'global') AND setting IS DISTINCT FROM boot_val
  ORDER BY name`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[changedSetting])
}

// memberOf reports whether the role has the rights of a predefined one.
func memberOf(ctx context.Context, db querier, role string) (member bool, err error) {
	err = db.QueryRow(ctx, "SELECT pg_has_role(current_user, $1::name, 'USAGE')", role).Scan(&member)
	return member, err
}
