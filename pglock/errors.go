package pglock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Errors that callers tell apart with errors.Is. Methods return them wrapped in a [*LockError].
var (
	// ErrNotAcquired: another session holds the lock, or the wait for it ended. It is never used for a lock that was lost.
	ErrNotAcquired = errors.New("not acquired")
	// ErrLost: the lock ended against its holder's will, or can no longer be known to be held.
	ErrLost = errors.New("lock lost")
	// ErrReleased: the holder released the lock.
	ErrReleased = errors.New("lock released")
	// ErrClosed: the Locker is closed, or its pool.
	ErrClosed = errors.New("locker closed")
	// ErrInvalidKey: the key is empty, contains NUL or is not valid UTF-8.
	ErrInvalidKey = errors.New("invalid key")
	// ErrInvalidConfig: New was called with a nil pool or a Config that cannot work; the text lists every problem.
	ErrInvalidConfig = errors.New("invalid config")
	// ErrStaleToken: the fence refused a token because a higher one was accepted or claimed before. See [StaleTokenError].
	ErrStaleToken = errors.New("stale fencing token")
	// ErrCommitUnknown: the commit of a transaction was sent and not answered. Its work may be there or not. It never comes
	// with an ErrLost of the lock that guarded the transaction, since after that nothing of the work remains.
	ErrCommitUnknown = errors.New("outcome of the commit unknown")
	// ErrNoToken: a fence was given a token below 1, such as that of a lock in shared mode.
	ErrNoToken = errors.New("no fencing token")
	// ErrNotMigrated: the database lacks the tables and functions of pglock.
	ErrNotMigrated = errors.New("not migrated")
	// ErrPooler: a pooler stands in between, so that this is no session of one backend.
	ErrPooler = errors.New("connection pooler in between")
	// ErrUnsupportedServer: the server lacks something without which locks are not safe.
	ErrUnsupportedServer = errors.New("unsupported server")
	// ErrReadOnly: the server is a standby or a demoted primary, or the transaction is read-only.
	ErrReadOnly = errors.New("server is read-only")
	// ErrUnavailable: the server cannot be reached or does not accept this connection.
	ErrUnavailable = errors.New("server unavailable")
	// ErrSessionLimit: Config.MaxSessions sessions are in use.
	ErrSessionLimit = errors.New("MaxSessions reached")
	// ErrTooManyLocks: Config.MaxLocks locks are held, or the server's lock table is full.
	ErrTooManyLocks = errors.New("MaxLocks reached")
	// ErrNoLeader: nobody leads, as far as the server knows.
	ErrNoLeader = errors.New("no leader")
	// ErrRunning: Election.Run was called while it runs.
	ErrRunning = errors.New("this election runs already")
	// ErrDeadlock: the caller's ctx belongs to a Do or a Lock that holds this key, so that waiting for it would never end.
	ErrDeadlock = errors.New("deadlock: this key is held further up")
)

// SQLSTATEs that the functions of the migrations raise.
const (
	// SQLStateStaleToken is raised by the fence for a token that is too low. The transaction is aborted.
	SQLStateStaleToken = "PLF01"
	// SQLStateNoToken is raised by the fence when it is given no token.
	SQLStateNoToken = "PLF02"

	sqlStateNoAdvisoryLocks = "PLS01"
	sqlStateBadSequence     = "PLS02"
)

// A LockError says which operation failed on which key, in the manner of fs.PathError.
type LockError struct {
	Op  string // the method, such as "acquire"
	Key string // empty where no single key was concerned; the lock ID where Config.HideKeys is set
	Err error
}

// Error returns the operation, the key, shortened if it is long, and the cause.
func (e *LockError) Error() string {
	if e.Key == "" {
		return "pglock: " + e.Op + ": " + e.Err.Error()
	}
	return "pglock: " + e.Op + " " + strconv.Quote(shorten(e.Key)) + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *LockError) Unwrap() error { return e.Err }

func shorten(key string) string {
	const most = 80
	if len(key) <= most {
		return key
	}
	return strings.ToValidUTF8(key[:most], "") + "…"
}

// A StaleTokenError is the fence's refusal. It matches ErrStaleToken.
type StaleTokenError struct {
	Resource string
	Token    int64 // the one that was refused
	Highest  int64 // the one that was accepted or claimed before
}

// Error names the resource and both tokens.
func (e *StaleTokenError) Error() string {
	return fmt.Sprintf("stale fencing token %d for %q: %d was accepted", e.Token, e.Resource, e.Highest)
}

// Unwrap returns ErrStaleToken.
func (e *StaleTokenError) Unwrap() error { return ErrStaleToken }

// AsStaleToken returns the fence's refusal that err carries, if any. It also reads the error of a trigger made by
// pglock.fence_table, as pgx and database/sql report it through [*pgconn.PgError].
func AsStaleToken(err error) (*StaleTokenError, bool) {
	if stale, ok := errors.AsType[*StaleTokenError](err); ok {
		return stale, true
	}
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pgErr.Code != SQLStateStaleToken {
		return nil, false
	}
	stale := &StaleTokenError{}
	for field := range strings.SplitSeq(pgErr.Detail, " ") {
		name, value, _ := strings.Cut(field, "=")
		switch name {
		case "token":
			stale.Token, _ = strconv.ParseInt(value, 10, 64)
		case "highest":
			stale.Highest, _ = strconv.ParseInt(value, 10, 64)
		}
	}
	_, stale.Resource, _ = strings.Cut(pgErr.Detail, "resource=")
	return stale, true
}

