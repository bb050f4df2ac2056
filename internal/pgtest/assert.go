package pgtest

import (
	"context"
	"fmt"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// settleTimeout is how long what must come true soon may take.
const settleTimeout = 10 * time.Second

// Eventually fails the test unless cond becomes true within ten seconds.
func Eventually(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	require.NoError(tb, Poll(ctx, what, cond))
}

// NoAdvisoryLocks fails the test unless the advisory locks of the database (of
// these int64 keys, if any are given) are gone within ten seconds: a server
// notices a closed connection a moment after the client closed it.
func NoAdvisoryLocks(tb testing.TB, db Querier, ids ...int64) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	require.NoError(tb, WaitForNoLocks(ctx, db, ids...))
}

// NoBackends fails the test unless the sessions of the database whose
// application name is LIKE the pattern are gone within ten seconds.
func NoBackends(tb testing.TB, db Querier, pattern string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	var left []Backend
	var queryErr error
	err := Poll(ctx, fmt.Sprintf("backends LIKE %q to go", pattern), func() bool {
		var seen []Backend
		if seen, queryErr = Backends(ctx, db, pattern); queryErr != nil {
			return true
		}
		left = seen
		return len(left) == 0
	})
	require.NoError(tb, queryErr, "last seen: %+v", left)
	require.NoError(tb, err, "last seen: %+v", left)
}

// SpawnRole starts this test binary in a role that was given to Main; the
// process is killed at the end of the test. Each arg is NAME=value.
func SpawnRole(tb testing.TB, role string, args ...string) *Process {
	tb.Helper()
	cmd, err := RoleCommand(role, args...)
	require.NoError(tb, err)
	return SpawnCommand(tb, cmd)
}

// SpawnCommand is Spawn for the duration of the test.
func SpawnCommand(tb testing.TB, cmd *exec.Cmd) *Process {
	tb.Helper()
	p, err := Spawn(cmd)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, p.Kill()) })
	return p
}
