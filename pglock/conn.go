package pglock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
)

// This file is the only one that opens, hijacks and closes connections. A connection is a candidate until a lock has been
// taken on it, or until it is to wait for one: then it is hijacked out of the pool and becomes a lockConn, which belongs
// to one goroutine until it is closed. It never goes back.

// poolPatience is how long a pool that seems to have room may take before it is asked again whether it has.
const poolPatience = 100 * time.Millisecond

// busyPatience is how long a connection of a pool that has none at hand is waited for before another is dialled, which takes
// about as long: where many ask for a moment, such as candidates that poll, one is back by then, and dialling for each of
// them would keep the machine too busy to give any back.
const busyPatience = 50 * time.Millisecond

// connectionPatience is how long a connection that is being made is waited for before the pool is asked for another.
const connectionPatience = time.Second

// closeTimeout bounds the farewell of a connection.
const closeTimeout = time.Second

// A candidate is a connection that is not ours yet.
type candidate struct {
	pooled   *pgxpool.Conn // nil if it was dialled, or has left the pool
	fromPool bool
	conn     *pgx.Conn
	wire     *wire
}

// openCandidate takes a connection from the pool if the pool can give one soon. If all are busy with the service's own work it
// dials one instead: holders that wait behind the workers that wait for them would stop the whole service.
func openCandidate(ctx context.Context, pool *pgxpool.Pool) (*candidate, error) {
	for {
		stat := pool.Stat()
		busy := stat.IdleConns() == 0 && stat.TotalConns() >= stat.MaxConns()
		patient := poolPatience
		if busy {
			patient = busyPatience
		}
		patience, cancel := context.WithTimeout(ctx, patient)
		pooled, err := pool.Acquire(patience)
		cancel()
		switch {
		case err == nil:
			return pooledCandidate(pooled), nil
		case ctx.Err() != nil:
			return nil, unavailable(fmt.Errorf("no connection in time: %w", ctx.Err()))
		case !errors.Is(err, context.DeadlineExceeded):
			return nil, unavailable(err)
		case busy:
			return dial(ctx, pool)
		}
		awaitConnection(ctx, pool)
	}
}

// awaitConnection waits for a connection that the pool is making, though whoever it was made for has lost patience: asked
// again at once the pool would make one more, and where connecting takes long one lock would cost many.
func awaitConnection(ctx context.Context, pool *pgxpool.Pool) {
	ctx, cancel := context.WithTimeout(ctx, connectionPatience)
	defer cancel()
	look := time.NewTicker(poolPatience / 20)
	defer look.Stop()
	for {
		if stat := pool.Stat(); stat.IdleConns() > 0 || stat.ConstructingConns() == 0 {
			return
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
	}
}

// idleCandidate takes a connection from the pool if it has one at hand, and returns nil if that is not so.
func idleCandidate(ctx context.Context, pool *pgxpool.Pool) *candidate {
	if pool.Stat().IdleConns() == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, busyPatience)
	defer cancel()
	pooled, err := pool.Acquire(ctx)
	if err != nil {
		return nil // who asks with more patience finds out why
	}
	return pooledCandidate(pooled)
}

func pooledCandidate(pooled *pgxpool.Conn) *candidate {
	return &candidate{pooled: pooled, fromPool: true, conn: pooled.Conn(), wire: newWire(pooled.Conn())}
}

// dial connects as the pool would.
func dial(ctx context.Context, pool *pgxpool.Pool) (*candidate, error) {
	config := pool.Config()
	config.ConnConfig.Tracer = nil // the lock connection's traffic is not the user's
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
			return nil, unavailable(fmt.Errorf("BeforeConnect: %w", err))
		}
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return nil, unavailable(err)
	}
	if config.AfterConnect != nil {
		if err := config.AfterConnect(ctx, conn); err != nil {
			abandon(conn)
			return nil, unavailable(fmt.Errorf("AfterConnect: %w", err))
		}
	}
	return &candidate{conn: conn, wire: newWire(conn)}, nil
}

// exec sends one simple message: see wire.ask. When ctx ends it waits a little longer for the answer, which is cheaper than
// a new connection: nothing that is asked here waits on the server. On any error the connection must be discarded.
func (c *candidate) exec(ctx context.Context, sql string) ([][][]byte, error) {
	deadline, _ := ctx.Deadline()
	if err := c.wire.net.SetDeadline(deadline); err != nil {
		return nil, err
	}
	hurried := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = c.wire.net.SetDeadline(time.Now().Add(closeTimeout))
		close(hurried)
	})
	rows, err := c.wire.ask(request{sql: sql})
	if !stop() {
		<-hurried // or the deadline would be set on a connection that is in the pool again
		if err != nil {
			err = fmt.Errorf("%w: %w", err, ctx.Err())
		}
	}
	return rows, err
}

// ask sends one message and reads the answer, until the deadline or until one of ctxs ends; then the error is timedOut, and the
// answer may be awaited. On any other error the connection must be discarded.
func (c *candidate) ask(r request, deadline time.Time, ctxs ...context.Context) ([][][]byte, error) {
	if err := c.wire.net.SetDeadline(deadline); err != nil {
		return nil, err
	}
	c.wire.reset()
	if err := c.wire.send(r); err != nil {
		if timedOut(err) {
			err = errUnsent // no answer will come
		}
		return nil, err
	}
	return c.wire.hear(ctxs...)
}

