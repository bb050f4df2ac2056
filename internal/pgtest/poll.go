package pgtest

import (
	"context"
	"fmt"
	"time"
)

// Poll returns when cond is true; when ctx ends first it returns an error that
// says what was waited for and matches ctx's.
func Poll(ctx context.Context, what string, cond func() bool) error {
	tick := time.NewTicker(pollInterval)
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
