package main

import (
	"context"
	"time"
)

// slot returns the tick that --once names. A duration means the one that contains the server's present time, so that hosts
// whose clocks differ agree.
func (c *runCommand) slot(ctx context.Context, db querier) (time.Time, error) {
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04Z07:00"} {
		if slot, err := time.Parse(layout, c.Once); err == nil {
			return slot, nil
		}
	}
	period, err := time.ParseDuration(c.Once)
	if err != nil || period < time.Second {
		return time.Time{}, usageError("--once %q: it must be a time with its zone, as 2026-11-29T16:00:00Z, "+
			"or a duration of at least 1s, as 15m or 24h", c.Once)
	}
	now, err := serverTime(ctx, db)
	if err != nil {
		return time.Time{}, err
	}
	midnight := now.UTC().Truncate(24 * time.Hour)
	if period > 24*time.Hour {
		midnight = time.Unix(0, 0).UTC()
	}
	return midnight.Add(now.Sub(midnight).Truncate(period)), nil
}
