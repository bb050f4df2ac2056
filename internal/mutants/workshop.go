package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	// testTimeout bounds one test of a mutant: some mutants hang.
	testTimeout = 90 * time.Second
	// batchTimeout bounds the tests of one package without a mutant.
	batchTimeout = 5 * time.Minute
)

// A workshop is a copy of the module.
type workshop struct {
	dir string
}

// newWorkshop copies the module that the current folder is in, without folders
// whose names begin with a dot. On success the caller closes it.
func newWorkshop(ctx context.Context) (*workshop, error) {
	mod, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return nil, err
	}
	root := filepath.Dir(strings.TrimSpace(string(mod)))
	dir, err := os.MkdirTemp("", "pglock-mutants-")
	if err != nil {
		return nil, err
	}
	w := &workshop{dir: dir}
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		switch {
		case strings.HasPrefix(entry.Name(), ".") && entry.IsDir():
			return filepath.SkipDir
		case entry.IsDir():
			return os.MkdirAll(filepath.Join(dir, name), 0o700)
		case !entry.Type().IsRegular() || strings.HasPrefix(entry.Name(), "."):
			return nil
		}
		return copyFile(path, filepath.Join(dir, name))
	})
	if err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o600)
}

func (w *workshop) close() error { return os.RemoveAll(w.dir) }

// passes runs tests on the module as it is; all of them must be there and pass.
func (w *workshop) passes(ctx context.Context, b batch) (time.Duration, error) {
	began := time.Now()
	program, err := w.build(ctx, b.pkg)
	if err != nil {
		return 0, err
	}
	out, err := w.test(ctx, program, b.pkg, b.tests, batchTimeout)
	if err != nil {
		return 0, fmt.Errorf("without any mutant %s: %w\n%s", b.pkg, err, out)
	}
	for _, name := range b.tests {
		if !strings.Contains(out, "--- PASS: "+name+" ") {
			return 0, fmt.Errorf("%w: %s in %s", errNoSuchTest, name, b.pkg)
		}
	}
	return time.Since(began).Round(100 * time.Millisecond), nil
}

// try makes the mutant, runs its test, and undoes it.
func (w *workshop) try(ctx context.Context, m mutant) (r result, err error) {
	began := time.Now()
	before := map[string][]byte{}
	defer func() {
		for path, data := range before {
			err = errors.Join(err, os.WriteFile(path, data, 0o600))
		}
		r.took = time.Since(began).Round(100 * time.Millisecond)
	}()
	r.mutant = m
	for _, e := range m.edits {
		path, data, err := e.find(w.dir)
		if err != nil {
			return r, err
		}
		if _, edited := before[path]; !edited {
			before[path] = data
		}
		if err := os.WriteFile(path, []byte(strings.Replace(string(data), e.old, e.now, 1)), 0o600); err != nil {
			return r, err
		}
	}
	program, err := w.build(ctx, m.pkg)
	if err != nil {
		return r, err
	}
	out, err := w.test(ctx, program, m.pkg, []string{m.test}, testTimeout)
	if ctx.Err() != nil {
		return r, ctx.Err()
	}
	if err == nil {
		return r, nil
	}
	if r.caughtBy, r.why = failures(out); len(r.caughtBy) == 0 {
		return r, fmt.Errorf("no test failed, yet: %w\n%s", err, out)
	}
	return r, nil
}

// find reads the file below root in which the edit's text stands once.
func (e edit) find(root string) (path string, data []byte, err error) {
	path = filepath.Join(root, filepath.FromSlash(e.file))
	if data, err = os.ReadFile(path); err != nil {
		return "", nil, err
	}
	if n := strings.Count(string(data), e.old); n != 1 {
		return "", nil, fmt.Errorf("%s has the text to be replaced %d times, not once:\n%s", e.file, n, e.old)
	}
	return path, data, nil
}

// build compiles the tests of a package. It compiles the rest as well, so that
// a mutant is one that somebody could have shipped.
func (w *workshop) build(ctx context.Context, pkg string) (program string, err error) {
	program = filepath.Join(w.dir, "mutant.test")
	for _, args := range [][]string{
		{"build", "./pglock/...", "./migrations/...", "./internal/keyhash/..."},
		{"test", "-c", "-o", program, pkg},
	} {
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir = w.dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("it does not compile: %w\n%s", err, out)
		}
	}
	return program, nil
}

// test runs tests of a package and returns what they printed. The error says
// that they failed.
func (w *workshop) test(ctx context.Context, program, pkg string, tests []string, timeout time.Duration) (string, error) {
	cmd := exec.CommandContext(ctx, program, "-test.v", "-test.timeout="+timeout.String(),
		"-test.run=^("+strings.Join(tests, "|")+")$")
	cmd.Dir = filepath.Join(w.dir, filepath.FromSlash(pkg))
	cmd.WaitDelay = 10 * time.Second // for what a test that hung has left
	out, err := cmd.CombinedOutput()
	return string(out), err
}

var (
	failed = regexp.MustCompile(`(?m)^--- FAIL: (\w+)`)
	hung   = regexp.MustCompile(`(?m)^panic: test timed out after \w+\n\s*running tests:\n\s*(\w+)`)
	reason = regexp.MustCompile(`(?m)^\s*Error:\s+(\S.*)$`)
	remark = regexp.MustCompile(`(?m)^\s*Messages:\s+(\S.*)$`)
)

// failures are the tests that failed, or did not end, and what the first said.
func failures(out string) (tests []string, why string) {
	for _, match := range failed.FindAllStringSubmatch(out, -1) {
		tests = append(tests, match[1])
	}
	if match := hung.FindStringSubmatch(out); match != nil {
		return append(tests, match[1]), "did not end"
	}
	for _, expression := range []*regexp.Regexp{remark, reason} {
		if match := expression.FindStringSubmatch(out); match != nil {
			why = match[1]
			break
		}
	}
	const most = 70
	if len(why) > most {
		why = why[:most] + "…"
	}
	return slices.Compact(tests), strings.ToValidUTF8(why, "")
}
