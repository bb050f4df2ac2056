package pglock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// This file is the only one that opens, hijacks and closes connections; what is said on them goes through wire.go. A connection is
// a candidate until a lock has been taken on it, or until it is to wait for one: then it is hijacked out of the pool and becomes a
// lockConn, which belongs to one session until it is closed. It never goes back.

// poolPatience is how long a pool that seems to have room may take before it is asked again whether it has.
const poolPatience = 100 * time.Millisecond

// busyPatience is how long a connection of a pool that has none at hand is waited for before another is dialled, which takes
// about as long: where many ask for a moment, such as candidates that poll, one is back by then, and dialling for each of
// them would keep the machine too busy to give any back.
const busyPatience = 50 * time.Millisecond

// poolClosed is what a closed pool says. The error has a name, but in a module that pgx uses and does not show.
const poolClosed = "closed pool"

// morePatience is the context key of a longer busyPatience, of those that are not in a hurry.
type morePatience struct{}

// withPatience lets what ctx opens wait for d before it dials.
func withPatience(ctx context.Context, d time.Duration) context.Context {
	return context.WithValue(ctx, morePatience{}, d)
}

// connectionPatience is how long a connection that the pool is making is waited for before another is dialled.
const connectionPatience = time.Second

// closeTimeout bounds the farewell of a connection.
const closeTimeout = time.Second

// A candidate is a connection that is not ours yet.
type candidate struct {
	pooled   *pgxpool.Conn // nil if it was dialled, or has left the pool
	fromPool bool
	conn     *pgx.Conn
	*kept
}

// kept is what is kept with a connection from one lock to the next, in pgconn's CustomData.
type kept struct {
	wire      *wire
	args      args
	functions functions // that its server has; zero where that is not known yet
	known     bool      // the reign was found current
}

// keptWith returns what is kept with a connection for the Lockers of a schema.
func keptWith(conn *pgx.Conn, schema string) *kept {
	data := conn.PgConn().CustomData()
	k, _ := data[customData+schema].(*kept)
	if k == nil {
		k = &kept{wire: newWire(conn)}
		data[customData+schema] = k
	}
	return k
}

// customData begins the name of what is kept.
const customData = "pglock "

// openCandidate takes a connection from the pool if the pool can give one soon. If all are busy with the service's own work it
// dials one instead: holders that wait behind the workers that wait for them would stop the whole service.
func openCandidate(ctx context.Context, pool *pgxpool.Pool, schema string) (*candidate, error) {
	for {
		stat := pool.Stat()
		busy := stat.IdleConns() == 0 && stat.TotalConns() >= stat.MaxConns()
		patient := poolPatience
		if busy {
			more, _ := ctx.Value(morePatience{}).(time.Duration)
			patient = max(busyPatience, more)
		}
		patience, cancel := context.WithTimeout(ctx, patient)
		pooled, err := pool.Acquire(patience)
		cancel()
		switch {
		case err == nil:
			return pooledCandidate(pooled, schema), nil
		case ctx.Err() != nil:
			return nil, unavailable(fmt.Errorf("no connection in time: %w", ctx.Err()))
		case err.Error() == poolClosed:
			return nil, unavailable(fmt.Errorf("%w: its pool was closed before it", ErrClosed))
		case !errors.Is(err, context.DeadlineExceeded):
			return nil, unavailable(err)
		case busy || !awaitConnection(ctx, pool):
			return dial(ctx, pool, schema)
		}
	}
}

// awaitConnection waits for a connection that the pool is making, though whoever it was made for has lost patience: asked
// again at once the pool would make one more, and where connecting takes long one lock would cost many. It reports false if
// none comes of it: then one that is dialled says why, which the pool tells only those who still wait for it.
func awaitConnection(ctx context.Context, pool *pgxpool.Pool) bool {
	ctx, cancel := context.WithTimeout(ctx, connectionPatience)
	defer cancel()
	look := time.NewTicker(poolPatience / 20)
	defer look.Stop()
	for {
		switch stat := pool.Stat(); {
		case stat.IdleConns() > 0:
			return true
		case stat.ConstructingConns() == 0:
			return false
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return false
		}
	}
}

// idleCandidate takes a connection from the pool if it has one at hand, and returns nil if that is not so.
func idleCandidate(patience context.Context, pool *pgxpool.Pool, schema string) *candidate {
	if pool.Stat().IdleConns() == 0 {
		return nil
	}
	pooled, err := pool.Acquire(patience)
	if err != nil {
		return nil // who asks with more patience finds out why
	}
	return pooledCandidate(pooled, schema)
}

func pooledCandidate(pooled *pgxpool.Conn, schema string) *candidate {
	return &candidate{pooled: pooled, fromPool: true, conn: pooled.Conn(), kept: keptWith(pooled.Conn(), schema)}
}

// dial connects as the pool would.
func dial(ctx context.Context, pool *pgxpool.Pool, schema string) (*candidate, error) {
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
	return &candidate{conn: conn, kept: keptWith(conn, schema)}, nil
}

// exec sends one message: see wire.ask. When ctx ends it waits a little longer for the answer, which is cheaper than
// a new connection: nothing that is asked here waits on the server. On any error the connection must be discarded.
func (c *candidate) exec(ctx context.Context, r request) ([][][]byte, error) {
	deadline, _ := ctx.Deadline()
	if err := c.wire.net.SetDeadline(deadline); err != nil {
		return nil, err
	}
	hurried := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = c.wire.net.SetDeadline(time.Now().Add(closeTimeout))
		close(hurried)
	})
	rows, err := c.wire.ask(r)
	if !stop() {
		<-hurried // or the deadline would be set on a connection that is in the pool again
		if err != nil {
			err = fmt.Errorf("%w: %w", err, ctx.Err())
		}
	}
	return rows, err
}

// ask sends one message and reads the answer, until the deadline, if there is one, or until ctx ends; then the error is timedOut, and
// the answer may be awaited. On any other error the connection must be discarded.
func (c *candidate) ask(ctx context.Context, r request, deadline time.Time) ([][][]byte, error) {
	if !deadline.IsZero() {
		if err := c.wire.net.SetDeadline(deadline); err != nil {
			return nil, err
		}
	}
	c.wire.reset()
	if err := c.wire.send(r); err != nil {
		if timedOut(err) {
			err = errUnsent // no answer will come
		}
		return nil, err
	}
	return c.wire.hear(ctx)
}

var errUnsent = fmt.Errorf("%w: the request could not be sent in time", ErrUnavailable)

// await goes on reading the answer to ask.
func (c *candidate) await(ctx context.Context, deadline time.Time) ([][][]byte, error) {
	if err := c.wire.net.SetDeadline(deadline); err != nil {
		return nil, err
	}
	return c.wire.hear(ctx)
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

// adopt makes the connection ours.
func (c *candidate) adopt() *lockConn {
	if c.pooled != nil {
		c.pooled.Hijack()
	}
	return &lockConn{wire: c.wire, conn: c.conn}
}

// A lockConn is a connection that is ours. All of its methods belong to the session's owner goroutine, except sendFor and hurry.
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
