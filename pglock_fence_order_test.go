package pglock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// Writes of several terms at once.

// storm has writers with ever new terms write to a few resources at once and
// returns how often each SQLSTATE came. Each accepted write leaves a row whose
// id was drawn behind the fence, so that ids tell the order of the writes.
func storm(t *testing.T, pool *pgxpool.Pool, level pgx.TxIsoLevel, history string) map[string]int {
	t.Helper()
	const writers, writes = 12, 40
	ctx := timed(t)
	resources := []string{history + ".a", history + ".b", history + ".c"}
	var term atomic.Int64
	term.Store(1)
	states := make(chan string)
	for i := range writers {
		go func() {
			for range writes {
				token := term.Load() - rand.Int64N(2) // some are a term behind
				if rand.IntN(10) == 0 {
					token = term.Add(1)
				}
				wanted := []string{resources[i%3]}
				if i%2 == 0 {
					wanted = []string{resources[(i+1)%3], resources[i%3]} // in any order
				}
				states <- stormWrite(ctx, pool, level, history, max(token, 1), wanted)
			}
		}()
	}
	seen := map[string]int{}
	for range writers * writes {
		seen[<-states]++
	}
	return seen
}

// stormWrite is one fenced transaction; it returns its SQLSTATE, or the error's
// text if it has none.
func stormWrite(
	ctx context.Context, pool *pgxpool.Pool, level pgx.TxIsoLevel, history string, token int64, resources []string,
) string {
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
		if err := (pglock.Fencer{}).FenceAll(ctx, tx, token, resources...); err != nil {
			return err
		}
		for _, resource := range resources {
			if _, err := tx.Exec(ctx, "INSERT INTO "+history+" (resource, token) VALUES ($1, $2)", resource, token); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		return "ok"
	}
	if state := sqlState(err); state != "" {
		return state
	}
	return err.Error()
}

func TestP7_StormOfTermsAtEveryIsolationLevel(t *testing.T) {
	t.Parallel()
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, database(t), func(c *pgxpool.Config) { c.MaxConns = 12 })
			history := table(t, pool, "id bigint GENERATED ALWAYS AS IDENTITY, resource text, token bigint")
			seen := storm(t, pool, level, history)
			t.Logf("outcomes: %v (%s is a stale token, 40001 is to be tried again)", seen, pglock.SQLStateStaleToken)
			allowed := []string{"ok", pglock.SQLStateStaleToken}
			if level != pgx.ReadCommitted {
				allowed = append(allowed, "40001")
			}
			for state := range seen {
				require.Contains(t, allowed, state)
			}
			require.Positive(t, seen["ok"])
			require.Positive(t, seen[pglock.SQLStateStaleToken])
			older := count(t, pool, "SELECT count(*) FROM (SELECT token < lag(token) OVER (PARTITION BY resource ORDER BY id) AS older FROM "+
				history+") AS h WHERE older")
			require.Zero(t, older, "writes that were accepted after one with a greater token")
		})
	}
}

// A transaction that has looked at the database before a successor claimed
// cannot pass the fence on what it saw then.
func TestP7_OldSnapshotDoesNotPass(t *testing.T) {
	t.Parallel()
	ctx := timed(t)
	pool := newPool(t, database(t))
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable} {
		for _, known := range []bool{false, true} { // whether the resource was written before
			resource := fmt.Sprintf("%s-%s-%t", pgtest.Key(t), level, known)
			if known {
				require.NoError(t, pglock.Fencer{}.Claim(ctx, pool, 1, resource))
			}
			tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: level})
			require.NoError(t, err)
			_, err = tx.Exec(ctx, "SELECT count(*) FROM pglock.fenced_writes")
			require.NoError(t, err)
			require.NoError(t, pglock.Fencer{}.Claim(ctx, pool, 2, resource))
			err = pglock.Fencer{}.Fence(ctx, tx, 1, resource)
			want := "40001"
			if level == pgx.ReadCommitted {
				want = pglock.SQLStateStaleToken
			}
			require.Equal(t, want, sqlState(err), "%s, %v", resource, err)
			require.Error(t, tx.Commit(ctx))
		}
	}
}

