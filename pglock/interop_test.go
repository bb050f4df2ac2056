package pglock_test

import (
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// TestGolangMigrateVectors has the numbers of golang-migrate's own test:
// https://github.com/golang-migrate/migrate/blob/v4.19.1/database/util_test.go. The module migrations/tooltest asks the
// library itself.
func TestGolangMigrateVectors(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		names []string
		want  int64
	}{
		{nil, 1764327054},
		{[]string{"schema_name_1"}, 2453313553},
		{[]string{"schema_name_2"}, 235207038},
		{[]string{"schema_name_1", "schema_name_2"}, 3743845847},
	} {
		require.Equal(t, pglock.Int64ID(v.want), pglock.GolangMigrateKeys(v.names...)("database_name"), v.names)
	}
}

// TestSQLxVector has the number of sqlx's documentation:
// https://docs.rs/sqlx/0.8.6/sqlx/postgres/struct.PgAdvisoryLock.html#method.new.
func TestSQLxVector(t *testing.T) {
	t.Parallel()
	require.Equal(t, pglock.Int64ID(-5560419505042474287), pglock.SQLxKeys("my first Postgres advisory lock!"))
}

// TestSQLxMigrateKeysIsTheFormula: sqlx publishes no number, so this is its formula once more, with a CRC-32 in SQL:
// https://github.com/launchbadge/sqlx/blob/v0.8.6/sqlx-postgres/src/migrate.rs. The last two names have the numbers that
// a program in Rust which shares this lock tests for.
func TestSQLxMigrateKeysIsTheFormula(t *testing.T) {
	t.Parallel()
	conn := newConn(t)
	_, err := conn.Exec(t.Context(), crc32InSQL)
	require.NoError(t, err)
	for _, name := range []string{"", "postgres", "my-app", randomUnicode(63), "zone", "zone_test"} {
		var want int64
		require.NoError(t, conn.QueryRow(t.Context(),
			"SELECT x'3d32ad9e'::bigint * pg_temp.crc32(convert_to($1, 'UTF8'))", name).Scan(&want))
		require.Equal(t, pglock.Int64ID(want), pglock.SQLxMigrateKeys(name), name)
	}
	require.Equal(t, pglock.Int64ID(2771974297191923538), pglock.SQLxMigrateKeys("zone"))
	require.Equal(t, pglock.Int64ID(1283835657316171598), pglock.SQLxMigrateKeys("zone_test"))
}

// crc32InSQL is the CRC that PostgreSQL has had of its own since version 18.
const crc32InSQL = `
CREATE FUNCTION pg_temp.crc32(data bytea) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	crc bigint := x'ffffffff'::bigint;
BEGIN
	FOR i IN 0..octet_length(data) - 1 LOOP
		crc := crc # get_byte(data, i);
		FOR bit IN 1..8 LOOP
			crc := (crc >> 1) # ((crc & 1) * x'edb88320'::bigint);
		END LOOP;
	END LOOP;
	RETURN crc # x'ffffffff'::bigint;
END $$`

// TestHashtextExcludesOtherPrograms and those below take each scheme's lock with its own SQL.
func TestHashtextExcludesOtherPrograms(t *testing.T) {
	t.Parallel()
	key := pgtest.Key(t)
	excludes(t, pglock.HashtextKeys, key, "hashtext($1)", key)
	excludes(t, func(key string) pglock.LockID { return pglock.PairID(42, pglock.Hashtext(key)) }, key, "42, hashtext($1)", key)
}

func TestHashtextExtendedExcludesOtherPrograms(t *testing.T) {
	t.Parallel()
	for _, seed := range []int64{0, 1, rand.Int64()} {
		key := pgtest.Key(t) + "-ключ"
		excludes(t, pglock.HashtextExtendedKeys(seed), key, "hashtextextended($1, $2)", key, seed)
	}
}

func TestGolangMigrateExcludesOtherPrograms(t *testing.T) {
	t.Parallel()
	// golang-migrate gives the number as text, for the vector of its test.
	excludes(t, pglock.GolangMigrateKeys("schema_name_1", "schema_name_2"), "database_name", "$1::text::bigint", "3743845847")
}

func TestSQLxExcludesOtherPrograms(t *testing.T) {
	t.Parallel()
	excludes(t, pglock.SQLxKeys, "my first Postgres advisory lock!", "$1", int64(-5560419505042474287))
	excludes(t, pglock.SQLxMigrateKeys, "zone", "$1", int64(2771974297191923538))
}

func TestDecimalKeysAreTheirLockIDs(t *testing.T) {
	t.Parallel()
	for _, id := range []pglock.LockID{
		pglock.Int64ID(0), pglock.Int64ID(12345), pglock.Int64ID(-7), pglock.Int64ID(math.MinInt64), pglock.Int64ID(math.MaxInt64),
		pglock.PairID(0, 0), pglock.PairID(1, 2), pglock.PairID(math.MinInt32, math.MaxInt32),
	} {
		require.Equal(t, id, pglock.DecimalKeys(id.String()))
	}
	require.Equal(t, pglock.PairID(-1, 2), pglock.DecimalKeys("-1,2"))
}

