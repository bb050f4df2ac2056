package main

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
)

func TestKeyIsThatOfTheServer(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	var id int64
	require.NoError(t, h.pool(t).QueryRow(t.Context(), "SELECT pglock.key('jobs', 'é')").Scan(&id))
	require.Equal(t, fmt.Sprintln(id), h.pglock(t, "key", "--namespace", "jobs", "é").stdout)
	h.dsn = "postgres://127.0.0.1:1/nowhere"
	var view struct {
		LockID string `json:"lock_id"`
	}
	require.NoError(t, json.Unmarshal([]byte(h.pglock(t, "key", "--namespace", "jobs", "--json", "é").stdout), &view))
	require.Equal(t, fmt.Sprint(id), view.LockID, "without a server")
}

func TestLsWhoAndTerminate(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	require.Equal(t, 1, h.pglock(t, "who", "nightly").code)
	require.Equal(t, 1, h.pglock(t, "terminate", "nightly").code)
	first := h.start(t, `"$PGLOCK" run nightly -- sh -c 'echo held; sleep 1000'`)
	expect(t, first, "held")
	second := h.start(t, `"$PGLOCK" run nightly -- sh -c 'echo held; cat'`)
	require.NoError(t, pgtest.WaitForWaiters(t.Context(), h.pool(t), 1))
	h.exec(t, "SELECT pg_advisory_lock(1, 2)")

	r := h.pglock(t, "ls")
	require.Zero(t, r.code)
	require.Contains(t, r.stdout, "nightly")
	require.Contains(t, r.stdout, fmt.Sprintf("[%d]", first.PID()), "the service tells host and process")
	require.Contains(t, r.stdout, "(1,2)", "locks of others have a number")
	var holders []holderView
	pgtest.Eventually(t, "the waiter to be seen, which is not between two slices", func() bool {
		r = h.pglock(t, "who", "--json", "nightly")
		return r.code == 0 && json.Unmarshal([]byte(r.stdout), &holders) == nil && len(holders) == 2
	})
	require.Equal(t, "held", holders[0].State)
	require.Equal(t, "waiting", holders[1].State)
	require.False(t, holders[0].Since.IsZero())

	r = h.pglock(t, "terminate", "nightly")
	require.Zero(t, r.code, r.stderr)
	require.Contains(t, r.stdout, fmt.Sprintf("session %d, started 2", holders[0].PID))
	require.Equal(t, exitLost, wait(t, first))
	expect(t, second, "held")
	require.Zero(t, wait(t, second), "only that one was ended")
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	h := hostOn(t, pgtest.NewDatabase(t, pgtest.Shared(t)))
	require.Equal(t, 1, h.pglock(t, "migrate", "status").code)
	require.Zero(t, h.pglock(t, "migrate", "up").code)
	require.Zero(t, h.pglock(t, "migrate", "up").code)
	require.Zero(t, h.pglock(t, "migrate", "status").code)
	require.Equal(t, exitUsage, h.pglock(t, "migrate", "down").code)
	require.Zero(t, h.pglock(t, "migrate", "down", "--yes").code)
	require.Equal(t, 1, h.pglock(t, "migrate", "status").code)
	require.Equal(t, exitUnsuitable, h.pglock(t, "run", "k", "--", "true").code)
	sql := h.pglock(t, "migrate", "sql", "--schema", `it's "odd"`)
	require.Contains(t, sql.stdout, `create schema "it's ""odd"""`)
	h.exec(t, sql.stdout)
	require.Zero(t, h.pglock(t, "run", "--schema", `it's "odd"`, "k", "--", "true").code)
	require.Zero(t, h.pglock(t, "tokens", "--schema", `it's "odd"`, "--raise", "--at-least", "9").code)
}

func TestARoleOfLeastPrivilegeRunsAllButMigrateAndTerminate(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	role, guest := h.newRole(t)
	h.exec(t, documentedGrants(t, role))
	other := h.start(t, `"$PGLOCK" run held -- sh -c 'echo held; cat'`)
	expect(t, other, "held")
	for _, args := range [][]string{
		{"run", "k", "--", "true"},
		{"run", "--once", "1h", "k", "--", "true"},
		{"ls"},
		{"who", "held"},
		{"key", "k"},
		{"tokens"},
		{"migrate", "status"},
		{"migrate", "sql"},
		{"doctor"},
	} {
		r := guest.pglock(t, args...)
		require.Zero(t, r.code, "%v: %s%s", args, r.stdout, r.stderr)
	}
	r := guest.pglock(t, "terminate", "held")
	require.Equal(t, exitUnsuitable, r.code)
	require.Contains(t, r.stderr, "pg_signal_backend")
	require.Equal(t, exitUnsuitable, guest.pglock(t, "migrate", "down", "--yes").code)
	r = guest.pglock(t, "tokens", "--raise", "--at-least", "99")
	require.Equal(t, exitUnsuitable, r.code)
	require.Contains(t, r.stderr, `GRANT UPDATE ON "pglock"."reign"`)
	h.exec(t, "GRANT UPDATE ON pglock.reign TO "+role)
	require.Zero(t, guest.pglock(t, "tokens", "--raise", "--at-least", "99").code)
	require.Zero(t, wait(t, other))
}

func TestNoServerIsNamed(t *testing.T) {
	t.Parallel()
	h := hostOn(t, "")
	h.env = []string{"PGPORT=1"} // so that none is found
	for _, args := range [][]string{{"ls"}, {"run", "k", "--", "true"}} {
		r := h.pglock(t, args...)
		require.Equal(t, exitUnavailable, r.code)
		require.Contains(t, r.stderr, "none of DATABASE_URL")
	}
}

func TestNoPasswordInAnyOutput(t *testing.T) {
	t.Parallel()
	const secret = "pa55-w0rd"
	for _, dsn := range []string{
		"postgres://app:" + secret + "@127.0.0.1:1/app",
		"postgres://app:" + secret + "@127.0.0.1:port/app",
		"postgres://app:" + secret + "#x@127.0.0.1/app",
		"postgres://app:%zz" + secret + "@127.0.0.1/app",
		"postgres://app:" + secret + "@[::1/app",
		"host=127.0.0.1 port=1 password=" + secret,
		"host=127.0.0.1 port=1 password='" + secret,
		"host=127.0.0.1 sslmode=" + secret + " password=" + secret,
	} {
		h := hostOn(t, dsn)
		for _, args := range []string{"run k -- true", "ls", "who k", "tokens", "terminate k", "migrate up", "doctor", "doctor --json"} {
			r := h.sh(t, `"$PGLOCK" `+args)
			require.NotZero(t, r.code)
			require.NotContains(t, r.stdout+r.stderr, secret, "%s, %s", dsn, args)
		}
	}
}

func TestHelpIsThere(t *testing.T) {
	t.Parallel()
	h := hostOn(t, "")
	for _, args := range []string{"", "--help", "run --help", "doctor --help", "migrate --help", "tokens --help"} {
		r := h.sh(t, `"$PGLOCK" `+args)
		require.Zero(t, r.code)
		require.Contains(t, r.stdout, "Usage: pglock")
	}
	require.Regexp(t, `^pglock \S+ .*go1\.`, h.pglock(t, "--version").stdout)
	require.Equal(t, exitUsage, h.pglock(t, "nonsense").code)
	require.Equal(t, exitUsage, h.pglock(t, "ls", "--", "true").code)
}
