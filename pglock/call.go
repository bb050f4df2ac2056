package pglock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// This file has the messages that call one function and say nothing else: what a session says again and again goes that way.
// Such a message is as whole as one of the simple query protocol, so that the server's timers run while the next is awaited,
// and there is nothing in it to parse or to plan.
// https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-FUNCTION-CALL
//
// A function is called by its number, which only the server that it was asked of knows: it is good for that one connection.

// functions are the numbers of the functions.
type functions struct {
	acquireOne, takeOne, unlockOne, exchange, wait uint32
}

// parseFunctions reads them in the order in which the functions acquire and warm_up answer.
func parseFunctions(b []byte) (functions, error) {
	oids, err := textInt64s(b)
	if err != nil || len(oids) != 5 {
		return functions{}, err
	}
	at := func(i int) uint32 { return uint32(oids[i]) }
	return functions{at(0), at(1), at(2), at(3), at(4)}, nil
}

// acquire returns the first call on a connection, for one lock. A lease below 0 only asks whether the lock is free, one of
// 0 draws no token.
func (a *args) acquire(f *functions, pid uint32, key int64, lease time.Duration, name string, known bool) request {
	a.begin()
	a.int32(pid)
	a.int64(key)
	if lease < 0 {
		a.null()
	} else {
		a.int32(uint32(lease.Milliseconds()))
	}
	a.text(name)
	a.bool(known)
	return a.of(f.acquireOne)
}

// A request is one message to the server: a text, or else a call.
type request struct {
	sql  string
	call *pgproto3.FunctionCall
}

func (r request) message() pgproto3.FrontendMessage {
	if r.call != nil {
		return r.call
	}
	return &pgproto3.Query{String: r.sql}
}

// args collects the arguments of a call, in their binary form. Its memory is used again.
type args struct {
	flat  []byte
	ends  []int // of each argument in flat; negative for NULL
	calls pgproto3.FunctionCall
}

// unlock returns the call that unlocks one lock.
func (a *args) unlock(f *functions, pid uint32, key int64) request {
	a.begin()
	a.int32(pid)
	a.int64(key)
	a.bool(false)
	return a.of(f.unlockOne)
}

// ready returns the call that makes a backend ready to unlock.
func (a *args) ready(f *functions, pid uint32) request {
	a.begin()
	a.int32(pid)
	a.null()
	a.bool(false)
	return a.of(f.unlockOne)
}

// begin starts a call.
func (a *args) begin() {
	a.flat, a.ends = a.flat[:0], a.ends[:0]
}

func (a *args) null() { a.ends = append(a.ends, -1) }

func (a *args) end() { a.ends = append(a.ends, len(a.flat)) }

func (a *args) int16(n int16) {
	a.flat = binary.BigEndian.AppendUint16(a.flat, uint16(n))
	a.end()
}

func (a *args) int32(n uint32) {
	a.flat = binary.BigEndian.AppendUint32(a.flat, n)
	a.end()
}

func (a *args) int64(n int64) {
	a.flat = binary.BigEndian.AppendUint64(a.flat, uint64(n))
	a.end()
}

func (a *args) bool(b bool) {
	if b {
		a.flat = append(a.flat, 1)
	} else {
		a.flat = append(a.flat, 0)
	}
	a.end()
}

// text is NULL if s is empty.
func (a *args) text(s string) {
	if s == "" {
		a.null()
		return
	}
	a.flat = append(a.flat, s...)
	a.end()
}

// int8OID is the type bigint.
const int8OID = 20

