package pglock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// What goes wrong where nobody is returned an error is in the log.

func TestTermsThatAreGivenUpAreLogged(t *testing.T) {
	t.Parallel()
	dsn := database(t)
	pool := newPool(t, dsn)
	ahead := pgtest.Key(t)
	require.NoError(t, pglock.Fencer{}.Claim(t.Context(), pool, 1<<60, ahead))
	fails := errors.New("the work fails")
	for want, config := range map[string]pglock.ElectionConfig{
		fails.Error():         {},
		"stale fencing token": {Resources: []string{ahead}},
	} {
		var logged logBuffer
		locker := newLocker(t, pool, &pglock.Config{Logger: logged.logger()})
		config.Pause = time.Millisecond
		election, err := pglock.NewElection(locker, pgtest.Key(t), &config)
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- election.Run(ctx, func(context.Context, *pglock.Term) error { return fails })
		}()
		pgtest.Eventually(t, "terms to be logged", func() bool { return logged.count("pglock: term given up") >= 3 })
		stop()
		require.ErrorIs(t, <-done, context.Canceled)
		require.GreaterOrEqual(t, logged.count(want), logged.count("pglock: term given up"))

		// A term that ends as it should is not worth a line.
		before := logged.count("\n")
		ctx, stop = context.WithCancel(t.Context())
		election, err = pglock.NewElection(locker, pgtest.Key(t), nil)
		require.NoError(t, err)
		require.ErrorIs(t, election.Run(ctx, func(ctx context.Context, _ *pglock.Term) error {
			stop()
			<-ctx.Done()
			return ctx.Err()
		}), context.Canceled)
		require.Equal(t, before, logged.count("\n"))
	}
}

func TestPanicOfATermIsLoggedWithItsStack(t *testing.T) {
	t.Parallel()
	var logged logBuffer
	locker := newLocker(t, newPool(t, database(t)), &pglock.Config{Logger: logged.logger()})
	election, err := pglock.NewElection(locker, pgtest.Key(t), nil)
	require.NoError(t, err)
	require.PanicsWithValue(t, "broken", func() {
		_ = election.Run(t.Context(), func(context.Context, *pglock.Term) error { return breaks() })
	})
	require.Equal(t, 1, logged.count("pglock: panic in the function of a term"))
	require.Equal(t, 1, logged.count("pglock_test.breaks("))
}

func breaks() error { panic("broken") }

func TestWaitsThatCannotSucceedAreLogged(t *testing.T) {
	t.Parallel()
	pool := newPool(t, "postgres://app@127.0.0.1:1/app?sslmode=disable")
	for name, wait := range map[string]func(context.Context, *pglock.Locker, string) error{
		"Acquire": func(ctx context.Context, locker *pglock.Locker, key string) error {
			_, err := locker.Acquire(ctx, key)
			return err
		},
		"election": func(ctx context.Context, locker *pglock.Locker, key string) error {
			return campaign(ctx, locker, key, 0)
		},
		"election that polls": func(ctx context.Context, locker *pglock.Locker, key string) error {
			return campaign(ctx, locker, key, 10*time.Millisecond)
		},
	} {
		var logged logBuffer
		locker := newLocker(t, pool, &pglock.Config{Logger: logged.logger()})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- wait(ctx, locker, pgtest.Key(t)) }()
		pgtest.Eventually(t, name+" to say why it waits", func() bool { return logged.count("pglock: acquire keeps failing") > 0 })
		stop()
		require.ErrorIs(t, <-done, context.Canceled)
		require.Equal(t, logged.count("\n"), logged.count("connection refused"), "each line says why: %s", logged.text.String())
	}
}

// campaign runs an election that nobody wins.
func campaign(ctx context.Context, locker *pglock.Locker, key string, interval time.Duration) error {
	election, err := pglock.NewElection(locker, key, &pglock.ElectionConfig{PollInterval: interval})
	if err != nil {
		return err
	}
	return election.Run(ctx, func(context.Context, *pglock.Term) error { return errors.New("led") })
}
