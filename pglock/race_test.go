//go:build race

package pglock_test

// raceAllowance is the share of a ratio that is asked for where the race detector slows this process and not the server.
const raceAllowance = 0.15
