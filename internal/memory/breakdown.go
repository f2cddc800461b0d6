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
	sums := shares{}
	sums.add(x, at, 1)
	return sums.list()
}

// shares collects what is allocated, by what it is counted under.
type shares map[itemKey]*Share

// add counts what was live at a point of a machine's log, so many times.
func (sums shares) add(x *machine, at, times int) {
	live := make([]int64, len(x.sts)) // the block of each storage, 0: none
	again := x.refills
	for i, e := range x.log[:at] {
		switch {
		case e <= 0:
			live[-e-1] = 0
		case len(again) > 0 && again[0].at == i:
			live[e-1], again = again[0].block, again[1:]
		default:
			live[e-1] = x.sts[e-1].block
		}
	}
	for i, block := range live {
		if block == 0 {
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
		sh.Bytes += block * int64(times)
		sh.Count += times
	}
}

// list returns the shares, largest first.
func (sums shares) list() []Share {
	out := make([]Share, 0, len(sums))
	for _, sh := range sums {
		if sh.Bytes != 0 {
			out = append(out, *sh)
		}
	}
	slices.SortFunc(out, func(a, b Share) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	return out
}
