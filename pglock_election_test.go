package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

func init() {
	roles = append(roles, pgtest.Role{Name: "candidate", Run: candidate})
}

// electionConfig is that of the processes that are shot at: a lease that many
// freezes can be waited for, and a margin wide enough for a busy machine.
func electionConfig() *pglock.Config {
	return &pglock.Config{Lease: electionLease, HeartbeatInterval: electionLease / 10, TrustMargin: electionLease / 3}
}

const electionLease = 2 * time.Second

// monotonic is the time by the clock that the processes of a machine share and
// that nobody sets.
func monotonic() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

// grantClock notes when the Locker was last granted a lock, which is when a
// term's context begins to live.
type grantClock struct{ at atomic.Int64 }

func (*grantClock) TraceAcquireStart(ctx context.Context, _ pglock.TraceAcquireStartData) context.Context {
	return ctx
}

func (g *grantClock) TraceAcquireEnd(_ context.Context, data pglock.TraceAcquireEndData) {
	if data.Lock != nil {
		g.at.Store(int64(monotonic()))
	}
}

// candidate campaigns until SIGTERM, and says when a term's context lived. When
// it has lost a term it writes all the same: only the fence can refuse that.
func candidate(ctx context.Context, self *pgtest.Self) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	granted := &grantClock{}
	config := electionConfig()
	config.Tracer = granted
	locker, pool, err := open(ctx, self, config)
	if err != nil {
		return err
	}
	key := self.Arg("KEY")
	election, err := pglock.NewElection(locker, key, &pglock.ElectionConfig{Name: self.Arg("NAME"), Resources: []string{key}})
	if err != nil {
		return err
	}
	write := func(ctx context.Context, token int64) error {
		return locker.Fencer().FencedTx(ctx, pool, token, key, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO "+self.Arg("TABLE")+" (token) VALUES ($1)", token)
			return err
		})
	}
	var inside atomic.Int32
	self.Say("ready")
	err = election.Run(ctx, func(ctx context.Context, term *pglock.Term) error {
		if inside.Add(1) > 1 {
			self.Say("beside", term.Token())
		}
		defer inside.Add(-1)
		over := make(chan time.Duration, 1)
		context.AfterFunc(ctx, func() { over <- monotonic() }) // at once, whatever fn is busy with
		self.Say("begin", term.Token(), granted.at.Load(), int64(monotonic()))
		defer self.Say("end", term.Token())
		_ = write(ctx, term.Token()) // what ends the term may end it too
		self.Say("over", term.Token(), int64(<-over))
		if errors.Is(term.Lock().Err(), pglock.ErrLost) {
			late, cancel := context.WithTimeout(context.WithoutCancel(ctx), scenarioTimeout)
			defer cancel()
			self.Say("late", term.Token(), errors.Is(write(late, term.Token()), pglock.ErrStaleToken))
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		return err
	}
	if err := locker.Close(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	pool.Close()
	return nil
}

// The kinds of events.
const (
	byKill      = "kill -9"
	byFreeze    = "SIGSTOP"
	byTerminate = "pg_terminate_backend"
	byTERM      = "SIGTERM"
)

// TestElectionUnderRandomEvents shoots at the leader among five candidates, and
// at others beside it.
func TestElectionUnderRandomEvents(t *testing.T) {
	t.Parallel()
	each := 10
	if os.Getenv("PGLOCK_TEST_FULL") == "1" {
		each = 200
	}
	dsn := ownDatabase(t, pgtest.Shared(t))
	pool := newPool(t, dsn)
	f := &field{
		ctx: t.Context(), dsn: dsn, key: pgtest.Key(t), pool: pool, admin: newLocker(t, pool, nil),
		table: table(t, pool, "n bigserial, token bigint NOT NULL"), heard: make(chan said, 1000),
		running: map[string]*pgtest.Process{}, frozen: map[string]bool{}, terms: map[int64]*termSeen{},
		took: map[string][]time.Duration{}, granted: map[string][]time.Duration{},
	}
	for range 5 {
		f.spawn(t)
	}
	deck := slices.Concat(repeat(byKill, each), repeat(byFreeze, each), repeat(byTerminate, each), repeat(byTERM, each))
	seed := uint64(time.Now().UnixNano())
	dice := rand.New(rand.NewPCG(seed, 0))
	dice.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
	t.Logf("%d events, seed %d", len(deck), seed)
	for _, kind := range deck {
		f.hit(t, kind, dice)
	}
	f.endAll(t)
	f.check(t, each)
}

func repeat(kind string, n int) []string { return slices.Repeat([]string{kind}, n) }

// field is the candidates and what was heard of them.
type field struct {
	ctx     context.Context //nolint:containedctx // the test's, in all that is done
	dsn     string
	key     string
	table   string
	pool    *pgxpool.Pool
	admin   *pglock.Locker
	heard   chan said
	spawned int
	running map[string]*pgtest.Process
	ready   []string
	frozen  map[string]bool
	terms   map[int64]*termSeen
	last    *termSeen // the one with the highest token

	events, refused, admitted int                        // late writes
	granted, took             map[string][]time.Duration // from the event to the next grant, and to the next fn
}

// said is a line of a candidate; "gone" is its end.
type said struct {
	name, word  string
	token       int64
	first, last time.Duration
	truth       bool
	err         error
}

// spawn starts a candidate under a name that none had before.
func (f *field) spawn(t *testing.T) {
	t.Helper()
	name := fmt.Sprintf("c%d", f.spawned)
	f.spawned++
	p := process(t, "candidate", f.dsn, f.key, "NAME="+name, "TABLE="+f.table)
	f.running[name] = p
	go func() {
		for {
			line, err := p.Line(context.Background())
			if err != nil {
				f.heard <- said{name: name, word: "gone", err: err}
				return
			}
			s := said{name: name}
			if _, err := fmt.Sscan(line, &s.word); err == nil {
				switch s.word {
				case "begin":
					_, s.err = fmt.Sscan(line, &s.word, &s.token, (*int64)(&s.first), (*int64)(&s.last))
				case "over":
					_, s.err = fmt.Sscan(line, &s.word, &s.token, (*int64)(&s.last))
				case "late":
					_, s.err = fmt.Sscan(line, &s.word, &s.token, &s.truth)
				case "end", "beside":
					_, s.err = fmt.Sscan(line, &s.word, &s.token)
				}
			}
			f.heard <- s
		}
	}()
}

// hear takes in what candidates say until done, which is asked first.
func (f *field) hear(t *testing.T, what string, done func() bool) {
	t.Helper()
	timer := time.NewTimer(scenarioTimeout)
	defer timer.Stop()
	for !done() {
		select {
		case s := <-f.heard:
			f.take(t, s)
		case <-timer.C:
			require.FailNow(t, "waited too long for "+what)
		}
	}
}

// hearRest takes in what has been said by now.
func (f *field) hearRest(t *testing.T) {
	t.Helper()
	f.hear(t, "nothing", func() bool { return len(f.heard) == 0 })
}
