package pgtest

import (
	"maps"
)

// Option changes how Start makes a server. An option that configures the
// server itself implies Own: a server named by DATABASE_URL is not ours to
// configure.
type Option func(*options)

type options struct {
	own      bool
	durable  bool
	binDir   string
	settings map[string]string
	listen   []string
	hba      []string
	backup   *Backup
	standby  bool
}

func newOptions(opts []Option) *options {
	o := &options{settings: map[string]string{}}
	for _, apply := range opts {
		apply(o)
	}
	return o
}

// Own asks for a server that belongs to the caller alone and may be crashed,
// whatever DATABASE_URL says.
func Own() Option {
	return func(o *options) { o.own = true }
}

// Setting sets one line of postgresql.conf, for example
// Setting("deadlock_timeout", "200ms").
func Setting(name, value string) Option {
	return func(o *options) {
		o.own = true
		o.settings[name] = value
	}
}

// Settings sets many lines of postgresql.conf.
func Settings(settings map[string]string) Option {
	return func(o *options) {
		o.own = true
		maps.Copy(o.settings, settings)
	}
}

// Listen adds addresses to listen_addresses, beside 127.0.0.1 and the socket.
// Clients of any address are let in without a password; HBA narrows that.
func Listen(addresses ...string) Option {
	return func(o *options) {
		o.own = true
		o.listen = append(o.listen, addresses...)
	}
}

// HBA puts lines of pg_hba.conf before the ones that trust everybody, for
// example "host all guest 127.0.0.1/32 scram-sha-256".
func HBA(lines ...string) Option {
	return func(o *options) {
		o.own = true
		o.hba = append(o.hba, lines...)
	}
}

// Durable leaves fsync on. Without it the server trades what a power failure
// of the machine would cost, which no test can see, for speed.
func Durable() Option {
	return func(o *options) {
		o.own = true
		o.durable = true
	}
}

// BinDir names the folder of the server binaries, for tests of two majors
// beside each other. Without it they are looked for as Start says.
func BinDir(dir string) Option {
	return func(o *options) {
		o.own = true
		o.binDir = dir
	}
}

// FromBackup starts the server on a copy of the backup rather than on an empty
// data folder. The backup can be started from again.
func FromBackup(b *Backup) Option {
	return func(o *options) {
		o.own = true
		o.backup = b
		o.binDir = b.binDir
	}
}