// int64s is NULL if there are none.
func (a *args) int64s(list []int64) {
	if len(list) == 0 {
		a.null()
		return
	}
	b := a.flat
	b = binary.BigEndian.AppendUint32(b, 1) // dimension
	b = binary.BigEndian.AppendUint32(b, 0) // nulls
	b = binary.BigEndian.AppendUint32(b, int8OID)
	b = binary.BigEndian.AppendUint32(b, uint32(len(list)))
	b = binary.BigEndian.AppendUint32(b, 1) // lower bound
	for _, n := range list {
		b = binary.BigEndian.AppendUint32(b, 8)
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	a.flat = b
	a.end()
}

// of returns the call of a function. It is valid until begin.
func (a *args) of(function uint32) request {
	c := &a.calls
	c.Function, c.ArgFormatCodes, c.ResultFormatCode = function, append(c.ArgFormatCodes[:0], 1), 1
	c.Arguments = c.Arguments[:0]
	from := 0
	for _, end := range a.ends {
		if end < 0 {
			c.Arguments = append(c.Arguments, nil)
			continue
		}
		c.Arguments = append(c.Arguments, a.flat[from:end:end])
		from = end
	}
	return request{call: c}
}

// work returns a call that asks for the same as statements.work does, if there is one.
func (a *args) work(f *functions, w *workArgs) (request, bool) {
	if w.owner != "" || f.exchange == 0 || w.unlock.mixed || w.take.mixed || len(w.again.keys) > 0 {
		return request{}, false
	}
	a.begin()
	a.int32(w.pid)
	switch unlocks, takes := len(w.unlock.keys), len(w.take.keys); {
	case unlocks == 0 && takes == 1:
		a.int64(w.take.keys[0])
		a.text(w.name)
		return a.of(f.takeOne), true
	case w.name != "":
		return request{}, false
	case unlocks == 1 && takes == 0:
		a.int64(w.unlock.keys[0])
		a.bool(w.clean)
		return a.of(f.unlockOne), true
	case unlocks > 0 && takes == 0 || takes > 0 && w.most < 0:
		a.int64s(w.unlock.keys)
		a.bool(w.clean)
		a.int64s(w.take.keys)
		return a.of(f.exchange), true
	}
	return request{}, false // a heartbeat, or a set that is to stop at some point
}

// Answers of the functions that are called instead of a token.
const (
	callPooler   = -1
	callRecovery = -2
	callFailed   = -3
)

// errAnswer is an answer of another form than the functions give.
var errAnswer = errors.New("the server's answer cannot be read")

// sharedToken stands for the token of a lock in shared mode, which has none.
const sharedToken = -1

// parseCall reads the answer to a call by work: one number, or an array of them.
func parseCall(b []byte, w *workArgs) (reply, error) {
	if n, one := binaryInt64(b); one {
		if r, other := otherAnswer(n); other {
			return r, nil
		}
		return reply{outcome: outcomeOK, unlocked: []bool{n == 1}, tokens: []int64{n}}, nil
	}
	numbers, err := binaryInt64s(b)
	if err != nil {
		return reply{}, err
	}
	base := numbers[0]
	if r, other := otherAnswer(base); other {
		return r, nil
	}
	n := len(w.unlock.keys)
	if len(numbers) != 1+n+len(w.take.keys) {
		return reply{}, fmt.Errorf("%w: %d numbers", errAnswer, len(numbers))
	}
	r := reply{outcome: outcomeOK, unlocked: make([]bool, n), tokens: numbers[1+n:]}
	for i := range r.unlocked {
		r.unlocked[i] = numbers[1+i] == 1
	}
	if base == callFailed {
		r.outcome, r.tokens = outcomeAgain, nil
	}
	for i, token := range r.tokens {
		if token != 0 {
			r.tokens[i] = base + token
		}
	}
	return r, nil
}

// failedCall reports whether the answer to exchange says that the tries have failed.
func failedCall(b []byte) bool {
	if len(b) < arrayHeader+arrayItem {
		return false
	}
	return arrayInt64(b[arrayHeader:]) == callFailed
}

// otherAnswer returns what a number stands for that is no token.
func otherAnswer(n int64) (reply, bool) {
	switch n {
	case callPooler:
		return reply{outcome: outcomePooler}, true
	case callRecovery:
		return reply{outcome: outcomeRecovery}, true
	}
	return reply{}, false
}

// binaryInt64 reads a bigint in PostgreSQL's binary form.
func binaryInt64(b []byte) (n int64, ok bool) {
	if len(b) != 8 {
		return 0, false
	}
	return int64(binary.BigEndian.Uint64(b)), true
}

// Sizes of a bigint[] in PostgreSQL's binary form: an item is its length and its value.
const arrayHeader, arrayItem = 20, 4 + 8

// arrayInt64 reads the item that b begins with.
func arrayInt64(b []byte) int64 { return int64(binary.BigEndian.Uint64(b[4:])) }

// binaryInt64s reads a bigint[] without nulls in PostgreSQL's binary form.
func binaryInt64s(b []byte) ([]int64, error) {
	if len(b) < arrayHeader+arrayItem || (len(b)-arrayHeader)%arrayItem != 0 {
		return nil, fmt.Errorf("%w: an array of %d bytes", errAnswer, len(b))
	}
	list := make([]int64, 0, (len(b)-arrayHeader)/arrayItem)
	for b = b[arrayHeader:]; len(b) > 0; b = b[arrayItem:] {
		list = append(list, arrayInt64(b))
	}
	return list, nil
}

// textInt64s reads a list of numbers in the text form of an array.
func textInt64s(b []byte) ([]int64, error) {
	if len(b) < 3 {
		return nil, nil
	}
	list := make([]int64, 0, 1)
	for field := range strings.SplitSeq(string(b[1:len(b)-1]), ",") {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errAnswer, err)
		}
		list = append(list, n)
	}
	return list, nil
}

// waitRequest asks for one slice of waiting.
func (s *session) waitRequest(id LockID, mode lockMode, slice time.Duration) request {
	key, kind := id.packed(mode)
	if s.mark != "" {
		return request{sql: s.m.sql.wait(s.mark, slice, key, kind)}
	}
	s.args.begin()
	s.args.int32(s.pid)
	s.args.null()
	s.args.int32(uint32(slice.Milliseconds()))
	s.args.int64(key)
	s.args.int16(int16(kind))
	return s.args.of(s.calls.wait)
}

// racedOffset is what the negative token of a lock that may be counted twice is lowered by: 1 and 2 less than 0 say something else.
const racedOffset = 9

// parseWait reads the answer to waitRequest: a token, 0 if the slice is over, and whether the lock may be counted twice.
func (s *session) parseWait(b []byte, mode lockMode) (token int64, raced bool, err error) {
	if s.mark == "" {
		n, ok := binaryInt64(b)
		if !ok {
			return 0, false, errAnswer
		}
		token = n
	} else if token, err = strconv.ParseInt(string(b), 10, 64); err != nil {
		return 0, false, fmt.Errorf("%w: %w", errAnswer, err)
	}
	if r, other := otherAnswer(token); other {
		return 0, false, r.refusal()
	}
	if raced = token < 0; raced {
		token = -token - racedOffset
	}
	if mode == shared && token != 0 {
		token = sharedToken
	}
	return token, raced, nil
}
