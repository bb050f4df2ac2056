package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
)

// run is one program, as the account, to its end.
func run(ctx context.Context, acct *account, name string, args ...string) error {
	_, err := output(ctx, acct, nil, name, args...)
	return err
}

// output runs a program on the input and returns its standard output; what it
// wrote to its standard error becomes part of the error. When ctx ends first
// the program is killed and the error matches ctx's.
func output(ctx context.Context, acct *account, input []byte, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	acct.apply(cmd)
	dieWithParent(cmd, syscall.SIGQUIT)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, errors.Join(ctx.Err(), fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, stderr.Bytes()))
	}
	return stdout.Bytes(), nil
}
