//nolint:thelper // each and eachShape run these functions as subtests
package pglock_test

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// simply has the pool use the simple protocol for the service's own queries,
// as PgBouncer's manual advises.
func simply(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol }

// poolerLocker is a Locker behind a pooler, which is closed, with its pool, at
// the end of the test.
func poolerLocker(t *testing.T, b *pgtest.PgBouncer, dsn string, config pglock.Config) (*pglock.Locker, *pgxpool.Pool) {
	t.Helper()
	pool := pgtest.Pool(t, b.DSN(databaseName(t, dsn)), simply)
	config.Logger = slog.New(slog.DiscardHandler)
	locker, err := pglock.New(pool, &config)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), scenarioTimeout)
		defer cancel()
		require.NoError(t, locker.Close(ctx))
	})
	return locker, pool
}

func TestP10_PoolersAreRefused(t *testing.T) {
	t.Parallel()
	modes := map[string]pgtest.PoolMode{"session": pgtest.SessionPooling, "transaction": pgtest.TransactionPooling}
	each(t, modes, func(t *testing.T, mode pgtest.PoolMode) {
		b := pgtest.PgBouncerTo(t, pgtest.Shared(t), mode, nil)
		eachShape(t, func(t *testing.T, config pglock.Config) {
			ctx, key := timed(t), pgtest.Key(t)
			dsn := ownDatabase(t, pgtest.Shared(t))
			locker, _ := poolerLocker(t, b, dsn, config)
			for range 5 {
				_, err := locker.TryAcquire(ctx, key)
				require.ErrorIs(t, err, pglock.ErrPooler)
				begin := time.Now()
				_, err = locker.Acquire(ctx, key) // no wait can heal it
				require.ErrorIs(t, err, pglock.ErrPooler)
				require.Less(t, time.Since(begin), atOnce)
			}
			pgtest.NoAdvisoryLocks(t, pgtest.Pool(t, dsn))
		})
	})
}

func TestP10_SessionPoolerWorksWhereAllowed(t *testing.T) {
	t.Parallel()
	b := pgtest.PgBouncerTo(t, pgtest.Shared(t), pgtest.SessionPooling, nil)
	eachShape(t, func(t *testing.T, config pglock.Config) {
		ctx, key := timed(t), pgtest.Key(t)
		dsn := ownDatabase(t, pgtest.Shared(t))
		config.AllowPooler, config.Lease = true, testLease
		locker, pool := poolerLocker(t, b, dsn, config)
		others, _ := poolerLocker(t, b, dsn, config)
		direct := newLocker(t, newPool(t, dsn), nil)
		for i := range 3 { // the backend of the first is pooled, and clean
			lock := acquired(ctx, t, locker, key)
			_, err := others.TryAcquire(ctx, key)
			require.ErrorIs(t, err, pglock.ErrNotAcquired)
			_, err = direct.TryAcquire(ctx, key)
			require.ErrorIs(t, err, pglock.ErrNotAcquired)
			if i == 0 {
				require.True(t, pause(ctx, 2*testLease)) // heartbeats look for the lock too
			}
			require.NoError(t, lock.Verify(ctx))
			waiting := acquire(ctx, others, key)
			require.NoError(t, pgtest.WaitForWaiters(ctx, pgtest.Pool(t, dsn), 1))
			require.NoError(t, lock.Release(ctx))
			require.NoError(t, await(t, "the lock", waiting).held(t).Release(ctx))
		}
		require.NoError(t, pool.Ping(ctx))

		// A backend that the pooler ends, or that ends, is a loss.
		lock := acquired(ctx, t, locker, key)
		_, err := pool.Exec(ctx, "SELECT pg_terminate_backend("+strconv.Itoa(holderPID(ctx, t, direct, lock))+")")
		require.NoError(t, err)
		await(t, "the end of the context", lock.Context().Done())
		require.ErrorIs(t, lock.Err(), pglock.ErrLost)
	})
}

// The lease works through the pooler: what the pooler's client is cut off from
// ends, on both of its sides.
func TestP10_LeaseHoldsBehindASessionPooler(t *testing.T) {
	t.Parallel()
	b := pgtest.PgBouncerTo(t, pgtest.Shared(t), pgtest.SessionPooling, nil)
	eachShape(t, func(t *testing.T, config pglock.Config) {
		ctx, key := timed(t), pgtest.Key(t)
		dsn := ownDatabase(t, pgtest.Shared(t))
		proxy, err := pgtest.NewProxy(ctx, b.Addr())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, proxy.Close()) })
		config.AllowPooler, config.Lease = true, testLease
		named := func(c *pgxpool.Config) {
			c.ConnConfig.RuntimeParams["application_name"] = "b" + strings.ToLower(rand.Text()[:10])
		}
		pool := pgtest.Pool(t, dsn, simply, named, through(t, proxy.Addr()))
		locker := newLocker(t, pool, &config)
		healAtEnd(t, proxy, pool)
		lock := acquired(ctx, t, locker, key)
		ended := endOf(lock.Context())
		waiting := acquire(ctx, newLocker(t, newPool(t, dsn), nil), key)
		proxy.BlackHole()
		begin := time.Now()
		out := await(t, "the lock", waiting)
		next := out.held(t)
		end := await(t, "the end of the holder's context", ended)
		require.True(t, end.Before(out.at))
		require.Less(t, out.at.Sub(begin), testLease+time.Second)
		t.Logf("cut off behind the pooler: the holder knew after %v, another held after %v", end.Sub(begin), out.at.Sub(begin))
		require.NoError(t, next.Release(ctx))
	})
}