func TestDecimalKeysExcludeOtherPrograms(t *testing.T) {
	t.Parallel()
	n, a, b := rand.Int64(), -rand.Int32(), rand.Int32()
	excludes(t, pglock.DecimalKeys, strconv.FormatInt(n, 10), "$1", n)
	excludes(t, pglock.DecimalKeys, strconv.FormatInt(-n, 10), "$1", -n)
	excludes(t, pglock.DecimalKeys, fmt.Sprintf("%d,%d", a, b), "$1, $2", a, b)
}

// TestGooseVector has the number of goose's source, which calls it the CRC-32 of "goose":
// https://github.com/pressly/goose/blob/v3.26.0/lock/session_locker_options.go. The module migrations/tooltest asks the
// library itself.
func TestGooseVector(t *testing.T) {
	t.Parallel()
	require.EqualValues(t, 4097083626, pglock.GooseLockID)
	require.EqualValues(t, pglock.GooseLockID, crc32.ChecksumIEEE([]byte("goose")))
	require.Equal(t, pglock.Int64ID(pglock.GooseLockID), pglock.GooseKeys("goose"))
	require.Equal(t, pglock.Int64ID(5887940537704921958), pglock.GooseKeys("5887940537704921958"))
}

func TestGooseExcludesOtherPrograms(t *testing.T) {
	t.Parallel()
	excludes(t, pglock.GooseKeys, "goose", "$1", int64(4097083626))
	excludes(t, pglock.GooseKeys, "123456789", "$1", int64(123456789))
}

// TestKeysThatAreNoNumbersAreRefused: a KeyFunc has no error of its own, and the methods have it.
func TestKeysThatAreNoNumbersAreRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		keyFunc func(string) pglock.LockID
		bad     []string
		good    string
	}{
		"decimal": {
			pglock.DecimalKeys,
			[]string{
				"abc", " 1", "1_000", "0x10", "1.0", "9223372036854775808", "-9223372036854775809", "1,2147483648", "1,2,3", ",", "1,", ",2",
				"(1)", "(1,2", "1,2)", "((1,2))", "-",
			},
			strconv.FormatInt(rand.Int64(), 10),
		},
		"goose": {pglock.GooseKeys, []string{"Goose", "geese", "1,2", "(1,2)", "9223372036854775808"}, strconv.FormatInt(rand.Int64(), 10)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			locker, _ := newLocker(t, &pglock.Config{KeyFunc: c.keyFunc})
			for _, key := range c.bad {
				_, err := locker.TryAcquire(t.Context(), key)
				require.ErrorIs(t, err, pglock.ErrInvalidKey, key)
				require.NotErrorIs(t, err, pglock.ErrNotAcquired, key)
				_, err = locker.Acquire(t.Context(), key)
				require.ErrorIs(t, err, pglock.ErrInvalidKey, key)
				require.ErrorContains(t, err, "it is neither")
			}
			require.Zero(t, locker.Stat().Sessions, "a refused key needs no session")
			lock, err := locker.TryAcquire(t.Context(), c.good)
			require.NoError(t, err, "the Locker stays usable")
			require.NoError(t, lock.Release(t.Context()))
		})
	}
}

// excludes shows that a Locker with keyFunc and a session that locks args in the way of another program shut each other
// out, and a key beside it is free.
func excludes(t *testing.T, keyFunc func(string) pglock.LockID, key, argsSQL string, args ...any) {
	t.Helper()
	locker, _ := newLocker(t, &pglock.Config{KeyFunc: keyFunc})
	other := newConn(t)
	call := func(function string) (ok bool) {
		t.Helper()
		require.NoError(t, other.QueryRow(t.Context(), fmt.Sprintf("SELECT %s(%s)", function, argsSQL), args...).Scan(&ok))
		return ok
	}

	_, err := other.Exec(t.Context(), fmt.Sprintf("SELECT pg_advisory_lock(%s)", argsSQL), args...)
	require.NoError(t, err)
	_, err = locker.TryAcquire(t.Context(), key)
	require.ErrorIs(t, err, pglock.ErrNotAcquired)
	require.True(t, call("pg_advisory_unlock"))

	lock, err := locker.TryAcquire(t.Context(), key)
	require.NoError(t, err)
	require.False(t, call("pg_try_advisory_lock"), "%s is held by the Locker as %s", key, lock.LockID())
	require.NoError(t, lock.Release(t.Context()))
	require.True(t, call("pg_try_advisory_lock"))
	require.True(t, call("pg_advisory_unlock"))
}

// newConn returns a session of its own, as another program would have, on the package's database.
func newConn(t *testing.T) *pgx.Conn {
	t.Helper()
	pool := pgtest.Pool(t, pgtest.Database(t))
	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	t.Cleanup(conn.Release)
	return conn.Conn()
}
