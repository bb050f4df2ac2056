// Package history judges what clients of pglock have seen while they were
// disturbed: whether it can be the history of a lock with tokens and of a fence.
//
// # What a client says
//
// A client writes an [Event] when it calls an operation and when that returns,
// and for each hold, every few milliseconds, that it has just seen the lock
// held. All times are of CLOCK_MONOTONIC, which the processes of a machine
// share.
//
// # When a hold counts
//
// A hold counts from the return of its acquire until the call of its release.
// If it was lost, or its client was killed, it counts until the last time at
// which the client saw it held: a lock never comes back, so that it was held all
// the time before. A client reads the clock first and then asks the lock, so
// that a pause in between makes the hold shorter and never longer. A frozen
// client therefore needs no special rule: whatever it asks after it goes on is
// answered by the clock.
//
// # The exceptions
//
// Where the server itself ends a session, by pg_terminate_backend, a crash, a
// restart or a reset connection, the lock is free on the server at that time,
// and the client may believe in it for longer (promise P3). Such a hold may end
// in the model as early as the [Disturbance], though never before its acquire was
// called: a grant that is older than the call answers nobody. How long the client
// believed is checked apart: for a moment if it could hear, up to the trust
// deadline if not.
package history
