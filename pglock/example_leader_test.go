package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed35111a8b/pglock/pglock"
)

// together runs tasks beside each other, and returns when the last one has: golang.org/x/sync/errgroup does the same. The first
// error ends the ctx of the others.
func together(ctx context.Context, tasks ...func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, task := range tasks {
		wg.Go(func() {
			if err := task(ctx); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// A shop has tasks that only its leader does.
type shop struct {
	pool  *pgxpool.Pool
	wrote chan int64 // the token of each write, for the example to look at
}

// lead is one term. It returns when no task of it runs any more; the lock is released after that.
func (s *shop) lead(ctx context.Context, term *pglock.Term) error {
	task := func(name string) func(context.Context) error {
		return func(ctx context.Context) error { return s.work(ctx, term, name) }
	}
	return together(ctx, task("invoices"), task("reminders"), task("refunds"))
}

// work is one task. The tasks of a term write under one token, and do not wait for each other in the fence.
func (s *shop) work(ctx context.Context, term *pglock.Term, name string) error {
	for {
		err := term.Lock().FencedTx(ctx, s.pool, "shop", func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO done VALUES ($1, $2)", name, term.Token())
			return err
		})
		if err != nil {
			return err
		}
		select {
		case s.wrote <- term.Token():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// A leader spreads its work over goroutines. When its term ends they all end before another leads.
func Example_leaderWithTasks() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	pool, replicas, end := exampleReplicas(2)
	defer end()
	if _, err := pool.Exec(ctx, "CREATE TABLE done (task text, token bigint)"); err != nil {
		log.Fatal(err)
	}
	wrote := make(chan int64)
	terms, ended := make(chan *pglock.Term, 10), make(chan error, 10)
	var wg sync.WaitGroup
	for _, locker := range replicas {
		s := &shop{pool: pool, wrote: wrote}
		election, err := pglock.NewElection(locker, "shop", &pglock.ElectionConfig{
			Resources: []string{"shop"}, // claimed before a term begins: no task of the one before can write any more
		})
		if err != nil {
			log.Fatal(err)
		}
		wg.Go(func() {
			err := election.Run(ctx, func(ctx context.Context, term *pglock.Term) error {
				terms <- term
				err := s.lead(ctx, term)
				ended <- err
				return err
			})
			if !errors.Is(err, context.Canceled) {
				log.Fatal(err)
			}
		})
	}
	first := <-terms
	for token := range wrote {
		if token == first.Token() {
			break
		}
	}
	exampleLose(replicas[0], first.Lock())
	fmt.Println("the tasks have ended, the lock was lost:", errors.Is(<-ended, pglock.ErrLost))

	second := <-terms
	for token := range wrote {
		if token == second.Token() {
			break
		}
	}
	fmt.Println("another leads, with a higher token:", second.Token() > first.Token())
	cancel()
	fmt.Println("the tasks have ended, the lock was lost:", errors.Is(<-ended, pglock.ErrLost))
	wg.Wait()
	// Output:
	// the tasks have ended, the lock was lost: true
	// another leads, with a higher token: true
	// the tasks have ended, the lock was lost: false
}
