package history

import (
	"fmt"

	"github.com/anishathalye/porcupine"
)

// lockState is a lock with tokens.
type lockState struct {
	Holder int64 // the token of the one holder, 0 if it is free
	Last   int64 // the highest token so far
}

// lockInput is a grant, or the end of one. Before is the highest lower token of
// the history: since all grants must find their place, in the order of their
// tokens, no other can come next. It spares the search all other orders.
type lockInput struct {
	End    bool
	Token  int64
	Before int64
	Hold   string
}

// lockModel is what a key must look like.
func lockModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return lockState{} },
		Step: func(state, input, _ any) (bool, any) {
			s, in := state.(lockState), input.(lockInput)
			if in.End {
				return s.Holder == in.Token, lockState{Last: s.Last}
			}
			ok := s.Holder == 0 && in.Token > s.Last && s.Last == in.Before
			return ok, lockState{Holder: in.Token, Last: in.Token}
		},
		DescribeOperation: func(input, _ any) string {
			in := input.(lockInput)
			if in.End {
				return fmt.Sprintf("end of %d", in.Token)
			}
			return fmt.Sprintf("grant %d", in.Token)
		},
		DescribeState: func(state any) string {
			s := state.(lockState)
			if s.Holder == 0 {
				return fmt.Sprintf("free, last token %d", s.Last)
			}
			return fmt.Sprintf("held with %d", s.Holder)
		},
		DescribeOperationMetadata: func(info any) string { return fmt.Sprint(info) },
	}
}

// lockHistory is a key's history in the model's terms. holds are in the order of
// their tokens.
func lockHistory(holds []*hold) []porcupine.Operation {
	var ops []porcupine.Operation
	before, last := int64(0), int64(0)
	for i, h := range holds {
		in := lockInput{Token: h.acquire.Token, Hold: h.String()}
		if in.Token > last {
			before, last = last, in.Token
		}
		in.Before = before
		end := in
		end.End = true
		ops = append(ops,
			porcupine.Operation{
				ClientId: 2 * i % lanes, Input: in, Call: h.granted, Return: h.acquire.returned, Metadata: in.Hold,
			},
			porcupine.Operation{
				ClientId: (2*i + 1) % lanes, Input: end, Call: h.free, Return: max(h.free, h.gone), Metadata: in.Hold,
			})
	}
	return ops
}

// lanes is how many lines a history is drawn on.
const lanes = 16

// explainLock names the first two holds that a lock could not have given out.
func explainLock(holds []*hold) string {
	for i, later := range holds {
		for _, earlier := range holds[:i] {
			a, b := earlier.acquire, later.acquire
			switch {
			case a.Token == b.Token:
				return fmt.Sprintf("one token twice:\n  %v\n  %v", earlier, later)
			case b.returned < earlier.granted:
				return fmt.Sprintf("the later grant has the lower token:\n  %v\n  %v", later, earlier)
			case b.returned < earlier.free:
				return fmt.Sprintf("two holders, by %.3f ms:\n  %v\n  %v", float64(earlier.free-b.returned)/1e6, earlier, later)
			}
		}
	}
	return "no two holds contradict each other by themselves"
}
