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
	// resource's row against its successor. Negative: no other bound than the session's. Default: DefaultLease.
	IdleTimeout time.Duration
}

// idleMillis is IdleTimeout as the function fence takes it.
func (f Fencer) idleMillis() int64 {
	if f.IdleTimeout == 0 {
		return DefaultLease.Milliseconds()
	}
	return f.IdleTimeout.Milliseconds() // below 0 is no bound there
}

// maxResource keeps resources within what a B-tree index takes:
// https://www.postgresql.org/docs/current/btree.html#BTREE-LIMITS.
const maxResource = 2000

func (f Fencer) schema() string {
	if f.Schema == "" {
		return DefaultSchema
	}
	return f.Schema
}

func (f Fencer) sql() statements { return statementsOf(f.schema()) }

// Fence lets tx go on if no token higher than token was accepted or claimed for resource, and makes token the highest. It
// must be the first statement of the transaction. The error matches ErrStaleToken, and is a *StaleTokenError, if it was;
// tx is then aborted, as after every error. While tx is open a higher token waits for its end.
//
// At isolation levels REPEATABLE READ and SERIALIZABLE a token that is raised at the same time fails with SQLSTATE 40001:
// try the transaction again.
func (f Fencer) Fence(ctx context.Context, tx pgx.Tx, token int64, resource string) error {
	return f.FenceAll(ctx, tx, token, resource)
}

// FenceAll is Fence for several resources, in an order in which no two such calls can deadlock.
func (f Fencer) FenceAll(ctx context.Context, tx pgx.Tx, token int64, resources ...string) error {
	if err := f.fenceAll(ctx, tx, token, resources); err != nil {
		return &LockError{Op: "fence", Err: err}
	}
	return nil
}

func (f Fencer) fenceAll(ctx context.Context, tx pgx.Tx, token int64, resources []string) error {
	if token < 1 {
		return fmt.Errorf("%w: %d", ErrNoToken, token)
	}
	if len(resources) == 0 {
		return wrap(ErrInvalidKey, "no resource was named")
	}
	for _, resource := range resources {
		if err := checkKey(resource); err != nil {
			return fmt.Errorf("resource %q: %w", shorten(resource), err)
		}
		if len(resource) > maxResource {
			return wrap(ErrInvalidKey, fmt.Sprintf("a resource of %d bytes: at most %d fit into the index", len(resource), maxResource))
		}
	}
	if len(resources) == 1 {
		_, err := tx.Exec(ctx, f.sql().fence(), resources[0], token, f.idleMillis())
		return classify(err)
	}
	sorted := slices.Compact(slices.Sorted(slices.Values(resources)))
	_, err := tx.Exec(ctx, f.sql().fenceAll(), sorted, token, f.idleMillis())
	return classify(err)
}

// FencedTx calls fn in a transaction of its own that Fence lets go on, and commits it if fn returns nil. If the fence
// refuses, fn is not called. If fn returns an error or panics, or the commit fails, nothing of it remains; where nobody can
// know that, since the commit was sent and not answered, the error matches ErrCommitUnknown.
func (f Fencer) FencedTx(ctx context.Context, db DB, token int64, resource string, fn func(pgx.Tx) error) error {
	return inTx(ctx, db, "fenced tx", readWrite(), func(tx pgx.Tx) error {
		if err := f.fenceAll(ctx, tx, token, []string{resource}); err != nil {
			return &LockError{Op: "fenced tx", Err: err}
		}
		return fn(tx)
	})
}

// Claim makes token the highest of the resources now, before the first write, so that every holder of a lower one is
// refused from now on. It returns nil when that is committed.
func (f Fencer) Claim(ctx context.Context, db DB, token int64, resources ...string) error {
	return inTx(ctx, db, "claim", readWrite(), func(tx pgx.Tx) error {
		if err := f.fenceAll(ctx, tx, token, resources); err != nil {
			return &LockError{Op: "claim", Err: err}
		}
		return nil
	})
}

// Prune forgets resources that nobody has written or claimed for the given time, and returns how many. A holder that was
// stale for longer than that could write again: choose a time that no process survives, such as 30 days.
func (f Fencer) Prune(ctx context.Context, db DB, unused time.Duration) (forgotten int64, err error) {
	if unused <= 0 {
		return 0, &LockError{Op: "prune", Err: fmt.Errorf("the time %v must be positive", unused)}
	}
	err = inTx(ctx, db, "prune", readWrite(), func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, f.sql().pruneFence(), unused.Seconds())
		forgotten = tag.RowsAffected()
		return classify(err)
	})
	return forgotten, err
}

// readWrite returns options with which a transaction may write whatever the session's default is.
func readWrite() pgx.TxOptions { return pgx.TxOptions{AccessMode: pgx.ReadWrite} }

// readCommitted is readWrite where each statement has to see what was committed before it.
func readCommitted() pgx.TxOptions {
	return pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}
}

// inTx runs fn in a transaction with the given options, or in a savepoint of the transaction that db is.
func inTx(ctx context.Context, db DB, op string, options pgx.TxOptions, fn func(pgx.Tx) error) error {
	begin := db.Begin
	if db, ok := db.(interface {
		BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error)
	}); ok {
		begin = func(ctx context.Context) (pgx.Tx, error) {
			return db.BeginTx(ctx, options)
		}
	}
	tx, err := begin(ctx)
	if err != nil {
		return &LockError{Op: op, Err: classify(err)}
	}
	committed := false
	defer func() { // also when fn panics
		if !committed {
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
			defer cancel()
			_ = tx.Rollback(undo) // the connection is closed if it fails, which is a rollback too
		}
	}()
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return &LockError{Op: op, Err: commitFailed(err)}
	}
	committed = true
	return nil
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
	if err := l.Err(); err != nil {
		return l.wrap("claim", err)
	}
	return l.explain(ctx, "claim", l.m.fencer().Claim(ctx, db, l.token, resources...))
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
