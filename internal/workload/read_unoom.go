package workload

import (
	"slices"
	"strings"
)

// looksUnoom: every key is a field of ours, or the section of options.
func looksUnoom(n *node) int {
	if len(n.keys) == 0 {
		return 0
	}
	ours, strange := 0, 0
	for _, k := range n.keys {
		switch {
		case k == "unoom":
			ours += 1000 // the file says what it is
		case slices.Contains(Fields(), Field(plainKey(k))), k == "options":
			ours++
		default:
			strange++
		}
	}
	if strange > 0 && ours < 1000 {
		return 0
	}
	return ours
}

// plainKey writes a key as the fields are written.
func plainKey(k string) string { return strings.ReplaceAll(strings.ToLower(k), "-", "_") }

// unoom reads unoom.yaml: the fields by their names, and under options the
// settings of one framework by its own names. docs/configuration.md has them.
func (r *reader) unoom(n *node) {
	for i, k := range n.keys {
		v, f := n.items[i], Field(plainKey(k))
		switch {
		case f == "unoom":
			v.read = true
		case f == "options":
			v.read = true
			for j, o := range v.keys {
				if s, ok := v.items[j].str(); ok {
					v.items[j].read = true
					r.out.Options[o] = s
				}
			}
		case !slices.Contains(Fields(), f): // left for the list of what is not read
		case f == FieldTargets || v.shape == list:
			markAll(v)
			if t := v.texts(); len(t) > 0 {
				r.put(f, strings.Join(t, ","), k, v)
			}
		case f == FieldModel:
			r.model(n, k)
		default:
			v.read = true
			if s, ok := v.str(); ok && s != "" {
				r.put(f, Canonical(f, s), k, v)
			}
		}
	}
}
