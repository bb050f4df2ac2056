package pglock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// DB begins transactions: a [*pgxpool.Pool], a [*pgx.Conn], or a [pgx.Tx] within which a savepoint is used.
//
// [*pgxpool.Pool]: https://pkg.go.dev/github.com/jackc/pgx/v5/pgxpool#Pool
type DB interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// A Fencer is the fence alone: for a database other than the one that grants the locks, or for a token that came from
// elsewhere, such as a request. Its zero value works, and it is safe for concurrent use. Where a Lock is at hand, its own
// methods are shorter.
//
// For each resource, a name that the application chooses, the database keeps the highest token that was accepted or claimed.
// A lower one aborts the transaction that carries it.
type Fencer struct {
	// Schema is where the migrations put their tables and functions. Default: "pglock".
	Schema string

	// IdleTimeout bounds how long a fenced transaction may be idle between two statements, by
	// idle_in_transaction_session_timeout, unless the session's own bound is shorter: a writer that freezes holds the
	// resource against its successor. Negative: no other bound than the session's. Default: DefaultLease.
	IdleTimeout time.Duration
}

// idleMillis is IdleTimeout as the function fence takes it.
func (f Fencer) idleMillis() int64 {
	if f.IdleTimeout == 0 {
		return DefaultLease.Milliseconds()
	}
	return f.IdleTimeout.Milliseconds() // below 0 is no bound there
}

// fitsIndex keeps names within what a B-tree index takes: https://www.postgresql.org/docs/current/btree.html#BTREE-LIMITS.
func fitsIndex(what, name string) error {
	const most = 2000
	if len(name) > most {
		return wrap(ErrInvalidKey, fmt.Sprintf("%s of %d bytes: at most %d fit into the index", what, len(name), most))
	}
	return nil
}

func (f Fencer) schema() string {
	if f.Schema == "" {
		return DefaultSchema
	}
	return f.Schema
}

func (f Fencer) sql() statements { return statementsOf(f.schema()) }

// Fence lets tx go on if no token higher than token was accepted or claimed for resource, and makes token the highest. It
// must be the first statement of the transaction. The error matches ErrStaleToken, and is a *StaleTokenError, if it was;
// tx is then aborted, as after every error. While tx is open a higher token waits for its end, and whoever fences the resource
// after that waits for the higher token: a tx must not wait for another of the same resource.
//
// At isolation levels REPEATABLE READ and SERIALIZABLE a token that is raised at the same time fails with SQLSTATE 40001:
// try the transaction again.
func (f Fencer) Fence(ctx context.Context, tx pgx.Tx, token int64, resource string) error {
	return f.FenceAll(ctx, tx, token, resource)
}

// FenceAll is Fence for several resources, in an order that keeps such calls from deadlocking. Each resource takes an entry of the
// server's lock table until the transaction ends.
func (f Fencer) FenceAll(ctx context.Context, tx pgx.Tx, token int64, resources ...string) error {
	fence, err := f.fence(token, resources)
	if err == nil {
		err = fence.exec(ctx, tx)
	}
	if err != nil {
		return &LockError{Op: "fence", Err: err}
	}
	return nil
}

// fence is the fence of a transaction by one token for several resources.
func (f Fencer) fence(token int64, resources []string) (*fence, error) {
	if token < 1 {
		return nil, fmt.Errorf("%w: %d", ErrNoToken, token)
	}
	if len(resources) == 0 {
		return nil, wrap(ErrInvalidKey, "no resource was named")
	}
	for _, resource := range resources {
		if err := checkKey(resource); err != nil {
			return nil, fmt.Errorf("resource %q: %w", shorten(resource), err)
		}
		if err := fitsIndex("a resource", resource); err != nil {
			return nil, err
		}
	}
	sorted := slices.Compact(inFenceOrder(slices.Clone(resources)))
	return &fence{sql: f.sql(), resources: sorted, tokens: slices.Repeat([]int64{token}, len(sorted)), idleMillis: f.idleMillis()}, nil
}

// FencedTx calls fn in a transaction of its own that Fence lets go on, and commits it if fn returns nil. If the fence
// refuses, fn is not called. If fn returns an error or panics, or the commit fails, nothing of it remains; where nobody can
// know that, since the commit was sent and not answered, the error matches ErrCommitUnknown.
func (f Fencer) FencedTx(ctx context.Context, db DB, token int64, resource string, fn func(pgx.Tx) error) error {
	return f.inTx(ctx, db, "fenced tx", token, []string{resource}, fn)
}

// Claim makes token the highest of the resources now, before the first write, so that every holder of a lower one is
// refused from now on. It returns nil when that is committed.
func (f Fencer) Claim(ctx context.Context, db DB, token int64, resources ...string) error {
	return f.inTx(ctx, db, "claim", token, resources, func(pgx.Tx) error { return nil })
}

