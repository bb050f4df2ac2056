package pglock_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRecipesShowTheExamplesThatRun holds each piece of Go in docs/recipes.md to the file that the line before it names, and
// the document to all files with a recipe.
func TestRecipesShowTheExamplesThatRun(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/recipes.md")
	require.NoError(t, err)
	pieces := strings.Split(string(text), "```go\n")
	shown := map[string]bool{}
	for i, piece := range pieces[1:] {
		before := strings.TrimSuffix(pieces[i], "\n")
		marker := before[strings.LastIndexByte(before, '\n')+1:]
		name, ok := strings.CutPrefix(marker, "<!-- ")
		require.True(t, ok, "the line before a piece of Go names its file: %q", marker)
		name = strings.TrimSuffix(name, " -->")
		source, err := os.ReadFile(name)
		require.NoError(t, err)
		code, _, ok := strings.Cut(piece, "```")
		require.True(t, ok)
		require.True(t, containsIndented(string(source), code), "%s does not have:\n%s", name, code)
		shown[name] = true
	}
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	for _, file := range files {
		name := file.Name()
		if strings.HasPrefix(name, "example_") && name != "example_test.go" {
			require.True(t, shown[name], "%s is shown nowhere", name)
		}
	}
}

// containsIndented reports whether text has the lines of code, however they are indented.
func containsIndented(text, code string) bool {
	return strings.Contains(unindented(text), unindented(code))
}

func unindented(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimLeft(line, "\t"))
	}
	return "\n" + b.String()
}
