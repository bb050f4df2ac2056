package pglocktest_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
	"github.com/seed35111a8b/pglock/pglock/pglocktest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// exporter is the code under test: it exports unless another replica does, and stops when it loses the lock.
type exporter struct {
	locker *pglock.Locker
	pool   *pgxpool.Pool
	lock   chan *pglock.Lock // tells the test which lock it works under
}

func (e *exporter) export(ctx context.Context) (ran bool, err error) {
	return e.locker.TryDo(ctx, "export", func(ctx context.Context, lock *pglock.Lock) error {
		e.lock <- lock
		<-ctx.Done() // a long export
		return context.Cause(ctx)
	})
}

func newExporter(t *testing.T) *exporter {
	t.Helper()
	pool := pglocktest.NewDatabase(t)
	locker, err := pglock.New(pool, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, locker.Close(context.Background())) })
	return &exporter{locker: locker, pool: pool, lock: make(chan *pglock.Lock, 1)}
}

func TestExportIsLeftToTheReplicaThatDoesIt(t *testing.T) {
	t.Parallel()
	e := newExporter(t)
	release := pglocktest.HoldElsewhere(t, e.pool, nil, "export")
	ran, err := e.export(t.Context())
	require.NoError(t, err)
	require.False(t, ran)

	release()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-e.lock; cancel() }()
	ran, err = e.export(ctx)
	require.True(t, ran)
	require.ErrorIs(t, err, context.Canceled)
}

func TestExportStopsWhenItsLockIsLost(t *testing.T) {
	t.Parallel()
	e := newExporter(t)
	type result struct {
		ran bool
		err error
	}
	results := make(chan result, 1)
	go func() {
		ran, err := e.export(t.Context())
		results <- result{ran, err}
	}()
	lock := <-e.lock
	pglocktest.Lose(t, e.locker, lock)
	r := <-results
	require.True(t, r.ran)
	require.ErrorIs(t, r.err, pglock.ErrLost)
	err := lock.FencedTx(t.Context(), e.pool, "exports", func(pgx.Tx) error { return errors.New("not called") })
	require.ErrorIs(t, err, pglock.ErrLost)
}
