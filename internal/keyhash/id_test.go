package keyhash_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/keyhash"
)

// The rows are what a server showed for these very calls of pg_advisory_lock.
func TestPgLocks(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		id             keyhash.ID
		text           string
		classID, objID uint32
		objSubID       int16
	}{
		{keyhash.ID{}, "0", 0, 0, 1},
		{keyhash.Int64ID(1), "1", 0, 1, 1},
		{keyhash.Int64ID(-1), "-1", math.MaxUint32, math.MaxUint32, 1},
		{keyhash.Int64ID(1 << 32), "4294967296", 1, 0, 1},
		{keyhash.Int64ID(math.MinInt64), "-9223372036854775808", 1 << 31, 0, 1},
		{keyhash.Int64ID(math.MaxInt64), "9223372036854775807", math.MaxInt32, math.MaxUint32, 1},
		{keyhash.PairID(0, 0), "(0,0)", 0, 0, 2},
		{keyhash.PairID(0, 1), "(0,1)", 0, 1, 2},
		{keyhash.PairID(-1, 2), "(-1,2)", math.MaxUint32, 2, 2},
		{keyhash.PairID(2, -1), "(2,-1)", 2, math.MaxUint32, 2},
		{keyhash.PairID(math.MinInt32, math.MinInt32), "(-2147483648,-2147483648)", 1 << 31, 1 << 31, 2},
	} {
		t.Run(test.text, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, test.text, test.id.String())
			classID, objID, objSubID := test.id.PgLocks()
			require.Equal(t, test.classID, classID)
			require.Equal(t, test.objID, objID)
			require.Equal(t, test.objSubID, objSubID)
			id, ok := keyhash.FromPgLocks(test.classID, test.objID, test.objSubID)
			require.True(t, ok)
			require.Equal(t, test.id, id)
		})
	}
}

// Such rows are another extension's locks; taking them for ours would show
// holders that no caller can wait for or release.
func TestFromPgLocksRefusesOtherSpaces(t *testing.T) {
	t.Parallel()
	for _, objSubID := range []int16{math.MinInt16, -1, 0, 3, math.MaxInt16} {
		id, ok := keyhash.FromPgLocks(1, 2, objSubID)
		require.False(t, ok, "objsubid %d", objSubID)
		require.Zero(t, id)
	}
}

func TestTheTwoSpacesAreApart(t *testing.T) {
	t.Parallel()
	number, pair := keyhash.Int64ID(1), keyhash.PairID(0, 1)
	require.NotEqual(t, number, pair)
	require.Equal(t, keyhash.PairID(0, 1), pair)
	require.False(t, number.IsPair())
	require.True(t, pair.IsPair())

	_, _, ok := number.Pair()
	require.False(t, ok)
	_, ok = pair.Int64()
	require.False(t, ok)
}

func TestCompareIsTheOrderOfTheNumbers(t *testing.T) {
	t.Parallel()
	sorted := []keyhash.ID{
		keyhash.Int64ID(math.MinInt64),
		keyhash.Int64ID(-1),
		keyhash.Int64ID(0),
		keyhash.Int64ID(math.MaxInt64),
		keyhash.PairID(math.MinInt32, math.MaxInt32),
		keyhash.PairID(-1, 0),
		keyhash.PairID(0, math.MinInt32),
		keyhash.PairID(0, -1),
		keyhash.PairID(0, 1),
		keyhash.PairID(1, -1),
	}
	for i, a := range sorted {
		for j, b := range sorted {
			require.Equal(t, sign(i-j), a.Compare(b), "%v and %v", a, b)
		}
	}
	reversed := slices.Clone(sorted)
	slices.Reverse(reversed)
	slices.SortFunc(reversed, keyhash.ID.Compare)
	require.Equal(t, sorted, reversed)
}

func sign(n int) int {
	return min(1, max(-1, n))
}

func FuzzID(f *testing.F) {
	f.Add(int64(0), int64(-1))
	f.Add(int64(math.MinInt64), int64(math.MaxInt64))
	f.Add(int64(1)<<32, int64(1)<<31)
	f.Fuzz(func(t *testing.T, x, y int64) {
		a, b := int32(x>>32), int32(x)
		number, pair := keyhash.Int64ID(x), keyhash.PairID(a, b)

		n, ok := number.Int64()
		require.True(t, ok)
		require.Equal(t, x, n)
		gotA, gotB, ok := pair.Pair()
		require.True(t, ok)
		require.Equal(t, [2]int32{a, b}, [2]int32{gotA, gotB})

		require.Equal(t, fmt.Sprint(x), number.String())
		require.Equal(t, fmt.Sprintf("(%d,%d)", a, b), pair.String())

		ids := []keyhash.ID{number, pair, keyhash.Int64ID(y), keyhash.PairID(int32(y>>32), int32(y))}
		for _, id := range ids {
			back, ok := keyhash.FromPgLocks(id.PgLocks())
			require.True(t, ok)
			require.Equal(t, id, back)
			for _, other := range ids {
				require.Equal(t, -other.Compare(id), id.Compare(other))
				require.Equal(t, id == other, id.Compare(other) == 0)
				require.Equal(t, id == other, id.String() == other.String())
			}
		}
	})
}
