package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed35111a8b/pglock/internal/faults/history"
	"github.com/seed35111a8b/pglock/pglock"
)

// client is one of the processes that use the locks. It works until its standard
// input ends.
type client struct {
	dsn      string
	name     string // application_name
	number   int
	life     int
	seed     uint64
	sessions int
	pooler   bool
	workers  int
	keys     []string

	log    *eventLog
	locker *pglock.Locker
	pool   *pgxpool.Pool
	ids    atomic.Int64
	quiet  atomic.Bool // writes nothing for now
}

// What a client is told on its standard input.
const (
	sayQuiet = "quiet"
	sayLoud  = "loud"
)

func clientCommand(ctx context.Context, args []string) error {
	c := &client{log: &eventLog{out: json.NewEncoder(os.Stdout)}}
	var keys string
	flags := flag.NewFlagSet("client", flag.ContinueOnError)
	flags.StringVar(&c.dsn, "dsn", "", "")
	flags.StringVar(&c.name, "name", "", "")
	flags.IntVar(&c.number, "number", 0, "")
	flags.IntVar(&c.life, "life", 0, "")
	flags.Uint64Var(&c.seed, "seed", 0, "")
	flags.IntVar(&c.sessions, "sessions", 1, "")
	flags.BoolVar(&c.pooler, "pooler", false, "")
	flags.IntVar(&c.workers, "workers", 1, "")
	flags.StringVar(&keys, "keys", "", "")
	if err := flags.Parse(args); err != nil {
		return errUsage
	}
	c.keys = strings.Split(keys, ",")
	return c.run(ctx)
}

func (c *client) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go c.obey(os.Stdin, cancel) // ends with the process
	if err := c.open(ctx); err != nil {
		return err
	}
	defer c.pool.Close()

	var workers sync.WaitGroup
	for n := range c.workers {
		workers.Go(func() {
			stream := uint64(c.number)<<32 | uint64(c.life)<<8 | uint64(n)
			w := &worker{client: c, number: n, rand: rand.New(rand.NewPCG(c.seed, stream))}
			w.run(ctx)
		})
	}
	workers.Wait()
	end, cancelEnd := context.WithTimeout(context.WithoutCancel(ctx), 2*lease)
	defer cancelEnd()
	return c.locker.Close(end)
}

// obey reads what the client is told, and ends its work when that ends.
func (c *client) obey(in io.Reader, cancel context.CancelFunc) {
	defer cancel()
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		c.quiet.Store(lines.Text() == sayQuiet)
	}
}

func (c *client) open(ctx context.Context) error {
	config, err := pgxpool.ParseConfig(c.dsn)
	if err != nil {
		return err
	}
	config.MaxConns = int32(c.workers + 1)
	config.ConnConfig.ConnectTimeout = lease
	config.ConnConfig.RuntimeParams["application_name"] = c.name
	if c.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	c.locker, err = pglock.New(c.pool, &pglock.Config{
		Lease: lease, TrustMargin: margin, ReleaseTimeout: lease,
		LocksPerSession: c.sessions, AllowPooler: c.pooler, MaxSessions: 2 * c.workers,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	return err
}

// eventLog writes each event at once and as a whole, so that none is lost when
// the process is killed. It is safe for concurrent use.
type eventLog struct {
	mu  sync.Mutex // guards out
	out *json.Encoder
}

func (l *eventLog) write(e history.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.out.Encode(e) // who reads it has ended, and so will we
}

// wait returns after d, or earlier with ctx.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// over tells whether ctx has ended, where that is no error.
func over(ctx context.Context) bool { return ctx.Err() != nil }
