// Package migrations holds the database side of pglock as SQL files: the sequence and the reign behind fencing tokens,
// the functions that take locks, and the fence.
//
// [pglock.Locker.Migrate] applies them. The files are named as golang-migrate reads them; the folder goose holds the same
// statements for goose (go generate renews it). Each file also notes itself in the table pglock.migrations, so that Migrate
// changes nothing where a tool was first. A tool that comes second has to be told what is there; tooltest/doc.go says how.
//
// The schema is written as the quoted identifier "pglock" throughout. To use another one with files, replace that token.
//
// [pglock.Locker.Migrate]: https://pkg.go.dev/github.com/seed35111a8b/pglock/pglock#Locker.Migrate
package migrations

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// FS holds the files of this folder, NNNNNN_name.up.sql and NNNNNN_name.down.sql.
//
//go:embed *.sql
var FS embed.FS

// Schema is the identifier, quotes included, that names the schema in the files.
const Schema = `"pglock"`

// Versions of the migrations, in the order in which they are applied.
const (
	Locks     = 1 // tokens, reign, and the functions that lock
	Fence     = 2 // fenced_writes and the functions around it; usable alone
	Schedules = 3 // leaders and ticks

	Latest = Schedules
)

// A Migration is one step, in both directions.
type Migration struct {
	Version  int
	Name     string
	Up, Down string
}

// All returns the migrations in ascending order, with the schema's token replaced by schema, a quoted identifier.
func All(schema string) ([]Migration, error) {
	names, err := fs.Glob(FS, "*.up.sql")
	if err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
	}
	all := make([]Migration, 0, len(names))
	for _, up := range names {
		number, name, _ := strings.Cut(strings.TrimSuffix(path.Base(up), ".up.sql"), "_")
		version, err := strconv.Atoi(number)
		if err != nil {
			return nil, fmt.Errorf("migration %s: %w", up, err)
		}
		m := Migration{Version: version, Name: name}
		if m.Up, err = read(up, schema); err != nil {
			return nil, err
		}
		if m.Down, err = read(strings.TrimSuffix(up, ".up.sql")+".down.sql", schema); err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

func read(name, schema string) (string, error) {
	text, err := FS.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("migration %s: %w", name, err)
	}
	quoted := strings.ReplaceAll(schema, "'", "''") // within a literal, as in '"pglock".tokens'
	return strings.NewReplacer("'"+Schema, "'"+quoted, Schema, schema).Replace(string(text)), nil
}
