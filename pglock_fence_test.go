package pglock_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// sqlState is the SQLSTATE that err carries, "" for none.
func sqlState(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}

// The timeline of a holder that is slow: it does not look whether its lock is
// still there, and writes when another has long had it.
func TestP7_SlowHolder(t *testing.T) {
	t.Parallel()
	for _, claim := range []bool{false, true} {
		t.Run(fmt.Sprintf("Claim=%t", claim), func(t *testing.T) {
			t.Parallel()
			ctx := timed(t)
			began := time.Now()
			say := func(format string, args ...any) {
				t.Logf("%4d ms  "+format, append([]any{time.Since(began).Milliseconds()}, args...)...)
			}
			pool := newPool(t, database(t))
			slow, next := newLocker(t, pool, nil), newLocker(t, pool, nil)
			rows := table(t, pool, "writer text, token bigint")
			resource, key := pgtest.Key(t), pgtest.Key(t)
			// write is what a holder does that trusts its token alone.
			write := func(lock *pglock.Lock, writer string) error {
				called := false
				err := pglock.Fencer{}.FencedTx(ctx, pool, lock.Token(), resource, func(tx pgx.Tx) error {
					called = true
					_, err := tx.Exec(ctx, "INSERT INTO "+rows+" VALUES ($1, $2)", writer, lock.Token())
					return err
				})
				require.Equal(t, err == nil, called, "fn runs only if the fence lets it")
				return err
			}

			first, err := slow.TryAcquire(ctx, key)
			require.NoError(t, err)
			n := first.Token()
			say("A holds the lock with token %d", n)
			require.NoError(t, first.FencedTx(ctx, pool, resource, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "INSERT INTO "+rows+" VALUES ('A', $1)", n)
				return err
			}))
			say("A wrote with token %d", n)
			terminateHolder(t, slow, key)
			second, err := next.Acquire(ctx, key)
			require.NoError(t, err)
			require.Greater(t, second.Token(), n)
			say("A's session was ended and B holds the lock with token %d", second.Token())

			if claim {
				require.NoError(t, second.Claim(ctx, pool, resource))
				say("B claimed")
			} else {
				require.NoError(t, write(first, "A before B wrote"))
				say("A's write with token %d passed: B has neither written nor claimed", n)
				require.NoError(t, second.FencedTx(ctx, pool, resource, func(pgx.Tx) error { return nil }))
				say("B wrote")
			}
			before := count(t, pool, "SELECT count(*) FROM "+rows)
			err = write(first, "A too late")
			stale, ok := pglock.AsStaleToken(err)
			require.True(t, ok, "%v", err)
			require.Equal(t, pglock.StaleTokenError{Resource: resource, Token: n, Highest: second.Token()}, *stale)
			require.ErrorIs(t, err, pglock.ErrStaleToken)
			require.ErrorIs(t, first.Claim(ctx, pool, resource), pglock.ErrLost, "by its Lock it is told even sooner")
			say("A's write was rejected: %v", err)

			// In a transaction of A's own, what it did goes with the refusal.
			tx, err := pool.Begin(ctx)
			require.NoError(t, err)
			_, err = tx.Exec(ctx, "INSERT INTO "+rows+" VALUES ('A by hand', $1)", n)
			require.NoError(t, err)
			require.ErrorIs(t, pglock.Fencer{}.Fence(ctx, tx, n, resource), pglock.ErrStaleToken)
			require.Error(t, tx.Commit(ctx))
			require.Equal(t, before, count(t, pool, "SELECT count(*) FROM "+rows))
			say("nothing of it is in the database")

			require.NoError(t, write(second, "B"))
			require.ErrorIs(t, first.Release(ctx), pglock.ErrLost)
			require.NoError(t, second.Release(ctx))
		})
	}
}

