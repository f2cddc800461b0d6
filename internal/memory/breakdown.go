package memory

import (
	"cmp"
	"slices"
)

// Share is what a peak is made of under one item.
type Share struct {
	Kind  Kind
	Name  string
	Bytes int64
	Count int // storages
}

// breakdown returns what was allocated at a point of the log, largest first.
// The shares sum to the allocated bytes at that point.
func (x *machine) breakdown(at int) []Share {
	live := make([]bool, len(x.sts))
	for _, e := range x.log[:at] {
		if e > 0 {
			live[e-1] = true
		} else {
			live[-e-1] = false
		}
	}
	sums := map[itemKey]*Share{}
	for i, l := range live {
		if !l {
			continue
		}
		s := &x.sts[i]
		k := x.items.keys[s.item]
		if k.kind == "" {
			switch {
			case s.marks&markGradient != 0:
				k = itemKey{Gradients, "gradients"}
			case s.marks&markSaved != 0:
				k.kind = Activations
			default:
				k.kind = Temporaries
			}
		}
		sh := sums[k]
		if sh == nil {
			sh = &Share{Kind: k.kind, Name: k.name}
			sums[k] = sh
		}
		sh.Bytes += s.block
		sh.Count++
	}
	out := make([]Share, 0, len(sums))
	for _, sh := range sums {
		out = append(out, *sh)
	}
	slices.SortFunc(out, func(a, b Share) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	return out
}
