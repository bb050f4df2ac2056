package keyhash

import (
	"cmp"
	"strconv"
)

// The values of pg_locks.objsubid that tell PostgreSQL's two advisory lock
// spaces apart. Extensions use further values for locks of their own.
const (
	objSubIDInt64 int16 = 1
	objSubIDPair  int16 = 2
)

// ID is what PostgreSQL locks: one int64 or a pair of int32, each in a lock
// space of its own. It is a comparable value, fit as a map key; the zero ID is
// Int64ID(0).
type ID struct {
	bits uint64 // the number, or the first half of the pair above the second
	pair bool
}

// Int64ID returns the ID of pg_advisory_lock(n).
func Int64ID(n int64) ID {
	return ID{bits: uint64(n)}
}

// PairID returns the ID of pg_advisory_lock(a, b).
func PairID(a, b int32) ID {
	return join(uint32(a), uint32(b), true)
}

// ForKey returns the ID of key within namespace, always in the int64 space.
func ForKey(namespace, key string) ID {
	return Int64ID(Sum(namespace, key))
}

// FromPgLocks returns the ID of a row of pg_locks whose locktype is 'advisory'.
// It reports false for a lock in neither space: an extension's own, which no
// call of pg_advisory_lock can take or wait for.
func FromPgLocks(classID, objID uint32, objSubID int16) (id ID, ok bool) {
	switch objSubID {
	case objSubIDInt64:
		return join(classID, objID, false), true
	case objSubIDPair:
		return join(classID, objID, true), true
	default:
		return ID{}, false
	}
}

// PgLocks returns the ID as pg_locks shows it. classID and objID are oids there,
// hence unsigned: PairID(-1, 2) has the classID 4294967295.
func (id ID) PgLocks() (classID, objID uint32, objSubID int16) {
	if id.pair {
		return id.high(), id.low(), objSubIDPair
	}
	return id.high(), id.low(), objSubIDInt64
}

// IsPair reports whether the ID is a pair of int32.
func (id ID) IsPair() bool { return id.pair }

// Int64 returns the number of an ID in the int64 space, and false for a pair.
func (id ID) Int64() (n int64, ok bool) {
	if id.pair {
		return 0, false
	}
	return int64(id.bits), true
}

// Pair returns both halves of a pair, and false for an ID in the int64 space.
func (id ID) Pair() (a, b int32, ok bool) {
	if !id.pair {
		return 0, 0, false
	}
	return int32(id.high()), int32(id.low()), true
}

// String returns the ID as the arguments of pg_advisory_lock: "-42" or "(1,-2)".
// No two IDs have the same one.
func (id ID) String() string {
	if !id.pair {
		return strconv.FormatInt(int64(id.bits), 10)
	}
	b := append(make([]byte, 0, len("(-2147483648,-2147483648)")), '(')
	b = strconv.AppendInt(b, int64(int32(id.high())), 10)
	b = append(b, ',')
	b = strconv.AppendInt(b, int64(int32(id.low())), 10)
	return string(append(b, ')'))
}

// Compare returns -1, 0 or 1 as id sorts before, with or after other: the int64
// space first, each space by its numbers. The order is total and the same in
// every process, so whoever takes several locks in it cannot deadlock with
// another who does.
func (id ID) Compare(other ID) int {
	switch {
	case id.pair != other.pair && other.pair:
		return -1
	case id.pair != other.pair:
		return 1
	case !id.pair:
		return cmp.Compare(int64(id.bits), int64(other.bits))
	default:
		return cmp.Or(
			cmp.Compare(int32(id.high()), int32(other.high())),
			cmp.Compare(int32(id.low()), int32(other.low())))
	}
}

func join(high, low uint32, pair bool) ID {
	return ID{bits: uint64(high)<<32 | uint64(low), pair: pair}
}

func (id ID) high() uint32 { return uint32(id.bits >> 32) }
func (id ID) low() uint32  { return uint32(id.bits) }
