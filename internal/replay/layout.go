package replay

import (
	"cmp"
	"slices"

	"unoom/internal/alloc"
)

// misfits compares the final layout with that of the simulation.
func (c *Case) misfits(sim *alloc.Allocator) []Misfit {
	var got []alloc.Piece
	sim.Walk(func(p alloc.Piece) {
		if p.State != alloc.Unmapped {
			got = append(got, p)
		}
	})
	slices.SortFunc(got, func(a, b alloc.Piece) int { return cmp.Compare(a.Addr, b.Addr) })
	var out []Misfit
	at := 0
	note := func(addr uint64, want, got alloc.BlockState) {
		if len(out) < mostDifferences {
			out = append(out, Misfit{addr, want, got})
		}
	}
	for i := range c.Segments {
		for _, b := range c.Segments[i].Blocks {
			for at < len(got) && got[at].Addr < b.Address {
				note(got[at].Addr, alloc.BlockState{}, stateOf(got[at]))
				at++
			}
			want := alloc.BlockState{Size: b.Size, Requested: b.Requested, State: alloc.State(b.State)}
			if at == len(got) || got[at].Addr > b.Address {
				note(b.Address, want, alloc.BlockState{})
				continue
			}
			if g := got[at]; g.Size != b.Size || g.State != want.State {
				note(b.Address, want, stateOf(g))
			}
			at++
		}
	}
	for ; at < len(got); at++ {
		note(got[at].Addr, alloc.BlockState{}, stateOf(got[at]))
	}
	return out
}

func stateOf(p alloc.Piece) alloc.BlockState {
	return alloc.BlockState{Size: p.Size, Requested: p.Requested, State: p.State}
}
