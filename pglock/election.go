package pglock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"time"
)

// ElectionConfig says how an Election behaves. The zero value of each field means its default.
type ElectionConfig struct {
	// Name is how the others see this candidate. Default: host and process ID.
	Name string

	// Resources are claimed, as Lock.Claim does, before a term begins, so that the leader before is shut out of them. If
	// that takes longer than Config.Lease, since a transaction of the leader before holds them, the term is given up.
	Resources []string

	// DB is where the resources are claimed. Default: the Locker's pool.
	DB DB

	// DrainTimeout bounds how long the function of a term may go on after its ctx has ended. After that the lock is released
	// over its head, so that another can lead; its writes are then up to the fence. This candidate does not campaign again
	// until it has returned. Default: Config.TrustMargin.
	DrainTimeout time.Duration

	// PollInterval, if it is not 0, lets the candidate ask for the lock at this interval, on the average, instead of waiting
	// in line for it: it holds no connection in between, and takes over within one and a half intervals. n candidates send
	// n/PollInterval statements a second. For hundreds of candidates. While the pool has no connection to spare it waits for
	// one, a quarter of the interval at most, before it connects by itself. Default: 0, wait in line.
	PollInterval time.Duration

	// Pause is the time between the end of a term that the candidate gave up, or that failed, and its next campaign: the
	// others have the first go. Default: 1 s.
	Pause time.Duration
}

// An Election lets candidates in any number of processes, each with an Election of the same key, agree on one leader at a
// time. A term is a held lock; its token names it, and later terms have higher ones. Where the server itself ends a leader's
// session it tells both sides at the same time, so that both contexts can be alive for as long as the old leader takes to
// read it: claim Resources. It is safe for concurrent use.
type Election struct {
	m      *manager
	locker *Locker
	key    string
	config ElectionConfig

	mu      sync.Mutex // guards the two below; nothing else is done under it
	term    *Term      // nil while not leading
	running bool
}

// A Term is the time for which a candidate leads.
type Term struct {
	lock   *Lock
	resign context.CancelCauseFunc
	over   chan struct{} // closed when the term has ended and its lock is released
}

// Token names the term, and guards its writes: see Lock.Token.
func (t *Term) Token() int64 { return t.lock.token }

// Lock returns the lock that the term is. The Election releases it.
func (t *Term) Lock() *Lock { return t.lock }

// errResigned is the cause with which the context of a term ends that was given up.
var errResigned = fmt.Errorf("%w: resigned", ErrReleased)

// NewElection returns an Election on key. A nil config means all defaults. It does no I/O.
func NewElection(locker *Locker, key string, config *ElectionConfig) (*Election, error) {
	const op = "new election"
	if locker == nil {
		return nil, &LockError{Op: op, Key: key, Err: wrap(ErrInvalidConfig, "locker is nil")}
	}
	m := locker.m
	if _, err := m.config.identify(key); err != nil {
		return nil, m.lockError(op, key, err)
	}
	var c ElectionConfig
	if config != nil {
		c = *config
	}
	if c.DrainTimeout < 0 || c.PollInterval < 0 || c.Pause < 0 {
		return nil, m.lockError(op, key, wrap(ErrInvalidConfig, "DrainTimeout, PollInterval and Pause cannot be negative"))
	}
	if len(c.Resources) > 0 {
		if _, err := m.fencer().fence(1, c.Resources); err != nil {
			return nil, m.lockError(op, key, err)
		}
	}
	if c.Name == "" {
		host, _ := os.Hostname() // without one the process ID has to do
		c.Name = host + ":" + strconv.Itoa(os.Getpid())
	}
	if c.DB == nil {
		c.DB = m.pool
	}
	setDefault(&c.DrainTimeout, m.config.TrustMargin)
	setDefault(&c.Pause, time.Second)
	return &Election{m: m, locker: locker, key: key, config: c}, nil
}

// Run campaigns until ctx ends, and calls fn for each term that is won. fn's ctx ends with the term: because ctx ended, the
// lock was lost, or Resign was called; fn must then return. When it has returned, or DrainTimeout is over, the lock is
// released, and only when it has returned does the next campaign start: there is never a second fn beside the first.
//
// If fn returns while it leads, with an error or nil, the term is given up; an error is logged. After a Pause the candidate
// campaigns again. A lost term never ends Run. If fn panics or calls runtime.Goexit the term is given up and the panic goes
// on, in the goroutine that called Run; where it came from is logged.
//
// Run returns ctx.Err() when ctx has ended and fn has returned; if fn has not within DrainTimeout it says so, and fn still
// runs. It returns other errors only for what waiting cannot heal: see Acquire. One Election can run once at a time.
func (e *Election) Run(ctx context.Context, fn func(ctx context.Context, term *Term) error) error {
	const op = "run election"
	e.mu.Lock()
	double := e.running
	e.running = true
	e.mu.Unlock()
	if double {
		return e.m.lockError(op, e.key, ErrRunning)
	}
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.running = false
	}()
	for {
		lock, err := e.campaign(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return err
		}
		if err := e.lead(ctx, lock, fn); err != nil {
			return e.m.lockError(op, e.key, err)
		}
		if errors.Is(lock.Err(), ErrLost) && ctx.Err() == nil {
			continue // not given up, so the others need no head start
		}
		if !pauseFor(ctx, e.config.Pause) {
			return ctx.Err()
		}
	}
}

