// Package pgtest is a throwaway PostgreSQL for tests, demo and benchmarks, with
// the means to hurt it.
//
// # A server
//
// [Start] finds a server by DATABASE_URL, by server binaries of this machine, or
// by Docker, and needs no testing.T. In tests, [Main] runs a package and
// [Shared] is its one server; [Database] is the package's database on it,
// [NewDatabase] one for a single test. A test that crashes or configures a
// server takes its own with [New].
//
// # Nothing is left
//
// A server's processes, folder, container and volumes are gone when
// [Server.Close] has returned, and also when the process that started it has
// ended by a panic, Ctrl-C or SIGKILL. On Linux the kernel tells a server of
// its parent's death (Pdeathsig). A watchdog, a shell in a session of its own,
// sits in a read on a pipe whose other end only we have, and removes the rest
// once that is closed. What stays in the temporary folder is one prepared data
// folder for each installed version, of which new servers are copies.
//
// # Faults
//
//   - [Server.CrashPostmaster], [Server.CrashBackend], [Server.Kill],
//     [Server.Restart], [Server.SignalBackend]
//   - [Server.BaseBackup] and [FromBackup], [Server.Dump] and [Server.Restore]:
//     an older state of the data comes back
//   - [Server.Standby]: lag, promotion, two primaries
//   - [Proxy]: delays, black holes and cuts, a [Trap] that freezes a connection in
//     the middle of a message, and [Counts] of round trips
//   - [Network] and [Host]: black holes of packets between network namespaces
//   - [PgBouncer]: a real pooler in each of its modes
//   - [Process] and [Role]: other processes, frozen or killed
//
// # Events
//
// Tests wait for what they can see: [WaitForWaiters], [WaitForNoLocks],
// [Server.WaitLog], [Process.Expect], [Poll].
package pgtest
