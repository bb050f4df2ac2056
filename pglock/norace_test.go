//go:build !race

package pglock_test

// raceAllowance is the share of a ratio that is asked for.
const raceAllowance = 1.0
