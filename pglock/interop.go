package pglock

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"
)

// The functions of this file are for Config.KeyFunc: each makes a Locker number its locks as another program does, so that
// the two exclude each other. They do so only within one database, and the other program knows no lease and no token.

// DecimalKeys takes the key for the lock ID itself: "12345" or "-7" for pg_advisory_lock(12345), and "1,2" or "(1,2)" for
// pg_advisory_lock(1, 2), so that the text of any LockID is a key. Any other key is refused with ErrInvalidKey.
func DecimalKeys(key string) LockID {
	if n, err := strconv.ParseInt(key, 10, 64); err == nil {
		return Int64ID(n)
	}
	pair := key
	if inner, ok := strings.CutPrefix(key, "("); ok {
		if pair, ok = strings.CutSuffix(inner, ")"); !ok {
			pair = ""
		}
	}
	first, second, _ := strings.Cut(pair, ",")
	a, errA := strconv.ParseInt(first, 10, 32)
	b, errB := strconv.ParseInt(second, 10, 32)
	if errA != nil || errB != nil {
		return InvalidID("it is neither a number of 64 bits, as in 12345, nor two of 32, as in 1,2")
	}
	return PairID(int32(a), int32(b))
}

// HashtextKeys locks what pg_advisory_lock(hashtext(key)) locks. Its IDs have 32 bits: among 10,000 keys in use the chance
// that two have the same is 1 in 86, and those two exclude each other although they need not. See [Hashtext] for its
// further limits.
func HashtextKeys(key string) LockID { return Int64ID(int64(Hashtext(key))) }

// HashtextExtendedKeys returns the function that locks what pg_advisory_lock(hashtextextended(key, seed)) locks. See
// [HashtextExtended] for its limits.
func HashtextExtendedKeys(seed int64) func(key string) LockID {
	return func(key string) LockID { return Int64ID(HashtextExtended(key, seed)) }
}

// GooseLockID is the lock ID that goose's session locker takes by default, since goose v3.26.0. Older versions took
// 5887940537704921958, and the two do not exclude each other.
const GooseLockID int64 = 4097083626

// GooseKeys locks what goose's session locker locks while it migrates: the key "goose" stands for GooseLockID, and any
// other is the decimal number given to goose's option WithLockID. Any key that is neither is refused with ErrInvalidKey.
//
// Goose takes this lock only where its Provider has the option WithSessionLocker; its command line never does, and its
// table locker is not an advisory lock.
func GooseKeys(key string) LockID {
	if key == "goose" {
		return Int64ID(GooseLockID)
	}
	n, err := strconv.ParseInt(key, 10, 64)
	if err != nil {
		return InvalidID(`it is neither "goose" nor the number given to goose's WithLockID`)
	}
	return Int64ID(n)
}

// GolangMigrateKeys returns the function that locks what golang-migrate locks while it migrates the database of that name,
// whatever the migrations are. The names are those that its driver adds to the database's: for its drivers of PostgreSQL
// the schema and the table in which it keeps its version:
//
//	GolangMigrateKeys("public", "schema_migrations")
//
// The key is the database's name as golang-migrate has it, which depends on how it was started: "app" by WithInstance, but
// "/app" where it connected by a URL, as its command line does. The two do not exclude each other.
func GolangMigrateKeys(names ...string) func(database string) LockID {
	const salt = 1486364155
	before := strings.Join(append(slices.Clip(names), ""), "\x00")
	return func(database string) LockID {
		return Int64ID(int64(crc32.ChecksumIEEE([]byte(before+database)) * salt))
	}
}

// SQLxMigrateKeys locks what the migrator of sqlx, for Rust, locks while it migrates the database of that name.
func SQLxMigrateKeys(database string) LockID {
	const salt = 0x3d32ad9e
	return Int64ID(salt * int64(crc32.ChecksumIEEE([]byte(database)))) // 30 by 32 bits: no overflow
}

// SQLxKeys locks what PgAdvisoryLock::new(key) of sqlx, for Rust, locks.
func SQLxKeys(key string) LockID {
	// HKDF (RFC 5869) without a salt, one block of output. crypto/hkdf has an error for short keys in FIPS mode.
	secret := hmacSHA256(make([]byte, sha256.Size), key)
	block := hmacSHA256(secret, "SQLx (Rust) Postgres advisory lock\x01")
	return Int64ID(int64(binary.LittleEndian.Uint64(block)))
}

func hmacSHA256(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	_, _ = h.Write([]byte(text)) // a hash's Write has no error
	return h.Sum(nil)
}
