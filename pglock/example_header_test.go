package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed35111a8b/pglock/internal/pgtest"
	"github.com/seed35111a8b/pglock/pglock"
)

const tokenHeader = "Fencing-Token"

// thermostats is a service with a database of its own. It obeys the holder with the highest token that it has seen.
type thermostats struct{ db *pgxpool.Pool }

func (t *thermostats) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	token, err := strconv.ParseInt(r.Header.Get(tokenHeader), 10, 64)
	if err != nil || token < 1 {
		http.Error(w, tokenHeader+" is required", http.StatusPreconditionRequired)
		return
	}
	degrees, err := io.ReadAll(io.LimitReader(r.Body, 10))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	room := r.PathValue("room")
	// The comparison, the highest token and the effect are one transaction: nothing can come between them, and a restart
	// forgets none.
	err = pglock.Fencer{}.FencedTx(r.Context(), t.db, token, "room/"+room, func(tx pgx.Tx) error {
		_, err := tx.Exec(r.Context(), `INSERT INTO rooms VALUES ($1, $2)
  ON CONFLICT (room) DO UPDATE SET degrees = excluded.degrees`, room, string(degrees))
		return err
	})
	switch {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case errors.Is(err, pglock.ErrStaleToken):
		http.Error(w, err.Error(), http.StatusConflict) // for good: to try again is of no use
	default:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// setDegrees is what a holder does.
func setDegrees(ctx context.Context, lock *pglock.Lock, url, degrees string) error {
	ctx, cancel := lock.Bind(ctx)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, strings.NewReader(degrees))
	if err != nil {
		return err
	}
	req.Header.Set(tokenHeader, strconv.FormatInt(lock.Token(), 10))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusNoContent:
		return nil
	case http.StatusConflict:
		return pglock.ErrStaleToken
	default:
		return errors.New(resp.Status)
	}
}

// The token travels in a header, to a service that compares it.
func Example_httpHeader() {
	ctx := context.Background()
	pool, locker := exampleLocker()
	defer pool.Close()
	defer locker.Close(ctx)

	db, err := pgxpool.New(ctx, pgtest.ExampleDSN())
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	if err := (pglock.Fencer{}).Migrate(ctx, db); err != nil {
		log.Fatal(err)
	}
	if _, err := db.Exec(ctx, "CREATE TABLE rooms (room text PRIMARY KEY, degrees text)"); err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("PUT /rooms/{room}", &thermostats{db})
	server := httptest.NewServer(mux)

	slow, err := locker.Acquire(ctx, "heating")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("holder:", setDegrees(ctx, slow, server.URL+"/rooms/attic", "19"))

	// Its request was on the way when it lost the lock. It arrives after the first one of the next holder.
	late, err := http.NewRequestWithContext(ctx, http.MethodPut, "", strings.NewReader("25"))
	if err != nil {
		log.Fatal(err)
	}
	late.Header.Set(tokenHeader, strconv.FormatInt(slow.Token(), 10))
	exampleLose(locker, slow)
	next, err := locker.Acquire(ctx, "heating")
	if err != nil {
		log.Fatal(err)
	}
	defer next.Release(ctx)
	fmt.Println("next holder:", setDegrees(ctx, next, server.URL+"/rooms/attic", "20"))

	server.Close() // meanwhile the service has been restarted
	server = httptest.NewServer(mux)
	defer server.Close()
	if late.URL, err = late.URL.Parse(server.URL + "/rooms/attic"); err != nil {
		log.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(late)
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	fmt.Println("late request:", resp.Status)
	// Output:
	// holder: <nil>
	// next holder: <nil>
	// late request: 409 Conflict
}
