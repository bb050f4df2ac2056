// Package tooltest runs the migration files with the tools that they are named for, golang-migrate and goose, as
// libraries and on a real PostgreSQL. It is a module of its own, so that nobody who imports pglock gets their
// dependencies; `go test ./...` in this folder runs it.
//
// Locker.Migrate and the tools keep separate books: it reads the table pglock.migrations, which the files themselves
// write; the tools read tables of their own. So Locker.Migrate changes nothing after a tool, while a tool that comes
// second tries to create what is there and fails on the primary key of pglock.migrations, with nothing changed. To take
// over, tell it where the database is: Force(3) and its command line's `migrate force 3` for golang-migrate, a row for each
// version in its table for goose.
package tooltest
