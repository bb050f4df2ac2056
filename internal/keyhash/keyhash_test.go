package keyhash_test

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/big"
	"math/bits"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/keyhash"
)

// reference is the definition in the package comment, word for word.
func reference(namespace, key string) int64 {
	var length [8]byte
	binary.BigEndian.PutUint64(length[:], uint64(len(namespace)))
	digest := sha256.Sum256([]byte("pglock/v1" + string(length[:]) + namespace + key))
	return new(big.Int).Sub( // two's complement, by arithmetic instead of a conversion
		new(big.Int).SetBytes(digest[:8]),
		new(big.Int).Lsh(big.NewInt(int64(digest[0]>>7)), 64),
	).Int64()
}

func FuzzSum(f *testing.F) {
	f.Add("", "", 0)
	f.Add("billing", "nightly-report", 3)
	f.Add("a\x00b", "\xff\xfe\xc0\x80", 1)
	f.Add("pglock/v1", "\x00\x00\x00\x00\x00\x00\x00\x01a", 5)
	f.Add(strings.Repeat("n", 200), strings.Repeat("k", 200), 201)
	f.Fuzz(func(t *testing.T, namespace, key string, shift int) {
		id := keyhash.Sum(namespace, key)
		require.Equal(t, reference(namespace, key), id)

		// The same bytes, split at another place, are another lock.
		joined := namespace + key
		at := int(uint(shift) % uint(len(joined)+1))
		if at != len(namespace) {
			require.NotEqual(t, id, keyhash.Sum(joined[:at], joined[at:]))
		}

		n, ok := keyhash.ForKey(namespace, key).Int64()
		require.True(t, ok)
		require.Equal(t, id, n)
	})
}

// Every split of one string into namespace and key is a lock of its own.
func TestSumTellsNamespaceFromKey(t *testing.T) {
	t.Parallel()
	for _, joined := range []string{"", "aaaaaaaaaa", "\x00\x00\x00\x00\x00\x00\x00\x00\x00", "pglock/v1pglock/v1"} {
		seen := map[int64]int{}
		for at := range len(joined) + 1 {
			id := keyhash.Sum(joined[:at], joined[at:])
			require.NotContains(t, seen, id, "%q split at %d and at %d", joined, at, seen[id])
			seen[id] = at
		}
	}
}

// Each bit is set in about half of the IDs of keys as users number them, so
// neither half of the int64 is a bottleneck, and no two of them collide.
func TestSumIsSpreadEvenly(t *testing.T) {
	t.Parallel()
	const keys = 20_000
	var set [64]int
	seen := make(map[int64]struct{}, keys)
	for i := range keys {
		id := keyhash.Sum("orders", fmt.Sprintf("order:%d", i))
		seen[id] = struct{}{}
		for rest := uint64(id); rest != 0; rest &= rest - 1 {
			set[bits.TrailingZeros64(rest)]++
		}
	}
	require.Len(t, seen, keys)
	for bit, count := range set {
		require.InDelta(t, keys/2, count, 400, "bit %d", bit) // 5.7 standard deviations
	}
}

func TestSumOfAShortKeyDoesNotAllocate(t *testing.T) {
	key := strings.Repeat("k", 239-len("billing")) // the most that the doc promises
	require.Zero(t, testing.AllocsPerRun(100, func() { keyhash.Sum("billing", key) }))
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() { keyhash.Sum("billing", key+"k") }), 2.0)
}

func BenchmarkSum(b *testing.B) {
	for _, size := range []int{16, 200, 1 << 20} {
		key := strings.Repeat("k", size)
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(size))
			for b.Loop() {
				keyhash.Sum("billing", key)
			}
		})
	}
}