// awaitBlocked returns when so many transactions of the pool's own database wait
// for others.
func awaitBlocked(t *testing.T, pool *pgxpool.Pool, n int) {
	t.Helper()
	const blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
	pgtest.Eventually(t, fmt.Sprintf("%d transactions to wait", n), func() bool { return count(t, pool, blocked) == n })
}

// Writers of an old term that follow each other without a gap do not keep its
// successor waiting: who comes after the claim has been asked for waits behind it.
func TestP7_ClaimIsNotHeldUpByAStreamOfWrites(t *testing.T) {
	t.Parallel()
	for level, want := range map[pgx.TxIsoLevel]string{
		pgx.ReadCommitted: pglock.SQLStateStaleToken, pgx.RepeatableRead: "40001", pgx.Serializable: "40001",
	} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			ctx, resource := timed(t), pgtest.Key(t)
			fencer := pglock.Fencer{}
			pool := newPool(t, ownDatabase(t, pgtest.Shared(t)))
			require.NoError(t, fencer.Claim(ctx, pool, 5, resource))
			tx, err := pool.Begin(ctx)
			require.NoError(t, err)
			defer func() { _ = tx.Rollback(context.Background()) }()
			require.NoError(t, fencer.Fence(ctx, tx, 5, resource))
			claimed, written := make(chan error, 1), make(chan error, 1)
			go func() { claimed <- fencer.Claim(ctx, pool, 6, resource) }()
			awaitBlocked(t, pool, 1)
			go func() {
				written <- pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
					return fencer.Fence(ctx, tx, 5, resource)
				})
			}()
			awaitBlocked(t, pool, 2)
			require.NoError(t, tx.Commit(ctx))
			require.NoError(t, <-claimed)
			require.Equal(t, want, sqlState(<-written))
		})
	}
}

// The rows are compared as the table does it, whatever collation the caller's
// text has: else a token would be compared with that of another resource.
func TestP7_CollationOfTheCallerDoesNotMatter(t *testing.T) {
	t.Parallel()
	ctx := timed(t)
	pool := newPool(t, ownDatabase(t, pgtest.Shared(t)))
	_, err := pool.Exec(ctx, "CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
	require.NoError(t, err)
	require.NoError(t, pglock.Fencer{}.Claim(ctx, pool, 5, "abc"))
	require.NoError(t, pglock.Fencer{}.Claim(ctx, pool, 9, "ABC"))
	_, err = pool.Exec(ctx, "SELECT pglock.fence('ABC' COLLATE ci, 5)")
	require.Equal(t, pglock.SQLStateStaleToken, sqlState(err), "%v", err)
	_, err = pool.Exec(ctx, "SELECT pglock.fence('ABC' COLLATE ci, 9)")
	require.NoError(t, err)
	_, err = pool.Exec(ctx, "SELECT pglock.fence('' COLLATE ci, 9)")
	require.Equal(t, pglock.SQLStateNoToken, sqlState(err), "an empty name, as Go refuses it")
}

func TestP7_ReadOnlyTransactionsAreRefused(t *testing.T) {
	t.Parallel()
	ctx, resource := timed(t), pgtest.Key(t)
	pool := newPool(t, database(t))
	require.NoError(t, pglock.Fencer{}.Claim(ctx, pool, 5, resource))
	for token := range int64(3) {
		err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			return pglock.Fencer{}.Fence(ctx, tx, 5+token, resource)
		})
		require.ErrorIs(t, err, pglock.ErrReadOnly, "token %d", 5+token)
	}
}

