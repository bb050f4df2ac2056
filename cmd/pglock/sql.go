package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// This file has all SQL of the command that the library has no method for.

// querier is a pool or a connection.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// serverTime returns the server's clock.
func serverTime(ctx context.Context, db querier) (now time.Time, err error) {
	err = db.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now)
	if err != nil {
		return now, fmt.Errorf("the server's time: %w", err)
	}
	return now, nil
}
