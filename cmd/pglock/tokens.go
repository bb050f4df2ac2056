package main

import (
	"context"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed35111a8b/pglock/pglock"
)

type tokensCommand struct {
	Raise   bool  `help:"Raise the tokens above the highest one that was accepted, if they have fallen behind. Takes the schema's owner, or UPDATE on its table reign."`
	AtLeast int64 `help:"With --raise: above this one too, the highest that was accepted elsewhere." placeholder:"TOKEN"`
}

// Help is shown below the summary.
func (*tokensCommand) Help() string {
	return `The next token must be higher than every token that a fence has accepted, or the fence refuses the holders of today. It is, after crashes,
failovers and restores too, unless the sequence or the reign was lost on the way: a dump without them, or migrate down. Fences in
other databases are not seen from here: look there, SELECT max(token) FROM pglock.fenced_writes, and use --raise --at-least.
The exit code is 1 if the tokens have fallen behind.`
}

// A tokensView is how pglock.Tokens are printed.
type tokensView struct {
	Next     int64 `json:"next"`
	Highest  int64 `json:"highest_accepted"`
	Base     int64 `json:"reign_base"`
	Current  bool  `json:"reign_current"`
	Behind   bool  `json:"behind"`
	Sequence int64 `json:"sequence"`
}

// Run is called by kong.
func (c *tokensCommand) Run(a *app) error {
	return a.withLocker(func(ctx context.Context, locker *pglock.Locker, _ *pgxpool.Pool) error {
		if c.Raise {
			if err := locker.RaiseTokens(ctx, c.AtLeast); isPrivilege(err) {
				return fmt.Errorf("it takes the owner of the schema, or GRANT UPDATE ON %s TO this role: %w",
					pgx.Identifier{a.Schema, "reign"}.Sanitize(), err)
			} else if err != nil {
				return err
			}
		}
		tokens, err := locker.Tokens(ctx)
		if err != nil {
			return fmt.Errorf("the tokens cannot be read (pglock migrate status, pglock doctor): %w", err)
		}
		view := tokensView{
			Next: tokens.Next, Highest: tokens.Highest, Base: tokens.Base, Current: tokens.Current, Behind: tokens.Behind(),
			Sequence: tokens.Sequence,
		}
		err = a.print(view, func(w io.Writer) {
			row(w, "next", view.Next)
			row(w, "highest accepted", view.Highest)
			if !view.Current {
				fmt.Fprintln(w, "The server has been started again, or the data restored, since the last token: the next is higher by at least 2^20.")
			}
			if view.Behind {
				fmt.Fprintln(w, "The tokens have fallen behind: new holders are refused by the fence. Remedy: pglock tokens --raise")
			}
		})
		if err == nil && view.Behind {
			return exitWith(exitNotAcquired)
		}
		return err
	})
}
