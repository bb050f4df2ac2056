package pgtest

import (
	"context"
	"fmt"
	"time"
)

// Poll returns when cond is true; when ctx ends first it returns an error that
// says what was waited for and matches ctx's.
func Poll(ctx context.Context, what string, cond func() bool) error {
	return pollEvery(ctx, pollInterval, what, cond)
}

// pollEvery is Poll for conditions that cost more to look at.
func pollEvery(ctx context.Context, interval time.Duration, what string, cond func() bool) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for !cond() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}

// closeTimeout bounds every clean-up.
const closeTimeout = 30 * time.Second

// cleanupContext is for what must be done though the test's context is over.
func cleanupContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), closeTimeout)
}
