package history_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/seed35111a8b/pglock/internal/faults/history"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ms makes a time of a history: so many milliseconds after a second, so that 0
// stays "never".
func ms(n int64) int64 { return int64(time.Second) + n*int64(time.Millisecond) }

// tape is a run with one life of each client.
type tape struct{ history.Run }

func newTape(clients int) *tape {
	t := &tape{history.Run{Trust: ms(1600) - ms(0)}}
	for n := range clients {
		t.Processes = append(t.Processes, &history.Process{Client: n, End: ms(100_000)})
	}
	return t
}

func (t *tape) op(client int, e history.Event, called, returned int64) int64 {
	p := t.Processes[client]
	e.ID = int64(len(p.Events) + 1)
	e.Kind, e.Time = history.Call, ms(called)
	p.Events = append(p.Events, e)
	if returned >= 0 {
		e.Kind, e.Time = history.Return, ms(returned)
		p.Events = append(p.Events, e)
	}
	return e.ID
}

// hold acquires k at the given times and sees it held at the later ones.
func (t *tape) hold(client int, token, called, returned int64, seen ...int64) int64 {
	e := history.Event{Op: history.Acquire, Key: "k", Token: token, Outcome: history.OK, Strict: true}
	id := t.op(client, e, called, returned)
	for _, at := range seen {
		p := t.Processes[client]
		p.Events = append(p.Events, history.Event{Kind: history.Seen, Hold: id, Time: ms(at)})
	}
	return id
}

func (t *tape) release(client int, hold int64, outcome string, called, returned int64) {
	t.op(client, history.Event{Op: history.Release, Key: "k", Hold: hold, Outcome: outcome}, called, returned)
}

// write is a write whose row is in the table if there is set.
func (t *tape) write(token int64, outcome string, highest int64, there bool) {
	at := int64(10 * (len(t.Rows) + 10*len(t.Processes[0].Events)))
	id := t.op(0, history.Event{Op: history.Write, Key: "k", Token: token, Outcome: outcome, Highest: highest}, at, at+5)
	if there {
		row := history.Row{Seq: int64(len(t.Rows) + 1), ID: history.WriteID(0, 0, id), Key: "k", Token: token}
		t.Rows = append(t.Rows, row)
	}
}

func (t *tape) disturb(kind string, client int, begin, begun, ending int64, keys ...string) {
	d := history.Disturbance{Kind: kind, Client: client, Keys: keys, Begin: ms(begin), Begun: ms(begun)}
	if ending > 0 {
		d.Ending, d.Ended = ms(ending), ms(ending+1)
	}
	t.Disturbances = append(t.Disturbances, d)
}

func (t *tape) requireGood(tb testing.TB) {
	tb.Helper()
	found, err := t.Check(tb.TempDir())
	require.NoError(tb, err)
	require.Empty(tb, found)
}

// requireBad wants exactly one violation, of that check and with that text.
func (t *tape) requireBad(tb testing.TB, check, text string) {
	tb.Helper()
	found, err := t.Check(tb.TempDir())
	require.NoError(tb, err)
	require.Len(tb, found, 1, "%v", found)
	require.Equal(tb, check, found[0].Check)
	require.Contains(tb, found[0].Text, text)
	if check == "lock" || check == "fence" {
		require.FileExists(tb, found[0].File)
	}
}

func TestHoldsOneAfterTheOther(t *testing.T) {
	t.Parallel()
	h := newTape(2)
	a := h.hold(0, 1, 0, 10, 11, 20)
	h.release(0, a, history.OK, 30, 60)
	b := h.hold(1, 2, 5, 40, 41) // while the release is under way
	h.release(1, b, history.OK, 70, 71)
	h.requireGood(t)
}

func TestTwoHolders(t *testing.T) {
	t.Parallel()
	h := newTape(2)
	a := h.hold(0, 1, 0, 10, 11, 50)
	h.hold(1, 2, 5, 40, 41)
	h.release(0, a, history.OK, 60, 70)
	h.requireBad(t, "lock", "two holders")
}

// A lost lock counts until it was last seen, though the loss was noted later.
func TestLostHoldCountsUntilItWasSeen(t *testing.T) {
	t.Parallel()
	h := newTape(2)
	a := h.hold(0, 1, 0, 10, 11, 30)
	h.release(0, a, history.Lost, 90, 91)
	h.hold(1, 2, 5, 40, 41)
	h.requireGood(t)
}

func TestTokenThatDoesNotRise(t *testing.T) {
	t.Parallel()
	for name, token := range map[string]int64{"one token twice": 5, "lower token": 4} {
		h := newTape(2)
		a := h.hold(0, 5, 0, 10)
		h.release(0, a, history.OK, 20, 30)
		h.hold(1, token, 40, 50)
		h.requireBad(t, "lock", name)
	}
}

