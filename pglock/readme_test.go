package pglock_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadmeShowsTheExampleThatRuns holds the first code of the README to the body of Example.
func TestReadmeShowsTheExampleThatRuns(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("example_test.go")
	require.NoError(t, err)
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)

	_, body, ok := strings.Cut(string(source), "databaseURL := pgtest.ExampleDSN()\n\n")
	require.True(t, ok)
	body, _, ok = strings.Cut(body, "\t// Output:")
	require.True(t, ok)
	_, shown, ok := strings.Cut(string(readme), "<!-- Example -->\n```go\n")
	require.True(t, ok)
	shown, _, ok = strings.Cut(shown, "```")
	require.True(t, ok)

	lines := strings.Split(body, "\n")
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], "\t")
	}
	require.Equal(t, strings.Join(lines, "\n"), shown)
	require.LessOrEqual(t, strings.Count(string(readme), "\n"), 200)
}
