package pgtest

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
)

// CreateDatabase makes a database with a name of its own and returns its DSN.
func (s *Server) CreateDatabase(ctx context.Context) (string, error) {
	name := "pgtest_" + strings.ToLower(rand.Text()[:12])
	if err := s.Exec(ctx, "", "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()); err != nil {
		return "", fmt.Errorf("the role needs CREATEDB: %w", err)
	}
	return s.DSN(name), nil
}

// DropDatabase drops the database of the DSN, and with it the sessions in it.
func (s *Server) DropDatabase(ctx context.Context, dsn string) error {
	u, err := url.Parse(dsn)
	if err != nil {
		return err
	}
	name := strings.TrimPrefix(u.Path, "/")
	return s.Exec(ctx, "", "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
}
