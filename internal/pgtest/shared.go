package pgtest

import (
	"context"
	"errors"
	"sync"
	"time"
)

// startTimeout bounds the start of the shared server; pulling an image is in it.
const startTimeout = 5 * time.Minute

// lazyServer is a server that is started when it is first asked for.
type lazyServer struct {
	mu     sync.Mutex // guards all below; held over the start
	asked  bool
	server *Server
	err    error
}

// shared is the test process's one server.
var shared lazyServer //nolint:gochecknoglobals // TestMain and the tests have nothing else in common

// get starts the server once. An error is final: trying again in every test
// would only repeat it more slowly.
func (l *lazyServer) get() (*Server, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.asked {
		l.asked = true
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		l.server, l.err = Start(ctx)
	}
	return l.server, l.err
}

// close ends the server; later calls of get fail.
func (l *lazyServer) close(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.server == nil {
		return nil
	}
	s := l.server
	l.asked, l.server, l.err = true, nil, errors.New("the test process's server is closed")
	return s.Close(ctx)
}
