package history

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/anishathalye/porcupine"
)

// fenceState is the fence of one resource.
type fenceState struct {
	Highest  int64
	Accepted int
}

// fenceInput is a write or claim that was accepted, or one that was refused.
// Lower is how many with a lower token were accepted in all: they come before.
type fenceInput struct {
	Refused bool
	Token   int64
	Highest int64 // of a refusal: what was in the way
	Hidden  bool  // of a refusal: it was put there by a claim whose outcome nobody heard
	Lower   int
}

func fenceModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return fenceState{} },
		Step: func(state, input, _ any) (bool, any) {
			s, in := state.(fenceState), input.(fenceInput)
			if in.Refused {
				ok := in.Highest > in.Token && s.Accepted >= in.Lower && (in.Highest == s.Highest || in.Hidden && in.Highest > s.Highest)
				return ok, fenceState{in.Highest, s.Accepted}
			}
			ok := in.Token >= s.Highest && s.Accepted >= in.Lower
			return ok, fenceState{in.Token, s.Accepted + 1}
		},
		DescribeOperation: func(input, _ any) string {
			in := input.(fenceInput)
			if in.Refused {
				return fmt.Sprintf("refuse %d for %d", in.Token, in.Highest)
			}
			return fmt.Sprintf("accept %d", in.Token)
		},
		DescribeState: func(state any) string {
			return fmt.Sprintf("highest %d", state.(fenceState).Highest)
		},
		DescribeOperationMetadata: func(info any) string { return fmt.Sprint(info) },
	}
}

// fenceHistory is a resource's history. Writes whose outcome the client did not
// hear are in it if the table has them: they happened at some time after their
// call.
func fenceHistory(ops []*op, rows map[string]Row) []porcupine.Operation {
	var tokens []int64 // accepted
	hidden := map[int64]bool{}
	var history []porcupine.Operation
	for _, o := range ops {
		_, present := rows[o.id()]
		in := fenceInput{Token: o.Token, Refused: o.Outcome == Stale, Highest: o.Highest}
		returned := o.returned
		switch {
		case o.Outcome == OK:
		case o.Outcome == Stale:
		case present:
			returned = math.MaxInt64
		case o.Op == Claim && o.Outcome == Unknown:
			hidden[o.Token] = true
			continue
		default:
			continue // it left nothing
		}
		if !in.Refused {
			tokens = append(tokens, o.Token)
		}
		history = append(history, porcupine.Operation{
			ClientId: o.client, Input: in, Call: o.called, Return: returned, Metadata: o.id() + " " + o.Op,
		})
	}
	slices.Sort(tokens)
	for i := range history {
		in := history[i].Input.(fenceInput)
		in.Hidden = hidden[in.Highest]
		in.Lower, _ = slices.BinarySearchFunc(tokens, max(in.Token, in.Highest), cmp.Compare[int64])
		history[i].Input = in
	}
	return history
}
