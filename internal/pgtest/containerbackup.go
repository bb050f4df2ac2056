package pgtest

import (
	"context"
	"crypto/rand"
	"strings"

	"github.com/moby/moby/client"
	tcexec "github.com/testcontainers/testcontainers-go/exec"
)

// multiplexed takes Docker's framing off what a program in a container wrote.
func multiplexed() tcexec.ProcessOption { return tcexec.Multiplexed() }

// backup commits the container to an image. Docker pauses it meanwhile, so the
// copy is what a power failure at that moment would leave: the server that is
// started from it begins with crash recovery.
func (c *container) backup(ctx context.Context) (*Backup, error) {
	name := "pgtest-backup-" + strings.ToLower(rand.Text()[:12])
	dog, err := dockerWatchdog("docker rmi -f", name)
	if err != nil {
		return nil, err
	}
	b := &Backup{image: name, dog: dog, docker: c.docker}
	if _, err := c.docker.ContainerCommit(ctx, c.name, client.ContainerCommitOptions{Reference: name}); err != nil {
		_ = b.Close() // there may be nothing to remove
		return nil, err
	}
	return b, nil
}

func (c *container) dump(ctx context.Context, database string) ([]byte, error) {
	return c.exec(ctx, "pg_dump", "-U", superuser, "-d", database)
}

func (c *container) restore(ctx context.Context, database string, dump []byte) error {
	const path = "/tmp/pgtest-dump.sql"
	if err := c.ctr.CopyToContainer(ctx, dump, path, 0o644); err != nil {
		return err
	}
	_, err := c.exec(ctx, "psql", "-U", superuser, "-d", database,
		"--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--file", path)
	return err
}
