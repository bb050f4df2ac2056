package pgtest

import (
	"context"
	"errors"
)

func startContainer(context.Context, *options) (*Server, error) {
	return nil, errors.New("not built yet")
}
