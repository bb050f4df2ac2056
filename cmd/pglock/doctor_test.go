package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
)

// doctor returns the findings that are not ok, by check, and the exit code.
func (h *host) doctor(t *testing.T) (findings map[string]string, code int) {
	t.Helper()
	r := h.pglock(t, "doctor", "--json")
	require.Empty(t, r.stderr)
	var list []struct{ Check, Severity, Text, Remedy string }
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &list), r.stdout)
	findings = map[string]string{}
	for _, f := range list {
		if f.Severity != "ok" {
			require.NotEmpty(t, f.Remedy, "%+v", f)
			findings[f.Check] += fmt.Sprintf("%s: %s → %s\n", f.Severity, f.Text, f.Remedy)
		}
	}
	return findings, r.code
}

// exec runs SQL in the host's database, as a superuser.
func (h *host) exec(t *testing.T, sql string) {
	t.Helper()
	_, err := h.pool(t).Exec(t.Context(), sql)
	require.NoError(t, err)
}

// database is the name of the host's database.
func (h *host) database(t *testing.T) string {
	t.Helper()
	return h.pool(t).Config().ConnConfig.Database
}

// newRole makes a role that may log in, and a host that is the same but for it.
func (h *host) newRole(t *testing.T) (role string, guest *host) {
	t.Helper()
	s := pgtest.Shared(t)
	role = strings.ToLower("r_" + pgtest.Key(t)[len(pgtest.Key(t))-8:])
	database := h.database(t)
	h.exec(t, "CREATE ROLE "+role+" LOGIN PASSWORD 'very-secret'")
	t.Cleanup(func() {
		require.NoError(t, s.Exec(context.Background(), database, "DROP OWNED BY "+role+"; DROP ROLE "+role))
	})
	guest = hostOn(t, s.UserDSN(role, "very-secret", database))
	return role, guest
}

// documentedGrants are those of docs/operations.md, for the role.
func documentedGrants(t *testing.T, role string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	_, grants, ok := strings.Cut(string(text), "<!-- grants -->\n```sql\n")
	require.True(t, ok)
	grants, _, _ = strings.Cut(grants, "```")
	return strings.ReplaceAll(grants, " TO app;", " TO "+role+";")
}

func TestDoctorOfAHealthyServer(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	findings, code := h.doctor(t)
	require.Empty(t, findings)
	require.Zero(t, code)
	pgtest.NoAdvisoryLocks(t, h.pool(t))
	require.Contains(t, h.pglock(t, "doctor").stdout, "ok  lock")
}

func TestDoctorBeforeMigrating(t *testing.T) {
	t.Parallel()
	h := hostOn(t, pgtest.NewDatabase(t, pgtest.Shared(t)))
	findings, code := h.doctor(t)
	require.Equal(t, 2, code)
	require.Contains(t, findings["migrations"], "pglock migrate up")
	require.Contains(t, findings["lock"], "pglock migrate up")
}

func TestDoctorCannotConnect(t *testing.T) {
	t.Parallel()
	h := hostOn(t, "postgres://app:very-secret@127.0.0.1:1/app")
	findings, code := h.doctor(t)
	require.Equal(t, exitUnavailable, code)
	require.Contains(t, findings["connection"], "connection refused")
}

func TestDoctorFindsAPooler(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for _, mode := range []pgtest.PoolMode{pgtest.SessionPooling, pgtest.TransactionPooling} {
		bouncer := pgtest.PgBouncerTo(t, pgtest.Shared(t), mode, nil)
		behind := hostOn(t, bouncer.DSN(h.database(t)))
		findings, code := behind.doctor(t)
		require.Equal(t, 2, code)
		require.Contains(t, findings["connection"], "pooler")
		require.Contains(t, findings["lock"], "pooler")
		require.Equal(t, exitUnsuitable, behind.pglock(t, "run", "k", "--", "true").code)
	}
}

