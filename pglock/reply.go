package pglock

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Outcomes of the functions acquire, work and wait.
const (
	outcomeOK       = "ok"
	outcomeHeld     = "held"
	outcomePooler   = "pooler"
	outcomeRecovery = "recovery"
	outcomeError    = "error"
	racedDetail     = "raced"
)

// A reply is one row of the functions acquire, work and wait. What a function does not return is zero.
type reply struct {
	outcome, detail, message string
	backend                  uint32
	unlocked                 []byte // {t,f}
	tokens                   []int64
	clock                    int64 // microseconds since the epoch
}

// parseReply reads the row of acquire (5 columns), work (6), wait (4) or workOne (1 or 2).
func parseReply(row [][]byte) (reply, error) {
	if len(row) <= 2 {
		return parseOne(row[0])
	}
	r := reply{outcome: outcomeOf(row[0]), detail: string(row[1]), message: string(row[2])}
	var err error
	switch len(row) {
	case 4:
		r.tokens, err = parseTokens(row[3])
	case 5:
		var pid uint64
		if pid, err = strconv.ParseUint(string(row[3]), 10, 32); err == nil {
			r.backend = uint32(pid)
			r.tokens, err = parseTokens(row[4])
		}
	case 6:
		r.unlocked = row[3]
		if len(row[5]) > 0 {
			r.clock, err = strconv.ParseInt(string(row[5]), 10, 64)
		}
		if err == nil {
			r.tokens, err = parseTokens(row[4])
		}
	}
	if err != nil {
		return reply{}, fmt.Errorf("the server's answer cannot be read: %w", err)
	}
	return r, nil
}

// parseOne reads the answer of workOne: it is about a try or an unlock, whichever was asked for.
func parseOne(b []byte) (reply, error) {
	answer, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil {
		return reply{}, fmt.Errorf("the server's answer cannot be read: %w", err)
	}
	switch answer {
	case onePooler:
		return reply{outcome: outcomePooler}, nil
	case oneRecovery:
		return reply{outcome: outcomeRecovery}, nil
	case oneFailed:
		return reply{outcome: outcomeOK}, nil
	}
	return reply{outcome: outcomeOK, unlocked: []byte("{t}"), tokens: []int64{answer}}, nil
}

// outcomeOf avoids an allocation for the usual outcomes.
func outcomeOf(b []byte) string {
	switch string(b) {
	case outcomeOK:
		return outcomeOK
	case outcomeHeld:
		return outcomeHeld
	}
	return string(b)
}

// parseTokens reads a bigint[] in PostgreSQL's text form.
func parseTokens(b []byte) ([]int64, error) {
	if len(b) < 3 {
		return nil, nil
	}
	tokens := make([]int64, 0, 1)
	for field := range strings.SplitSeq(string(b[1:len(b)-1]), ",") {
		token, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, token)
	}
	return tokens, nil
}

// parseInfo reads the row of infoSQL: the size of the lock table, the shortest duration that is logged, negative for
// none, and deadlock_timeout.
func parseInfo(row [][]byte) (table int64, logged, deadlock time.Duration) {
	number := func(b []byte, otherwise int64) int64 {
		if n, err := strconv.ParseInt(string(b), 10, 64); err == nil {
			return n
		}
		return otherwise
	}
	return number(row[0], 0), time.Duration(number(row[1], -1)) * time.Millisecond,
		time.Duration(number(row[2], 1000)) * time.Millisecond
}

// unlockedAt reports whether the i-th unlock found the lock held.
func (r *reply) unlockedAt(i int) bool {
	at := 1 + 2*i
	return at < len(r.unlocked) && r.unlocked[at] == 't'
}

// tokenAt returns the i-th token, 0 where the lock was not taken.
func (r *reply) tokenAt(i int) int64 {
	if i >= len(r.tokens) {
		return 0
	}
	return r.tokens[i]
}

func (r *reply) tookSome() bool {
	for _, token := range r.tokens {
		if token != 0 {
			return true
		}
	}
	return false
}

// refusal returns the error that an outcome other than ok and held stands for.
func (r *reply) refusal() error {
	switch r.outcome {
	case outcomeOK, outcomeHeld:
		return nil
	case outcomePooler:
		return fmt.Errorf("%w: the backend is not the one that this connection was opened to; connect to PostgreSQL "+
			"directly, or set Config.AllowPooler for a pooler in session mode", ErrPooler)
	case outcomeRecovery:
		return fmt.Errorf("%w: it is in recovery", ErrReadOnly)
	case "setting":
		return fmt.Errorf("%w: %s cannot be set: %s", ErrUnsupportedServer, r.detail, r.message)
	case outcomeError:
		return pgError(r.detail, r.message)
	}
	return fmt.Errorf("%w: the functions of the migrations are of another version: outcome %q", ErrNotMigrated, r.outcome)
}
