package pglock

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Tokens is where the fencing tokens of a database stand, as seen a moment ago.
type Tokens struct {
	// Next is what the next grant gets, whatever its key. If the reign is not Current it gets a token that is higher by at
	// least 2^20.
	Next int64

	// Highest is the highest token that the fence of this database has accepted or claimed for any resource, 0 if there is
	// none. Fences in other databases are not seen from here.
	Highest int64

	// Base and Sequence are what tokens are made of: a token is the base of the reign plus the next value of the sequence.
	// Sequence is its last value, 0 if none was drawn.
	Base, Sequence int64

	// Current is false if the server has been started again, or the data restored, since the last token was drawn: then the
	// next acquirer raises the base first.
	Current bool
}

// Behind reports whether the fence of this database refuses the next holder: its token would not be higher than one that was
// accepted. That takes a database that was restored without its sequence or its reign. RaiseTokens mends it.
func (t Tokens) Behind() bool {
	next := t.Next
	if !t.Current {
		next += leastRaise
	}
	return next <= t.Highest
}

// leastRaise is by how much a new reign raises the base at the least.
const leastRaise = 1 << 20

// maxRaise keeps room for more reigns and grants than there will be.
const maxRaise = 1 << 62

// Tokens returns where the tokens stand. It takes no more than the privileges of a role that uses the locks.
func (l *Locker) Tokens(ctx context.Context) (Tokens, error) {
	var t Tokens
	err := l.m.pool.QueryRow(ctx, l.m.sql.tokens(), l.m.sql.sequence()).Scan(&t.Sequence, &t.Base, &t.Current, &t.Highest)
	if err != nil {
		return Tokens{}, &LockError{Op: "tokens", Err: classify(err)}
	}
	t.Next = t.Base + t.Sequence + 1
	return t, nil
}

// RaiseTokens makes every token that is drawn after it higher than above, and than any that the fence of this database has
// accepted. It never lowers them, and changes nothing where they are high enough. above is for fences in other databases:
// the highest token that any of them has accepted, or 0. Locks that are held keep their tokens.
//
// It takes the owner of the schema, or UPDATE on the table reign.
func (l *Locker) RaiseTokens(ctx context.Context, above int64) error {
	const op = "raise tokens"
	if above > maxRaise {
		return &LockError{Op: op, Err: fmt.Errorf("%d: tokens end at 2^63 - 1, and are not raised above 2^62", above)}
	}
	return inTx(ctx, l.m.pool, LockError{Op: op}, readCommitted(), func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, l.m.sql.beginReign())
		if err == nil {
			_, err = tx.Exec(ctx, l.m.sql.raise(), l.m.sql.sequence(), above)
		}
		if err != nil {
			return &LockError{Op: op, Err: classify(err)}
		}
		return nil
	})
}
