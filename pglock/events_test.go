package pglock_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// An event is one message that the package logs.
type event struct {
	level      string
	attributes []string // sorted
}

// TestEventsAreThoseOfTheDocument holds the table of log events in docs/operations.md to the calls of the Logger.
func TestEventsAreThoseOfTheDocument(t *testing.T) {
	t.Parallel()
	logged := loggedEvents(t)
	require.NotEmpty(t, logged)
	require.Equal(t, logged, documentedEvents(t))
}

// documentedEvents reads rows such as: | `pglock: lock lost` | Warn | `error`, `key` | when |.
func documentedEvents(t *testing.T) map[string]event {
	t.Helper()
	text, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	quoted := regexp.MustCompile("`([^`]+)`")
	events := map[string]event{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) < 5 || !strings.HasPrefix(cells[1], " `pglock: ") {
			continue
		}
		e := event{level: strings.TrimSpace(cells[2])}
		for _, match := range quoted.FindAllStringSubmatch(cells[3], -1) {
			e.attributes = append(e.attributes, match[1])
		}
		slices.Sort(e.attributes)
		events[strings.Trim(cells[1], " `")] = e
	}
	return events
}

// loggedEvents reads the source of the package.
func loggedEvents(t *testing.T) map[string]event {
	t.Helper()
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	events := map[string]event{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		for _, decl := range file.Decls {
			ast.Inspect(decl, func(node ast.Node) bool {
				call, ok := node.(*ast.CallExpr)
				if !ok {
					return true
				}
				method, ok := call.Fun.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if logger, ok := method.X.(*ast.SelectorExpr); !ok || logger.Sel.Name != "Logger" {
					return true
				}
				require.Contains(t, []string{"Debug", "Info", "Warn", "Error"}, method.Sel.Name, "%s: another way to log", name)
				message, ok := stringOf(call.Args[0])
				require.True(t, ok, "%s: the name of an event is a literal, so that it can be searched for", name)
				require.NotContains(t, events, message, "logged in one place")
				e := event{level: method.Sel.Name, attributes: everySecond(call.Args[1:])}
				if call.Ellipsis.IsValid() {
					e.attributes = collected(decl)
				}
				slices.Sort(e.attributes)
				events[message] = e
				return true
			})
		}
	}
	return events
}

// collected returns the attributes that a function puts into a slice before it logs them.
func collected(function ast.Decl) (attributes []string) {
	ast.Inspect(function, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.CompositeLit:
			attributes = append(attributes, everySecond(node.Elts)...)
		case *ast.CallExpr:
			if fun, ok := node.Fun.(*ast.Ident); ok && fun.Name == "append" {
				attributes = append(attributes, everySecond(node.Args[1:])...)
			}
		}
		return true
	})
	return attributes
}

// everySecond returns the keys of keys and values.
func everySecond(list []ast.Expr) (keys []string) {
	for i := 0; i < len(list); i += 2 {
		if key, ok := stringOf(list[i]); ok {
			keys = append(keys, key)
		}
	}
	return keys
}

func stringOf(expr ast.Expr) (string, bool) {
	literal, ok := expr.(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(literal.Value)
	return text, err == nil
}
