package pgtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Reload sets the settings with ALTER SYSTEM and has the running server read
// them; it returns when a new session sees them. An empty value resets a
// setting to what it was at the start.
func (s *Server) Reload(ctx context.Context, settings map[string]string) (err error) {
	if _, ok := s.driver.(external); ok {
		return ErrNotOurs
	}
	conn, err := pgx.Connect(ctx, s.DSN(""))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		sql := "ALTER SYSTEM RESET " + name
		if value := settings[name]; value != "" {
			sql = fmt.Sprintf("ALTER SYSTEM SET %s = '%s'", name, strings.ReplaceAll(value, "'", "''"))
		}
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return s.reload(ctx, conn)
}

// reload waits for the postmaster to have read its files, which a signal alone
// does not tell: pg_conf_load_time moves for sessions that saw the reload.
func (s *Server) reload(ctx context.Context, conn *pgx.Conn) error {
	const newer = "SELECT pg_conf_load_time() > $1"
	var before any
	if err := conn.QueryRow(ctx, "SELECT pg_conf_load_time()").Scan(&before); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "SELECT pg_reload_conf()"); err != nil {
		return err
	}
	var queryErr error
	err := Poll(ctx, "the server to reload its settings", func() bool {
		var done bool
		queryErr = conn.QueryRow(ctx, newer, before).Scan(&done)
		return done || queryErr != nil
	})
	return errors.Join(err, queryErr)
}
