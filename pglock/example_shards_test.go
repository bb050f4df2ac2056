package pglock_test

import (
	"context"
	"fmt"
	"log"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// A shardWorker works on its fair share of the shards.
type shardWorker struct {
	pool   *pgxpool.Pool
	locker *pglock.Locker
	keys   []string     // of all shards, in an order of the worker's own
	member *pglock.Lock // in shared mode: by these the workers count each other
	tasks  []*shardTask
}

// A shardTask is the work on one shard while its lock is held.
type shardTask struct {
	lock  *pglock.Lock
	stop  context.CancelFunc
	ended chan struct{}
}

// rebalance is called every few seconds. Workers that have too much give it up, the others then find it free.
func (w *shardWorker) rebalance(ctx context.Context) error {
	var err error
	if w.member == nil || w.member.Err() != nil {
		if w.member, err = w.locker.AcquireShared(ctx, "shard-workers"); err != nil {
			return err
		}
	}
	members, err := w.locker.Holders(ctx, "shard-workers")
	if err != nil {
		return err
	}
	fair := (len(w.keys) + len(members) - 1) / len(members)
	w.tasks = slices.DeleteFunc(w.tasks, func(t *shardTask) bool {
		return t.lock.Err() != nil // lost
	})
	for len(w.tasks) > fair {
		last := w.tasks[len(w.tasks)-1]
		w.tasks = w.tasks[:len(w.tasks)-1]
		if err := last.giveUp(ctx); err != nil {
			return err
		}
	}
	if len(w.tasks) == fair {
		return nil
	}
	locks, err := w.locker.TryAcquireSome(ctx, fair-len(w.tasks), w.keys...)
	for _, lock := range locks {
		w.tasks = append(w.tasks, startShard(ctx, lock))
	}
	return err
}

func startShard(ctx context.Context, lock *pglock.Lock) *shardTask {
	ctx, stop := lock.Bind(ctx)
	t := &shardTask{lock: lock, stop: stop, ended: make(chan struct{})}
	go func() {
		defer close(t.ended)
		// Here the shard is worked on, with lock.FencedTx, until ctx ends.
		<-ctx.Done()
	}()
	return t
}

// giveUp releases the shard when nothing works on it any more.
func (t *shardTask) giveUp(ctx context.Context) error {
	t.stop()
	<-t.ended
	return t.lock.Release(ctx)
}

// Workers come and go, and share twelve shards among themselves.
func Example_shards() {
	ctx := context.Background()
	databaseURL := pgtest.ExampleDSN()
	var keys []string
	for i := range 12 {
		keys = append(keys, fmt.Sprint("shard/", i))
	}
	var workers []*shardWorker
	join := func() {
		pool, locker := exampleReplica(databaseURL)
		own := 5 * len(workers) % len(keys) // so that not all ask for the same ones first
		workers = append(workers, &shardWorker{pool: pool, locker: locker, keys: slices.Concat(keys[own:], keys[:own])})
	}
	leave := func(i int) { // or die
		if err := workers[i].locker.Close(ctx); err != nil {
			log.Fatal(err)
		}
		workers[i].pool.Close()
		workers = slices.Delete(workers, i, i+1)
	}
	show := func() {
		for range 2 { // what one gives up in the first round another takes in the second
			for _, w := range workers {
				if err := w.rebalance(ctx); err != nil {
					log.Fatal(err)
				}
			}
		}
		var has []int
		for _, w := range workers {
			has = append(has, len(w.tasks))
		}
		fmt.Println(has)
	}
	for range 3 {
		join()
		show()
	}
	leave(1)
	show()
	leave(1)
	leave(0)
	// Output:
	// [12]
	// [6 6]
	// [4 4 4]
	// [6 6]
}