func TestDoctorFindsAStandby(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t)
	h := hostOn(t, s.DSN(""))
	migrate(t, h.dsn)
	standby := pgtest.NewStandby(t, s, pgtest.StandbyConfig{})
	require.NoError(t, standby.AwaitCaughtUp(t.Context()))
	reader := hostOn(t, standby.DSN(""))
	findings, code := reader.doctor(t)
	require.Equal(t, 2, code)
	require.Contains(t, findings["server"], "standby")
	require.Contains(t, findings["lock"], "primary")
	require.Equal(t, exitUnsuitable, reader.pglock(t, "run", "--try", "k", "--", "true").code)
}

func TestDoctorOfARole(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	role, guest := h.newRole(t)

	findings, code := guest.doctor(t)
	require.Equal(t, 2, code)
	require.Contains(t, findings["privileges"], `GRANT USAGE ON SCHEMA "pglock" TO "`+role+`";`)
	require.Contains(t, findings["lock"], "privilege")
	require.NotContains(t, findings, "migrations", "what is there can be seen without rights")
	require.Equal(t, exitUnsuitable, guest.pglock(t, "run", "k", "--", "true").code)

	_, grants, _ := strings.Cut(findings["privileges"], "→ ")
	h.exec(t, grants)
	findings, code = guest.doctor(t)
	require.Empty(t, findings, "the remedy works")
	require.Zero(t, code)

	h.exec(t, "ALTER ROLE "+role+" SET statement_timeout = '5s'; ALTER ROLE "+role+" SET synchronous_commit = off")
	findings, code = guest.doctor(t)
	require.Equal(t, 1, code)
	require.Contains(t, findings["settings"], "statement_timeout is 5s, set by: user")
	require.Contains(t, findings["settings"], "synchronous_commit is off, set by: user")
	require.Len(t, findings, 1)
}

func TestDoctorFindsASequenceWithACache(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.exec(t, "ALTER SEQUENCE pglock.tokens CACHE 20")
	findings, code := h.doctor(t)
	require.Equal(t, 2, code)
	require.Contains(t, findings["sequence"], "CACHE is 20")
	h.exec(t, "ALTER SEQUENCE pglock.tokens CACHE 1 CYCLE")
	findings, _ = h.doctor(t)
	require.Contains(t, findings["sequence"], "NO CYCLE")
}

func TestDoctorAndTokensOfADatabaseRestoredWithoutItsSequence(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.exec(t, "INSERT INTO pglock.fenced_writes VALUES ('invoices', 5000, now())")
	findings, code := h.doctor(t)
	require.Equal(t, 2, code)
	require.Contains(t, findings["tokens"], "the fence has accepted 5000")
	require.Len(t, findings, 1)

	r := h.pglock(t, "tokens")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.stdout, "--raise")
	require.Zero(t, h.pglock(t, "tokens", "--raise").code)
	r = h.sh(t, `"$PGLOCK" run k -- sh -c 'echo $PGLOCK_TOKEN'`)
	require.Equal(t, "5001\n", r.stdout)
	require.Zero(t, h.pglock(t, "tokens", "--raise", "--at-least", "7000").code)
	require.Zero(t, h.pglock(t, "tokens", "--raise", "--at-least", "6000").code, "it never goes back")
	require.Contains(t, h.pglock(t, "tokens", "--json").stdout, `"next": 7001`)
	_, code = h.doctor(t)
	require.Zero(t, code)
}

func TestDoctorFindsAFullLockTable(t *testing.T) {
	t.Parallel()
	s := pgtest.New(t, pgtest.Setting("max_locks_per_transaction", "10"), pgtest.Setting("max_connections", "20"))
	h := hostOn(t, s.DSN(""))
	migrate(t, h.dsn)
	_, code := h.doctor(t)
	require.Less(t, code, 2)
	conn, err := h.pool(t).Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), "SELECT pg_advisory_lock(n) FROM generate_series(1, 170) n")
	require.NoError(t, err)
	findings, code := h.doctor(t)
	require.Equal(t, 2, code)
	require.Contains(t, findings["lock table"], "max_locks_per_transaction")
}