func TestOverlapWhereTheServerEndedTheSession(t *testing.T) {
	t.Parallel()
	overlap := func() *tape {
		h := newTape(2)
		h.hold(0, 1, 0, 10, 11, 500)
		h.hold(1, 2, 5, 400, 401)
		return h
	}
	overlap().requireBad(t, "lock", "two holders")

	h := overlap()
	h.disturb(history.Terminate, 0, 300, 310, 0, "k")
	h.requireGood(t)

	h = overlap()
	h.disturb(history.Crash, history.Everyone, 300, 310, 320)
	h.requireGood(t)

	h = overlap()
	h.disturb(history.Terminate, 0, 300, 310, 0, "another key")
	h.requireBad(t, "lock", "two holders")

	h = overlap()
	h.disturb(history.Terminate, 0, 450, 460, 0, "k") // after the second grant
	h.requireBad(t, "lock", "two holders")
}

// Only a client that cannot hear may go on believing in a session that has ended.
func TestBeliefAfterTheServerEndedTheSession(t *testing.T) {
	t.Parallel()
	h := newTape(1)
	h.hold(0, 1, 0, 10, 11, 1800)
	h.disturb(history.Terminate, 0, 300, 310, 0, "k")
	h.requireBad(t, "trust", "could hear")
	h.disturb(history.Partition, 0, 290, 291, 1700)
	h.requireGood(t)
}

func TestBeliefBeyondTheTrustDeadline(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{history.Partition, history.Freeze} {
		h := newTape(1)
		h.hold(0, 1, 0, 10, 11, 5100)
		h.disturb(kind, 0, 100, 101, 5000)
		h.requireBad(t, "trust", "after the trust deadline")

		h = newTape(1)
		h.hold(0, 1, 0, 10, 11, 1700)
		h.disturb(kind, 0, 100, 101, 1690) // over before the deadline
		h.requireGood(t)
	}
}

// An acquire that spans a time in which its client could not hear may have asked again after it, unless its token is older.
func TestBeliefOfAnAcquireThatCouldNotHear(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{history.Partition, history.Freeze} {
		h := newTape(2)
		h.hold(0, 1, 90, 5010, 5011)
		h.disturb(kind, 0, 100, 101, 5000)
		h.requireGood(t)
		other := history.Event{Op: history.Acquire, Key: "other", Token: 2, Outcome: history.OK, Strict: true}
		h.op(1, other, 120, 130)
		h.requireBad(t, "trust", "after the trust deadline")
	}
}

func TestFence(t *testing.T) {
	t.Parallel()
	h := newTape(1)
	h.write(1, history.OK, 0, true)
	h.write(2, history.Unknown, 0, true)
	h.write(1, history.Stale, 2, false)
	h.write(2, history.OK, 0, true)
	h.write(3, history.Unknown, 0, false)
	h.requireGood(t)

	h.write(3, history.Stale, 4, false) // nobody wrote with 4
	h.requireBad(t, "fence", "is illegal")
}

func TestWriteOfAStaleHolder(t *testing.T) {
	t.Parallel()
	h := newTape(1)
	h.write(2, history.OK, 0, true)
	h.write(1, history.OK, 0, true)
	found, err := h.Check("")
	require.NoError(t, err)
	require.Len(t, found, 2) // the fence's history, and the table
	require.Contains(t, found[1].Text, "has token 1 after")
}

func TestTableDiffersFromTheAnswers(t *testing.T) {
	t.Parallel()
	h := newTape(1)
	h.write(1, history.OK, 0, false)
	h.requireBad(t, "resource", "missing")

	h = newTape(1)
	h.write(1, history.Lost, 0, true)
	h.requireBad(t, "resource", "is there")
}

func TestErrorThatNoFaultExplains(t *testing.T) {
	t.Parallel()
	h := newTape(1)
	h.write(1, history.Odd, 0, false)
	h.requireBad(t, "error", "write of c0.0.1")
}

func TestSaveAndLoad(t *testing.T) {
	t.Parallel()
	h := newTape(2)
	h.hold(0, 1, 0, 10, 11, 50)
	h.hold(1, 2, 5, 40, 41)
	file := filepath.Join(t.TempDir(), "new", "history.json")
	require.NoError(t, h.Save(file))
	loaded, err := history.Load(file)
	require.NoError(t, err)
	require.Equal(t, &h.Run, loaded)
}

// A grant that is older than the call says nothing to it: no disturbance excuses it.
func TestGrantOlderThanItsCall(t *testing.T) {
	t.Parallel()
	h := newTape(2)
	b := h.hold(1, 2, 700, 800, 801)
	h.release(1, b, history.OK, 820, 830)
	h.hold(0, 1, 900, 1000)
	h.disturb(history.Terminate, 0, 500, 510, 0, "k")
	h.requireBad(t, "lock", "lower token")
	h.disturb(history.Partition, 0, 300, 301, 950)
	h.requireBad(t, "lock", "lower token")
}
