package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
)

func TestRunOnce(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	const slot = "2026-11-29T16:00:00Z"
	run := func(args string) result { return h.sh(t, `"$PGLOCK" run --once `+args) }

	require.Equal(t, 3, run(slot+` k -- sh -c 'exit 3'`).code)
	require.Equal(t, "ran\n", run(slot+` k -- echo ran`).stdout, "a tick that failed is run by the next")
	again := run(slot + ` k -- echo ran`)
	require.Equal(t, result{}, again, "a tick that has run is no error")
	require.Empty(t, run(`2026-11-29T17:00+01:00 k -- echo ran`).stdout, "the same tick, written in another way")
	require.Equal(t, "ran\n", run(`2026-11-29T17:00Z k -- echo ran`).stdout)
	require.Equal(t, "ran\n", run(slot+` other -- echo ran`).stdout)
	pgtest.NoAdvisoryLocks(t, h.pool(t))
}

func TestRunOnceOfTwoHosts(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	first := h.start(t, `"$PGLOCK" run --once 24h k -- sh -c 'echo held; cat'`)
	expect(t, first, "held")
	second := h.start(t, `"$PGLOCK" run --once 24h k -- echo ran`)
	require.NoError(t, pgtest.WaitForWaiters(t.Context(), h.pool(t), 1))
	require.Zero(t, wait(t, first))
	require.Zero(t, wait(t, second))
	_, err := second.Line(t.Context())
	require.Error(t, err, "it had waited, and then found the tick done")
	var slot time.Time
	require.NoError(t, h.pool(t).QueryRow(t.Context(), "SELECT slot FROM pglock.ticks").Scan(&slot))
	require.Equal(t, slot.UTC().Truncate(24*time.Hour), slot.UTC())
}
