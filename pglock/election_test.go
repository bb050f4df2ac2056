package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

func newElection(t *testing.T, locker *pglock.Locker, key string, config *pglock.ElectionConfig) *pglock.Election {
	t.Helper()
	election, err := pglock.NewElection(locker, key, config)
	require.NoError(t, err)
	return election
}

// candidate runs an election whose terms last until their ctx ends, and reports each.
func candidate(ctx context.Context, election *pglock.Election) (terms chan int64, done chan error) {
	terms, done = make(chan int64, 100), make(chan error, 1)
	go func() {
		done <- election.Run(ctx, func(ctx context.Context, term *pglock.Term) error {
			terms <- term.Token()
			<-ctx.Done()
			return nil
		})
	}()
	return terms, done
}

func TestElectionHandsOverOnTheEndOfItsContext(t *testing.T) {
	t.Parallel()
	key := pgtest.Key(t)
	ours, _ := newLocker(t, nil)
	theirs, _ := newLocker(t, nil)
	a := newElection(t, ours, key, &pglock.ElectionConfig{Name: "a", Resources: []string{key}})
	b := newElection(t, theirs, key, &pglock.ElectionConfig{Name: "b", Resources: []string{key}})
	_, err := a.Leader(t.Context())
	require.ErrorIs(t, err, pglock.ErrNoLeader)

	actx, stop := context.WithCancel(t.Context())
	aterms, adone := candidate(actx, a)
	first := <-aterms
	require.True(t, a.IsLeader())
	bctx, bstop := context.WithCancel(t.Context())
	bterms, bdone := candidate(bctx, b)
	leader, err := b.Leader(t.Context())
	require.NoError(t, err)
	require.Equal(t, "a", leader.Name)
	require.Equal(t, first, leader.Token)
	require.ErrorIs(t, a.Run(t.Context(), nil), pglock.ErrRunning)
	_, err = pglock.NewElection(ours, key, &pglock.ElectionConfig{Resources: []string{key, ""}})
	require.ErrorIs(t, err, pglock.ErrInvalidKey)

	stop()
	second := <-bterms
	require.ErrorIs(t, <-adone, context.Canceled)
	require.Greater(t, second, first)
	require.False(t, a.IsLeader())
	bstop()
	require.ErrorIs(t, <-bdone, context.Canceled)
}

func TestElectionGoesOnAfterALoss(t *testing.T) {
	t.Parallel()
	key := pgtest.Key(t)
	locker, _ := newLocker(t, nil)
	admin, _ := newLocker(t, nil)
	election := newElection(t, locker, key, &pglock.ElectionConfig{Pause: time.Hour}) // a loss needs no pause
	ctx, stop := context.WithCancel(t.Context())
	terms, done := candidate(ctx, election)
	last := <-terms
	for range 5 {
		holders, err := admin.Holders(t.Context(), key)
		require.NoError(t, err)
		require.NoError(t, admin.Terminate(t.Context(), holders[0]))
		next := <-terms
		require.Greater(t, next, last)
		last = next
	}
	stop()
	require.ErrorIs(t, <-done, context.Canceled)
}

func TestResignLetsAnotherLead(t *testing.T) {
	t.Parallel()
	key := pgtest.Key(t)
	ours, _ := newLocker(t, nil)
	theirs, _ := newLocker(t, nil)
	a, b := newElection(t, ours, key, nil), newElection(t, theirs, key, nil)
	ctx, stop := context.WithCancel(t.Context())
	require.NoError(t, a.Resign(ctx), "who does not lead has nothing to give up")
	aterms, adone := candidate(ctx, a)
	<-aterms
	bterms, bdone := candidate(ctx, b)
	require.NoError(t, pgtest.Poll(t.Context(), "a waiter", func() bool { return theirs.Stat().Waiters == 1 }))
	require.NoError(t, a.Resign(t.Context()))
	<-bterms
	require.NoError(t, b.Resign(t.Context()))
	<-aterms
	stop()
	require.ErrorIs(t, <-adone, context.Canceled)
	require.ErrorIs(t, <-bdone, context.Canceled)
}

func TestElectionWhenItsFunctionMisbehaves(t *testing.T) {
	t.Parallel()
	locker, _ := newLocker(t, nil)
	t.Run("it returns", func(t *testing.T) {
		t.Parallel()
		election := newElection(t, locker, pgtest.Key(t), &pglock.ElectionConfig{Pause: time.Millisecond})
		ctx, stop := context.WithCancel(t.Context())
		terms := 0
		err := election.Run(ctx, func(context.Context, *pglock.Term) error {
			terms++
			if terms == 4 {
				stop()
			}
			if terms%2 == 0 {
				return errors.New("no more")
			}
			return nil
		})
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 4, terms)
	})
	t.Run("it panics", func(t *testing.T) {
		t.Parallel()
		key := pgtest.Key(t)
		election := newElection(t, locker, key, nil)
		require.PanicsWithValue(t, "broken", func() {
			_ = election.Run(t.Context(), func(context.Context, *pglock.Term) error { panic("broken") })
		})
		lock, err := locker.TryAcquire(t.Context(), key)
		require.NoError(t, err, "the term is over")
		require.NoError(t, lock.Release(t.Context()))
	})
	t.Run("it calls Goexit", func(t *testing.T) {
		t.Parallel()
		election := newElection(t, locker, pgtest.Key(t), nil)
		returned := make(chan bool, 1)
		go func() {
			defer close(returned)
			_ = election.Run(t.Context(), func(context.Context, *pglock.Term) error { runtime.Goexit(); return nil })
			returned <- true
		}()
		require.False(t, <-returned, "Goexit goes on in Run")
	})
	t.Run("it ignores its ctx", func(t *testing.T) {
		t.Parallel()
		key := pgtest.Key(t)
		election := newElection(t, locker, key, &pglock.ElectionConfig{DrainTimeout: 100 * time.Millisecond, Pause: time.Millisecond})
		ctx, stop := context.WithCancel(t.Context())
		begun, end := make(chan int64, 10), make(chan struct{})
		done := make(chan error, 1)
		go func() {
			done <- election.Run(ctx, func(_ context.Context, term *pglock.Term) error {
				begun <- term.Token()
				<-end
				return nil
			})
		}()
		<-begun
		require.NoError(t, election.Resign(t.Context()), "over its head")
		lock, err := locker.TryAcquire(t.Context(), key)
		require.NoError(t, err)
		require.NoError(t, lock.Release(t.Context()))
		require.Empty(t, begun, "no second function beside the first")
		stop()
		err = <-done
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "still runs")
		close(end)
	})
}

