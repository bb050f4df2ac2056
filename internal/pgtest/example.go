package pgtest

import "context"

// ExampleDSN is Database for an Example, which has no testing.TB: it panics
// where a test would fail.
func ExampleDSN() string {
	s, err := shared.get()
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	dsn, err := s.CreateDatabase(ctx)
	if err != nil {
		panic(err)
	}
	return dsn
}
