package main

import (
	"errors"
	"fmt"
)

// FindAll returns an error unless every edit of every mutant can be made below
// root.
func FindAll(root string) (err error) {
	for _, m := range mutants() {
		for _, e := range m.edits {
			if _, _, findErr := e.find(root); findErr != nil {
				err = errors.Join(err, fmt.Errorf("mutant %s: %w", m.name, findErr))
			}
		}
	}
	return err
}

// TestsNamed are the tests that are to catch mutants.
func TestsNamed() (names []string) {
	for _, m := range mutants() {
		names = append(names, m.test)
	}
	return names
}
