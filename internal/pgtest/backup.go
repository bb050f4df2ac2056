package pgtest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
)

// Backup is a copy of a server's data, from which servers can be started with
// FromBackup.
type Backup struct {
	folder *folder // nil for a copy in Docker
	binDir string

	container *container // of a copy in Docker: whose volume has it
	volume    string
	name      string
}

// BaseBackup copies the running server's data with pg_basebackup. On success the
// caller closes the copy, which is otherwise gone with the process; on failure
// nothing is left. In Docker the copy is gone with the server too.
func (s *Server) BaseBackup(ctx context.Context) (*Backup, error) {
	if c, ok := s.driver.(*container); ok {
		return c.backup(ctx)
	}
	return s.takeBackup(func(l *local, dir string) error {
		program, err := l.bin.program("pg_basebackup")
		if err != nil {
			return err
		}
		return run(ctx, l.acct, program, "-d", s.SocketDSN(""), "-D", dir, "--checkpoint=fast", "--wal-method=stream", "--no-sync")
	})
}

// Snapshot copies the data folder of a server that is down, but not in Docker.
func (s *Server) Snapshot(ctx context.Context) (*Backup, error) {
	s.life.Lock()
	defer s.life.Unlock()
	return s.takeBackup(func(l *local, dir string) error {
		if c := l.current(); c == nil || !c.ended() {
			return errors.New("the server is running; Stop it, or take a BaseBackup")
		}
		return copyTree(ctx, l.acct, l.dataDir(), dir)
	})
}

func (s *Server) takeBackup(take func(l *local, dir string) error) (*Backup, error) {
	l, err := s.onThisMachine()
	if err != nil {
		return nil, err
	}
	dir, err := newFolder(l.acct, "pgtest-backup-", "none.pid")
	if err != nil {
		return nil, err
	}
	b := &Backup{folder: dir, binDir: l.bin.dir}
	if err := take(l, b.dataDir()); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

func (b *Backup) dataDir() string { return filepath.Join(b.folder.path, "data") }

// Close removes the copy, as the end of the process does. Call it once.
func (b *Backup) Close() error {
	if b.container == nil {
		return b.folder.close()
	}
	ctx, cancel := cleanupContext()
	defer cancel()
	_, err := b.container.exec(ctx, "rm", "-rf", containerBackups+"/"+b.name)
	return err
}

// onThisMachine is the local server, or the reason why there is none.
func (s *Server) onThisMachine() (*local, error) {
	if s.local != nil {
		return s.local, nil
	}
	if _, ok := s.driver.(external); ok {
		return nil, ErrNotOurs
	}
	return nil, ErrNotLocal
}

// Dump is what pg_dump writes for the database: SQL that Restore can run.
func (s *Server) Dump(ctx context.Context, database string) ([]byte, error) {
	if c, ok := s.driver.(*container); ok {
		return c.dump(ctx, orSuperuser(database))
	}
	l, err := s.onThisMachine()
	if err != nil {
		return nil, err
	}
	program, err := l.bin.program("pg_dump")
	if err != nil {
		return nil, err
	}
	return output(ctx, l.acct, nil, program, "--dbname", s.SocketDSN(database))
}

// Restore runs a dump in an existing database of this server. It stops at the
// first error.
func (s *Server) Restore(ctx context.Context, database string, dump []byte) error {
	if c, ok := s.driver.(*container); ok {
		return c.restore(ctx, orSuperuser(database), dump)
	}
	l, err := s.onThisMachine()
	if err != nil {
		return err
	}
	program, err := l.bin.program("psql")
	if err != nil {
		return err
	}
	_, err = output(ctx, l.acct, dump, program,
		"--dbname", s.SocketDSN(database), "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1")
	return err
}

// replicationDSN is what a standby connects to.
func (s *Server) replicationDSN(ctx context.Context, name string) (string, error) {
	var host string
	port := "5432"
	switch d := s.driver.(type) {
	case *local:
		host, port = d.folder.path, strconv.Itoa(d.port)
	case *container:
		ip, err := d.ctr.ContainerIP(ctx)
		if err != nil {
			return "", err
		}
		host = ip
	default:
		return "", ErrNotOurs
	}
	return fmt.Sprintf("host=%s port=%s user=%s application_name=%s", host, port, superuser, name), nil
}
