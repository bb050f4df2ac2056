package pgtest

import (
	"context"
	"crypto/rand"
	"strings"

	tcexec "github.com/testcontainers/testcontainers-go/exec"
)

// multiplexed takes Docker's framing off what a program in a container wrote.
func multiplexed() tcexec.ProcessOption { return tcexec.Multiplexed() }

// backup takes a base backup into the container's volume of backups, from which
// other containers copy it.
func (c *container) backup(ctx context.Context) (*Backup, error) {
	b := &Backup{container: c, volume: c.volume(), name: strings.ToLower(rand.Text()[:12])}
	_, err := c.exec(ctx, "pg_basebackup", "-U", superuser, "-D", containerBackups+"/"+b.name,
		"--checkpoint=fast", "--wal-method=stream", "--no-sync")
	if err != nil {
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
