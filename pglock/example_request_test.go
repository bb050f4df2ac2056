package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

// charges serves requests that each charge an account. The payment provider is asked between the read and the write, so that
// one transaction, with a row lock in it, would be open for far too long.
type charges struct {
	pool   *pgxpool.Pool
	locker *pglock.Locker
}

func newCharges(pool *pgxpool.Pool) (*charges, error) {
	locker, err := pglock.New(pool, &pglock.Config{
		LocksPerSession: 1000, // the locks of many requests share a connection,
		MaxSessions:     4,    // so that a few will do
	})
	return &charges{pool: pool, locker: locker}, err
}

func (c *charges) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// The time for the request, its wait for those before it included.
	ctx, cancel := context.WithTimeout(r.Context(), 30*time.Second)
	defer cancel()
	account := "account/" + r.PathValue("account")
	err := c.locker.Do(ctx, account, func(ctx context.Context, lock *pglock.Lock) error {
		return c.charge(ctx, lock, account)
	})
	switch {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case errors.Is(err, pglock.ErrNotAcquired):
		w.Header().Set("Retry-After", "1")
		http.Error(w, "the account is busy", http.StatusServiceUnavailable)
	default:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func (c *charges) charge(ctx context.Context, lock *pglock.Lock, account string) error {
	var charged int
	err := c.pool.QueryRow(ctx, "SELECT charged FROM accounts WHERE name = $1", account).Scan(&charged)
	if err != nil {
		return err
	}
	// Here the payment provider is asked.
	return lock.FencedTx(ctx, c.pool, account, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "UPDATE accounts SET charged = $2 WHERE name = $1", account, charged+1)
		return err
	})
}

// startCharges starts a replica of the service.
func startCharges(ctx context.Context, databaseURL string) (url string, stop func()) {
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		log.Fatal(err)
	}
	c, err := newCharges(pool)
	if err != nil {
		log.Fatal(err)
	}
	if err := c.locker.Migrate(ctx); err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /accounts/{account}/charges", c)
	server := httptest.NewServer(mux)
	return server.URL, func() {
		server.Close()
		if err := c.locker.Close(ctx); err != nil {
			log.Fatal(err)
		}
		pool.Close()
	}
}

// A service locks the account of each request: thousands of keys on a handful of connections.
func Example_lockPerRequest() {
	ctx := context.Background()
	databaseURL := pgtest.ExampleDSN()
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, `CREATE TABLE accounts AS
  SELECT 'account/' || n AS name, 0 AS charged FROM generate_series(0, 4) n`); err != nil {
		log.Fatal(err)
	}
	first, stop := startCharges(ctx, databaseURL)
	defer stop()
	second, stop := startCharges(ctx, databaseURL)
	defer stop()
	replicas := []string{first, second}

	const requests = 60
	var wg sync.WaitGroup
	for i := range requests {
		wg.Go(func() {
			resp, err := http.Post(fmt.Sprintf("%s/accounts/%d/charges", replicas[i%2], i%5), "", nil)
			if err != nil {
				log.Fatal(err)
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusNoContent {
				log.Fatal(resp.Status)
			}
		})
	}
	wg.Wait()

	var charged int
	if err := pool.QueryRow(ctx, "SELECT sum(charged) FROM accounts").Scan(&charged); err != nil {
		log.Fatal(err)
	}
	fmt.Println(requests-charged, "charges are lost")
	// Output: 0 charges are lost
}
