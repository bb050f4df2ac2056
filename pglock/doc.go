// Package pglock holds locks across the processes of a service, on the PostgreSQL that the service has already.
//
//	locker, err := pglock.New(pool, nil)
//	...
//	err = locker.Do(ctx, "nightly-export", func(ctx context.Context, lock *pglock.Lock) error {
//		return lock.FencedTx(ctx, pool, "exports", func(tx pgx.Tx) error {
//			return export(ctx, tx)
//		})
//	})
//
// A lock is a session-level advisory lock on a connection of its own, which is leased: the server itself ends the session
// when it has heard nothing for [Config].Lease, and the holder stops trusting it earlier. Each grant draws a fencing token,
// and a write that carries its token is refused by the database once a later holder has written or claimed.
//
// So the lock makes double work rare, the lease bounds how long a dead holder blocks the others, and the fence makes a late
// write impossible.
//
// # Limits
//
//   - Between a check and the act that follows it a process can stall for any time. Work that must be right passes its
//     token to the resource: [Lock.FencedTx], [Lock.Fence], or the token in a request to another system that compares it.
//   - A stale holder passes the fence until its successor has written or claimed. [Lock.Claim] shuts it out before the first
//     write.
//   - Advisory locks belong to one database and are not replicated. After a failover two holders may overlap; the tokens
//     of the later one are higher, so that the fence decides.
//   - Anyone who may connect to the database may take any lock ID.
//   - There is no order among waiters of different processes.
//   - A monotonic clock stands still while a virtual machine is suspended: a holder that wakes up from that believes for a
//     moment that it holds the lock. The fence refuses its write.
//   - The server counts the lease on its wall clock: a step of that clock ends leases early or late.
//
// # Guarantees
//
//   - Within one life of the server two sessions never hold one key, and a second goroutine of a process is a contender
//     like any other.
//   - A holder that is killed frees its locks as soon as the kernel closes its socket.
//   - A holder that is cut off learns it before another can have the lock (see Trust).
//   - A holder that is frozen or cut off blocks the others for at most Lease after the last heartbeat that the server got.
//   - A session that the server ends is noticed at once: its owner sits in a read on the socket.
//   - Tokens of a key rise from grant to grant, over crashes, promotions, pg_upgrade and restores.
//   - A cancelled, timed-out or failed acquire leaves nothing behind.
//   - Waiting holds back neither vacuum nor CREATE INDEX CONCURRENTLY, and many waiters of a process use one connection.
//
// docs/guarantees.md names the assumption under each and the test that holds it.
//
// # States of a lock
//
//	             heartbeat answered
//	              ┌───────────┐
//	              ▼           │
//	acquired ──► held ──────► suspect ──────────────► lost
//	              │  heartbeat │ trust deadline passes  ▲
//	              │  overdue   │                        │
//	              │            └──► released            │
//	              ├──── Release ──► released            │
//	              └──── the server ends the session ────┘
//
// A suspect lock is held, and its holder is not told: one slow heartbeat is not a loss. A lock that is lost or released does
// not come back.
//
// # Trust
//
// A session trusts its lease until
//
//	trust deadline = send of the last answered request + Lease − TrustMargin
//
// on the process's monotonic clock. At that time at the latest the contexts of its locks end and [Lock.Err] says lost, by
// the clock itself. The server ends the session no earlier than
//
//	receipt of that request + Lease  ≥  send of that request + Lease
//
// because idle_session_timeout starts after the request has been dealt with, and each request, as one message of the simple
// protocol, is covered by some timer of the server at every moment. Hence the holder's contexts end at least TrustMargin
// before another session can be granted the lock; TrustMargin is the time that its code has to stop.
//
// It does not hold where the server ends the session by itself while the holder cannot hear it (pg_terminate_backend, a
// crash, a restart, a failover), where the server's wall clock is set forward, or where two primaries are alive. Then only
// the fence protects.
//
// Heartbeats come every [Config].HeartbeatInterval, and any request is one. Each also checks that it is answered by the same
// backend, and that the server is no standby.
//
// # Waiting
//
// A blocked pg_advisory_lock holds a snapshot for as long as it waits, which holds back vacuum and deadlocks CREATE INDEX
// CONCURRENTLY. So a waiting session waits in slices: a blocked call that ends itself before the server would look for
// deadlocks or write to its log, then a moment without a transaction, then the next. A release between two slices is found
// by the next at once. One waiter of each process goes to the server; the others queue behind it in memory, first in,
// first out. Where too many sessions wait already, or where the server's settings leave no room for a slice, waiters poll.
//
// # Tokens
//
// A token is the base of the server's reign plus the next value of a sequence. A sequence alone goes back: after a crash, on
// a standby that lagged when it was promoted, in a restored dump. The reign row remembers in which life of the server it
// was written; the first acquirer of another life raises the base by more than any sequence could have drawn.
//
// # Connections
//
// The first try for a lock is made on a connection of the pool, in one round trip. If it fails the connection goes back
// untouched. If it succeeds the connection is hijacked out of the pool, owned by one goroutine, and closed after the release.
// [Config].MaxSessions bounds these connections; the pool may open as many again.
package pglock
