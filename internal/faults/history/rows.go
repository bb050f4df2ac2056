package history

import "fmt"

// checkRows reads the resource: the tokens of its writes never decrease, what
// was refused left nothing, what was acknowledged is there.
func checkRows(ops []*op, rows []Row) []Violation {
	var found []Violation
	add := func(key, format string, args ...any) {
		found = append(found, Violation{Check: "resource", Key: key, Text: fmt.Sprintf(format, args...)})
	}
	present := map[string]Row{}
	highest := map[string]Row{}
	for _, row := range rows {
		present[row.ID] = row
		if before := highest[row.Key]; row.Token < before.Token {
			add(row.Key, "write %d (%s) has token %d after write %d (%s) with %d",
				row.Seq, row.ID, row.Token, before.Seq, before.ID, before.Token)
		} else {
			highest[row.Key] = row
		}
	}
	for _, o := range ops {
		if o.Op != Write {
			continue
		}
		_, there := present[o.id()]
		switch {
		case o.Outcome == OK && !there:
			add(o.Key, "write %s with token %d was acknowledged and is missing", o.id(), o.Token)
		case (o.Outcome == Stale || o.Outcome == Lost) && there:
			add(o.Key, "write %s with token %d was refused (%s) and is there", o.id(), o.Token, o.Outcome)
		}
	}
	return found
}
