package pgtest_test

import (
	"context"
	"testing"

	"github.com/seed35111a8b/pglock/internal/pgtest"
)

func TestMain(m *testing.M) {
	pgtest.Main(
		m,
		pgtest.Role{Name: "serve", Run: serve},
		pgtest.Role{Name: "echo", Run: echo},
		pgtest.Role{Name: "network", Run: network},
	)
}

// serve starts a server, says where it is, and waits to be killed.
func serve(ctx context.Context, self *pgtest.Self) error {
	s, err := pgtest.Start(ctx, pgtest.Own())
	if err != nil {
		return err
	}
	self.Say("serving", s.Dir()+s.Container())
	switch line, err := self.Hear(); {
	case err != nil:
		return err
	case line == "panic":
		panic("as told")
	}
	return s.Close(ctx)
}

// echo stands at the barrier, then repeats what it hears.
func echo(_ context.Context, self *pgtest.Self) error {
	if err := self.Barrier(); err != nil {
		return err
	}
	for {
		line, err := self.Hear()
		if err != nil {
			return err
		}
		self.Say("echo", line)
	}
}
