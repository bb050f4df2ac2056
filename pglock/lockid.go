package pglock

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/seed35111a8b/pglock/internal/keyhash"
)

// A LockID is what PostgreSQL locks: one int64, or a pair of int32. The two are separate spaces: no int64 ever excludes a
// pair. LockIDs are comparable values; the zero value is Int64ID(0).
//
// See https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-ADVISORY-LOCKS.
type LockID struct {
	id      keyhash.ID
	problem string
}

// Int64ID returns the lock ID n, the one of pg_advisory_lock(n).
func Int64ID(n int64) LockID { return LockID{id: keyhash.Int64ID(n)} }

// PairID returns the lock ID of the pair (a, b), the one of pg_advisory_lock(a, b).
func PairID(a, b int32) LockID { return LockID{id: keyhash.PairID(a, b)} }

// HashID returns the lock ID of key within namespace, as a Locker computes it that has no KeyFunc. The SQL function
// pglock.key(namespace, name) returns the same number.
func HashID(namespace, key string) LockID { return LockID{id: keyhash.ForKey(namespace, key)} }

// InvalidID is what a KeyFunc returns for a key that it has no lock ID for. Methods then answer ErrInvalidKey and problem,
// which should say what a valid key looks like.
func InvalidID(problem string) LockID { return LockID{problem: problem} }

// Int64 returns the number, and false for a pair.
func (id LockID) Int64() (n int64, ok bool) { return id.id.Int64() }

// Pair returns the two numbers, and false for an int64.
func (id LockID) Pair() (a, b int32, ok bool) { return id.id.Pair() }

// Compare orders lock IDs: negative if id comes before other, 0 if they are equal, positive otherwise. Locks taken in this
// order cannot deadlock with each other.
func (id LockID) Compare(other LockID) int { return id.id.Compare(other.id) }

// String returns the number, or the pair as "(a,b)".
func (id LockID) String() string { return id.id.String() }

// packed returns the bigint and the kind in which the migrations' functions take an ID.
func (id LockID) packed(mode lockMode) (key int64, kind int) {
	if n, ok := id.id.Int64(); ok {
		return n, int(mode) << 1
	}
	a, b, _ := id.id.Pair()
	return int64(a)<<32 | int64(uint32(b)), int(mode)<<1 | 1
}

// lockMode is how a lock excludes others. The values are those of the kinds that SQL takes.
type lockMode uint8

const (
	exclusive lockMode = iota
	shared
)

// identify returns the lock ID of key, or why it cannot be a key.
func (c *Config) identify(key string) (LockID, error) {
	if err := checkKey(key); err != nil {
		return LockID{}, err
	}
	id := c.lockID(key)
	if id.problem != "" {
		return LockID{}, wrap(ErrInvalidKey, id.problem)
	}
	return id, nil
}

// checkKey reports why key cannot be a key. A NUL or invalid UTF-8 could not be hashed by pglock.key in SQL.
func checkKey(key string) error {
	switch {
	case key == "":
		return wrap(ErrInvalidKey, "it is empty")
	case !utf8.ValidString(key):
		return wrap(ErrInvalidKey, "it is not valid UTF-8")
	case strings.IndexByte(key, 0) >= 0:
		return wrap(ErrInvalidKey, "it contains a NUL byte")
	}
	return nil
}

// wrap returns an error that matches kind and reads "kind: text".
func wrap(kind error, text string) error {
	return fmt.Errorf("%w: %s", kind, text)
}

// lockIDFromPgLocks returns the ID of a row of pg_locks.
func lockIDFromPgLocks(classID, objID uint32, objSubID int16) LockID {
	id, _ := keyhash.FromPgLocks(classID, objID, objSubID) // an objsubid of neither space cannot be an advisory lock
	return LockID{id: id}
}
