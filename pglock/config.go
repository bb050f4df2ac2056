package pglock

import (
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Defaults of Config. Those that depend on another field or on the server are computed by New or on first use.
const (
	DefaultSchema         = "pglock"
	DefaultLease          = 15 * time.Second
	DefaultReleaseTimeout = 5 * time.Second
)

// Config says how a Locker behaves. The zero value of each field means its default. All replicas that share keys must agree
// on Namespace, Schema and KeyFunc.
type Config struct {
	// Namespace keeps the keys of one application apart from another's in the same database. Default: none.
	Namespace string

	// Schema is where the migrations put their tables and functions. Default: "pglock".
	Schema string

	// Lease is how long the server lets a session live that it hears nothing from, and so the longest time for which a
	// frozen or cut-off holder keeps the others waiting. A short lease means a quick take-over and more heartbeats; it must
	// leave room for the longest pause of this process and of the network. Whole milliseconds. Default: 15 s.
	//
	// The server enforces it as idle_session_timeout:
	// https://www.postgresql.org/docs/current/runtime-config-client.html#GUC-IDLE-SESSION-TIMEOUT.
	Lease time.Duration

	// HeartbeatInterval is the time between two heartbeats of a session that has nothing else to say. Default: Lease/5.
	HeartbeatInterval time.Duration

	// TrustMargin is how long before the end of the lease the holder stops trusting it: the time your code has, from the
	// end of Lock.Context, to stop. Default: Lease/5.
	TrustMargin time.Duration

	// ReleaseTimeout bounds Lock.Release, whatever its ctx is. Default: 5 s.
	ReleaseTimeout time.Duration

	// MaxSessions bounds the connections that the Locker uses at a time, in addition to those in the pool. Over it
	// TryAcquire answers ErrSessionLimit at once and Acquire waits for a session to become free: for ever, if all are used by
	// goroutines that hold one lock and wait for a second. Such code takes both with AcquireAll, which needs one session, or
	// has LocksPerSession above 1. Default: the pool's MaxConns, so that the service as a whole uses at most twice that.
	MaxSessions int

	// MaxWaiting bounds how many of these sessions may be spent on waiting. A waiter that has one gets the lock as soon as
	// it is released; further waiters poll, between 5 and 200 ms apart, and hold no connection in between. Negative: all
	// poll. Default: half of MaxSessions, at least 1.
	MaxWaiting int

	// MaxLocks bounds the locks that this Locker holds at a time. The server keeps locks of all kinds and of all its
	// databases in one table, and when that is full it refuses every new connection. Over it TryAcquire answers
	// ErrTooManyLocks at once and Acquire waits. Default: a quarter of the server's table, which has room for
	// max_locks_per_transaction × (max_connections + max_prepared_transactions) locks:
	// https://www.postgresql.org/docs/current/runtime-config-locks.html#GUC-MAX-LOCKS-PER-TRANSACTION.
	MaxLocks int

	// MaxIdleSessions is how many sessions may stay connected, leased and clean, when they hold no lock, so that the next
	// lock need not pay for a connection. Default: 0, each is closed after its release; 1 where LocksPerSession is above 1.
	MaxIdleSessions int

	// LocksPerSession is how many locks may share one session, and with it one fate. Above 1, requests that arrive while
	// a round trip is out go together in the next one. Default: 1, each lock has a connection of its own.
	LocksPerSession int

	// KeyFunc computes lock IDs instead of the hash of Namespace and key, to share locks with programs that number them
	// in another way. Together with Namespace it is an error. Default: none.
	KeyFunc func(key string) LockID

	// AllowPooler admits a pooler in session mode. Each session is then marked, and its marks and its locks are checked
	// with each heartbeat, so that a pooler in any other mode is still found. Default: false, any pooler is refused.
	AllowPooler bool

	// HideKeys keeps keys out of application_name, where every role of the cluster can read them, and out of logs and
	// error texts. Default: false.
	HideKeys bool

	// Logger receives losses, forced ends and other things worth an operator's attention. Default: slog.Default().
	Logger *slog.Logger

	// Tracer, if not nil, is told of what the Locker does. See [Tracer].
	Tracer Tracer
}

// minLease keeps the trust deadline well above scheduling noise.
const minLease = 200 * time.Millisecond

// withDefaults returns a copy of c with every default that does not need the server.
func (c *Config) withDefaults(pool *pgxpool.Pool) Config {
	var out Config
	if c != nil {
		out = *c
	}
	setDefault(&out.Schema, DefaultSchema)
	setDefault(&out.Lease, DefaultLease)
	setDefault(&out.HeartbeatInterval, out.Lease/5)
	setDefault(&out.TrustMargin, out.Lease/5)
	setDefault(&out.ReleaseTimeout, DefaultReleaseTimeout)
	if pool != nil {
		setDefault(&out.MaxSessions, int(pool.Stat().MaxConns()))
	}
	setDefault(&out.MaxWaiting, max(1, out.MaxSessions/2))
	setDefault(&out.LocksPerSession, 1)
	if out.LocksPerSession > 1 {
		setDefault(&out.MaxIdleSessions, 1)
	}
	if out.Logger == nil {
		out.Logger = slog.Default()
	}
	return out
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// problems lists what is wrong with a Config whose defaults are set.
func (c *Config) problems() []string {
	var list []string
	check := func(ok bool, format string, args ...any) {
		if !ok {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}
	check(c.Schema != "" && len(c.Schema) <= 63 && utf8.ValidString(c.Schema) && !strings.ContainsAny(c.Schema, "\x00$"),
		"Schema %q: it must be 1 to 63 bytes of valid UTF-8 without NUL or $", c.Schema)
	check(!strings.HasPrefix(c.Schema, "pg_"), "Schema %q: names that begin with pg_ are PostgreSQL's own", c.Schema)
	check(utf8.ValidString(c.Namespace) && !strings.Contains(c.Namespace, "\x00"),
		"Namespace: it must be valid UTF-8 without NUL")
	check(c.Namespace == "" || c.KeyFunc == nil,
		"KeyFunc and Namespace: a KeyFunc alone decides the lock ID; leave Namespace empty, or put it into the key")
	check(c.Lease >= minLease && c.Lease <= 24*time.Hour, "Lease %v: it must be between %v and 24h", c.Lease, minLease)
	check(c.Lease%time.Millisecond == 0, "Lease %v: PostgreSQL counts whole milliseconds", c.Lease)
	check(c.HeartbeatInterval > 0, "HeartbeatInterval %v: it must be positive", c.HeartbeatInterval)
	check(c.TrustMargin > 0, "TrustMargin %v: it must be positive", c.TrustMargin)
	check(c.HeartbeatInterval <= (c.Lease-c.TrustMargin)/2,
		"HeartbeatInterval %v: two must fit into Lease - TrustMargin = %v, so that one that is late costs nothing",
		c.HeartbeatInterval, c.Lease-c.TrustMargin)
	check(c.ReleaseTimeout > 0, "ReleaseTimeout %v: it must be positive", c.ReleaseTimeout)
	check(c.MaxSessions > 0, "MaxSessions %d: it must be positive", c.MaxSessions)
	check(c.MaxWaiting <= c.MaxSessions, "MaxWaiting %d: it cannot exceed MaxSessions %d", c.MaxWaiting, c.MaxSessions)
	check(c.MaxLocks >= 0, "MaxLocks %d: it cannot be negative", c.MaxLocks)
	check(c.MaxIdleSessions >= 0 && c.MaxIdleSessions <= c.MaxSessions,
		"MaxIdleSessions %d: it must be between 0 and MaxSessions %d", c.MaxIdleSessions, c.MaxSessions)
	check(c.LocksPerSession > 0, "LocksPerSession %d: it must be positive", c.LocksPerSession)
	return list
}

// lockID returns the ID of a key that checkKey accepts.
func (c *Config) lockID(key string) LockID {
	if c.KeyFunc != nil {
		return c.KeyFunc(key)
	}
	return HashID(c.Namespace, key)
}

// quotedSchema returns the schema as an SQL identifier.
func quotedSchema(schema string) string {
	return pgx.Identifier{schema}.Sanitize()
}
