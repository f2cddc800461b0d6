package snapshot

import (
	"fmt"
	"slices"
	"strings"
)

// warnings collects what was odd, each thing once, and not without end.
type warnings struct {
	list   []Warning
	counts map[[3]string]int
}

const maxWarnings = 50

func (w *warnings) add(code, where, msg string) {
	if len(w.list) < maxWarnings {
		w.list = append(w.list, Warning{code, msg, where})
	}
}

// count notes one more case of a thing that may happen often.
func (w *warnings) count(code, where, what string) {
	if w.counts == nil {
		w.counts = map[[3]string]int{}
	}
	key := [3]string{code, where, what}
	if _, known := w.counts[key]; known || len(w.counts) < maxWarnings {
		w.counts[key]++
	}
}

// all returns every warning, the counted ones as one each, in a fixed order.
func (w *warnings) all() []Warning {
	list := slices.Clone(w.list)
	var counted []Warning
	for key, n := range w.counts {
		what := strings.ReplaceAll(key[0], "_", " ")
		counted = append(counted, Warning{key[0], fmt.Sprintf("%s %q, %d times", what, key[2], n), key[1]})
	}
	slices.SortFunc(counted, func(a, b Warning) int { return strings.Compare(a.Code+a.Msg, b.Code+b.Msg) })
	return append(list, counted...)
}
