package history

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Violation is something that must not happen.
type Violation struct {
	Check string // lock, fence, resource, trust, …
	Key   string
	Text  string
	File  string // a picture of the history
}

func (v Violation) String() string {
	text := fmt.Sprintf("%s %s: %s", v.Check, v.Key, v.Text)
	if v.File != "" {
		text += "\n  " + v.File
	}
	return text
}

// checkTimeout bounds the search for one history's order. It is not needed: the
// models leave next to nothing to search.
const checkTimeout = time.Minute

// Check returns what is wrong with a run. Pictures of what is wrong go to dir.
func (r *Run) Check(dir string) ([]Violation, error) {
	ops := r.operations()
	holds := r.holds(ops)
	r.excuse(holds)
	var found []Violation
	for _, key := range slices.Sorted(maps.Keys(holds)) {
		v, err := verdict("lock", key, lockModel(), lockHistory(holds[key]), dir)
		if err != nil {
			return nil, err
		}
		for i := range v {
			v[i].Text += "; " + explainLock(holds[key])
		}
		found = append(found, v...)
	}
	rows := map[string]Row{}
	for _, row := range r.Rows {
		rows[row.ID] = row
	}
	for key, ops := range fenceOps(ops) {
		v, err := verdict("fence", key, fenceModel(), fenceHistory(ops, rows), dir)
		if err != nil {
			return nil, err
		}
		found = append(found, v...)
	}
	return slices.Concat(found, checkRows(ops, r.Rows), r.checkBelief(holds), oddErrors(ops)), nil
}

// oddErrors are those that none of the faults explains.
func oddErrors(ops []*op) []Violation {
	var found []Violation
	for _, o := range ops {
		if o.Outcome == Odd {
			found = append(found, Violation{Check: "error", Key: o.Key, Text: fmt.Sprintf("%s of %s: %s", o.Op, o.id(), o.Error)})
		}
	}
	return found
}

func fenceOps(ops []*op) map[string][]*op {
	byKey := map[string][]*op{}
	for _, o := range ops {
		if o.Op == Write || o.Op == Claim {
			byKey[o.Key] = append(byKey[o.Key], o)
		}
	}
	return byKey
}

// verdict asks porcupine about one history. One that it could not decide is not
// taken for a good one.
func verdict(check, key string, model porcupine.Model, ops []porcupine.Operation, dir string) ([]Violation, error) {
	result, info := porcupine.CheckOperationsVerbose(model, ops, checkTimeout)
	if result == porcupine.Ok {
		return nil, nil
	}
	v := Violation{Check: check, Key: key, Text: fmt.Sprintf("the history of %d operations is %s", len(ops), strings.ToLower(string(result)))}
	if dir != "" {
		v.File = filepath.Join(dir, check+"-"+key+".html")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		if err := porcupine.VisualizePath(model, info, v.File); err != nil {
			return nil, err
		}
	}
	return []Violation{v}, nil
}

// Save writes the run as JSON, which Load reads.
func (r *Run) Save(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}

// Load reads what Save wrote.
func Load(path string) (*Run, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r Run
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &r, nil
}