// Where AllowPooler meets a pooler in transaction mode all the same, it is found
// out; whatever is reported as held meanwhile excludes everybody else.
func TestP10_TransactionPoolerIsFoundOutThoughAllowed(t *testing.T) {
	t.Parallel()
	settings := map[string]string{"default_pool_size": "4"}
	b := pgtest.PgBouncerTo(t, pgtest.Shared(t), pgtest.TransactionPooling, settings)
	eachShape(t, func(t *testing.T, config pglock.Config) {
		const clients = 8
		ctx, key := timed(t), pgtest.Key(t)
		dsn := ownDatabase(t, pgtest.Shared(t))
		config.AllowPooler, config.Lease = true, testLease
		var holders, refused, lost atomic.Int32
		var all sync.WaitGroup
		errs := make(chan error, clients)
		for range clients {
			locker, _ := poolerLocker(t, b, dsn, config)
			all.Go(func() {
				for end := time.Now().Add(2 * testLease); time.Now().Before(end); {
					lock, err := locker.TryAcquire(ctx, key)
					switch {
					case errors.Is(err, pglock.ErrPooler):
						refused.Add(1)
						continue
					case errors.Is(err, pglock.ErrNotAcquired):
						continue
					case err != nil:
						errs <- err
						return
					}
					if n := holders.Add(1); n != 1 {
						errs <- errors.New("two holders")
					}
					select {
					case <-lock.Context().Done():
						lost.Add(1)
					case <-time.After(testLease / 2):
					}
					holders.Add(-1)
					_ = lock.Release(ctx) // lost or not
				}
			})
		}
		all.Wait()
		require.Empty(t, errs)
		require.Positive(t, refused.Load()+lost.Load())
		t.Logf("%d attempts refused, %d locks lost", refused.Load(), lost.Load())
	})
}

// A lock whose backend the pooler has given to somebody else is found out by the
// next request, which lands elsewhere.
func TestP10_TransactionPoolerIsFoundOutByAHeartbeat(t *testing.T) {
	t.Parallel()
	b := pgtest.PgBouncerTo(t, pgtest.Shared(t), pgtest.TransactionPooling, nil)
	eachShape(t, func(t *testing.T, config pglock.Config) {
		ctx := timed(t)
		dsn := ownDatabase(t, pgtest.Shared(t))
		config.AllowPooler = true
		locker, pool := poolerLocker(t, b, dsn, config)
		lock := acquired(ctx, t, locker, pgtest.Key(t))
		victim := holderPID(ctx, t, newLocker(t, newPool(t, dsn), nil), lock)
		for pid := 0; pid != victim; { // until one of these transactions has the backend
			tx, err := pool.Begin(ctx)
			require.NoError(t, err)
			defer func() { require.NoError(t, tx.Rollback(ctx)) }()
			require.NoError(t, tx.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid))
		}
		require.ErrorIs(t, lock.Verify(ctx), pglock.ErrPooler)
		require.ErrorIs(t, lock.Err(), pglock.ErrLost)
	})
}

// oddSettings are what roles and databases come with. Each must leave locks as
// they are.
var oddSettings = map[string][]string{
	"time-outs": {
		"statement_timeout = '1s'", "lock_timeout = '20ms'",
		"idle_in_transaction_session_timeout = '300ms'", "idle_session_timeout = '400ms'",
	},
	"transactions": {
		"default_transaction_read_only = on", "default_transaction_isolation = serializable", "default_transaction_deferrable = on",
	},
	"texts": {
		"search_path = evil, public", "standard_conforming_strings = off", "backslash_quote = off", "client_encoding = LATIN1",
		"bytea_output = escape", "IntervalStyle = sql_standard", "DateStyle = 'SQL, DMY'", "TimeZone = 'Asia/Kathmandu'",
		"quote_all_identifiers = on", "array_nulls = off", "extra_float_digits = -15",
	},
	"durability": {"synchronous_commit = remote_apply", "row_security = off", "plan_cache_mode = force_generic_plan"},
	"keepalives": {"tcp_keepalives_idle = 1", "tcp_keepalives_interval = 1", "tcp_keepalives_count = 1", "tcp_user_timeout = 1000"},
}