func TestP7_FenceKeepsHalfTheSpeedOf16Writers(t *testing.T) {
	t.Parallel()
	const writers, rounds, length = 16, 31, 100 * time.Millisecond
	ctx := timed(t)
	// A server that flushes, as those do whose data matter.
	pool := newPool(t, ownDatabase(t, pgtest.New(t, pgtest.Durable())), func(c *pgxpool.Config) { c.MaxConns = writers })
	rows := table(t, pool, "id int PRIMARY KEY, n bigint")
	_, err := pool.Exec(ctx, "INSERT INTO "+rows+" SELECT i, 0 FROM generate_series(1, $1::int) AS i", writers)
	require.NoError(t, err)
	lock, err := newLocker(t, pool, nil).TryAcquire(ctx, pgtest.Key(t))
	require.NoError(t, err)
	resource := pgtest.Key(t)
	update := func(tx pgx.Tx, writer int) error {
		_, err := tx.Exec(ctx, "UPDATE "+rows+" SET n = n + 1 WHERE id = $1", writer+1)
		return err
	}
	fenced := func(writer int) error {
		return lock.FencedTx(ctx, pool, resource, func(tx pgx.Tx) error { return update(tx, writer) })
	}
	unfenced := func(writer int) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return update(tx, writer) })
	}
	run := func(write func(writer int) error) float64 {
		var all sync.WaitGroup
		var done atomic.Int64
		failures := make(chan error, writers)
		began := time.Now()
		for writer := range writers {
			all.Go(func() {
				var err error
				for err == nil && time.Since(began) < length {
					err = write(writer)
					done.Add(1)
				}
				failures <- err
			})
		}
		all.Wait()
		for range writers {
			require.NoError(t, <-failures)
		}
		return float64(done.Load()) / time.Since(began).Seconds()
	}
	run(fenced) // the connections, and the statements that pgx prepares
	var without, with, ratios []float64
	for range rounds {
		without, with = append(without, run(unfenced)), append(with, run(fenced))
		ratios = append(ratios, with[len(with)-1]/without[len(without)-1])
	}
	t.Logf("%d writers of one leader on one resource, medians of %d rounds: %.0f writes a second unfenced, %.0f fenced, ratio %.2f",
		writers, rounds, median(without), median(with), median(ratios))
	require.GreaterOrEqual(t, median(ratios), 0.5)
	require.NoError(t, lock.Release(ctx))
}

func median(values []float64) float64 { return slices.Sorted(slices.Values(values))[len(values)/2] }

