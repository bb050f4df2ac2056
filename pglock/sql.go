package pglock

import (
	"encoding/hex"
	"strconv"
	"strings"
	"time"
)

// Every request on a lock session is one message, of the simple query protocol or a call: between the first message of the extended
// protocol and its Sync none of the server's timers runs, and a holder that freezes there keeps its lock for good.
// https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-EXT-QUERY
//
// So values are written into the text: numbers as literals, texts through textLiteral, which is plain ASCII whatever the
// text, the client encoding or standard_conforming_strings are.

const (
	// beginSQL overrides the defaults of a role or database that would make taking a lock fail or wait.
	beginSQL = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE NOT DEFERRABLE;"

	rollbackSQL = "ROLLBACK"

	// infoSQL reads what budgets and slices depend on. A time-out of -1 means never.
	infoSQL = `SELECT current_setting('max_locks_per_transaction')::bigint
  * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint),
  (SELECT min(extract(epoch from current_setting(n, true)::interval) * 1000)::bigint
     FROM unnest(array['log_min_duration_statement', 'log_min_duration_sample', 'auto_explain.log_min_duration']) n
    WHERE current_setting(n, true)::interval >= '0'),
  (extract(epoch from current_setting('deadlock_timeout')::interval) * 1000)::bigint;`
)

// statements are the texts that depend on the schema.
type statements struct {
	schema string // quoted
}

// statementsOf returns the statements for a schema by its name.
func statementsOf(schema string) statements { return statements{schema: quotedSchema(schema)} }

// textLiteral returns an SQL expression for s.
func textLiteral(s string) string {
	return "pg_catalog.convert_from(pg_catalog.decode('" + hex.EncodeToString([]byte(s)) + "','hex'),'UTF8')"
}

// appendLocks appends two array arguments: the packed IDs, and their kinds or NULL where all are plain.
func appendLocks(b []byte, keys []int64, kinds []int, plain bool) []byte {
	if len(keys) == 0 {
		return append(b, "NULL,NULL"...)
	}
	b = append(b, '\'', '{')
	for i, k := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, k, 10)
	}
	b = append(b, '}', '\'', ',')
	if plain {
		return append(b, "NULL"...)
	}
	b = append(b, '\'', '{')
	for i, k := range kinds {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(k), 10)
	}
	return append(b, '}', '\'')
}

// lockArgs collects the array arguments of one statement. Its zero value is empty; reset keeps the memory.
type lockArgs struct {
	keys  []int64
	kinds []int
	mixed bool // some kind is not 0
}

func (a *lockArgs) add(id LockID, mode lockMode) {
	key, kind := id.packed(mode)
	a.keys = append(a.keys, key)
	a.kinds = append(a.kinds, kind)
	a.mixed = a.mixed || kind != 0
}

func (a *lockArgs) reset() {
	a.keys, a.kinds, a.mixed = a.keys[:0], a.kinds[:0], false
}

func (a *lockArgs) appendTo(b []byte) []byte {
	return appendLocks(b, a.keys, a.kinds, !a.mixed)
}

// acquireArgs is what the first message on a connection that is not ours yet asks for.
type acquireArgs struct {
	pid      uint32 // 0 behind an allowed pooler
	owner    string
	settings string
	adopt    bool // make it ours whatever the tries bring
	first    bool // check what is checked once
	take     *lockArgs
	most     int
}

func (st statements) acquire(a acquireArgs) string {
	b := append(make([]byte, 0, 1024), beginSQL...)
	if a.adopt || a.first {
		b = append(b, infoSQL...)
	}
	b = append(b, "SELECT outcome,detail,message,backend,tokens,functions FROM "...)
	b = append(b, st.schema...)
	b = append(b, ".acquire("...)
	b = appendPID(b, a.pid)
	b = appendText(b, a.owner)
	b = append(b, a.settings...)
	b = append(b, ',')
	b = strconv.AppendBool(b, a.adopt)
	b = append(b, ',')
	b = strconv.AppendBool(b, a.first)
	b = append(b, ',')
	if len(a.take.keys) == 0 {
		b = append(b, "'{}',NULL"...)
	} else {
		b = a.take.appendTo(b)
	}
	b = appendMost(b, a.most)
	return string(append(b, ");COMMIT"...))
}

