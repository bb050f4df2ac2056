package main

import (
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
)

// TestStatus asks a leading replica, another process, over HTTP.
func TestStatus(t *testing.T) {
	t.Parallel()
	jobs, err := exampleJobs()
	require.NoError(t, err)
	b := newBundle(t, jobs...)
	p := pgtest.SpawnRole(t, "jobrunner", "ARGS=run -log json -name first -mode leader -http 127.0.0.1:0", "DATABASE_URL="+b.dsn)
	next := func(msg string) string {
		for {
			line, err := p.Line(t.Context())
			require.NoError(t, err)
			if parseEvent("first", line).Msg == msg {
				return line
			}
		}
	}
	_, addr, ok := strings.Cut(next("listening"), `"addr":"`)
	require.True(t, ok)
	addr, _, _ = strings.Cut(addr, `"`)
	next(evDone)
	b.exec(t, "INSERT INTO jobrunner.rejections VALUES ('mail', '2026-05-01 12:00:04Z', '<b>zombie</b>', 4, 5)")
	get := func(path string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, http.NoBody)
		require.NoError(t, err)
		req.Close = true
		answer, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		defer func() { require.NoError(t, answer.Body.Close()) }()
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		return answer.StatusCode, string(body)
	}
	code, body := get("/healthz")
	require.Equal(t, http.StatusOK, code, body)
	code, body = get("/metrics")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, body, "# TYPE jobrunner_leader gauge\njobrunner_leader 1\n")
	require.Contains(t, body, "pglock_locks_held 1\n")
	require.NotContains(t, body, "jobrunner_ticks_total 0\n")
	code, body = get("/")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, body, "<strong>first</strong>")
	require.Contains(t, body, "<td>mail<td>")
	require.Contains(t, body, "Stale writes rejected: 1")
	require.Contains(t, body, "&lt;b&gt;zombie&lt;/b&gt;")
	require.NotContains(t, body, "<b>")
	code, _ = get("/elsewhere")
	require.Equal(t, http.StatusNotFound, code)

	b.exec(t, "DROP SCHEMA jobrunner CASCADE")
	code, body = get("/healthz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Contains(t, body, "jobrunner migrate")
	require.NoError(t, p.Signal(syscall.SIGTERM))
	require.NoError(t, p.Wait(t.Context()))
}