func TestOnceRunsATickOnce(t *testing.T) {
	t.Parallel()
	ours, pool := newLocker(t, nil)
	theirs, _ := newLocker(t, nil)
	job, slot := pgtest.Key(t), time.Now().Truncate(time.Minute)
	_, ok, err := ours.LastTick(t.Context(), job)
	require.NoError(t, err)
	require.False(t, ok)

	failed := errors.New("failed")
	ran, err := ours.Once(t.Context(), job, slot, func(context.Context, pgx.Tx) error { return failed })
	require.ErrorIs(t, err, failed)
	require.False(t, ran)

	results := make(chan string, 10)
	for range 5 {
		for _, locker := range []*pglock.Locker{ours, theirs} {
			go func() {
				ran, err := locker.Once(t.Context(), job, slot, func(ctx context.Context, tx pgx.Tx) error {
					return tx.QueryRow(ctx, "SELECT 1").Scan(new(int))
				})
				results <- fmt.Sprint(ran, err)
			}()
		}
	}
	count := map[string]int{}
	for range 10 {
		count[<-results]++
	}
	require.Equal(t, map[string]int{"true <nil>": 1, "false <nil>": 9}, count)
	last, ok, err := theirs.LastTick(t.Context(), job)
	require.NoError(t, err)
	require.True(t, ok)
	require.True(t, last.Equal(slot))

	_, err = pool.Exec(t.Context(), "UPDATE pglock.ticks SET done_at = now() - interval '2 days' WHERE job = $1", job)
	require.NoError(t, err)
	forgotten, err := ours.PruneTicks(t.Context(), 24*time.Hour)
	require.NoError(t, err)
	require.EqualValues(t, 1, forgotten)
	_, err = ours.Once(t.Context(), job, time.Time{}, nil)
	require.ErrorContains(t, err, "zero time")

	for _, bad := range []string{"", "a\x00b", "\xff", strings.Repeat("x", 2001)} {
		_, err = ours.Once(t.Context(), bad, slot, nil)
		require.ErrorIs(t, err, pglock.ErrInvalidKey)
		_, _, err = ours.LastTick(t.Context(), bad)
		require.ErrorIs(t, err, pglock.ErrInvalidKey)
	}
	_, err = ours.Once(t.Context(), job, slot, func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) })
	require.ErrorIs(t, err, pglock.ErrCommitUnknown)
	require.ErrorContains(t, err, "the function has ended the transaction")
	require.ErrorContains(t, err, strconv.Quote(job))
}

func TestDueTicks(t *testing.T) {
	t.Parallel()
	minute := func(after time.Time) time.Time { return after.Truncate(time.Minute).Add(time.Minute) }
	at := func(clock string) time.Time {
		tm, err := time.Parse("15:04:05", clock)
		require.NoError(t, err)
		return tm
	}
	for name, c := range map[string]struct {
		last, now string
		policy    pglock.CatchUp
		want      []string
	}{
		"nothing is due":         {"12:00:00", "12:00:59", pglock.CatchUpAll, nil},
		"one is due":             {"12:00:00", "12:01:00", pglock.CatchUpSkip, []string{"12:01:00"}},
		"a gap, all":             {"12:00:00", "12:03:05", pglock.CatchUpAll, []string{"12:01:00", "12:02:00", "12:03:00"}},
		"a gap, once":            {"12:00:00", "12:03:05", pglock.CatchUpOnce, []string{"12:03:00"}},
		"a gap, once, late":      {"12:00:00", "12:03:55", pglock.CatchUpOnce, []string{"12:03:00"}},
		"a gap, skipped":         {"12:00:00", "12:03:05", pglock.CatchUpSkip, []string{"12:03:00"}},
		"a gap, skipped, late":   {"12:00:00", "12:03:55", pglock.CatchUpSkip, nil},
		"never before":           {"", "12:03:05", pglock.CatchUpAll, []string{"12:03:00"}},
		"never before, too late": {"", "12:03:55", pglock.CatchUpAll, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var last time.Time
			if c.last != "" {
				last = at(c.last)
			}
			var got []string
			for _, slot := range pglock.DueTicks(last, at(c.now), 30*time.Second, c.policy, minute) {
				got = append(got, slot.Format("15:04:05"))
			}
			require.Equal(t, c.want, got)
		})
	}
	require.Empty(t, pglock.DueTicks(at("12:00:00"), at("13:00:00"), 0, pglock.CatchUpAll, func(time.Time) time.Time { return time.Time{} }))
	for _, step := range []time.Duration{0, -time.Minute} {
		stuck := func(after time.Time) time.Time { return after.Add(step) }
		require.Empty(t, pglock.DueTicks(at("12:00:00"), at("13:00:00"), 0, pglock.CatchUpAll, stuck), "a schedule that does not go on")
	}
}
