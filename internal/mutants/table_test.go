package main_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	mutants "github.com/seed35111a8b/pglock/internal/mutants"
)

const root = "../.."

// Whoever changes a line that a mutant changes is told by `make test`.
func TestMutantsCanBeMade(t *testing.T) {
	t.Parallel()
	require.NoError(t, mutants.FindAll(root))
}

func TestNamedTestsExist(t *testing.T) {
	t.Parallel()
	var tests strings.Builder
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		tests.Write(text)
		return err
	}))
	guarantees, err := os.ReadFile(filepath.Join(root, "docs", "guarantees.md"))
	require.NoError(t, err)
	named := append(mutants.TestsNamed(), regexp.MustCompile(`Test[A-Z]\w+`).FindAllString(string(guarantees), -1)...)
	require.NotEmpty(t, named)
	for _, name := range named {
		if strings.HasPrefix(name, "TestP") && !strings.Contains(name, "_") {
			continue // a promise
		}
		require.True(t, strings.Contains(tests.String(), "\nfunc "+name+"(t *testing.T)"),
			"docs/guarantees.md or the table of mutants names %s, and there is no such test", name)
	}
}