// warmUp runs what a dedicated lock needs, for no lock at all, in a transaction that is to be rolled back.
func (st statements) warmUp(pid uint32, settings string) string {
	b := append(make([]byte, 0, 1024), beginSQL...)
	b = append(b, "SELECT "...)
	b = append(b, st.schema...)
	b = append(b, ".warm_up("...)
	b = appendPID(b, pid)
	b = append(b, settings...)
	return string(append(b, ')'))
}

// newReign raises the base of tokens. It has to be durable here before a token is drawn, and must not wait for a standby.
func (st statements) newReign() string {
	return beginSQL + st.beginReign() + ";COMMIT"
}

// beginReign is newReign within a transaction. It changes nothing in a reign that is current.
func (st statements) beginReign() string {
	return "SET LOCAL synchronous_commit TO local;SELECT " + st.schema + ".new_reign()"
}

// workArgs is what one message on a session of ours asks for.
type workArgs struct {
	pid          uint32
	owner        string
	held         int // least number of locks that must show; 0: do not look
	name         string
	clean        bool
	unlock, take lockArgs
	most         int      // grants after which to stop; 0: stop at the first refusal; below 0: try all
	again        lockArgs // what a slice may have counted twice, to be unlocked once more
}

func (st statements) work(b []byte, a *workArgs) []byte {
	b = append(b, "SELECT outcome,detail,message,unlocked,tokens,clock FROM "...)
	b = append(b, st.schema...)
	b = append(b, ".work("...)
	b = appendPID(b, a.pid)
	b = appendText(b, a.owner)
	if a.held > 0 {
		b = strconv.AppendInt(b, int64(a.held), 10)
		b = append(b, ',')
	} else {
		b = append(b, "NULL,"...)
	}
	b = appendText(b, a.name)
	b = strconv.AppendBool(b, a.clean)
	b = append(b, ',')
	b = a.unlock.appendTo(b)
	b = append(b, ',')
	b = a.take.appendTo(b)
	b = appendMost(b, a.most)
	b = append(b, ')')
	if len(a.again.keys) > 0 {
		b = st.undo(append(b, ';'), &a.again)
	}
	return b
}

// undo appends a statement that unlocks whatever of the locks is still held, and says which backend has done so.
func (st statements) undo(b []byte, locks *lockArgs) []byte {
	b = append(b, "SELECT pg_catalog.pg_backend_pid(),"...)
	b = append(b, st.schema...)
	b = append(b, ".undo("...)
	b = locks.appendTo(b)
	return append(b, ')')
}

// wait is one slice of waiting, where it cannot be a call.
func (st statements) wait(owner string, slice time.Duration, key int64, kind int) string {
	b := append(make([]byte, 0, 160), "SELECT "...)
	b = append(b, st.schema...)
	b = append(b, ".wait(NULL,"...)
	b = appendText(b, owner)
	b = strconv.AppendInt(b, slice.Milliseconds(), 10)
	b = append(b, ",'"...)
	b = strconv.AppendInt(b, key, 10)
	b = append(b, "',"...)
	b = strconv.AppendInt(b, int64(kind), 10)
	return string(append(b, "::smallint)"...))
}

// verifySQL asks whether this very lock is held by this very backend.
func verifySQL(id LockID, mode lockMode) string {
	classID, objID, objSubID := id.id.PgLocks()
	name := "ExclusiveLock"
	if mode == shared {
		name = "ShareLock"
	}
	return "SELECT count(*) FROM pg_locks WHERE locktype='advisory' AND granted AND pid=pg_backend_pid() AND classid=" +
		strconv.FormatUint(uint64(classID), 10) + " AND objid=" + strconv.FormatUint(uint64(objID), 10) +
		" AND objsubid=" + strconv.Itoa(int(objSubID)) + " AND mode='" + name + "'"
}

