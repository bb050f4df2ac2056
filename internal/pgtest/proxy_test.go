package pgtest_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
)

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(ctx) // the server may be out of reach
	})
	return conn
}

func simple(ctx context.Context, conn *pgx.Conn, sql string) error {
	_, err := conn.PgConn().Exec(ctx, sql).ReadAll()
	return err
}

func TestProxyCountsRoundTrips(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	p := pgtest.ProxyTo(t, pgtest.Shared(t))
	conn := connect(t, pgtest.Shared(t).Via(p.Addr(), ""))
	require.NotNil(t, p.Conn(conn.PgConn().PID()))
	before := p.Counts()
	require.Equal(t, 1, before.FromClient[pgtest.TypeStartup])
	for range 10 {
		require.NoError(t, simple(ctx, conn, "BEGIN; SELECT 1; COMMIT"))
	}
	diff := p.Counts().Since(before)
	require.Equal(t, 10, diff.RoundTrips())
	require.Equal(t, 10, diff.FromClient[pgtest.TypeQuery])
	require.Zero(t, diff.Connections)

	require.NoError(t, conn.PgConn().CancelRequest(ctx))
	require.Equal(t, 1, p.Counts().FromClient[pgtest.TypeCancel])
}

func TestProxyRefusesEncryption(t *testing.T) {
	t.Parallel()
	p := pgtest.ProxyTo(t, pgtest.Shared(t))
	config, err := pgx.ParseConfig("postgres://postgres@" + p.Addr() + "/postgres?sslmode=prefer")
	require.NoError(t, err)
	conn, err := pgx.ConnectConfig(t.Context(), config)
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
}

func TestProxyBlackHolesAndHeals(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	for name, directions := range map[string][]pgtest.Direction{
		"both":     nil,
		"toServer": {pgtest.ToServer},
		"toClient": {pgtest.ToClient},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			p := pgtest.ProxyTo(t, s)
			conn := connect(t, s.Via(p.Addr(), ""))
			p.BlackHole(directions...)
			before := p.Counts().RoundTrips()
			answered := make(chan error, 1)
			go func() { answered <- simple(ctx, conn, "SELECT 1") }()
			select {
			case err := <-answered:
				t.Fatalf("an answer came through: %v", err)
			case <-time.After(200 * time.Millisecond):
			}
			short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			_, err := pgx.Connect(short, s.Via(p.Addr(), ""))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			p.Heal()
			require.NoError(t, <-answered)
			require.Greater(t, p.Counts().RoundTrips(), before)
		})
	}
}

func TestProxyDelaysAndCuts(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := pgtest.Shared(t)
	p := pgtest.ProxyTo(t, s)
	conn := connect(t, s.Via(p.Addr(), ""))
	for _, d := range []pgtest.Direction{pgtest.ToServer, pgtest.ToClient} {
		p.Delay(d, func() time.Duration { return 50 * time.Millisecond })
	}
	begin := time.Now()
	require.NoError(t, simple(ctx, conn, "SELECT 1"))
	require.GreaterOrEqual(t, time.Since(begin), 100*time.Millisecond)
	p.BlackHole()
	p.Cut()
	require.Error(t, simple(ctx, conn, "SELECT 1"))
	require.Empty(t, p.Conns())
}

func TestProxyPassesOnTheServersEnd(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := pgtest.Shared(t)
	p := pgtest.ProxyTo(t, s)
	conn := connect(t, s.Via(p.Addr(), ""))
	require.NoError(t, s.Exec(ctx, "", "SELECT pg_terminate_backend($1)", int(conn.PgConn().PID())))
	err := simple(ctx, conn, "SELECT 1")
	var pgErr *pgconn.PgError
	require.True(t, errors.As(err, &pgErr) || errors.Is(err, io.ErrUnexpectedEOF) || conn.IsClosed(), "%v", err)
}

func TestProxyTrapsFreezeInTheMiddleOfARequest(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	for name, c := range map[string]struct {
		pass int
		rows int // that the server has got to insert while the connection is frozen
	}{
		"before":         {0, 0},
		"middle":         {7, 0},
		"reply withheld": {pgtest.WholeMessage, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			dsn := pgtest.NewDatabase(t, s)
			direct := connect(t, dsn)
			_, err := direct.Exec(ctx, "CREATE TABLE t(n int)")
			require.NoError(t, err)
			p := pgtest.ProxyTo(t, s)
			conn := connect(t, s.Via(p.Addr(), direct.Config().Database))
			sprung := p.Set(pgtest.Trap{Type: pgtest.TypeQuery, Contains: "INSERT", Pass: c.pass})
			require.NoError(t, simple(ctx, conn, "SELECT 1"))
			answered := make(chan error, 1)
			go func() { answered <- simple(ctx, conn, "INSERT INTO t VALUES (1)") }()
			require.Equal(t, conn.PgConn().PID(), (<-sprung).PID())
			if c.rows == 1 {
				pgtest.Eventually(t, "the insert", func() bool { return count(ctx, t, dsn) == 1 })
			}
			require.Equal(t, c.rows, count(ctx, t, dsn))
			require.Empty(t, answered)
			p.Heal()
			require.NoError(t, <-answered)
			require.Equal(t, 1, count(ctx, t, dsn))
		})
	}
}

func TestProxyWithholdsTheFastestReply(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := pgtest.Shared(t)
	p := pgtest.ProxyTo(t, s)
	conn := connect(t, s.Via(p.Addr(), ""))
	for range 100 {
		sprung := p.Set(pgtest.Trap{Type: pgtest.TypeQuery, Pass: pgtest.WholeMessage})
		before := p.Counts().RoundTrips()
		answered := make(chan error, 1)
		go func() { answered <- simple(ctx, conn, "") }()
		<-sprung
		pgtest.Eventually(t, "the reply", func() bool { return p.Counts().RoundTrips() > before })
		require.Empty(t, answered)
		p.Heal()
		require.NoError(t, <-answered)
	}
}
