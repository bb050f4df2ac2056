// Package keyhash turns a user's key into what PostgreSQL locks: the one
// package that knows the hash, and the one that knows how a lock ID looks in
// pg_locks. It is pure, does no I/O and imports only the standard library.
//
// # The hash
//
// [Sum] is the first 8 bytes, big endian, as a signed 64-bit integer, of
//
//	SHA-256( "pglock/v1" ‖ len(namespace) ‖ namespace ‖ key )
//
// where len is the number of bytes of the namespace as 8 bytes, big endian.
//
//   - "pglock/v1" separates these IDs from other programs' hashes and names the
//     version of the encoding.
//   - The length makes the encoding unambiguous: ("a", "bc") and ("ab", "c")
//     are different inputs of the hash, whatever bytes they are made of.
//
// The same number in SQL, for text arguments namespace and name, on any
// database encoding (the function pglock.key of the migrations):
//
//	('x' || encode(substr(sha256(
//	    'pglock/v1'::bytea
//	    || int8send(octet_length(convert_to(namespace, 'UTF8')))
//	    || convert_to(namespace, 'UTF8')
//	    || convert_to(name, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint
//
// The hash is frozen: a rolling deploy in which two versions hash one key
// differently lets two holders in. testdata/vectors.json holds it in place, for
// Go and for SQL. A new encoding is a new version, chosen by the user.
//
// # Collisions
//
// Two keys with one ID exclude each other although they need not: a lock is
// then refused too often, never granted twice. Among a million keys in use the
// chance of one such pair is 3 in 100 million.
//
// # Two lock spaces
//
// PostgreSQL keeps advisory locks on one int64 apart from those on a pair of
// int32: 1 and (0, 1) do not exclude each other. An [ID] is a value of either.
// See https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-ADVISORY-LOCKS
// and, for their form in pg_locks,
// https://www.postgresql.org/docs/current/view-pg-locks.html.
package keyhash
