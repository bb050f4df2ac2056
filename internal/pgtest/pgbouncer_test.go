package pgtest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
)

func TestPgBouncerPoolsByMode(t *testing.T) {
	t.Parallel()
	s := pgtest.Shared(t)
	for mode, backends := range map[pgtest.PoolMode]int{pgtest.SessionPooling: 2, pgtest.TransactionPooling: 1} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			b := pgtest.PgBouncerTo(t, s, mode, nil)
			pids := map[string]bool{}
			for range 2 { // both clients stay connected
				results, err := connect(t, b.DSN("")).PgConn().Exec(ctx, "SELECT pg_backend_pid()").ReadAll()
				require.NoError(t, err)
				pids[string(results[0].Rows[0][0])] = true
			}
			require.Len(t, pids, backends)
		})
	}
}
