package pglock_test

import (
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// TestHandOverInSharedSessions measures the time from the release in one Locker to the grant in another, which is to it as
// another process is.
func TestHandOverInSharedSessions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		maxWaiting int
		bound      time.Duration
	}{
		"on a waiting session": {0, 20 * time.Millisecond},
		"polling":              {-1, 250 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ours, _ := newLocker(t, &pglock.Config{LocksPerSession: 1000})
			theirs, _ := newLocker(t, &pglock.Config{LocksPerSession: 1000, MaxWaiting: c.maxWaiting})
			busy, err := theirs.Acquire(t.Context(), pgtest.Key(t))
			require.NoError(t, err)
			defer func() { require.NoError(t, busy.Release(t.Context())) }() // a session that carries locks never waits
			key := pgtest.Key(t)
			full := os.Getenv("PGLOCK_TEST_FULL") == "1"
			took := make([]time.Duration, 0, map[bool]int{false: 60, true: 400}[full])
			for range cap(took) {
				took = append(took, handOver(t, ours, theirs, key))
			}
			slices.Sort(took)
			t.Logf("p50 %v, p99 %v, worst %v", took[len(took)/2], took[len(took)*99/100], took[len(took)-1])
			judged := took[len(took)/2] // the median, where other tests share the machine
			if full {
				judged = took[len(took)*99/100]
			}
			require.Less(t, judged, c.bound)
		})
	}
}

// handOver lets theirs wait for what ours holds, for a random time, and returns how long the grant took after the release.
func handOver(t *testing.T, ours, theirs *pglock.Locker, key string) time.Duration {
	t.Helper()
	lock, err := ours.Acquire(t.Context(), key)
	require.NoError(t, err)
	granted := make(chan time.Time, 1)
	go func() {
		next, err := theirs.Acquire(t.Context(), key)
		if err != nil {
			t.Error(err)
			return
		}
		granted <- time.Now()
		if err := next.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	require.NoError(t, pgtest.Poll(t.Context(), "a waiter", func() bool { return theirs.Stat().Waiters == 1 }))
	<-time.After(rand.N(300 * time.Millisecond)) // the phase of the slice or of the poll
	released := time.Now()
	require.NoError(t, lock.Release(t.Context()))
	took := (<-granted).Sub(released)
	require.NoError(t, pgtest.Poll(t.Context(), "their release", func() bool { return theirs.Stat().Held == 1 }))
	return took
}