// fence_table is the same rule for each row of a table.
func TestP7_TriggersGuardEachRow(t *testing.T) {
	t.Parallel()
	ctx := timed(t)
	pool := newPool(t, database(t))
	rows := table(t, pool, `id int PRIMARY KEY, note text DEFAULT 'a "b" é', amount numeric(30,10) DEFAULT 1234567890123456789.0123456789,
		list int[] DEFAULT '{1,NULL,3}', doc jsonb DEFAULT '{"a": 1.50}', raw bytea DEFAULT '\x00ff',
		at timestamptz DEFAULT '2020-02-02 02:02:02.123456+00', nothing text, "Fencing Token" bigint CHECK ("Fencing Token" > 0)`)
	for _, column := range []string{"Fencing Token", "Fencing Token", "note"} { // the second call changes nothing
		_, err := pool.Exec(ctx, "SELECT pglock.fence_table($1::regclass, $2)", rows, column)
		require.Equal(t, map[string]string{"note": "42710"}[column], sqlState(err), "%v", err) // duplicate_object
	}
	require.Equal(t, 2, count(t, pool, "SELECT count(*) FROM pg_trigger WHERE tgrelid = $1::regclass", rows))
	const big = 1<<62 + 1 // no float has this value
	const upsert = ` ON CONFLICT (id) DO UPDATE SET note = 'upsert', "Fencing Token" = excluded."Fencing Token"`
	for _, step := range []struct{ what, sql, state string }{
		{"INSERT without a token", `INSERT INTO % (id) VALUES (1)`, pglock.SQLStateNoToken},
		{"INSERT with a token below 1", `INSERT INTO % (id, "Fencing Token") VALUES (1, 0)`, pglock.SQLStateNoToken},
		{"INSERT", `INSERT INTO % (id, "Fencing Token") VALUES (1, 10)`, ""},
		{"UPDATE with an equal token", `UPDATE % SET note = 'equal', "Fencing Token" = 10`, ""},
		{"UPDATE with a greater token", `UPDATE % SET note = 'greater', "Fencing Token" = 11`, ""},
		{"UPDATE with a lower token", `UPDATE % SET note = 'stale', "Fencing Token" = 10`, pglock.SQLStateStaleToken},
		{"UPDATE that does not name the column", `UPDATE % SET note = 'stale'`, pglock.SQLStateNoToken},
		{"UPDATE with null", `UPDATE % SET note = 'stale', "Fencing Token" = NULL`, pglock.SQLStateNoToken},
		{"UPDATE with a negative token", `UPDATE % SET note = 'stale', "Fencing Token" = -20`, pglock.SQLStateNoToken},
		{"upsert with an equal token", `INSERT INTO % (id, "Fencing Token") VALUES (1, 11)` + upsert, ""},
		{"upsert with a lower token", `INSERT INTO % (id, "Fencing Token") VALUES (1, 10)` + upsert, pglock.SQLStateStaleToken},
		{"upsert that does not name the column", `INSERT INTO % (id, "Fencing Token") VALUES (1, 99)
			ON CONFLICT (id) DO UPDATE SET note = 'stale'`, pglock.SQLStateNoToken},
		{"upsert with a greater token", `INSERT INTO % (id, "Fencing Token") VALUES (1, 4611686018427387904)` + upsert, ""},
		{"UPDATE with the next token", `UPDATE % SET "Fencing Token" = 4611686018427387905`, ""},
		{"UPDATE with the one before", `UPDATE % SET "Fencing Token" = 4611686018427387904`, pglock.SQLStateStaleToken},
	} {
		_, err := pool.Exec(ctx, strings.Replace(step.sql, "%", rows, 1))
		require.Equal(t, step.state, sqlState(err), "%s: %v", step.what, err)
		t.Logf("%-40s %s", step.what, cmp.Or(step.state, "accepted"))
		if step.state == pglock.SQLStateStaleToken {
			stale, ok := pglock.AsStaleToken(err)
			require.True(t, ok)
			require.Less(t, stale.Token, stale.Highest)
			require.Equal(t, rows, stale.Resource)
		}
	}
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM `+rows+` WHERE "Fencing Token" = $1 AND note = 'upsert'
		AND amount = 1234567890123456789.0123456789 AND list = '{1,NULL,3}' AND doc = '{"a": 1.50}' AND raw = '\x00ff'
		AND at = '2020-02-02 02:02:02.123456+00' AND nothing IS NULL`, int64(big)), "the other columns are as they were")
}

// What a role's own settings are must not matter: neither to the lock nor to
// the fence nor to the triggers, with the privileges of an application.
func TestP7_FenceUnderTheSettingsOfARole(t *testing.T) {
	t.Parallel()
	ctx := timed(t)
	s := pgtest.Shared(t)
	dsn := ownDatabase(t, s)
	owner := newPool(t, dsn)
	// Someone else's objects, which a search_path may find first.
	_, err := owner.Exec(ctx, `CREATE SCHEMA trap; GRANT USAGE ON SCHEMA trap TO public;
		CREATE FUNCTION trap.nextval(regclass) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
		CREATE FUNCTION trap.pg_try_advisory_lock(bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true';
		CREATE FUNCTION trap.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT NULL::timestamptz';
		CREATE TABLE trap.fenced_writes (resource text, token bigint, written_at timestamptz)`)
	require.NoError(t, err)
	for _, settings := range [][]string{
		nil,
		{"default_transaction_read_only = on"},
		{"search_path = ''"},
		{"search_path = trap, pg_catalog, pglock"},
		{"default_transaction_isolation = serializable", "default_transaction_deferrable = on", "default_transaction_read_only = on"},
		{"statement_timeout = '30s'", "lock_timeout = '30s'", "idle_in_transaction_session_timeout = '1h'"},
		{
			"standard_conforming_strings = off", "bytea_output = escape", "datestyle = 'german'", "intervalstyle = sql_standard",
			"timezone = 'Pacific/Chatham'", "extra_float_digits = -15",
		},
	} {
		rows := table(t, owner, "id int PRIMARY KEY, note text, fencing_token bigint")
		_, err := owner.Exec(ctx, "SELECT pglock.fence_table($1)", rows)
		require.NoError(t, err)
		pool := newPool(t, appRole(t, s, dsn, settings...))
		locker := newLocker(t, pool, nil)
		key := pgtest.Key(t) + ` é '"\`
		write := func(lock *pglock.Lock) error {
			return lock.FencedTx(ctx, pool, key, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "INSERT INTO "+rows+" VALUES (1, 'x', $1) ON CONFLICT (id) DO UPDATE SET fencing_token = excluded.fencing_token",
					lock.Token())
				return err
			})
		}
		first, err := locker.TryAcquire(ctx, key)
		require.NoError(t, err, "%q", settings)
		require.NoError(t, first.Claim(ctx, pool, key), "%q", settings)
		require.NoError(t, write(first), "%q", settings)
		acquired := make(chan answer, 1)
		go func() {
			lock, err := locker.Acquire(ctx, key)
			acquired <- answer{lock, err}
		}()
		require.NoError(t, first.Release(ctx))
		second := <-acquired
		require.NoError(t, second.err, "%q", settings)
		require.Greater(t, second.lock.Token(), first.Token())
		require.NoError(t, write(second.lock), "%q", settings)
		require.ErrorIs(t, pglock.Fencer{}.Claim(ctx, pool, first.Token(), key), pglock.ErrStaleToken)
		require.NoError(t, second.lock.Release(ctx))
		t.Logf("%q: locked, waited, claimed, wrote, refused a stale token", settings)
	}
}
