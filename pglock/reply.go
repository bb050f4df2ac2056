package pglock

import (
	"fmt"
	"strconv"
	"time"
)

// Outcomes of the functions acquire and work.
const (
	outcomeOK       = "ok"
	outcomeHeld     = "held"
	outcomePooler   = "pooler"
	outcomeRecovery = "recovery"
	outcomeError    = "error"
	outcomeAgain    = "again" // the tries have failed, and the function work says why
)

// A reply is what a function answered. What a function does not return is zero.
type reply struct {
	outcome, detail, message string
	backend                  uint32
	unlocked                 []bool
	tokens                   []int64
	functions                functions
	clock                    int64 // microseconds since the epoch
}

// parseAcquire reads the row of acquire.
func parseAcquire(row [][]byte) (reply, error) {
	r := reply{outcome: outcomeOf(row[0]), detail: string(row[1]), message: string(row[2])}
	pid, err := strconv.ParseUint(string(row[3]), 10, 32)
	if err != nil {
		return reply{}, fmt.Errorf("%w: %w", errAnswer, err)
	}
	r.backend = uint32(pid)
	if r.tokens, err = textInt64s(row[4]); err != nil {
		return reply{}, err
	}
	r.functions, err = parseFunctions(row[5])
	return r, err
}

// parseWork reads the row of work.
func parseWork(row [][]byte) (reply, error) {
	r := reply{outcome: outcomeOf(row[0]), detail: string(row[1]), message: string(row[2])}
	for _, b := range row[3] {
		if b == 't' || b == 'f' { // {t,f}
			r.unlocked = append(r.unlocked, b == 't')
		}
	}
	var err error
	if len(row[5]) > 0 {
		if r.clock, err = strconv.ParseInt(string(row[5]), 10, 64); err != nil {
			return reply{}, fmt.Errorf("%w: %w", errAnswer, err)
		}
	}
	r.tokens, err = textInt64s(row[4])
	return r, err
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
	return i < len(r.unlocked) && r.unlocked[i]
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
	case outcomeOK, outcomeHeld, outcomeAgain:
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
