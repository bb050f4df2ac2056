package main

import (
	"context"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed35111a8b/pglock/pglock"
)

type tokensCommand struct {
	Raise   bool  `help:"Raise the sequence above the highest token that was accepted, if it has fallen behind. Takes the sequence's owner, or UPDATE on it."`
	AtLeast int64 `help:"With --raise: above this one too, the highest that was accepted elsewhere." placeholder:"TOKEN"`
}

// Help is shown below the summary.
func (*tokensCommand) Help() string {
	return `The next token must be higher than every token that a fence has accepted, or the fence refuses the holders of today. It is, after crashes,
failovers and restores too, unless the sequence or the reign was lost on the way: a dump without them, or migrate down. Fences in
other databases are not seen from here: look there, SELECT max(token) FROM pglock.fenced_writes, and use --raise --at-least.
The exit code is 1 if the sequence has fallen behind.`
}

// tokenState is what is known of the tokens.
type tokenState struct {
	Next     int64 `json:"next"`
	Highest  int64 `json:"highest_accepted"`
	Base     int64 `json:"reign_base"`
	Current  bool  `json:"reign_current"` // false: the next acquirer raises the base first
	Behind   bool  `json:"behind"`
	Sequence int64 `json:"sequence"` // its last value
}

// Run is called by kong.
func (c *tokensCommand) Run(a *app) error {
	return a.withLocker(func(ctx context.Context, _ *pglock.Locker, pool *pgxpool.Pool) error {
		state, err := readTokens(ctx, pool, a.Schema)
		if err != nil {
			return err
		}
		highest := max(state.Highest, c.AtLeast)
		if c.Raise && state.Next <= highest {
			if err := raiseTokens(ctx, pool, a.Schema, highest-state.Base); err != nil {
				return err
			}
			if state, err = readTokens(ctx, pool, a.Schema); err != nil {
				return err
			}
		}
		err = a.print(state, func(w io.Writer) {
			row(w, "next", state.Next)
			row(w, "highest accepted", state.Highest)
			if !state.Current {
				fmt.Fprintln(w, "The server has been started again, or the data restored, since the last token: the next is higher by at least 2^20.")
			}
			if state.Behind {
				fmt.Fprintln(w, "The sequence has fallen behind: new holders are refused by the fence. Remedy: pglock tokens --raise")
			}
		})
		if err == nil && state.Behind {
			return exitWith(exitNotAcquired)
		}
		return err
	})
}
