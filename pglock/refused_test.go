package pglock_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// TestRefusedSettingsAreShown is about a server that refuses a setting which it knows. PostgreSQL on this platform refuses
// none of them to any role, so that the function which sets them does it in its place.
func TestRefusedSettingsAreShown(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	locker, pool := lonely(t, &pglock.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	var acquire string
	require.NoError(t, pool.QueryRow(t.Context(),
		"SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'pglock'::regnamespace AND proname = 'acquire'").Scan(&acquire))
	const set = "ignored := set_config(setting, settings[i + 1], false);"
	require.Contains(t, acquire, set)
	_, err := pool.Exec(t.Context(), strings.Replace(acquire, set, `if setting in ('tcp_user_timeout', 'jit') then
  raise insufficient_privilege using message = 'not on this server';
end if; `+set, 1))
	require.NoError(t, err)

	require.Empty(t, locker.Stat().RefusedSettings)
	for range 2 {
		draw(t, locker)
		require.Equal(t, []string{"jit", "tcp_user_timeout"}, locker.Stat().RefusedSettings)
	}
	require.Equal(t, 2, strings.Count(log.String(), `msg="pglock: setting refused"`), "once for each: %s", &log)
	pgtest.NoAdvisoryLocks(t, pool)
}
