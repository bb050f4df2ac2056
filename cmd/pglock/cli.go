package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/alecthomas/kong"
)

const description = `Locks across hosts, kept by PostgreSQL: what flock is on one machine.

Put "pglock run KEY --" in front of a command, on any number of hosts, and it runs on one of them at a time:

    pglock run nightly-export -- /opt/export.sh

    # in the crontab of five hosts: once an hour, on one of them
    17 * * * *  pglock run --once 1h report -- /opt/report.sh

Connecting is up to PostgreSQL's environment variables: DATABASE_URL if it is set, otherwise PGHOST, PGPORT, PGUSER, PGDATABASE,
PGPASSWORD, PGPASSFILE, PGSERVICE, PGSSLMODE and so on. It must be a connection to the primary, not to a pooler. Before the
first lock the database needs, once:

    DATABASE_URL=postgres://owner@db/app pglock migrate up
    pglock doctor                        # is everything as it should be?

Exit codes, beside those of the command that is run:

    1    not acquired, or -E; who: nobody holds it; doctor: a warning
    2    doctor: a problem
    64   the command line is wrong
    69   no connection to the server
    70   anything else
    75   the lock was lost while the command ran, and the command was ended
    78   the server is there, and cannot be used for locks as it is: pglock doctor says why
    126  the command cannot be run
    127  the command was not found
    128+n  the command was ended by signal n`

type globals struct {
	Namespace string `help:"Keeps the keys of one application apart from another's. All that share locks must agree on it." env:"PGLOCK_NAMESPACE" placeholder:"NAME"`
	Schema    string `help:"Schema of pglock's tables and functions (default pglock)." default:"pglock" env:"PGLOCK_SCHEMA" placeholder:"NAME"`
	JSON      bool   `help:"Print JSON, for programs." name:"json"`
}

type commandLine struct {
	globals

	Version kong.VersionFlag `help:"Print the version."`

	Run       runCommand       `cmd:"" help:"Run a command while holding a lock."`
	Ls        lsCommand        `cmd:"" help:"List the advisory locks of the database: who holds them, who waits."`
	Who       whoCommand       `cmd:"" help:"Show who holds a lock, and who waits for it."`
	Key       keyCommand       `cmd:"" help:"Print the lock ID of a key: the number that PostgreSQL locks. Needs no server."`
	Terminate terminateCommand `cmd:"" help:"End the session that holds a lock."`
	Tokens    tokensCommand    `cmd:"" help:"Show the next fencing token and the highest that was accepted."`
	Migrate   migrateCommand   `cmd:"" help:"Create, update, remove or print pglock's tables and functions."`
	Doctor    doctorCommand    `cmd:"" help:"Check whether locks work on this server, for this role; with a remedy for each finding."`
}

// An app is what the commands work with.
type app struct {
	*globals
	ctx            context.Context //nolint:containedctx // kong calls the commands without one
	argv           []string        // what follows --; nil without it
	stdout, stderr io.Writer
	passwords      []string // never to be printed
}

// print prints the value as JSON, or else what text writes, in columns where it has tabs.
func (a *app) print(value any, text func(w io.Writer)) error {
	if a.JSON {
		encoder := json.NewEncoder(a.stdout)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		return encoder.Encode(value)
	}
	table := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	text(table)
	return table.Flush()
}

func row(w io.Writer, cells ...any) {
	for i, cell := range cells {
		if i > 0 {
			fmt.Fprint(w, "\t")
		}
		fmt.Fprint(w, cell)
	}
	fmt.Fprintln(w)
}
