package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed35111a8b/pglock/pglock"
)

func (d *doctor) migrations(ctx context.Context) {
	missing, err := d.missingMigrations(ctx, d.pool)
	switch {
	case err != nil:
		d.failed("migrations", err)
	case len(missing) > 0:
		d.find("migrations", problem, fmt.Sprintf("versions %v are not applied to schema %s", missing, d.Schema),
			"pglock migrate up, as a role that may create or owns the schema")
	default:
		d.find("migrations", fine, "all are applied", "")
	}
}

func (d *doctor) privileges(ctx context.Context) {
	const check = "privileges"
	schema, role := pgx.Identifier{d.Schema}.Sanitize(), pgx.Identifier{d.facts.Role}.Sanitize()
	var remedies []string
	if d.facts.SchemaThere && !d.facts.SchemaUsable {
		remedies = append(remedies, fmt.Sprintf("GRANT USAGE ON SCHEMA %s TO %s;", schema, role))
	}
	grants, err := missingGrants(ctx, d.pool, d.Schema)
	if err != nil {
		d.failed(check, err)
		return
	}
	for _, g := range grants {
		remedies = append(remedies, fmt.Sprintf("GRANT %s ON %s %s.%s TO %s;", g.Privilege, g.Kind, schema, g.Name, role))
	}
	if len(remedies) > 0 {
		d.find(check, problem, "role "+d.facts.Role+" may not use what locks, fences, elections and ticks need",
			strings.ReplaceAll(strings.Join(remedies, " "), "ON  ", "ON "))
		return
	}
	d.find(check, fine, "those of an application's role", "")
	for role, use := range map[string]string{
		"pg_read_all_stats": "ls and who do not show who other roles' sessions are",
		"pg_signal_backend": "terminate ends sessions of this role alone",
	} {
		if member, err := memberOf(ctx, d.pool, role); err == nil && !member && !d.facts.Superuser {
			d.find(check, fine, "not a member of "+role+": "+use, "")
		}
	}
}

func (d *doctor) sequence(ctx context.Context) {
	const check = "sequence"
	s, found, err := readSequence(ctx, d.pool, d.Schema)
	alter := "ALTER SEQUENCE " + pgx.Identifier{d.Schema, "tokens"}.Sanitize()
	switch {
	case err != nil:
		d.failed(check, err)
	case !found:
		d.find(check, problem, "there is no sequence of fencing tokens", "pglock migrate up")
	case s.Cache != 1:
		d.find(check, problem, fmt.Sprintf("CACHE is %d: sessions draw tokens in blocks, and a later holder gets a lower one", s.Cache), alter+" CACHE 1")
	case s.Cycle:
		d.find(check, problem, "CYCLE: tokens would begin again", alter+" NO CYCLE")
	case s.Increment < 1:
		d.find(check, problem, "it counts downwards", alter+" INCREMENT 1")
	default:
		d.find(check, fine, "CACHE 1, NO CYCLE", "")
	}
}

// tokens compares a token that was just drawn, or the next one if none could be, with what the fence has accepted.
func (d *doctor) tokens(ctx context.Context, locker *pglock.Locker, drawn int64) {
	const check = "tokens"
	state, err := locker.Tokens(ctx)
	if err != nil {
		d.failed(check, err)
		return
	}
	behind := state.Behind()
	if drawn != 0 {
		behind = drawn <= state.Highest
	}
	if behind {
		d.find(check, problem, fmt.Sprintf("the next is %d, but the fence has accepted %d: it refuses the writes of new holders", state.Next, state.Highest),
			"pglock tokens --raise, as the schema's owner (was the database restored without its sequence or its reign?)")
		return
	}
	reign := "the reign is that of the server's present life"
	if !state.Current {
		reign = "the next acquirer begins a new reign"
	}
	d.find(check, fine, fmt.Sprintf("next %d, highest accepted %d; %s", state.Next, state.Highest, reign), "")
}

// clock compares the clocks. The answer was given somewhere between the two readings of ours.
func (d *doctor) clock(ctx context.Context) {
	const check, tolerance = "clock", 2 * time.Second
	before := time.Now()
	server, err := serverTime(ctx, d.pool)
	took := time.Since(before)
	if err != nil {
		d.failed(check, err)
		return
	}
	off := server.Sub(before.Add(took / 2))
	if off.Abs()-took/2 > tolerance {
		d.find(check, warning, fmt.Sprintf("the server's is %v from ours: locks do not mind, schedules do", off.Round(time.Millisecond)),
			"run an NTP client on both; a step of the server's clock ends leases early or late")
		return
	}
	d.find(check, fine, fmt.Sprintf("within %v of ours", (off.Abs()+took/2).Round(time.Millisecond)), "")
}

func (d *doctor) settings(ctx context.Context) {
	const check = "settings"
	changed, err := changedSettings(ctx, d.pool)
	if err != nil {
		d.failed(check, err)
		return
	}
	for _, s := range changed {
		effect := "lock sessions set their own; it bounds your other statements, fenced transactions too"
		switch s.Name {
		case "synchronous_commit":
			effect = "tokens do not depend on it; what fenced transactions write does"
		case "default_transaction_read_only":
			effect = "lock sessions set their own; fenced writes fail"
		case "default_transaction_isolation":
			effect = "lock sessions set their own; fenced transactions may fail with 40001 and have to be tried again"
		case "idle_session_timeout":
			effect = "lock sessions set their own; it ends idle connections of your pool, which it replaces"
		}
		d.find(check, warning, fmt.Sprintf("%s is %s, set by: %s; %s", s.Name, s.Value, s.Source, effect),
			fmt.Sprintf("none, if it is meant; else ALTER ROLE %s RESET %s, or ALTER DATABASE, or the configuration file",
				pgx.Identifier{d.facts.Role}.Sanitize(), s.Name))
	}
	if len(changed) == 0 {
		d.find(check, fine, "no time-out or synchronous_commit is set by role, database or file", "")
	}
}

func (d *doctor) lockTable() {
	f := d.facts
	percent := 100 * f.LocksHeld / max(1, f.LockTable)
	text := fmt.Sprintf("%d of about %d entries are in use (%d %%)", f.LocksHeld, f.LockTable, percent)
	const much, tooMuch = 50, 80
	s, remedy := fine, ""
	if percent >= much {
		s = warning
		remedy = "raise max_locks_per_transaction and restart the server, or lower Config.MaxLocks of who holds so many (pglock ls): " +
			"a full table refuses every statement and connection of the whole server"
	}
	if percent >= tooMuch {
		s = problem
	}
	d.find("lock table", s, text, remedy)
}

func (d *doctor) headroom() {
	f := d.facts
	left := f.MaxConnections - f.Reserved - f.Connections
	limit := "max_connections"
	if f.RoleLimit >= 0 && f.RoleLimit-f.RoleCount < left {
		left, limit = f.RoleLimit-f.RoleCount, "the role's CONNECTION LIMIT"
	}
	if f.DatabaseLimit >= 0 && f.DatabaseLimit-f.DatabaseCount < left {
		left, limit = f.DatabaseLimit-f.DatabaseCount, "the database's CONNECTION LIMIT"
	}
	text := fmt.Sprintf("%d more are possible, by %s", left, limit)
	const few, tooFew = 10, 2
	switch {
	case left < tooFew:
		d.find("connections", problem, text, "raise it, or close what is not needed: each lock that is held or waited for takes one")
	case left < few:
		d.find("connections", warning, text, "each lock that is held or waited for takes one")
	default:
		d.find("connections", fine, text, "")
	}
}
