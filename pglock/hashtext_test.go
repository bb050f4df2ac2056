package pglock_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// TestHashtextVectors holds the hash to numbers that were published, years apart.
func TestHashtextVectors(t *testing.T) {
	t.Parallel()
	// Proposed for the manual in 2012, for PostgreSQL 9.1:
	// https://www.postgresql.org/message-id/AB615962-28B4-4396-9270-AB56B08BCA8C%40justatheory.com
	require.EqualValues(t, -1132466231, pglock.Hashtext("greetings, human"))
	// E. Rogov, PostgreSQL 14 Internals, chapter "Miscellaneous Locks", section "Advisory Locks":
	// https://postgrespro.com/community/books/internals
	require.EqualValues(t, 991601810, pglock.Hashtext("resource1"))
}

// TestHashtextExtendedAgreesWithHashtext is what PostgreSQL's own regression test asks, on the same texts:
// https://github.com/postgres/postgres/blob/01e658fa74cb7e3292448f6663b549135958003b/src/test/regress/sql/hash_func.sql.
func TestHashtextExtendedAgreesWithHashtext(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"PostgreSQL", "eIpUEtqmY89", "AXKEJBTK", "muop28x03", "yi3nm0d73"} {
		require.Equal(t, pglock.Hashtext(text), int32(pglock.HashtextExtended(text, 0)), text)
		require.NotEqual(t, pglock.Hashtext(text), int32(pglock.HashtextExtended(text, 1)), text)
	}
}

// TestHashtextIsTheServers compares with the server on random texts of every length up to 100 bytes and 100 characters.
func TestHashtextIsTheServers(t *testing.T) {
	t.Parallel()
	var texts []string
	var seeds []int64
	for n := range 101 {
		for _, seed := range []int64{0, 1, -1, math.MinInt64, math.MaxInt64, rand.Int64(), -rand.Int64()} {
			texts = append(texts, randomASCII(n), randomUnicode(n))
			seeds = append(seeds, seed, seed)
		}
	}
	pool := pgtest.Pool(t, pgtest.Database(t))
	rows, err := pool.Query(t.Context(), `SELECT hashtext(text), hashtextextended(text, seed)
		FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS u(text, seed, n) ORDER BY n`, texts, seeds)
	require.NoError(t, err)
	type hashes struct {
		Hashtext         int32
		HashtextExtended int64
	}
	want, err := pgx.CollectRows(rows, pgx.RowToStructByPos[hashes])
	require.NoError(t, err)
	require.Len(t, want, len(texts))
	for i, text := range texts {
		got := hashes{pglock.Hashtext(text), pglock.HashtextExtended(text, seeds[i])}
		require.Equal(t, want[i], got, "%q with seed %d", text, seeds[i])
	}
}

// randomASCII returns n bytes other than NUL, which no text in PostgreSQL can hold.
func randomASCII(n int) string {
	text := make([]byte, n)
	for i := range text {
		text[i] = byte(1 + rand.IntN(127))
	}
	return string(text)
}

// randomUnicode returns n characters of all lengths in UTF-8.
func randomUnicode(n int) string {
	alphabets := [...][2]rune{{1, 0x7f}, {0x80, 0x7ff}, {0x800, 0xd7ff}, {0x10000, 0x10ffff}}
	var text strings.Builder
	for range n {
		a := alphabets[rand.IntN(len(alphabets))]
		text.WriteRune(a[0] + rand.Int32N(a[1]-a[0]+1))
	}
	return text.String()
}
