package pglock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed35111a8b/pglock/migrations"
)

// Migrate creates the tables and functions of pglock in Config.Schema, or brings them up to date. It changes nothing where
// they are, so that every replica may call it at its start, all at the same time. It needs a role that may create the
// schema, or that owns it; using the locks needs less (docs/operations.md).
func (l *Locker) Migrate(ctx context.Context) error {
	return migrate(ctx, l.m.pool, l.m.config.Schema, 0)
}

// Migrate creates the fence alone in db, for a database that holds protected resources and grants no locks. Otherwise it is
// as Locker.Migrate.
func (f Fencer) Migrate(ctx context.Context, db DB) error {
	return migrate(ctx, db, f.schema(), migrations.Fence)
}

// migrate applies one migration, or all where only is 0.
func migrate(ctx context.Context, db DB, schema string, only int) error {
	all, err := migrations.All(quotedSchema(schema))
	if err != nil {
		return &LockError{Op: "migrate", Err: err}
	}
	for _, m := range all {
		if only != 0 && m.Version != only {
			continue
		}
		if err := apply(ctx, db, schema, m); err != nil {
			if failed, ok := errors.AsType[*LockError](err); ok {
				err = failed.Err // the operation is named below
			} else {
				err = classify(err)
			}
			return &LockError{Op: "migrate", Err: fmt.Errorf("version %d, %s: %w", m.Version, m.Name, err)}
		}
	}
	return nil
}

// apply applies one migration unless it is there. Replicas that come at the same time take turns by trying: a wait in a
// transaction would hold back vacuum and block CREATE INDEX CONCURRENTLY.
func apply(ctx context.Context, db DB, schema string, m migrations.Migration) error {
	const shortest, longest = 20 * time.Millisecond, 50 * time.Millisecond
	for {
		done, err := applyOnce(ctx, db, schema, m)
		if err != nil || done {
			return err
		}
		select {
		case <-time.After(shortest + rand.N(longest-shortest)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// applyOnce reports false if another session is at it.
func applyOnce(ctx context.Context, db DB, schema string, m migrations.Migration) (done bool, err error) {
	err = inTx(ctx, db, LockError{Op: "migrate"}, pgx.TxOptions{BeginQuery: beginMigrationSQL}, func(tx pgx.Tx) error {
		if done, err = isApplied(ctx, tx, schema, m.Version); err != nil || done {
			return err
		}
		turn, _ := HashID("pglock migrations", schema).Int64()
		var ours bool
		if err := tx.QueryRow(ctx, tryTxSQL, turn).Scan(&ours); err != nil || !ours {
			return err
		}
		// Somebody may have been faster between the look and the lock.
		if done, err = isApplied(ctx, tx, schema, m.Version); err != nil || done {
			return err
		}
		if _, err := tx.Exec(ctx, quietSQL); err != nil {
			return err
		}
		_, err := tx.Conn().PgConn().Exec(ctx, m.Up).ReadAll()
		done = err == nil
		return err
	})
	return done, err
}

// isApplied looks at what is committed.
func isApplied(ctx context.Context, tx pgx.Tx, schema string, version int) (applied bool, err error) {
	err = tx.QueryRow(ctx, schemaSQL, schema).Scan(&applied)
	if err != nil || !applied {
		return false, err
	}
	err = tx.QueryRow(ctx, statementsOf(schema).migrated(), version).Scan(&applied)
	return applied, err
}