// campaign returns when the lock is won, or with an error that ends Run.
func (e *Election) campaign(ctx context.Context) (*Lock, error) {
	interval := e.config.PollInterval
	if interval == 0 {
		return e.locker.Acquire(ctx, e.key)
	}
	// Where many candidates wake up at the same time, as after a stall, connections of their own would be what keeps them busy.
	asking := withPatience(ctx, interval/4)
	for failures := int32(0); ; {
		began := e.m.now()
		lock, err := e.locker.TryAcquire(asking, e.key)
		switch {
		case err == nil:
			return lock, nil
		case errors.Is(err, ErrNotAcquired):
			failures = 0
		case !canHeal(err):
			return nil, err
		default:
			failures++
			e.m.logFailures(e.key, failures, err)
		}
		pause := interval/2 + rand.N(interval)
		if !pauseFor(ctx, max(interval/4, pause-(e.m.now()-began))) {
			return nil, ctx.Err()
		}
	}
}

// pauseFor reports false if ctx ended first.
func pauseFor(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// lead is one term. It returns an error if fn does not return although ctx has ended.
func (e *Election) lead(ctx context.Context, lock *Lock, fn func(context.Context, *Term) error) error {
	if !e.m.begin() {
		e.locker.finish(ctx, lock)
		return ErrClosed
	}
	held, unbind := lock.Bind(remember(ctx, lock))
	defer unbind()
	termCtx, resign := context.WithCancelCause(held)
	defer resign(context.Canceled)
	term := &Term{lock: lock, resign: resign, over: make(chan struct{})}
	if err := e.take(termCtx, lock); err != nil {
		e.logGivenUp(termCtx, lock, err)
		e.stepDown(ctx, term)
		return nil
	}
	e.set(term)
	ended := e.start(termCtx, term, fn)
	end, returned := e.drain(termCtx, ended)
	e.logGivenUp(termCtx, lock, end.err)
	e.stepDown(ctx, term) // after fn, or over its head
	if !returned {
		e.m.config.Logger.Warn("pglock: function of a term outlives it", "key", e.m.label(e.key), "token", lock.token,
			"drain_timeout", e.config.DrainTimeout)
		select {
		case end = <-ended:
		case <-ctx.Done():
			return fmt.Errorf("%w: the function of the term with token %d still runs, %v after its ctx ended", ctx.Err(),
				lock.token, e.config.DrainTimeout)
		}
	}
	end.goOn()
	return nil
}

// logGivenUp says why a term is given up that need not end yet.
func (e *Election) logGivenUp(termCtx context.Context, lock *Lock, err error) {
	if err != nil && termCtx.Err() == nil {
		e.m.config.Logger.Warn("pglock: term given up", "key", e.m.label(e.key), "token", lock.token, "error", err)
	}
}

// drain waits for the end of fn, and gives it DrainTimeout from the end of its ctx. It reports false if that was not enough.
func (e *Election) drain(termCtx context.Context, ended <-chan outcome) (end outcome, returned bool) {
	select {
	case end = <-ended:
		return end, true
	case <-termCtx.Done():
	}
	timer := time.NewTimer(e.config.DrainTimeout)
	defer timer.Stop()
	select {
	case end = <-ended:
		return end, true
	case <-timer.C:
		return outcome{}, false
	}
}

// stepDown ends the term for everybody.
func (e *Election) stepDown(ctx context.Context, term *Term) {
	e.set(nil)
	e.locker.finish(ctx, term.lock)
	close(term.over)
	e.m.finish()
}

// outcome is how the function of a term ended.
type outcome struct {
	err      error
	returned bool // else it panicked or called Goexit
	panicked any
}

// start runs fn in a goroutine of its own, which ends with fn, so that lead can tell when it outlives its term. A panic goes on in
// the goroutine of Run, and where it came from would be lost.
func (e *Election) start(ctx context.Context, term *Term, fn func(context.Context, *Term) error) <-chan outcome {
	ended := make(chan outcome, 1)
	go func() {
		var o outcome
		defer func() {
			if !o.returned {
				o.panicked = recover()
			}
			if o.panicked != nil {
				e.m.config.Logger.Error("pglock: panic in the function of a term", "key", e.m.label(e.key), "token", term.Token(),
					"panic", o.panicked, "stack", string(debug.Stack()))
			}
			ended <- o
		}()
		o.err = fn(ctx, term)
		o.returned = true
	}()
	return ended
}

// goOn lets a panic or Goexit go on.
func (o outcome) goOn() {
	switch {
	case o.panicked != nil:
		panic(o.panicked)
	case !o.returned:
		runtime.Goexit()
	}
}

// set says whether this candidate leads.
func (e *Election) set(term *Term) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.term = term
}

func (e *Election) current() *Term {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.term
}

// IsLeader reports whether this candidate leads, by the clock itself as Lock.Err does. It does no I/O.
func (e *Election) IsLeader() bool {
	term := e.current()
	return term != nil && term.lock.Err() == nil
}

// Resign gives the term up, if this candidate leads, and returns when fn has returned and the lock is released, or when ctx
// has ended. The candidate campaigns again after a Pause; to stop for good end the ctx of Run.
func (e *Election) Resign(ctx context.Context) error {
	term := e.current()
	if term == nil {
		return nil
	}
	term.resign(errResigned)
	select {
	case <-term.over:
		return nil
	case <-ctx.Done():
		return e.m.lockError("resign", e.key, ctx.Err())
	}
}
