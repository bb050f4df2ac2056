// Package otel reports what a Locker does to OpenTelemetry: a span for each attempt to acquire and each release, and metrics
// named pglock.*, with durations in seconds and counts in their own units, as OpenTelemetry's conventions have it.
//
//	locker, err := pglock.New(pool, &pglock.Config{Tracer: tracer})
//	...
//	unregister, err := tracer.Observe(locker) // gauges of sessions, locks and waiters
//
// Keys are attributes of spans alone, unless WithKeyAttribute is given: as an attribute of a metric each key would be a time
// series of its own.
package otel

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed35111a8b/pglock/pglock"
)

const scope = "github.com/seed35111a8b/pglock/contrib/otel"

// Attributes of spans and metrics.
const (
	operationKey = attribute.Key("pglock.operation")
	keyKey       = attribute.Key("pglock.key")
	tokenKey     = attribute.Key("pglock.token")
	outcomeKey   = attribute.Key("pglock.outcome")
)

// A Tracer is a pglock.Tracer. It is safe for concurrent use, and can serve several Lockers.
type Tracer struct {
	tracer   trace.Tracer
	meter    metric.Meter
	withKey  bool
	attempts metric.Int64Counter
	wait     metric.Float64Histogram
	hold     metric.Float64Histogram
	lost     metric.Int64Counter
	stale    metric.Int64Counter

	mu   sync.Mutex // guards held; nothing else is done under it
	held map[*pglock.Lock]time.Time
}

var (
	_ pglock.Tracer           = (*Tracer)(nil)
	_ pglock.ReleaseTracer    = (*Tracer)(nil)
	_ pglock.LossTracer       = (*Tracer)(nil)
	_ pglock.StaleTokenTracer = (*Tracer)(nil)
)

// An Option changes a Tracer.
type Option func(*options)

type options struct {
	traces  trace.TracerProvider
	metrics metric.MeterProvider
	keys    bool
}

// WithTracerProvider sets where spans go. Default: the global provider.
func WithTracerProvider(p trace.TracerProvider) Option { return func(o *options) { o.traces = p } }

// WithMeterProvider sets where metrics go. Default: the global provider.
func WithMeterProvider(p metric.MeterProvider) Option { return func(o *options) { o.metrics = p } }

// WithKeyAttribute makes the key an attribute of metrics too, where there are few keys.
func WithKeyAttribute() Option { return func(o *options) { o.keys = true } }

// NewTracer returns a Tracer for pglock.Config.
func NewTracer(opts ...Option) (*Tracer, error) {
	o := options{traces: otel.GetTracerProvider(), metrics: otel.GetMeterProvider()}
	for _, opt := range opts {
		opt(&o)
	}
	t := &Tracer{tracer: o.traces.Tracer(scope), meter: o.metrics.Meter(scope), withKey: o.keys, held: map[*pglock.Lock]time.Time{}}
	var errs [5]error
	t.attempts, errs[0] = t.meter.Int64Counter("pglock.acquire.attempts", metric.WithUnit("{attempt}"),
		metric.WithDescription("Attempts to acquire, by operation and outcome."))
	t.wait, errs[1] = t.meter.Float64Histogram("pglock.acquire.duration", metric.WithUnit("s"),
		metric.WithDescription("Time from the call to its answer, waiting included."))
	t.hold, errs[2] = t.meter.Float64Histogram("pglock.hold.duration", metric.WithUnit("s"),
		metric.WithDescription("Time for which locks were held."))
	t.lost, errs[3] = t.meter.Int64Counter("pglock.locks.lost", metric.WithUnit("{lock}"),
		metric.WithDescription("Locks that ended against their holder's will."))
	t.stale, errs[4] = t.meter.Int64Counter("pglock.writes.stale", metric.WithUnit("{write}"),
		metric.WithDescription("Writes that the fence refused."))
	return t, errors.Join(errs[:]...)
}

// Observe reports the Stat of locker whenever metrics are collected, until unregister is called.
func (t *Tracer) Observe(locker *pglock.Locker) (unregister func() error, err error) {
	var errs [5]error
	gauge := func(i int, name, unit, description string) (g metric.Int64ObservableGauge) {
		g, errs[i] = t.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
		return g
	}
	sessions := gauge(0, "pglock.sessions", "{session}", "Connections of the Locker.")
	idle := gauge(1, "pglock.sessions.idle", "{session}", "Connections that hold no lock.")
	waiting := gauge(2, "pglock.sessions.waiting", "{session}", "Connections that wait for a lock.")
	held := gauge(3, "pglock.locks.held", "{lock}", "Locks that are held.")
	waiters := gauge(4, "pglock.waiters", "{waiter}", "Calls that wait for a lock.")
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	registration, err := t.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		stat := locker.Stat()
		o.ObserveInt64(sessions, int64(stat.Sessions))
		o.ObserveInt64(idle, int64(stat.IdleSessions))
		o.ObserveInt64(waiting, int64(stat.WaitingSessions))
		o.ObserveInt64(held, int64(stat.Held))
		o.ObserveInt64(waiters, int64(stat.Waiters))
		return nil
	}, sessions, idle, waiting, held, waiters)
	if err != nil {
		return nil, err
	}
	return registration.Unregister, nil
}