func (f Fencer) inTx(ctx context.Context, db DB, op string, token int64, resources []string, fn func(pgx.Tx) error) error {
	fence, err := f.fence(token, resources)
	if err != nil {
		return &LockError{Op: op, Err: err}
	}
	return fence.inTx(ctx, db, op, fn)
}

// Prune forgets resources whose highest token came at least the given time ago, and returns how many. One that is in use is put
// back by its next write. A holder that was stale for longer than that could write again: choose a time that no process survives, such as 30 days.
func (f Fencer) Prune(ctx context.Context, db DB, unused time.Duration) (forgotten int64, err error) {
	if unused <= 0 {
		return 0, &LockError{Op: "prune", Err: fmt.Errorf("the time %v must be positive", unused)}
	}
	err = inTx(ctx, db, LockError{Op: "prune"}, readWrite(), func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, f.sql().pruneFence(), unused.Seconds())
		forgotten = tag.RowsAffected()
		if err != nil {
			return &LockError{Op: "prune", Err: classify(err)}
		}
		return nil
	})
	return forgotten, err
}

// Fencer returns a Fencer with the Locker's schema, whose transactions may be idle for no longer than its lease: for a
// token that was remembered or came from elsewhere.
func (l *Locker) Fencer() Fencer { return l.m.fencer() }

func (m *manager) fencer() Fencer {
	return Fencer{Schema: m.config.Schema, IdleTimeout: m.config.Lease}
}

// Claim makes the lock's token the highest of the resources in db now, before the first write, so that a holder before this
// one is refused from now on. It returns an error that matches ErrStaleToken if a later holder has claimed or written,
// ErrLost or ErrReleased if the lock has ended, ErrNoToken in shared mode.
func (l *Lock) Claim(ctx context.Context, db DB, resources ...string) error {
	return l.claim(ctx, db, resources, func(pgx.Tx) error { return nil })
}

// claim is Claim with something else in the same transaction.
func (l *Lock) claim(ctx context.Context, db DB, resources []string, also func(pgx.Tx) error) error {
	if err := l.Err(); err != nil {
		return l.wrap("claim", err)
	}
	return l.explain(ctx, "claim", l.m.fencer().inTx(ctx, db, "claim", l.token, resources, also))
}

// Fence guards tx with the lock's token: it must be its first statement. It returns an error that matches ErrStaleToken if a
// later holder has claimed or written resource, and aborts tx; ErrLost or ErrReleased if the lock has ended; ErrNoToken in
// shared mode. See Fencer.Fence. A lock that is lost after this call is caught by the fence of its successor.
func (l *Lock) Fence(ctx context.Context, tx pgx.Tx, resource string) error {
	if err := l.Err(); err != nil {
		return l.wrap("fence", err)
	}
	return l.explain(ctx, "fence", l.m.fencer().Fence(ctx, tx, l.token, resource))
}

// FencedTx calls fn in a transaction on db that the lock's token guards, and commits it if fn returns nil. If the lock has
// ended, before fn or before the commit, or if the fence refuses the token, nothing of fn's work remains and the error
// matches ErrLost, ErrReleased or ErrStaleToken. A commit that was sent and not answered is ErrCommitUnknown instead, even
// if the lock has ended since.
func (l *Lock) FencedTx(ctx context.Context, db DB, resource string, fn func(pgx.Tx) error) error {
	if err := l.Err(); err != nil {
		return l.wrap("fenced tx", err)
	}
	return l.explain(ctx, "fenced tx", l.m.fencer().FencedTx(ctx, db, l.token, resource, func(tx pgx.Tx) error {
		if err := fn(tx); err != nil {
			return err
		}
		if err := l.Err(); err != nil {
			return l.wrap("fenced tx", err)
		}
		return nil
	}))
}

// explain adds the key to an error of the Fencer's own, and to any error that the lock has ended: what failed may have
// failed because a context ended with it.
func (l *Lock) explain(ctx context.Context, op string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, ErrStaleToken) {
		l.m.traceStaleToken(ctx, l, err)
	}
	if lockErr, ok := err.(*LockError); ok && lockErr.Key == "" { //nolint:errorlint // only our own, not one of fn's
		lockErr.Key = l.m.label(l.key)
	}
	if errors.Is(err, ErrCommitUnknown) {
		return err // ErrLost would say that nothing of it remains
	}
	if ended := l.Err(); ended != nil && !errors.Is(err, ErrLost) && !errors.Is(err, ErrReleased) {
		return errors.Join(err, l.wrap(op, ended))
	}
	return err
}
