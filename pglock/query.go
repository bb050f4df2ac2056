package pglock

import "strconv"

// These statements go through the service's pool or a caller's transaction, with parameters, but for those that go in one
// message with others. Those of lock sessions, which go without, are in sql.go, and what both call is in the folder migrations.

const (
	// holdersSQL leaves out what the fence takes: the first number of its pairs says that it does.
	holdersSQL = `SELECT l.classid::bigint, l.objid::bigint, l.objsubid, l.mode = 'ShareLock', NOT l.granted,
  coalesce(l.waitstart, 'epoch'), l.pid, coalesce(a.backend_start, 'epoch'), coalesce(a.application_name, ''),
  coalesce(a.usename::text, ''), coalesce(host(a.client_addr), '')
  FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a USING (pid)
  WHERE l.locktype = 'advisory' AND l.pid IS NOT NULL
    AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
    AND NOT (l.objsubid = 2 AND l.classid = 1885826155)`

	// listSQL reads all holders and waiters, those of a key first where there are several.
	listSQL = holdersSQL + " ORDER BY l.granted DESC, l.waitstart, a.backend_start"

	// holdersOfSQL reads those of one lock, by its columns in pg_locks.
	holdersOfSQL = holdersSQL +
		" AND l.classid::bigint = $1 AND l.objid::bigint = $2 AND l.objsubid = $3 ORDER BY l.granted DESC, l.waitstart"

	// terminateSQL ends one session, named by its process and start.
	terminateSQL = `SELECT coalesce(bool_or(pg_catalog.pg_terminate_backend(pid)), false)
  FROM pg_catalog.pg_stat_activity WHERE pid = $1 AND backend_start = $2`

	tryTxSQL     = "SELECT pg_catalog.pg_try_advisory_xact_lock($1)"
	tryTxPairSQL = "SELECT pg_catalog.pg_try_advisory_xact_lock($1,$2)"

	// boundIdleSQL bounds how long the transaction may be idle between two statements, in milliseconds.
	boundIdleSQL = "SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', $1, true)"

	// quietSQL is what a migration runs under.
	quietSQL = "SET LOCAL search_path = pg_catalog; SET LOCAL client_min_messages = warning"

	// beginMigrationSQL begins the transaction of a migration, with bounds of its own: those of a role are meant for a service's
	// short transactions. The second look of a migration has to see what was committed after the first.
	beginMigrationSQL = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL idle_in_transaction_session_timeout = '1min'; " +
		"SET LOCAL statement_timeout = '1min'"

	// schemaSQL asks for the table of migrations by a query, since to_regclass may answer from a cache that is older than a
	// lock taken a moment ago: TestMigrateByTwentyReplicasAtOnce.
	schemaSQL = `SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = $1 AND c.relname = 'migrations')`
)

func (st statements) migrated() string {
	return "SELECT EXISTS (SELECT FROM " + st.schema + ".migrations WHERE version = $1)"
}

func (st statements) lockTx() string { return "SELECT " + st.schema + ".lock_tx($1,$2::smallint,$3)" }

// fence guards a transaction by one token for one resource.
func (st statements) fence() string { return "SELECT " + st.schema + ".fence($1,$2,$3)" }

// fenceEach is fence for several resources, which come sorted so that no two such calls can deadlock.
func (st statements) fenceEach() string {
	return "SELECT " + st.schema + ".fence(r,t,$3) FROM unnest($1::text[],$2::bigint[]) AS u(r,t)"
}

// beginFenced begins a transaction with what fenceEach does.
func (st statements) beginFenced(resources []string, tokens []int64, idleMillis int64) string {
	b := []byte("BEGIN READ WRITE")
	for i, resource := range resources {
		b = append(b, ";SELECT "...)
		b = append(b, st.schema...)
		b = append(b, ".fence("...)
		if plainName(resource) {
			b = append(b, "'"+resource+"',"...)
		} else {
			b = appendText(b, resource)
		}
		b = strconv.AppendInt(b, tokens[i], 10)
		b = append(b, ',')
		b = strconv.AppendInt(b, idleMillis, 10)
		b = append(b, ')')
	}
	return string(b)
}

func (st statements) pruneFence() string {
	return "DELETE FROM " + st.schema + ".fenced_writes WHERE written_at < clock_timestamp() - make_interval(secs => $1)"
}

// introduce makes a term known, unless a later one was before.
func (st statements) introduce() string {
	return "INSERT INTO " + st.schema + `.leaders AS l
  (election, token, name, host, pid, since) VALUES ($1, $2, $3, $4, $5, clock_timestamp())
  ON CONFLICT (election) DO UPDATE SET token = excluded.token, name = excluded.name, host = excluded.host, pid = excluded.pid,
    since = excluded.since
  WHERE l.token < excluded.token`
}

// leader reads the latest term of an election, if somebody holds its lock.
func (st statements) leader() string {
	return "SELECT name, host, pid, token, since FROM " + st.schema + `.leaders
  WHERE election = $1 AND EXISTS (SELECT FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND granted
    AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
    AND classid::bigint = $2 AND objid::bigint = $3 AND objsubid = $4)`
}

// claimTick waits for a transaction that is at the same tick.
func (st statements) claimTick() string {
	return "INSERT INTO " + st.schema + ".ticks (namespace, job, slot) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
}

func (st statements) lastTick() string {
	return "SELECT slot FROM " + st.schema + ".ticks WHERE namespace = $1 AND job = $2 ORDER BY slot DESC LIMIT 1"
}

func (st statements) pruneTicks() string {
	return "DELETE FROM " + st.schema + ".ticks WHERE done_at < clock_timestamp() - make_interval(secs => $1)"
}

// sequence is the sequence of tokens, as an argument of the two below.
func (st statements) sequence() string { return st.schema + ".tokens" }

// tokens reads the last value of the sequence, the base, whether the reign is current, and the highest token accepted.
func (st statements) tokens() string {
	return `SELECT coalesce(pg_catalog.pg_sequence_last_value($1::pg_catalog.text::pg_catalog.regclass), 0), r.base,
  r.started_at = pg_catalog.pg_postmaster_start_time()
    AND r.stats_reset = coalesce(pg_catalog.pg_stat_get_bgwriter_stat_reset_time(), '-infinity') AND r.written_by = r.xmin
    AND r.database_id = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()),
  coalesce((SELECT max(token) FROM ` + st.schema + `.fenced_writes), 0)
  FROM ` + st.schema + `.reign r`
}

// raise lifts the base of a reign that is current, so that the next token is higher than $2 and than all that were accepted.
// It is the base and not the sequence because setval would take back what others draw in the same instant.
func (st statements) raise() string {
	return `UPDATE ` + st.schema + `.reign r SET base = w.base, written_by = pg_catalog.pg_current_xact_id()::pg_catalog.xid
  FROM (SELECT greatest($2::pg_catalog.int8, (SELECT max(token) FROM ` + st.schema + `.fenced_writes))
    - coalesce(pg_catalog.pg_sequence_last_value($1::pg_catalog.text::pg_catalog.regclass), 0) AS base) w
  WHERE r.base < w.base`
}
