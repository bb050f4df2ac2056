package pglock

import "context"

// A Tracer is told of attempts to acquire. It may implement [ReleaseTracer], [LossTracer] and [StaleTokenTracer] too. Its methods are called
// from many goroutines at a time and must return quickly.
type Tracer interface {
	// TraceAcquireStart is called before an attempt. The context that it returns is handed to TraceAcquireEnd.
	TraceAcquireStart(ctx context.Context, data TraceAcquireStartData) context.Context
	// TraceAcquireEnd is called with the outcome.
	TraceAcquireEnd(ctx context.Context, data TraceAcquireEndData)
}

// A ReleaseTracer is told of releases.
type ReleaseTracer interface {
	TraceReleaseStart(ctx context.Context, data TraceReleaseStartData) context.Context
	TraceReleaseEnd(ctx context.Context, data TraceReleaseEndData)
}

// A LossTracer is told of each lock that is lost, after its context has ended.
type LossTracer interface {
	TraceLoss(ctx context.Context, data TraceLossData)
}

// A StaleTokenTracer is told when the fence refuses a write under a Lock.
type StaleTokenTracer interface {
	TraceStaleToken(ctx context.Context, data TraceStaleTokenData)
}

// TraceAcquireStartData describes an attempt. Key is the lock ID where Config.HideKeys is set, here and below.
type TraceAcquireStartData struct {
	Op  string // "acquire", "try acquire", …
	Key string
}

// TraceAcquireEndData is the outcome of an attempt.
type TraceAcquireEndData struct {
	Lock *Lock // nil if Err is not
	Err  error
}

// TraceReleaseStartData describes a release.
type TraceReleaseStartData struct {
	Lock *Lock
	Key  string
}

// TraceReleaseEndData is the outcome of a release.
type TraceReleaseEndData struct {
	Lock *Lock
	Key  string
	Err  error
}

// TraceLossData describes a loss.
type TraceLossData struct {
	Lock *Lock
	Key  string
	Err  error
}

// TraceStaleTokenData describes a refused write.
type TraceStaleTokenData struct {
	Lock *Lock
	Key  string
	Err  error
}

func (m *manager) traceStaleToken(ctx context.Context, l *Lock, err error) {
	if tracer, ok := m.config.Tracer.(StaleTokenTracer); ok {
		tracer.TraceStaleToken(ctx, TraceStaleTokenData{Lock: l, Key: m.label(l.key), Err: err})
	}
}

func (m *manager) traceReleaseStart(ctx context.Context, l *Lock) context.Context {
	if tracer, ok := m.config.Tracer.(ReleaseTracer); ok {
		return tracer.TraceReleaseStart(ctx, TraceReleaseStartData{Lock: l, Key: m.label(l.key)})
	}
	return ctx
}

func (m *manager) traceReleaseEnd(ctx context.Context, l *Lock, err error) {
	if tracer, ok := m.config.Tracer.(ReleaseTracer); ok {
		tracer.TraceReleaseEnd(ctx, TraceReleaseEndData{Lock: l, Key: m.label(l.key), Err: err})
	}
}

func (m *manager) traceLoss(l *Lock, err error) {
	if tracer, ok := m.config.Tracer.(LossTracer); ok {
		tracer.TraceLoss(l.Context(), TraceLossData{Lock: l, Key: m.label(l.key), Err: err})
	}
}
