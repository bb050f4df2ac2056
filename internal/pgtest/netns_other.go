//go:build !linux

package pgtest

import (
	"context"
	"errors"
	"net"
)

// Dial fails: there are no network namespaces here.
func (*Host) Dial(context.Context, string, string) (net.Conn, error) {
	return nil, errors.ErrUnsupported
}
