package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

// LogMark is a place in the server's log.
type LogMark int64

// LogText is everything that the server has logged since it was made.
func (s *Server) LogText(ctx context.Context) (string, error) {
	return s.driver.log(ctx)
}

// Mark is the present end of the server's log.
func (s *Server) Mark(ctx context.Context) (LogMark, error) {
	text, err := s.driver.log(ctx)
	return LogMark(len(text)), err
}

// LogSince is what the server has logged after the mark.
func (s *Server) LogSince(ctx context.Context, mark LogMark) (string, error) {
	text, err := s.driver.log(ctx)
	return text[min(int(mark), len(text)):], err
}

// WaitLog returns the first whole line after the mark that matches the regular
// expression. When ctx ends first its error is returned with what was logged.
func (s *Server) WaitLog(ctx context.Context, mark LogMark, pattern string) (line string, err error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return "", err
	}
	var text string
	var logErr error
	waitErr := Poll(ctx, fmt.Sprintf("a log line that matches %q", pattern), func() bool {
		if text, logErr = s.LogSince(ctx, mark); logErr != nil {
			return true
		}
		for l := range strings.Lines(text) {
			if strings.HasSuffix(l, "\n") && re.MatchString(l) {
				line = strings.TrimSuffix(l, "\n")
				return true
			}
		}
		return false
	})
	if err := errors.Join(waitErr, logErr); err != nil {
		return "", fmt.Errorf("%w; logged since:\n%s", err, text)
	}
	return line, nil
}

func (l *local) log(context.Context) (string, error) {
	text, err := os.ReadFile(l.logFile())
	return string(text), err
}

func (l *local) logSize() int64 {
	info, err := os.Stat(l.logFile())
	if err != nil {
		return 0
	}
	return info.Size()
}

// logSince is for messages; what cannot be read is left out.
func (l *local) logSince(mark int64) string {
	f, err := os.Open(l.logFile())
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Seek(mark, io.SeekStart); err != nil {
		return ""
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return ""
	}
	return string(text)
}
