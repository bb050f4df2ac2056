package pglock

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// A wire speaks in whole messages, each a request of its own. It goes through the frontend itself and not through pgconn, whose answer to a
// request that is cut short is a goroutine that tries for up to 15 seconds to cancel it, and keeps the socket open
// meanwhile, and with it a lock that the request may have taken.
//
// One goroutine reads. Requests may be sent by others, one at a time and none before the last was answered.
type wire struct {
	net     net.Conn
	sending sync.Mutex // for what is sent: a farewell may come while somebody sends
	front   *pgproto3.Frontend
	rows    [][][]byte // of the answer so far; memory is used again
	flat    []byte
	failed  *pgconn.PgError       // in the answer so far
	unsent  atomic.Pointer[error] // why the socket was closed by somebody who sent
}

func newWire(conn *pgx.Conn) *wire {
	return &wire{net: conn.PgConn().Conn(), front: conn.PgConn().Frontend()}
}

// ask sends one message and reads the answer up to ReadyForQuery. It returns the rows of all results, of a call the one value; they
// are valid until the next request. An error of the server is a *pgconn.PgError, after which the connection is in step; any
// other error ends the connection.
func (c *wire) ask(r request) ([][][]byte, error) {
	c.reset()
	if err := c.send(r); err != nil {
		return nil, err
	}
	return c.receive()
}

// reset forgets the last answer.
func (c *wire) reset() {
	c.rows, c.flat, c.failed = c.rows[:0], c.flat[:0], nil
}

func (c *wire) send(r request) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	c.front.Send(r.message())
	return c.front.Flush()
}

// receive reads the rest of an answer, or what the server says unasked if nothing was sent: something that ends the session
// is an error, the rest does not concern us. After an error that timedOut reports it may be called again.
func (c *wire) receive() ([][][]byte, error) {
	for {
		message, err := c.front.Receive()
		if err != nil {
			if timedOut(err) {
				return nil, err
			}
			if unsent := c.unsent.Load(); unsent != nil {
				err = *unsent
			}
			return nil, errors.Join(pgErrorOrNil(c.failed), err)
		}
		switch message := message.(type) {
		case *pgproto3.DataRow:
			c.keep(message.Values...)
		case *pgproto3.FunctionCallResponse:
			c.keep(message.Result)
		case *pgproto3.ErrorResponse:
			c.failed = pgconn.ErrorResponseToPgError(message)
			if c.failed.SeverityUnlocalized == "FATAL" || c.failed.SeverityUnlocalized == "PANIC" {
				return nil, c.failed
			}
		case *pgproto3.ReadyForQuery:
			if c.failed != nil {
				return nil, c.failed
			}
			return c.rows, nil
		}
	}
}

// hear is receive for whom the end of ctx may end it. The read deadline is then in the past.
func (c *wire) hear(ctx context.Context) ([][][]byte, error) {
	if ctx.Done() == nil {
		return c.receive()
	}
	hurried := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		c.hurry()
		close(hurried)
	})
	rows, err := c.receive()
	if !stop() {
		<-hurried // or the deadline would be set for whoever reads next
	}
	return rows, err
}

// hurry ends a read. It may be called from any goroutine.
func (c *wire) hurry() {
	_ = c.net.SetReadDeadline(past()) // a closed socket has ended the read already
}

// timedOut reports whether a read ended by its deadline.
func timedOut(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

// keep copies a row out of the frontend's buffer.
func (c *wire) keep(values ...[]byte) {
	row := make([][]byte, len(values))
	for i, value := range values {
		if value == nil {
			continue
		}
		from := len(c.flat)
		c.flat = append(c.flat, value...)
		row[i] = c.flat[from:len(c.flat):len(c.flat)]
	}
	c.rows = append(c.rows, row)
}

// pgErrorOrNil keeps a nil pointer from becoming an error that is not nil.
func pgErrorOrNil(err *pgconn.PgError) error {
	if err == nil {
		return nil
	}
	return err
}

// past is a deadline that ends reads and writes at once.
func past() time.Time { return time.Unix(1, 0) }
