package pglock_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

func TestConfigProblemsAreListedTogether(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	for name, c := range map[string]struct {
		config pglock.Config
		says   []string
	}{
		"lease too short":          {pglock.Config{Lease: time.Millisecond}, []string{"Lease 1ms"}},
		"lease too long":           {pglock.Config{Lease: 48 * time.Hour}, []string{"Lease 48h"}},
		"lease of microseconds":    {pglock.Config{Lease: 1500*time.Millisecond + time.Microsecond}, []string{"whole milliseconds"}},
		"heartbeats too rare":      {pglock.Config{HeartbeatInterval: 10 * time.Second}, []string{"HeartbeatInterval 10s", "two must fit"}},
		"margin eats the lease":    {pglock.Config{TrustMargin: 15 * time.Second}, []string{"HeartbeatInterval"}},
		"negative times":           {pglock.Config{HeartbeatInterval: -1, TrustMargin: -1, ReleaseTimeout: -1}, []string{"HeartbeatInterval -1ns", "TrustMargin -1ns", "ReleaseTimeout -1ns"}},
		"reserved schema":          {pglock.Config{Schema: "pg_lock"}, []string{"pg_"}},
		"schema too long":          {pglock.Config{Schema: strings.Repeat("s", 64)}, []string{"Schema"}},
		"schema with NUL":          {pglock.Config{Schema: "a\x00b"}, []string{"Schema"}},
		"namespace with NUL":       {pglock.Config{Namespace: "\x00"}, []string{"Namespace"}},
		"two ways to hash":         {pglock.Config{Namespace: "n", KeyFunc: func(string) pglock.LockID { return pglock.Int64ID(1) }}, []string{"KeyFunc and Namespace"}},
		"negative budgets":         {pglock.Config{MaxSessions: -1, MaxLocks: -1, MaxIdleSessions: -1, LocksPerSession: -1}, []string{"MaxSessions -1", "MaxLocks -1", "MaxIdleSessions -1", "LocksPerSession -1"}},
		"more waiters than places": {pglock.Config{MaxSessions: 2, MaxWaiting: 3}, []string{"MaxWaiting 3"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			locker, err := pglock.New(pool, &c.config)
			require.ErrorIs(t, err, pglock.ErrInvalidConfig)
			require.Nil(t, locker)
			for _, text := range c.says {
				require.ErrorContains(t, err, text)
			}
		})
	}
}

func TestNewWithoutPoolSaysHowToGetOne(t *testing.T) {
	t.Parallel()
	_, err := pglock.New(nil, nil)
	require.ErrorIs(t, err, pglock.ErrInvalidConfig)
	require.ErrorContains(t, err, "pgxpool.New")
}

func TestDefaultsAreValid(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Database(t))
	for _, config := range []*pglock.Config{nil, {}, {LocksPerSession: 1000}, {MaxWaiting: -1}, {Lease: 200 * time.Millisecond}} {
		locker, err := pglock.New(pool, config)
		require.NoError(t, err)
		require.NoError(t, locker.Close(t.Context()))
	}
}