// attempt is what TraceAcquireStart leaves for TraceAcquireEnd.
type attempt struct {
	began time.Time
	data  pglock.TraceAcquireStartData
}

type attemptKey struct{}

// TraceAcquireStart implements pglock.Tracer.
func (t *Tracer) TraceAcquireStart(ctx context.Context, data pglock.TraceAcquireStartData) context.Context {
	ctx, _ = t.tracer.Start(ctx, "pglock "+data.Op, trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(operationKey.String(data.Op), keyKey.String(data.Key)))
	return context.WithValue(ctx, attemptKey{}, attempt{time.Now(), data})
}

// TraceAcquireEnd implements pglock.Tracer.
func (t *Tracer) TraceAcquireEnd(ctx context.Context, data pglock.TraceAcquireEndData) {
	a, _ := ctx.Value(attemptKey{}).(attempt)
	outcome := outcomeOf(data.Err)
	attributes := t.attributes(a.data.Key, operationKey.String(a.data.Op), outcomeKey.String(outcome))
	t.attempts.Add(ctx, 1, attributes)
	t.wait.Record(ctx, time.Since(a.began).Seconds(), attributes)
	span := trace.SpanFromContext(ctx)
	span.SetAttributes(outcomeKey.String(outcome))
	if data.Lock != nil {
		span.SetAttributes(tokenKey.Int64(data.Lock.Token()))
		t.mu.Lock()
		t.held[data.Lock] = time.Now()
		t.mu.Unlock()
	} else if outcome == "error" {
		span.SetStatus(codes.Error, data.Err.Error())
	}
	span.End()
}

// outcomeOf tells what is expected from what is not.
func outcomeOf(err error) string {
	switch {
	case err == nil:
		return "acquired"
	case errors.Is(err, pglock.ErrNotAcquired):
		return "not acquired"
	}
	return "error"
}

// TraceReleaseStart implements pglock.ReleaseTracer.
func (t *Tracer) TraceReleaseStart(ctx context.Context, data pglock.TraceReleaseStartData) context.Context {
	ctx, _ = t.tracer.Start(ctx, "pglock release", trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(keyKey.String(data.Key), tokenKey.Int64(data.Lock.Token())))
	return ctx
}

// TraceReleaseEnd implements pglock.ReleaseTracer.
func (t *Tracer) TraceReleaseEnd(ctx context.Context, data pglock.TraceReleaseEndData) {
	t.ended(ctx, data.Lock, data.Key, "released")
	span := trace.SpanFromContext(ctx)
	if data.Err != nil {
		span.SetStatus(codes.Error, data.Err.Error())
	}
	span.End()
}

// TraceLoss implements pglock.LossTracer.
func (t *Tracer) TraceLoss(ctx context.Context, data pglock.TraceLossData) {
	t.lost.Add(ctx, 1, t.attributes(data.Key))
	t.ended(ctx, data.Lock, data.Key, "lost")
}

// TraceStaleToken implements pglock.StaleTokenTracer.
func (t *Tracer) TraceStaleToken(ctx context.Context, data pglock.TraceStaleTokenData) {
	t.stale.Add(ctx, 1, t.attributes(data.Key))
	trace.SpanFromContext(ctx).AddEvent("pglock stale write", trace.WithAttributes(keyKey.String(data.Key),
		tokenKey.Int64(data.Lock.Token())))
}

// ended records for how long the lock was held, once.
func (t *Tracer) ended(ctx context.Context, lock *pglock.Lock, key, outcome string) {
	t.mu.Lock()
	since, ok := t.held[lock]
	delete(t.held, lock)
	t.mu.Unlock()
	if ok {
		t.hold.Record(ctx, time.Since(since).Seconds(), t.attributes(key, outcomeKey.String(outcome)))
	}
}

// attributes are those of a metric.
func (t *Tracer) attributes(key string, attributes ...attribute.KeyValue) metric.MeasurementOption {
	if t.withKey {
		attributes = append(attributes, keyKey.String(key))
	}
	return metric.WithAttributes(attributes...)
}
