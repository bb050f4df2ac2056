package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed35111a8b/pglock/pglock"
)

type doctorCommand struct {
	Lease time.Duration `help:"The lease that is to be tried (default 15s)." default:"15s" placeholder:"DURATION"`
}

// Help is shown below the summary.
func (*doctorCommand) Help() string {
	return `It asks the server, takes and releases one lock of a name of its own, and changes nothing. The exit code is 0 if all is well, 1 if
something is to be known or watched, 2 if locks do not work or cannot be relied on, 69 if there is no connection.`
}

// A severity orders findings.
type severity int

const (
	fine severity = iota
	warning
	problem
)

// String is how it is printed.
func (s severity) String() string { return [...]string{"ok", "warning", "PROBLEM"}[s] }

// A finding is what one check has found.
type finding struct {
	Check    string `json:"check"`
	Severity string `json:"severity"` // ok, warning, problem
	Text     string `json:"text"`
	Remedy   string `json:"remedy,omitempty"`
	severity severity
}

// A doctor collects findings.
type doctor struct {
	*app
	pool     *pgxpool.Pool
	findings []finding
	facts    serverFacts
}

func (d *doctor) find(check string, s severity, text, remedy string) {
	d.findings = append(d.findings, finding{
		Check: check, Severity: strings.ToLower(s.String()), Text: d.hide(text), Remedy: d.hide(remedy), severity: s,
	})
}

// failed notes a check that could not be made.
func (d *doctor) failed(check string, err error) {
	d.find(check, warning, "could not be checked: "+err.Error(), "see the other findings; a role with more rights may see more")
}

// Run is called by kong.
func (c *doctorCommand) Run(a *app) error {
	d := &doctor{app: a}
	locker, pool, end, err := a.locker(a.ctx, pglock.Config{Lease: c.Lease})
	if err != nil {
		if !errors.Is(err, pglock.ErrUnavailable) {
			return err
		}
		d.find("connection", problem, err.Error(),
			"check PGHOST, PGPORT, PGUSER, PGDATABASE or DATABASE_URL, the password, pg_hba.conf, and whether the server runs")
		return errors.Join(d.report(), exitWith(exitUnavailable))
	}
	defer end()
	d.pool = pool
	d.examine(a.ctx, locker)
	if err := d.report(); err != nil {
		return err
	}
	worst := fine
	for _, f := range d.findings {
		worst = max(worst, f.severity)
	}
	if worst == fine {
		return nil
	}
	return exitWith(int(worst))
}

func (d *doctor) report() error {
	return d.print(d.findings, func(w io.Writer) {
		for _, f := range d.findings {
			row(w, f.severity, f.Check, strings.Join(strings.Fields(f.Text), " "))
			if f.Remedy != "" {
				row(w, "", "", "→ "+f.Remedy)
			}
		}
	})
}

// examine makes every check that the server lets it make.
func (d *doctor) examine(ctx context.Context, locker *pglock.Locker) {
	if err := d.connection(ctx); err != nil {
		d.find("connection", problem, err.Error(), "")
		return
	}
	d.server()
	d.migrations(ctx)
	d.privileges(ctx)
	d.sequence(ctx)
	token := d.lock(ctx, locker)
	d.tokens(ctx, locker, token)
	d.clock(ctx)
	d.settings(ctx)
	d.lockTable()
	d.headroom()
}

// connection compares the backend that the protocol named with the one that answers.
func (d *doctor) connection(ctx context.Context) error {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if d.facts, err = readFacts(ctx, conn, d.Schema); err != nil {
		return err
	}
	if d.facts.Backend != conn.Conn().PgConn().PID() {
		d.find("connection", problem, "a connection pooler stands in between: locks belong to sessions, and the pooler shares them",
			"connect to PostgreSQL itself, for locks; the rest of the application may stay behind the pooler (docs/operations.md, Poolers)")
		return nil
	}
	d.find("connection", fine, "direct, as "+d.facts.Role, "")
	return nil
}

func (d *doctor) server() {
	const oldest = 140000
	text := "PostgreSQL " + d.facts.VersionText
	switch {
	case d.facts.Version < oldest:
		d.find("server", problem, text+" is too old: idle_session_timeout, which ends the session of a holder that is cut off, came with 14", "upgrade the server")
	case d.facts.Standby:
		d.find("server", problem, text+", a standby: it grants no locks", "connect to the primary: PGHOST with all servers, and PGTARGETSESSIONATTRS=read-write")
	case d.facts.ReadOnly:
		d.find("server", warning, text+"; transactions are read-only by default: locks work, fenced writes do not",
			"ALTER ROLE … RESET default_transaction_read_only, or the same of the database")
	default:
		d.find("server", fine, text+", a primary", "")
	}
}

// lock takes a lock and releases it. It returns the token, 0 if there is none.
func (d *doctor) lock(ctx context.Context, locker *pglock.Locker) int64 {
	key := fmt.Sprintf("pglock doctor %d", time.Now().UnixNano())
	lock, err := locker.TryAcquire(ctx, key)
	if err != nil {
		d.find("lock", problem, err.Error(), lockRemedy(err))
		return 0
	}
	holders, err := locker.Holders(ctx, key)
	err = errors.Join(err, lock.Verify(ctx), lock.Release(ctx))
	switch {
	case err != nil:
		d.find("lock", problem, err.Error(), lockRemedy(err))
	case len(holders) != 1:
		d.find("lock", problem, fmt.Sprintf("granted, but pg_locks shows %d holders: advisory locks do nothing on this server", len(holders)),
			"use PostgreSQL itself, not a database that only speaks its protocol")
	default:
		d.find("lock", fine, fmt.Sprintf("taken and released, with token %d", lock.Token()), "")
	}
	if refused := locker.Stat().RefusedSettings; len(refused) > 0 {
		d.find("lease", warning, "the server refuses "+strings.Join(refused, ", "),
			"locks work without; a holder that is cut off may be noticed later than with them")
	} else {
		d.find("lease", fine, "every session setting of it is accepted", "")
	}
	return lock.Token()
}

func lockRemedy(err error) string {
	switch {
	case errors.Is(err, pglock.ErrPooler):
		return "connect to PostgreSQL itself"
	case errors.Is(err, pglock.ErrNotMigrated):
		return "pglock migrate up, as the owner of the schema"
	case errors.Is(err, pglock.ErrReadOnly):
		return "connect to the primary"
	case isPrivilege(err):
		return "grant what is missing: see the finding privileges"
	case errors.Is(err, pglock.ErrTooManyLocks):
		return "raise max_locks_per_transaction and restart the server, or find who holds so many: see the finding lock table"
	}
	return "see the other findings"
}