func TestP10_SettingsOfRolesAndDatabasesBreakNothing(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	each(t, oddSettings, func(t *testing.T, settings []string) {
		eachShape(t, func(t *testing.T, config pglock.Config) {
			ctx, key := timed(t), pgtest.Key(t)
			dsn := writable(t, s)
			name := databaseName(t, dsn)
			require.NoError(t, s.Exec(ctx, name, `CREATE SCHEMA evil;
				CREATE FUNCTION evil.pg_try_advisory_lock(bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true';
				CREATE FUNCTION evil.pg_backend_pid() RETURNS integer LANGUAGE sql AS 'SELECT 1'`))
			for _, setting := range settings {
				require.NoError(t, s.Exec(ctx, "", "ALTER DATABASE "+name+" SET "+setting))
			}
			config.Lease = testLease
			locker := newLocker(t, newPool(t, dsn), &config)
			require.NoError(t, locker.Migrate(ctx))
			lock := acquired(ctx, t, locker, key)
			others := newLocker(t, newPool(t, dsn), &config)
			waiting := acquire(ctx, others, key)
			require.True(t, pause(ctx, 2*testLease))
			require.NoError(t, lock.Verify(ctx))
			pgtest.Eventually(t, "an answer within the role's statement_timeout", func() bool {
				_, err := others.TryAcquire(ctx, key)
				require.Error(t, err)
				return errors.Is(err, pglock.ErrNotAcquired)
			})
			patient := newPool(t, dsn, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["statement_timeout"] = "0" })
			require.NoError(t, lock.FencedTx(ctx, patient, key, func(tx pgx.Tx) error { return write(ctx, tx, "holder") }))
			require.NoError(t, lock.Release(ctx))
			next := await(t, "the lock", waiting).held(t)
			require.Greater(t, next.Token(), lock.Token())
			require.NoError(t, next.Release(ctx))
			require.Zero(t, locker.Stat().Lost+others.Stat().Lost)
		})
	})
}

// A pooled connection may listen. As a lock session it must not: a holder that
// is cut off under a flood of notifications would block its backend in sending,
// where no timer ends it.
func TestP10_LockSessionDoesNotListen(t *testing.T) {
	t.Parallel()
	eachShape(t, func(t *testing.T, config pglock.Config) {
		ctx := timed(t)
		s := pgtest.Shared(t)
		dsn := ownDatabase(t, s)
		listening := func(c *pgxpool.Config) {
			c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
				_, err := conn.Exec(ctx, "LISTEN news")
				return err
			}
		}
		proxy := pgtest.ProxyTo(t, s)
		locker := newLocker(t, newPool(t, dsn, through(t, proxy.Addr()), listening), &config)
		lock := acquired(ctx, t, locker, pgtest.Key(t))
		heard := proxy.Set(pgtest.Trap{
			Direction: pgtest.ToClient, Type: 'A', // NotificationResponse
			Pass: pgtest.WholeMessage, PID: uint32(holderPID(ctx, t, locker, lock)),
		})
		for range 10 {
			require.NoError(t, s.Exec(ctx, databaseName(t, dsn), "NOTIFY news"))
			require.NoError(t, lock.Verify(ctx)) // its answer comes after what the backend had to tell
		}
		require.Empty(t, heard)
		require.NoError(t, lock.Release(ctx))
	})
}

// A role of the service, with nothing but what using locks takes.
func TestP10_PlainRoleHoldsLocks(t *testing.T) {
	t.Parallel()
	eachShape(t, func(t *testing.T, config pglock.Config) {
		ctx, key := timed(t), pgtest.Key(t)
		s := pgtest.Shared(t)
		dsn := writable(t, s)
		name := databaseName(t, dsn)
		role := "role_" + name
		require.NoError(t, s.Exec(ctx, name, "CREATE ROLE "+role+" LOGIN NOINHERIT; GRANT USAGE ON SCHEMA pglock TO "+role+
			"; GRANT SELECT ON pglock.reign TO "+role+"; GRANT USAGE ON SEQUENCE pglock.tokens TO "+role+
			"; GRANT SELECT, INSERT, UPDATE ON pglock.fenced_writes TO "+role+"; GRANT INSERT ON public.written TO "+role))
		t.Cleanup(func() {
			require.NoError(t, s.Exec(context.Background(), name, "DROP OWNED BY "+role+"; DROP ROLE "+role))
		})
		config.Lease = testLease
		as, err := url.Parse(dsn)
		require.NoError(t, err)
		as.User = url.User(role)
		pool := newPool(t, as.String())
		locker := newLocker(t, pool, &config)
		lock := acquired(ctx, t, locker, key)
		require.True(t, pause(ctx, 2*testLease))
		require.NoError(t, lock.FencedTx(ctx, pool, key, func(tx pgx.Tx) error { return write(ctx, tx, "holder") }))
		require.NoError(t, lock.Release(ctx))
	})
}
