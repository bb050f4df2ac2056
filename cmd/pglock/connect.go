package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/seed35111a8b/pglock/pglock"
)

// connectTimeout bounds one attempt to connect, unless the environment has a bound of its own.
const connectTimeout = 10 * time.Second

// poolConfig reads DATABASE_URL and PostgreSQL's own variables. Connections are closed soon after they were used: a lock
// needs one, whatever runs under it for however long.
func (a *app) poolConfig() (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err != nil {
		// pgx's text may hold parts of a password that was not written as it should be.
		return nil, usageError("DATABASE_URL, or one of PostgreSQL's own variables (PGHOST, PGPORT, PGSSLMODE, PGSERVICE, …), " +
			"cannot be read. It is not shown, as it may hold a password; special characters in a URL are written %%XX")
	}
	a.passwords = append(a.passwords, config.ConnConfig.Password)
	const pgxDefault = 2 * time.Minute
	if config.ConnConfig.ConnectTimeout == 0 || config.ConnConfig.ConnectTimeout == pgxDefault {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	config.MaxConns = 2
	config.MinConns, config.MinIdleConns = 0, 0
	config.MaxConnIdleTime = time.Second
	config.HealthCheckPeriod = time.Second
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		// Who holds the lock of another host is what ls and who are for.
		if host, err := os.Hostname(); err == nil {
			host, _, _ = strings.Cut(host, ".")
			config.ConnConfig.RuntimeParams["application_name"] = fmt.Sprintf("%.20s[%d]", host, os.Getpid())
		}
	}
	return config, nil
}

// open returns a pool that has reached the server. The caller closes it.
func (a *app) open(ctx context.Context) (*pgxpool.Pool, error) {
	config, err := a.poolConfig()
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("%w: %w%s", pglock.ErrUnavailable, err, unnamed())
	}
	return pool, nil
}

// unnamed is a hint for who has not said which server is meant, as in a crontab that lacks what the shell exports.
func unnamed() string {
	for _, name := range []string{"DATABASE_URL", "PGHOST", "PGSERVICE"} {
		if os.Getenv(name) != "" {
			return ""
		}
	}
	return " (none of DATABASE_URL, PGHOST and PGSERVICE is set)"
}

// locker returns a Locker for one lock at a time, on a pool of its own. close ends both.
func (a *app) locker(ctx context.Context, config pglock.Config) (locker *pglock.Locker, pool *pgxpool.Pool, end func(), err error) {
	pool, err = a.open(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	config.Namespace, config.Schema = a.Namespace, a.Schema
	config.MaxSessions, config.MaxWaiting = 1, 1
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler) // what matters is said in our own words
	}
	locker, err = pglock.New(pool, &config)
	if err != nil {
		pool.Close()
		return nil, nil, nil, err
	}
	return locker, pool, func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = locker.Close(closing) // the program ends, and the connections with it
		pool.Close()
	}, nil
}

// withLocker calls fn with a Locker of default configuration.
func (a *app) withLocker(fn func(ctx context.Context, locker *pglock.Locker, pool *pgxpool.Pool) error) error {
	locker, pool, end, err := a.locker(a.ctx, pglock.Config{})
	if err != nil {
		return err
	}
	defer end()
	return fn(a.ctx, locker, pool)
}

// hide takes passwords out of a text.
func (a *app) hide(text string) string {
	for _, password := range a.passwords {
		if len(password) > 2 { // shorter ones would take every word apart, and no error of pgx holds them
			text = strings.ReplaceAll(text, password, "xxxxx")
		}
	}
	return text
}

func isPrivilege(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.Code == "42501"
}
