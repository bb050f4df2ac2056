package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed35111a8b/pglock/pglock"
)

// runCareless is runTick as a holder does it who does not look: it works on though its lock is lost, and writes with the
// token that it remembers. Any program can come to behave like that: code that ignores its ctx, or a process that stops
// between the last look and the write. Only the database can refuse it then.
//
// So that the demo does not depend on who is faster, a holder that was overtaken is always late: it waits until its
// successor has begun.
func (r *replica) runCareless(held, halt context.Context, lock *pglock.Lock, j job, a *attempt) error {
	amount, err := j.work(halt, a.tick)
	if err != nil {
		return fmt.Errorf("tick %s: %w", clock(a.tick), err)
	}
	switch err = r.record(held, lock, a, amount); {
	case err == nil:
		r.log.Info(evDone, a.attrs()...)
		return nil
	case !errors.Is(err, pglock.ErrLost):
		return err
	}
	r.log.Warn(evRefused, a.attrs("error", err)...)

	if err := r.awaitSuccessor(halt, a); err != nil {
		return err
	}
	err = r.locker.Fencer().FencedTx(halt, r.store.pool, a.token, a.job, func(tx pgx.Tx) error {
		return a.finish(halt, tx, amount)
	})
	if stale, ok := pglock.AsStaleToken(err); ok {
		return errors.Join(err, r.rejected(halt, a, stale))
	}
	if err == nil {
		r.log.Error(evAccepted, a.attrs()...)
	}
	return err
}

// awaitSuccessor returns nil when a later holder than that of a has begun.
func (r *replica) awaitSuccessor(ctx context.Context, a *attempt) error {
	for {
		yes, err := r.store.succeeded(ctx, a)
		if yes || err != nil {
			return err
		}
		if !pause(ctx, 20*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}
