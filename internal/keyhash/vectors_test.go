package keyhash_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed35111a8b/pglock/internal/keyhash"
)

// A vector is one line of testdata/vectors.json. The hashed key is Key, Repeat
// times when that is not 0. ID is a string there, since JSON numbers of this
// size are rounded by many readers. Every vector is text that PostgreSQL can
// store, so that SQL can be held to the same file.
type vector struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Key       string `json:"key"`
	Repeat    int    `json:"repeat"`
	ID        int64  `json:"id,string"`
}

func (v vector) key() string { return strings.Repeat(v.Key, max(v.Repeat, 1)) }

func loadVectors(t *testing.T) []vector {
	t.Helper()
	data, err := os.ReadFile("testdata/vectors.json")
	require.NoError(t, err)
	var vectors []vector
	require.NoError(t, json.Unmarshal(data, &vectors))
	require.NotEmpty(t, vectors)
	return vectors
}

// The vectors were computed by another implementation. They never change: see
// the package comment.
func TestSumIsFrozen(t *testing.T) {
	t.Parallel()
	names, ids, negative := map[string]bool{}, map[int64]string{}, 0
	for _, v := range loadVectors(t) {
		require.Equal(t, v.ID, keyhash.Sum(v.Namespace, v.key()), v.Name)
		require.False(t, names[v.Name], "two vectors named %q", v.Name)
		require.NotContains(t, ids, v.ID, "%q has the ID of %q", v.Name, ids[v.ID])
		names[v.Name], ids[v.ID] = true, v.Name
		if v.ID < 0 {
			negative++
		}
	}
	require.Positive(t, negative)
}
