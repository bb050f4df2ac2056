package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/seed35111a8b/pglock/internal/pgtest"
)

// handOverPlan says how hand-overs are measured: in a batch one process holds a lock and so many workers of three processes
// wait for it; each holds it once, for a moment.
type handOverPlan struct {
	waiters []int
	batches int // of a round with one waiter; with more waiters there are fewer
}

// Processes of a hand-over, and for how long each waiter holds the lock.
const (
	handOverNodes  = 3
	handOverHold   = 2 * time.Millisecond
	handOverSettle = 100 * time.Millisecond // until the waiters wait, and that much again at random
)

func waitersCase(n int) string {
	if n == 1 {
		return "1 waiter"
	}
	return strconv.Itoa(n) + " waiters"
}

// handOverPeers are those that can wait; pglock's parked sessions wait as its dedicated ones do.
func handOverPeers() []string {
	var names []string
	for _, p := range peers() {
		if p.waits && p.name != peerParked {
			names = append(names, p.name)
		}
	}
	return names
}

// handOvers measures the time from the call of a release to the grant of the next waiter.
func (b *bench) handOvers(ctx context.Context, plan handOverPlan) error {
	for _, name := range handOverPeers() {
		if err := b.handOversOf(ctx, plan, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return b.roundTrips(ctx)
}

func (b *bench) handOversOf(ctx context.Context, plan handOverPlan, name string) (err error) {
	nodes, err := b.handOverNodes(ctx, plan, name)
	defer func() { err = errors.Join(err, killAll(nodes)) }()
	if err != nil {
		return err
	}
	again := maxMissed
	if name == peerDedicated || name == peerShared {
		again = 0
	}
	for _, waiters := range plan.waiters {
		for range b.rounds {
			var took []int64
			for batch := 0; batch < max(1, plan.batches/waiters); batch++ {
				more, err := b.handOverBatch(ctx, nodes, name, waiters)
				if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && again > 0 {
					again--
					batch--
					fmt.Fprintf(os.Stderr, "%s: a waiter was not woken within %v; once more\n", name, waitTimeout)
					err = killAll(nodes)
					if err == nil {
						nodes, err = b.handOverNodes(ctx, plan, name)
					}
				}
				if err != nil {
					return err
				}
				took = append(took, more...)
			}
			b.results.addLatencies(workHandOver, waitersCase(waiters), name, took)
		}
	}
	return nil
}

// maxMissed is how many batches of a peer are made again because a waiter was never woken. pglock has to wake all of its own.
const maxMissed = 2

// handOverNodes starts the processes.
func (b *bench) handOverNodes(ctx context.Context, plan handOverPlan, name string) (nodes []*pgtest.Process, err error) {
	for range handOverNodes {
		n, err := b.startNode(ctx, name, slices.Max(plan.waiters), defaultLease)
		if err != nil {
			return nodes, err
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

func killAll(nodes []*pgtest.Process) error {
	var errs []error
	for _, n := range nodes {
		errs = append(errs, n.Kill())
	}
	return errors.Join(errs...)
}

// handOverBatch lets the first node hold a lock, all of them wait for it, and the first release it.
func (b *bench) handOverBatch(ctx context.Context, nodes []*pgtest.Process, name string, waiters int) ([]int64, error) {
	key := newKey("hand-over")
	if err := ask(ctx, nodes[0], "hold "+key, "held"); err != nil {
		return nil, err
	}
	var waiting []*pgtest.Process
	for i, n := range nodes {
		// One waiter is in another process than the holder.
		share := (waiters + i) / len(nodes)
		if share == 0 {
			continue
		}
		waiting = append(waiting, n)
		if err := ask(ctx, n, fmt.Sprintf("wait %d %s %d", share, key, handOverHold.Microseconds()), "waiting"); err != nil {
			return nil, err
		}
	}
	if err := b.awaitWaiters(ctx, name, waiters, len(waiting)); err != nil {
		return nil, err
	}
	<-time.After(handOverSettle/2 + rand.N(handOverSettle)) // some point between two polls
	if err := nodes[0].Tell("release"); err != nil {
		return nil, err
	}
	return collect(ctx, nodes[0], waiting)
}

// awaitWaiters returns when the server shows waiters, which may need new connections; the others have a fixed time.
func (b *bench) awaitWaiters(ctx context.Context, name string, waiters, nodes int) (err error) {
	switch name {
	case peerRaw:
	case peerDedicated, peerShared:
		waiters = max(1, nodes-1) // one of each process, but in that of the holder all wait in memory
	default:
		<-time.After(handOverSettle / 2)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, b.servers.Postgres)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	var failed error
	err = pgtest.Poll(ctx, "waiters", func() bool {
		var n int
		failed = conn.QueryRow(ctx, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").Scan(&n)
		return failed != nil || n >= waiters
	})
	return errors.Join(err, failed)
}

// ask tells a node a line and waits for its answer.
func ask(ctx context.Context, n *pgtest.Process, line, answer string) error {
	if err := n.Tell(line); err != nil {
		return err
	}
	return expect(ctx, n, answer)
}

// grant is when a worker had the lock.
type grant struct{ granted, released int64 }

// collect reads what the nodes tell of a batch, and returns the hand-overs.
func collect(ctx context.Context, first *pgtest.Process, waiting []*pgtest.Process) ([]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	last := map[*pgtest.Process]int{first: 1} // how many lines of a node are the last of something
	for _, n := range waiting {
		last[n]++
	}
	var grants []grant
	for n, left := range last {
		for left > 0 {
			line, err := n.Line(ctx)
			if err != nil {
				return nil, err
			}
			word, rest, _ := strings.Cut(line, " ")
			var g grant
			switch word {
			case "grant":
				_, err = fmt.Sscan(rest, &g.granted, &g.released)
				grants = append(grants, g)
			case "released":
				_, err = fmt.Sscan(rest, &g.released)
				grants = append(grants, g)
				left--
			case "done":
				left--
			default:
				err = errors.New(line)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	slices.SortFunc(grants, func(a, b grant) int { return cmp.Compare(a.released, b.released) })
	var took []int64
	for i := 1; i < len(grants); i++ {
		took = append(took, grants[i].granted-grants[i-1].released)
	}
	return took, nil
}

// roundTrips measures the shortest thing that can be asked of a server, as a measure for hand-overs: in a row, when everything in
// it is warm, and at the pace at which hand-overs come, when everything has slept as long as theirs.
func (b *bench) roundTrips(ctx context.Context) (err error) {
	conn, err := pgx.Connect(ctx, b.servers.Postgres)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	for range b.rounds {
		inARow, err := timeRoundTrips(ctx, conn, 2000, 0)
		if err != nil {
			return err
		}
		paced, err := timeRoundTrips(ctx, conn, 200, handOverHold)
		if err != nil {
			return err
		}
		b.results.addLatencies(workHandOver, caseRoundTrip, peerRaw, inARow)
		b.results.addLatencies(workHandOver, casePaced, peerRaw, paced)
	}
	return nil
}

// timeRoundTrips makes round trips, each after a pause.
func timeRoundTrips(ctx context.Context, conn *pgx.Conn, count int, pause time.Duration) ([]int64, error) {
	var took []int64
	for range count {
		if pause > 0 {
			<-time.After(pause)
		}
		start := time.Now()
		if _, err := conn.Exec(ctx, "SELECT $1::int", 1); err != nil {
			return nil, err
		}
		took = append(took, time.Since(start).Nanoseconds())
	}
	return took, nil
}
