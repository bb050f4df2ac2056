package pglock_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"sync"

	"github.com/seed35111a8b/pglock/pglock"
)

// A stamped is the object's content. The token is part of it, not of its metadata: an ETag that is a hash of the content, as
// many stores have it, changes with each new holder then, also if nothing else does.
type stamped struct {
	Token int64  `json:"fencing_token"`
	Value string `json:"value"`
}

// writeObject replaces the object at url by what change makes of it, unless a later holder has written. With a change that changes
// nothing it is a claim: every holder before is refused from then on.
func writeObject(ctx context.Context, url string, token int64, change func(old string) string) error {
	for {
		old, etag, err := readObject(ctx, url)
		if err != nil {
			return err
		}
		if old.Token > token {
			return &pglock.StaleTokenError{Resource: url, Token: token, Highest: old.Token}
		}
		status, err := replaceObject(ctx, url, etag, stamped{Token: token, Value: change(old.Value)})
		switch {
		case err != nil:
			return err // it may have been written, or may still be
		case status < http.StatusBadRequest:
			return nil
		case status != http.StatusPreconditionFailed:
			return fmt.Errorf("PUT %s: status %d", url, status)
		}
		// Somebody has written since: was it a later holder?
	}
}

func readObject(ctx context.Context, url string) (content stamped, etag string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return content, "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return content, "", err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		return content, resp.Header.Get("ETag"), json.NewDecoder(resp.Body).Decode(&content)
	case http.StatusNotFound:
		return content, "", nil
	}
	return content, "", errors.New(resp.Status)
}

// replaceObject writes the object if its ETag is still etag, or if there is none and etag is "".
func replaceObject(ctx context.Context, url, etag string, content stamped) (status int, err error) {
	body, err := json.Marshal(content)
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	if etag == "" {
		req.Header.Set("If-None-Match", "*")
	} else {
		req.Header.Set("If-Match", etag)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

// A bucket is as much of an object store as this takes. It knows nothing of tokens: it compares ETags.
type bucket struct {
	mu      sync.Mutex // guards objects; held over the comparison and the write, which have to be one step
	objects map[string][]byte
}

func (b *bucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	old, there := b.objects[r.URL.Path]
	etag := fmt.Sprintf(`"%x"`, sha256.Sum256(old))
	match := r.Header.Get("If-Match")
	switch {
	case r.Method == http.MethodGet && !there:
		http.NotFound(w, r)
	case r.Method == http.MethodGet:
		w.Header().Set("ETag", etag)
		_, _ = w.Write(old)
	case there && r.Header.Get("If-None-Match") == "*", match != "" && (!there || match != etag):
		w.WriteHeader(http.StatusPreconditionFailed)
	default:
		b.objects[r.URL.Path] = body
	}
}

// The token travels in the object, to a store that writes on a condition.
func Example_objectStore() {
	ctx := context.Background()
	pool, locker := exampleLocker()
	defer pool.Close()
	defer locker.Close(ctx)
	store := httptest.NewServer(&bucket{objects: map[string][]byte{}})
	defer store.Close()
	url := store.URL + "/bucket/index.json"

	slow, err := locker.Acquire(ctx, "index")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("holder:", writeObject(ctx, url, slow.Token(), func(string) string { return "one" }))

	err = writeObject(ctx, url, slow.Token(), func(old string) string {
		// It has read the object and works on it for longer than it holds the lock. The next holder claims the object.
		exampleLose(locker, slow)
		next, err := locker.Acquire(ctx, "index")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("next holder:", writeObject(ctx, url, next.Token(), func(old string) string { return old }))
		return old + ", two"
	})
	fmt.Println("late write is refused:", errors.Is(err, pglock.ErrStaleToken))
	content, _, err := readObject(ctx, url)
	fmt.Println("stored:", content.Value, err)
	// Output:
	// holder: <nil>
	// next holder: <nil>
	// late write is refused: true
	// stored: one <nil>
}
