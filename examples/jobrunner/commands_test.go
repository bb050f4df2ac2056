package main

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
)

func TestCommandLine(t *testing.T) {
	empty := pgtest.NewDatabase(t, pgtest.Shared(t))
	for _, test := range []struct {
		name string
		url  string
		args []string
		code int
		want string // on standard error, or on standard output
	}{
		{"no command", empty, nil, exitUsage, "usage: jobrunner <command>"},
		{"unknown command", empty, []string{"runn"}, exitUsage, `unknown command "runn"`},
		{"help", empty, []string{"help"}, 0, "usage: jobrunner <command>"},
		{"help of a command", empty, []string{"run", "-h"}, 0, "-lease"},
		{"unknown flag", empty, []string{"run", "-leas", "2s"}, exitUsage, "-leas"},
		{"argument", empty, []string{"migrate", "now"}, exitUsage, `jobrunner migrate takes no arguments: "now"`},
		{"no duration", empty, []string{"demo", "-lease", "2"}, exitUsage, `invalid value "2" for flag -lease`},
		{"no URL", "", []string{"run"}, exitFailure, "DATABASE_URL is not set"},
		{"no URL to migrate", "", []string{"migrate"}, exitFailure, "DATABASE_URL is not set"},
		{"bad URL", "postgres://%zz", []string{"run"}, exitFailure, "DATABASE_URL"},
		{"nobody there", "postgres://127.0.0.1:1/postgres", []string{"run"}, exitFailure, "the database of DATABASE_URL"},
		{"bad lease", empty, []string{"run", "-lease", "1ms"}, exitFailure, "Lease 1ms"},
		{"bad lease of the demo", "", []string{"demo", "-lease", "1ms"}, exitFailure, "-lease 1ms"},
		{"bad name", empty, []string{"run", "-name", "a b"}, exitFailure, `-name "a b"`},
		{"bad mode", empty, []string{"run", "-mode", "both"}, exitFailure, `-mode "both": lock or leader`},
		{"bad grace", empty, []string{"run", "-grace", "-1s"}, exitFailure, "-grace -1s"},
		{"bad log", empty, []string{"run", "-log", "xml"}, exitFailure, `-log "xml": text or json`},
		{"not migrated", empty, []string{"run"}, exitFailure, "run `jobrunner migrate`"},
		{"nowhere to listen", empty, []string{"run", "-migrate", "-http", "nowhere:x"}, exitFailure, "-http"},
		{"migrate", empty, []string{"migrate"}, 0, "the database is ready"},
		{"migrate again", empty, []string{"migrate"}, 0, "the database is ready"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("DATABASE_URL", test.url)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var stdout, stderr bytes.Buffer
			require.Equal(t, test.code, execute(ctx, test.args, &stdout, &stderr), stderr.String())
			require.Contains(t, stdout.String()+stderr.String(), test.want)
		})
	}
}

func TestInterruptedDemoSaysSo(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	require.Equal(t, exitSignal, execute(ctx, []string{"demo"}, &stdout, &stderr))
	require.Contains(t, stderr.String(), "jobrunner demo: interrupted")
}

func TestSchedules(t *testing.T) {
	t.Parallel()
	_, err := parseSchedule("* * * * *")
	require.ErrorContains(t, err, `schedule "* * * * *"`)
	schedule, err := parseSchedule("*/20 * * * * *")
	require.NoError(t, err)
	since := time.Date(2026, 5, 1, 12, 0, 0, 0, time.FixedZone("", 7200))
	ticks := job{schedule: schedule}.ticks(since, since.Add(time.Minute))
	require.Len(t, ticks, 3, "not since itself, but until")
	require.Equal(t, "10:00:20", clock(ticks[0]))
	require.Equal(t, "10:01:00", clock(ticks[2]))
}