// waitEnded is the error of a wait that ctx ended: it matches ErrNotAcquired, ctx.Err(), ctx's cause and whatever kept the
// wait from succeeding.
func waitEnded(ctx context.Context, last error) error {
	err := fmt.Errorf("%w: %w", ErrNotAcquired, ctx.Err())
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w (%w)", err, cause)
	}
	if last != nil && !errors.Is(last, ErrNotAcquired) {
		err = fmt.Errorf("%w; the last attempt failed: %w", err, last)
	}
	return err
}

// classify wraps an error of pgx in the sentinel that names its kind. Errors that are classified already pass.
func classify(err error) error {
	if err == nil {
		return nil
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return classifyServer(pgErr, err)
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

// commitFailed is the error of a commit. What became of it is known only if the server has answered, or was never asked.
func commitFailed(err error) error {
	if statementError(err) != nil || errors.Is(err, pgx.ErrTxCommitRollback) || pgconn.SafeToRetry(err) {
		return classify(err)
	}
	if errors.Is(err, pgx.ErrTxClosed) {
		return fmt.Errorf("%w: the function has ended the transaction, which is not its own: %w", ErrCommitUnknown, err)
	}
	return fmt.Errorf("%w: %w", ErrCommitUnknown, classify(err))
}

// statementError returns the server's answer that a statement failed, nil if err is anything else: FATAL ends the session, and
// may come after a commit.
func statementError(err error) *pgconn.PgError {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.SeverityUnlocalized == "ERROR" {
		return pgErr
	}
	return nil
}

// unavailable wraps the error of a connection that could not be had.
func unavailable(err error) error {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == "53200" {
		return fmt.Errorf("%w: the server's lock table is full: %w: %w", ErrTooManyLocks, ErrUnavailable, err)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

func classifyServer(pgErr *pgconn.PgError, err error) error {
	switch pgErr.Code {
	case SQLStateStaleToken:
		if stale, ok := AsStaleToken(err); ok {
			return fmt.Errorf("%w: %w", stale, err)
		}
	case SQLStateNoToken:
		return fmt.Errorf("%w: %w", ErrNoToken, err)
	case sqlStateNoAdvisoryLocks, sqlStateBadSequence:
		return fmt.Errorf("%w: %w", ErrUnsupportedServer, err)
	case "25006", "0A000": // read_only_sql_transaction; BEGIN READ WRITE on a standby
		return fmt.Errorf("%w: %w", ErrReadOnly, err)
	case "3F000", "42P01", "42883": // no such schema, table, function
		return fmt.Errorf("%w: run Locker.Migrate, or Fencer.Migrate for the fence alone, or pglock migrate up, or apply the files of the folder migrations: %w", ErrNotMigrated, err)
	case "42501":
		return fmt.Errorf("this role lacks a privilege that docs/operations.md lists: %w", err)
	case "2200H": // sequence_generator_limit_exceeded
		return fmt.Errorf("%w: the sequence of fencing tokens is exhausted: %w", ErrUnsupportedServer, err)
	case "53200": // out_of_memory: the shared lock table, max_locks_per_transaction
		return fmt.Errorf("%w: the server's lock table is full: %w", ErrTooManyLocks, err)
	}
	if strings.HasPrefix(pgErr.Code, "08") || strings.HasPrefix(pgErr.Code, "28") || strings.HasPrefix(pgErr.Code, "57P") ||
		pgErr.Code == "3D000" || pgErr.Code == "53300" {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

// pgError makes an error of what a function of the migrations caught.
func pgError(code, message string) error {
	return classify(&pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: code, Message: message})
}

// brokeOff reports whether err is the end of a connection, rather than an answer of the server.
func brokeOff(err error) bool {
	if err == nil {
		return false
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return strings.HasPrefix(pgErr.Code, "57P")
	}
	if network, ok := errors.AsType[net.Error](err); ok {
		return !network.Timeout()
	}
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// canHeal reports whether waiting may make err go away, so that a waiter should try again.
func canHeal(err error) bool {
	if errors.Is(err, ErrClosed) || errors.Is(err, ErrPooler) || errors.Is(err, ErrUnsupportedServer) ||
		errors.Is(err, ErrNotMigrated) || errors.Is(err, ErrInvalidKey) {
		return false
	}
	if errors.Is(err, ErrSessionLimit) || errors.Is(err, ErrTooManyLocks) || errors.Is(err, ErrReadOnly) {
		return true
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch {
		case pgErr.Code == "55P03", pgErr.Code == "57014": // lock_not_available: an open ALTER SEQUENCE; query_canceled
			return true
		case strings.HasPrefix(pgErr.Code, "28"), pgErr.Code == "3D000", pgErr.Code == "42501":
			return false
		}
		return strings.HasPrefix(pgErr.Code, "08") || strings.HasPrefix(pgErr.Code, "53") ||
			strings.HasPrefix(pgErr.Code, "57") || strings.HasPrefix(pgErr.Code, "40")
	}
	// Whatever else: the connection broke, the network is down.
	return true
}