var errUnsent = fmt.Errorf("%w: the request could not be sent in time", ErrUnavailable)

// await goes on reading the answer to ask.
func (c *candidate) await(deadline time.Time, ctxs ...context.Context) ([][][]byte, error) {
	if err := c.wire.net.SetDeadline(deadline); err != nil {
		return nil, err
	}
	return c.wire.hear(ctxs...)
}

// learn keeps with the connection what functions of a schema its server has, and whether the reign was found current there.
func (c *candidate) learn(schema string, f functions, known bool) {
	if f.acquireOne != 0 {
		c.conn.PgConn().CustomData()[customData+schema] = &learned{f, known}
	}
}

// customData begins the name of what is kept with a connection.
const customData = "pglock "

type learned struct {
	functions functions
	known     bool
}

// learned returns what was learned, nil if nothing was.
func (c *candidate) learned(schema string) (f *functions, known bool) {
	l, ok := c.conn.PgConn().CustomData()[customData+schema].(*learned)
	if !ok {
		return nil, false
	}
	return &l.functions, l.known
}

func (c *candidate) pid() uint32 { return c.conn.PgConn().PID() }

// giveBack returns a connection of which nothing was changed. One that was dialled is closed.
func (c *candidate) giveBack() {
	if c.pooled == nil {
		c.adopt().close()
		return
	}
	_ = c.wire.net.SetDeadline(time.Time{}) // the pool looks after what is closed by now
	c.pooled.Release()
}

// discard closes the connection whatever its state, at once: a request that is under way may have taken a lock, and the
// server gives it up when it finds the socket closed. pgxpool's Release would not notice the lock.
func (c *candidate) discard() {
	if c.pooled != nil {
		c.pooled.Hijack()
		c.pooled = nil
	}
	abandon(c.conn)
}

// abandon closes the socket, and then what pgx keeps of the connection.
//
//nolint:contextcheck // no ctx may keep a connection open
func abandon(conn *pgx.Conn) {
	_ = conn.PgConn().Conn().Close()
	_ = conn.PgConn().Close(context.Background()) // fails on the closed socket, which takes no time
}

// past is a deadline that ends reads and writes at once.
func past() time.Time { return time.Unix(1, 0) }

// adopt makes the connection ours.
func (c *candidate) adopt() *lockConn {
	if c.pooled != nil {
		c.pooled.Hijack()
	}
	return &lockConn{wire: c.wire, conn: c.conn}
}

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

// hear is receive for whom the end of a context may end it. The read deadline is then in the past.
func (c *wire) hear(ctxs ...context.Context) ([][][]byte, error) {
	var ended sync.WaitGroup
	var stops [2]func() bool
	for i, ctx := range ctxs {
		if ctx.Done() == nil {
			continue
		}
		ended.Add(1)
		stops[i] = context.AfterFunc(ctx, func() {
			_ = c.net.SetReadDeadline(past())
			ended.Done()
		})
	}
	rows, err := c.receive()
	for _, stop := range stops {
		if stop != nil && stop() {
			ended.Done()
		}
	}
	ended.Wait() // or the deadline would be set for whoever reads next
	return rows, err
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

// A lockConn is a connection that is ours. All of its methods belong to the session's owner goroutine, except sendFor and wake.
type lockConn struct {
	*wire
	conn *pgx.Conn
}

// roundTrip is ask with a deadline.
func (c *lockConn) roundTrip(r request, deadline time.Time) ([][][]byte, error) {
	if err := c.net.SetDeadline(deadline); err != nil {
		return nil, err
	}
	return c.ask(r)
}

// sendFor sends a request while the owner listens, who hears the answer. It does not block, since nothing else is under way:
// the message fits into the socket's buffer. If it fails the owner finds the connection closed.
func (c *lockConn) sendFor(r request, deadline time.Time) {
	err := c.net.SetWriteDeadline(deadline)
	if err == nil {
		err = c.send(r)
	}
	if err != nil {
		c.unsent.Store(&err)
		_ = c.net.Close()
	}
}

// wake ends the owner's read. It may be called from any goroutine that has put the owner out of its sleep, under manager.mu.
func (c *lockConn) wake() {
	_ = c.net.SetReadDeadline(past()) // a closed socket has ended the read already
}

// close says farewell and closes. The server ends the session when it reads either.
//
//nolint:contextcheck // no ctx may keep a connection open
func (c *lockConn) close() {
	_ = c.net.SetDeadline(time.Now().Add(closeTimeout))
	c.sending.Lock()
	defer c.sending.Unlock()
	_ = c.conn.PgConn().Close(context.Background()) // bounded by the socket's deadline
}

// abandon closes the socket at once: there is no telling what the server would still read.
func (c *lockConn) abandon() {
	_ = c.net.Close() // which ends what others may be sending
	c.sending.Lock()
	defer c.sending.Unlock()
	abandon(c.conn)
}