func appendPID(b []byte, pid uint32) []byte {
	if pid == 0 {
		return append(b, "NULL,"...)
	}
	b = strconv.AppendUint(b, uint64(pid), 10)
	return append(b, ',')
}

func appendMost(b []byte, most int) []byte {
	if most < 0 {
		return append(b, ",NULL"...)
	}
	return strconv.AppendInt(append(b, ','), int64(most), 10)
}

func appendText(b []byte, s string) []byte {
	if s == "" {
		return append(b, "NULL,"...)
	}
	b = append(b, textLiteral(s)...)
	return append(b, ',')
}

// settings returns the session settings of a lock session as an SQL array of names and values, without those that this
// server has refused. All of them may be set by any role. They are set by statement and never as startup parameters, which
// poolers refuse or drop.
//
// The lease is idle_session_timeout; statement_timeout, transaction_timeout and idle_in_transaction_session_timeout bound
// what that timer does not see. Keepalives and tcp_user_timeout find a dead socket, never before the lease is over;
// client_connection_check_interval lets the backend of a dead waiter leave the queue. synchronous_commit is off because
// a draw need not be durable, the reign makes up for it, and because with a synchronous standby down a commit would hang
// with the lock held.
func settings(lease time.Duration, owner, name string, refused map[string]bool) string {
	ms := strconv.FormatInt(lease.Milliseconds(), 10)
	seconds := strconv.FormatInt(max(1, int64(lease.Seconds()/3)), 10)
	list := [][2]string{
		{"idle_session_timeout", ms},
		{"statement_timeout", ms},
		{"idle_in_transaction_session_timeout", ms},
		{"lock_timeout", "1000"},
		{"tcp_user_timeout", strconv.FormatInt((lease + time.Second).Milliseconds(), 10)},
		{"tcp_keepalives_idle", seconds},
		{"tcp_keepalives_interval", seconds},
		{"tcp_keepalives_count", "4"},
		{"client_connection_check_interval", strconv.FormatInt(min(1000, lease.Milliseconds()/3), 10)},
		{"synchronous_commit", "off"},
		{"jit", "off"},
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"default_transaction_deferrable", "off"},
		{"transaction_timeout", ms}, // after all that may be refused: see warm_up
	}
	if owner != "" {
		list = append(list, [2]string{ownerSetting, owner})
	}
	list = append(list, [2]string{"application_name", name})
	if owner != "" || !plainName(name) {
		return settingsArray(list, refused)
	}
	var b strings.Builder
	b.Grow(512)
	b.WriteString("'{")
	for _, s := range list {
		if !refused[s[0]] {
			if b.Len() > len("'{") {
				b.WriteByte(',')
			}
			b.WriteString(s[0])
			b.WriteString(`,"`)
			b.WriteString(s[1])
			b.WriteByte('"')
		}
	}
	b.WriteString("}'")
	return b.String()
}

// settingsArray is the same for any text. It takes the server longer to read.
func settingsArray(list [][2]string, refused map[string]bool) string {
	var b strings.Builder
	for _, s := range list {
		if !refused[s[0]] {
			b.WriteString(",'" + s[0] + "'," + textLiteral(s[1]))
		}
	}
	return "array[" + b.String()[1:] + "]"
}

// plainName reports whether a name means itself in a literal, and in one of an array, whatever the session's settings are.
func plainName(name string) bool {
	for i := range len(name) {
		if c := name[i]; c < ' ' || c > '~' || c == '"' || c == '\'' || c == '\\' {
			return false
		}
	}
	return name != ""
}

// ownerSetting marks a backend as ours behind a pooler. The functions of the migrations read it.
const ownerSetting = "pglock.owner"
