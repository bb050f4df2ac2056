package pglock_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// Allocations of the paths that are taken again and again: go test -bench=. -run='^$' ./pglock.

func benchLocker(b *testing.B, config *pglock.Config) *pglock.Locker {
	b.Helper()
	locker, err := pglock.New(pgtest.Pool(b, pgtest.Database(b)), config)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, locker.Close(context.Background())) })
	require.NoError(b, locker.Migrate(b.Context()))
	return locker
}

func cycle(b *testing.B, locker *pglock.Locker, key string) {
	b.Helper()
	lock, err := locker.TryAcquire(b.Context(), key)
	if err == nil {
		err = lock.Release(b.Context())
	}
	if err != nil {
		b.Error(err)
	}
}

func BenchmarkTwoRawStatements(b *testing.B) {
	conn, err := pgx.Connect(b.Context(), pgtest.Database(b))
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, conn.Close(context.Background())) })
	b.ReportAllocs()
	for b.Loop() {
		var got bool
		if err := conn.QueryRow(b.Context(), "SELECT pg_try_advisory_lock($1)", int64(1)).Scan(&got); err != nil {
			b.Fatal(err)
		}
		if err := conn.QueryRow(b.Context(), "SELECT pg_advisory_unlock($1)", int64(1)).Scan(&got); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParkedSession(b *testing.B) {
	locker := benchLocker(b, &pglock.Config{MaxIdleSessions: 1})
	key := pgtest.Key(b)
	cycle(b, locker, key)
	b.ReportAllocs()
	for b.Loop() {
		cycle(b, locker, key)
	}
}

func BenchmarkSharedSession(b *testing.B) {
	for _, workers := range []int{1, 64, 256} {
		b.Run(strconv.Itoa(workers), func(b *testing.B) {
			locker := benchLocker(b, &pglock.Config{LocksPerSession: 1000, MaxSessions: 1})
			key := pgtest.Key(b)
			cycle(b, locker, key)
			var n atomic.Int64
			b.ReportAllocs()
			b.SetParallelism(workers)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				key := key + strconv.FormatInt(n.Add(1), 10)
				for pb.Next() {
					cycle(b, locker, key)
				}
			})
		})
	}
}

func BenchmarkContendedTry(b *testing.B) {
	holder, locker := benchLocker(b, nil), benchLocker(b, nil)
	key := pgtest.Key(b)
	lock, err := holder.Acquire(b.Context(), key)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, lock.Release(context.Background())) })
	b.ReportAllocs()
	for b.Loop() {
		if _, err := locker.TryAcquire(b.Context(), key); err == nil {
			b.Fatal("the lock is held")
		}
	}
}

func BenchmarkFencedTx(b *testing.B) {
	pool := pgtest.Pool(b, pgtest.Database(b))
	locker := benchLocker(b, nil)
	lock, err := locker.Acquire(b.Context(), pgtest.Key(b))
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, lock.Release(context.Background())) })
	write := func(tx pgx.Tx) error {
		_, err := tx.Exec(b.Context(), "SELECT $1::int", 1)
		return err
	}
	b.Run("fenced", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := lock.FencedTx(b.Context(), pool, "benchmark", write); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("unfenced", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := pgx.BeginFunc(b.Context(), pool, write); err != nil {
				b.Fatal(err)
			}
		}
	})
}
