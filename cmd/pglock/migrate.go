package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed35111a8b/pglock/migrations"
	"github.com/seed35111a8b/pglock/pglock"
)

type migrateCommand struct {
	Up     upCommand     `cmd:"" help:"Create what is missing. Changes nothing where it is there."`
	Down   downCommand   `cmd:"" help:"Remove everything but the schema itself."`
	Status statusCommand `cmd:"" help:"Show which migrations are applied. The exit code is 1 if one is missing."`
	SQL    sqlCommand    `cmd:"" name:"sql" help:"Print the statements, to be read or applied by hand. Needs no server."`
}

type upCommand struct{}

// Run is called by kong.
func (*upCommand) Run(a *app) error {
	return a.withLocker(func(ctx context.Context, locker *pglock.Locker, pool *pgxpool.Pool) error {
		if err := locker.Migrate(ctx); err != nil {
			return err
		}
		return a.printMigrations(ctx, pool)
	})
}

type downCommand struct {
	Yes bool `help:"Really. Tokens begin again at 1 after the next migrate up, and whatever was fenced with higher ones refuses them."`
}

// Run is called by kong.
func (c *downCommand) Run(a *app) error {
	if !c.Yes {
		return usageError("migrate down removes tokens and fences: if that is meant, add --yes")
	}
	return a.withLocker(func(ctx context.Context, _ *pglock.Locker, pool *pgxpool.Pool) error {
		all, err := a.allMigrations()
		if err != nil {
			return err
		}
		applied, err := appliedMigrations(ctx, pool, a.Schema)
		if err != nil {
			return err
		}
		if err := migrateDown(ctx, pool, all, applied); err != nil {
			return err
		}
		return a.printMigrations(ctx, pool)
	})
}

type statusCommand struct{}

// Run is called by kong.
func (*statusCommand) Run(a *app) error {
	return a.withLocker(func(ctx context.Context, _ *pglock.Locker, pool *pgxpool.Pool) error {
		if err := a.printMigrations(ctx, pool); err != nil {
			return err
		}
		missing, err := a.missingMigrations(ctx, pool)
		if err == nil && len(missing) > 0 {
			return exitWith(exitNotAcquired)
		}
		return err
	})
}

type sqlCommand struct {
	Down bool `help:"Those that remove it."`
}

// Run is called by kong.
func (c *sqlCommand) Run(a *app) error {
	all, err := a.allMigrations()
	if err != nil {
		return err
	}
	texts := make([]string, 0, len(all))
	for i := range all {
		if c.Down {
			texts = append(texts, all[len(all)-1-i].Down)
		} else {
			texts = append(texts, all[i].Up)
		}
	}
	return a.print(texts, func(w io.Writer) {
		for _, text := range texts {
			fmt.Fprintln(w, text)
		}
	})
}

func (a *app) allMigrations() ([]migrations.Migration, error) {
	return migrations.All(pgx.Identifier{a.Schema}.Sanitize())
}

type migrationView struct {
	Version   int        `json:"version"`
	Name      string     `json:"name"`
	AppliedAt *time.Time `json:"applied_at"`
}

func (a *app) printMigrations(ctx context.Context, db querier) error {
	all, err := a.allMigrations()
	if err != nil {
		return err
	}
	applied, err := appliedMigrations(ctx, db, a.Schema)
	if err != nil {
		return err
	}
	views := make([]migrationView, 0, len(all))
	for _, m := range all {
		v := migrationView{Version: m.Version, Name: m.Name}
		if at, ok := applied[m.Version]; ok {
			v.AppliedAt = &at
		}
		views = append(views, v)
	}
	return a.print(views, func(w io.Writer) {
		row(w, "VERSION", "NAME", "APPLIED")
		for _, v := range views {
			at := "no"
			if v.AppliedAt != nil {
				at = when(*v.AppliedAt)
			}
			row(w, v.Version, v.Name, at)
		}
	})
}

func (a *app) missingMigrations(ctx context.Context, db querier) (missing []int, err error) {
	all, err := a.allMigrations()
	if err != nil {
		return nil, err
	}
	applied, err := appliedMigrations(ctx, db, a.Schema)
	if err != nil {
		return nil, err
	}
	for _, m := range all {
		if _, ok := applied[m.Version]; !ok {
			missing = append(missing, m.Version)
		}
	}
	return missing, nil
}