// Prune does not wait for writers whose token came long ago. Each of them puts
// the resource back when it fences once more.
func TestP7_PruneUnderOpenWriters(t *testing.T) {
	t.Parallel()
	ctx, resource := timed(t), pgtest.Key(t)
	fencer := pglock.Fencer{}
	pool := newPool(t, ownDatabase(t, pgtest.Shared(t)))
	require.NoError(t, fencer.Claim(ctx, pool, 5, resource))
	var writers [2]pgx.Tx
	for i := range writers {
		tx, err := pool.Begin(ctx)
		require.NoError(t, err)
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
		require.NoError(t, fencer.Fence(ctx, tx, 5, resource))
		writers[i] = tx
	}
	forgotten, err := fencer.Prune(ctx, pool, time.Microsecond)
	require.NoError(t, err)
	require.EqualValues(t, 1, forgotten)
	require.NoError(t, fencer.Fence(ctx, writers[0], 5, resource))
	second := make(chan error, 1)
	go func() { second <- fencer.Fence(ctx, writers[1], 5, resource) }()
	awaitBlocked(t, pool, 1)
	require.NoError(t, writers[0].Commit(ctx))
	require.NoError(t, <-second)
	require.NoError(t, writers[1].Commit(ctx))
	require.ErrorIs(t, fencer.Claim(ctx, pool, 4, resource), pglock.ErrStaleToken)
}

// A new token is not called stale by a snapshot that still shows what was pruned.
func TestP7_PruneBehindASnapshotIsToBeTriedAgain(t *testing.T) {
	t.Parallel()
	ctx, resource := timed(t), pgtest.Key(t)
	fencer := pglock.Fencer{}
	pool := newPool(t, ownDatabase(t, pgtest.Shared(t)))
	require.NoError(t, fencer.Claim(ctx, pool, 5, resource))
	tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(ctx, "SELECT count(*) FROM pglock.fenced_writes")
	require.NoError(t, err)
	_, err = fencer.Prune(ctx, pool, time.Microsecond)
	require.NoError(t, err)
	require.Equal(t, "40001", sqlState(fencer.Fence(ctx, tx, 6, resource)))
}

// colliding returns two pairs of resources that share a lock of the fence each,
// and whose names overlap: one may be before or behind another of the other pair.
func colliding(prefix string) (one, other [2]string) {
	seen := map[int32]string{}
	var pairs [][2]string
	for i := 0; ; i++ {
		name := fmt.Sprintf("%s/%08d", prefix, i)
		hash := pglock.Hashtext(name)
		first, again := seen[hash]
		seen[hash] = name
		if !again {
			continue
		}
		for _, pair := range pairs {
			if first < pair[1] { // and pair[0] < name, which is the last so far
				return pair, [2]string{first, name}
			}
		}
		pairs = append(pairs, [2]string{first, name})
	}
}

// Two transactions of two resources each, which share the locks of their
// resources, take these in the same order, whatever the order of the names.
func TestP7_ResourcesOfOneHashDoNotDeadlock(t *testing.T) {
	t.Parallel()
	ctx := timed(t)
	fencer := pglock.Fencer{}
	pool := newPool(t, ownDatabase(t, pgtest.Shared(t)))
	one, other := colliding(pgtest.Key(t))
	for _, shared := range []string{one[0], other[0]} { // whichever is first, both transactions wait for it
		require.NoError(t, fencer.Claim(ctx, pool, 1, shared))
		writer, err := pool.Begin(ctx)
		require.NoError(t, err)
		require.NoError(t, fencer.Fence(ctx, writer, 1, shared))
		claims := make(chan error, 2)
		for i, resources := range [][]string{{one[0], other[1]}, {one[1], other[0]}} {
			go func() { claims <- fencer.Claim(ctx, pool, 2, resources...) }()
			awaitBlocked(t, pool, i+1)
		}
		require.NoError(t, writer.Commit(ctx))
		for range 2 {
			require.NoError(t, <-claims)
		}
		_, err = pool.Exec(ctx, "DELETE FROM pglock.fenced_writes")
		require.NoError(t, err)
	}
}
