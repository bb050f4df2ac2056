package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// external is a server that somebody else runs.
type external struct{}

func startExternal(ctx context.Context, dsn string) (*Server, error) {
	u, err := url.Parse(dsn)
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		return nil, fmt.Errorf("DATABASE_URL is not a URL such as postgres://user:password@host:5432/database")
	}
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("DATABASE_URL: %w", err)
	}
	if err := conn.Close(ctx); err != nil {
		return nil, fmt.Errorf("DATABASE_URL: %w", err)
	}
	return &Server{driver: external{}, base: u}, nil
}

func (external) start(context.Context) error                       { return ErrNotOurs }
func (external) stop(context.Context) error                        { return ErrNotOurs }
func (external) kill(context.Context) error                        { return ErrNotOurs }
func (external) signal(context.Context, int, syscall.Signal) error { return ErrNotOurs }
func (external) log(context.Context) (string, error)               { return "", ErrNotOurs }
func (external) close(context.Context) error                       { return nil }
