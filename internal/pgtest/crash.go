package pgtest

import (
	"context"
	"errors"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// What the server writes when it lost a backend and when it is back.
const (
	reinitPattern = "all server processes terminated; reinitializing"
	readyPattern  = "database system is ready to accept connections"
)

// CrashBackend ends one backend of its own with SIGKILL, so that the
// postmaster survives, ends every other session and rebuilds shared memory. It
// returns when the server accepts connections again.
func (s *Server) CrashBackend(ctx context.Context) error {
	s.life.Lock()
	defer s.life.Unlock()
	mark, err := s.Mark(ctx)
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, s.DSN(""))
	if err != nil {
		return err
	}
	var pid int
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		return errors.Join(err, conn.Close(ctx))
	}
	err = s.driver.signal(ctx, pid, syscall.SIGKILL)
	_ = conn.Close(ctx) // the server is gone from its other end
	if err != nil {
		return err
	}
	return s.AwaitCrashRecovery(ctx, mark)
}

// AwaitCrashRecovery returns when the server, after a backend was killed by
// SignalBackend, accepts connections again; mark is from before the kill.
func (s *Server) AwaitCrashRecovery(ctx context.Context, mark LogMark) error {
	if _, err := s.WaitLog(ctx, mark, reinitPattern); err != nil {
		return err
	}
	// The mark is from a running server, so this line is from after the crash.
	_, err := s.WaitLog(ctx, mark, readyPattern)
	return err
}
