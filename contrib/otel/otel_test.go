package otel_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/seed35111a8b/pglock/contrib/otel"
	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
	"github.com/seed35111a8b/pglock/pglock/pglocktest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestSpansAndMetricsOfALockersLife(t *testing.T) {
	t.Parallel()
	spans, metrics := tracetest.NewSpanRecorder(), metric.NewManualReader()
	tracer, err := otel.NewTracer(
		otel.WithTracerProvider(trace.NewTracerProvider(trace.WithSpanProcessor(spans))),
		otel.WithMeterProvider(metric.NewMeterProvider(metric.WithReader(metrics))),
		otel.WithKeyAttribute())
	require.NoError(t, err)
	pool := pglocktest.NewDatabase(t)
	locker, err := pglock.New(pool, &pglock.Config{Tracer: tracer})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, locker.Close(context.Background())) })
	unregister, err := tracer.Observe(locker)
	require.NoError(t, err)

	lock, err := locker.Acquire(t.Context(), "a")
	require.NoError(t, err)
	_, err = locker.TryAcquire(t.Context(), "a")
	require.ErrorIs(t, err, pglock.ErrNotAcquired)
	require.NoError(t, locker.Fencer().Claim(t.Context(), pool, lock.Token()+1, "resource"))
	require.ErrorIs(t, lock.FencedTx(t.Context(), pool, "resource", func(pgx.Tx) error { return nil }), pglock.ErrStaleToken)
	got := collect(t, metrics)
	require.EqualValues(t, 1, got["pglock.locks.held"])
	require.EqualValues(t, 1, got["pglock.sessions"])
	require.NoError(t, lock.Release(t.Context()))
	second, err := locker.Acquire(t.Context(), "a")
	require.NoError(t, err)
	pglocktest.Lose(t, locker, second)

	require.NoError(t, pgtest.Poll(t.Context(), "the loss to be counted", func() bool { return collect(t, metrics)["pglock.locks.lost"] == 1 }))
	got = collect(t, metrics)
	require.EqualValues(t, 3, got["pglock.acquire.attempts"])
	require.EqualValues(t, 3, got["pglock.acquire.duration"], "observations")
	require.EqualValues(t, 2, got["pglock.hold.duration"], "observations")
	require.EqualValues(t, 1, got["pglock.writes.stale"])
	require.NoError(t, unregister())

	var names []string
	for _, span := range spans.Ended() {
		names = append(names, span.Name())
	}
	require.Equal(t, []string{"pglock acquire", "pglock try acquire", "pglock release", "pglock acquire"}, names)
}

// collect returns each metric's sum, last value or number of observations.
func collect(t *testing.T, reader metric.Reader) map[string]int64 {
	t.Helper()
	var data metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &data))
	got := map[string]int64{}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, point := range data.DataPoints {
					got[m.Name] += point.Value
				}
			case metricdata.Gauge[int64]:
				for _, point := range data.DataPoints {
					got[m.Name] = point.Value
				}
			case metricdata.Histogram[float64]:
				for _, point := range data.DataPoints {
					got[m.Name] += int64(point.Count)
				}
			}
		}
	}
	return got
}
