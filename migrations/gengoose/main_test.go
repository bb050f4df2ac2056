package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGooseFilesAreUpToDate(t *testing.T) {
	t.Parallel()
	want, err := render()
	require.NoError(t, err)
	require.Equal(t, want, read(t, "../goose"), "run: go generate ./migrations")
}

func TestWriteRemovesFilesOfNoMigration(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "goose")
	require.NoError(t, write(dir, map[string]string{"00001_a.sql": "a", "00002_b.sql": "b"}))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "README.md"), nil, 0o600))
	want := map[string]string{"00001_a.sql": "new"}
	require.NoError(t, write(dir, want))
	require.Equal(t, want, read(t, dir))
	require.FileExists(t, filepath.Join(dir, "README.md"))
}

// read returns the SQL files of a folder by name.
func read(t *testing.T, dir string) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.sql"))
	require.NoError(t, err)
	files := make(map[string]string, len(paths))
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		files[filepath.Base(path)] = string(text)
	}
	return files
}
