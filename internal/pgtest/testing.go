package pgtest

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// Main runs a package's tests for TestMain: it closes the server that the tests
// have shared, fails the package if a goroutine is left, and exits. In a process
// that SpawnRole started it plays the role instead.
func Main(m *testing.M, roles ...Role) {
	runRole(roles) // does not return in a process that plays one
	code := m.Run()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	err := shared.close(ctx)
	cancel()
	if err == nil && code == 0 {
		err = goleak.Find()
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "pgtest:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// Shared is the test process's one server, started when first asked for. A
// test that crashes or configures the server starts its own with New.
func Shared(tb testing.TB) *Server {
	tb.Helper()
	s, err := shared.get()
	require.NoError(tb, err)
	return s
}

// New starts a server for this test alone and closes it at the end.
func New(tb testing.TB, opts ...Option) *Server {
	tb.Helper()
	s, err := Start(tb.Context(), append([]Option{Own()}, opts...)...)
	require.NoError(tb, err)
	tb.Cleanup(func() {
		ctx, cancel := cleanupContext()
		defer cancel()
		require.NoError(tb, s.Close(ctx))
	})
	return s
}

// packageDatabase is the database that Database returns in this process.
var packageDatabase struct { //nolint:gochecknoglobals // as shared
	once sync.Once
	dsn  string
	err  error
}

// Database is the DSN of the package's own database on the shared server.
// Advisory locks are per database, so packages do not see each other's.
func Database(tb testing.TB) string {
	tb.Helper()
	s := Shared(tb)
	p := &packageDatabase
	p.once.Do(func() {
		ctx, cancel := cleanupContext()
		defer cancel()
		p.dsn, p.err = s.CreateDatabase(ctx)
	})
	require.NoError(tb, p.err)
	return p.dsn
}

// NewDatabase is the DSN of a database on s for this test alone; it is dropped
// at the end, unless the server is down by then.
func NewDatabase(tb testing.TB, s *Server) string {
	tb.Helper()
	dsn, err := s.CreateDatabase(tb.Context())
	require.NoError(tb, err)
	tb.Cleanup(func() {
		ctx, cancel := cleanupContext()
		defer cancel()
		if err := s.DropDatabase(ctx, dsn); err != nil {
			tb.Logf("pgtest: %v", err)
		}
	})
	return dsn
}

// Pool is a pool on the DSN, closed at the end of the test. Each mutator may
// change its config first.
func Pool(tb testing.TB, dsn string, mutators ...func(*pgxpool.Config)) *pgxpool.Pool {
	tb.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	require.NoError(tb, err)
	for _, mutate := range mutators {
		mutate(config)
	}
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(tb.Context()), config)
	require.NoError(tb, err)
	tb.Cleanup(pool.Close)
	return pool
}

// Key is a key that no other call returns; the test's name is in it.
func Key(tb testing.TB) string {
	tb.Helper()
	name := strings.NewReplacer("/", ".", " ", "_").Replace(tb.Name())
	return name + "-" + strings.ToLower(rand.Text()[:8])
}

// NewStandby makes a standby of s and closes it at the end of the test.
func NewStandby(tb testing.TB, s *Server, config StandbyConfig) *Standby {
	tb.Helper()
	sb, err := s.Standby(tb.Context(), config)
	require.NoError(tb, err)
	tb.Cleanup(func() {
		ctx, cancel := cleanupContext()
		defer cancel()
		require.NoError(tb, sb.Close(ctx))
	})
	return sb
}

// ProxyTo puts a proxy in front of s for the duration of the test.
func ProxyTo(tb testing.TB, s *Server) *Proxy {
	tb.Helper()
	p, err := NewProxy(tb.Context(), s.Addr())
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, p.Close()) })
	return p
}

// PgBouncerTo puts a pooler in front of s for the duration of the test. It
// fails the test where pgbouncer is missing, and says what to install.
func PgBouncerTo(tb testing.TB, s *Server, mode PoolMode, settings map[string]string) *PgBouncer {
	tb.Helper()
	b, err := StartPgBouncer(tb.Context(), s, mode, settings)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, b.Close()) })
	return b
}
