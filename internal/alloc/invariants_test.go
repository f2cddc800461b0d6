package alloc

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// verify holds the whole state against the invariants of the allocator.
func verify(a *Allocator) error {
	onShelf := map[int32]bool{}
	for i := range a.shelves {
		s := &a.shelves[i]
		for _, unmapped := range []bool{false, true} {
			ids, count := s.free.appendTo(a, nil), s.free.n
			if unmapped {
				ids, count = s.unmapped.appendTo(&a.chunks, nil), s.unmapped.n
			}
			if len(ids) != count {
				return fmt.Errorf("shelf %d holds %d blocks, counts %d", i, len(ids), count)
			}
			for j, id := range ids {
				b := &a.blocks[id]
				if onShelf[id] {
					return fmt.Errorf("block %#x is on two shelves", b.addr)
				}
				onShelf[id] = true
				if b.allocated || b.pending() || b.mapped == unmapped || b.shelf != int32(i) {
					return fmt.Errorf("block %#x is on a shelf it does not belong to", b.addr)
				}
				if j > 0 && !unmapped {
					p := &a.blocks[ids[j-1]]
					if p.size > b.size || p.size == b.size && a.tieOf(p) >= a.tieOf(b) {
						return fmt.Errorf("shelf %d is out of order at %#x", i, b.addr)
					}
				}
			}
		}
	}
	spare := map[int32]bool{}
	for _, id := range a.spare {
		if spare[id] || onShelf[id] {
			return fmt.Errorf("entry %d is spare twice or in use", id)
		}
		spare[id] = true
	}
	type span struct{ from, to uint64 }
	var spans []span
	var reserved, allocated, active, requested, split int64
	for id := int32(1); id < int32(len(a.blocks)); id++ {
		b := &a.blocks[id]
		if spare[id] {
			continue
		}
		spans = append(spans, span{b.addr, b.addr + uint64(b.size)})
		if b.size <= 0 || b.size%unit != 0 {
			return fmt.Errorf("block %#x has %d bytes", b.addr, b.size)
		}
		free := !b.allocated && !b.pending()
		if free != onShelf[id] {
			return fmt.Errorf("block %#x: free %v, on a shelf %v", b.addr, free, onShelf[id])
		}
		if n := b.next; n != 0 {
			next := &a.blocks[n]
			if next.prev != id || next.addr != b.addr+uint64(b.size) || next.shelf != b.shelf {
				return fmt.Errorf("block %#x and its neighbour disagree", b.addr)
			}
			if free && onShelf[n] && next.mapped == b.mapped {
				return fmt.Errorf("two free neighbours at %#x are not merged", b.addr)
			}
		}
		if !b.mapped {
			continue
		}
		reserved += b.size
		if b.allocated {
			allocated += b.size
		}
		if !free {
			active += b.size
			requested += b.requested
			if b.requested > b.size || b.requested <= 0 {
				return fmt.Errorf("block %#x of %d bytes serves %d", b.addr, b.size, b.requested)
			}
		} else if b.split() && b.reservation == 0 {
			split += b.size
		}
	}
	slices.SortFunc(spans, func(x, y span) int {
		if x.from < y.from {
			return -1
		}
		return 1
	})
	for i := 1; i < len(spans); i++ {
		if spans[i].from < spans[i-1].to {
			return fmt.Errorf("blocks overlap at %#x", spans[i].from)
		}
	}
	all, small, large := &a.tally[0], &a.tally[1], &a.tally[2]
	for _, c := range []struct {
		name      string
		got, want int64
	}{
		{"reserved", all.ReservedBytes.Current, reserved},
		{"allocated", all.AllocatedBytes.Current, allocated},
		{"active", all.ActiveBytes.Current, active},
		{"requested", all.RequestedBytes.Current, requested},
		{"inactive split", all.InactiveSplitBytes.Current, split},
		{"small and large reserved", small.ReservedBytes.Current + large.ReservedBytes.Current, reserved},
		{"freed and current", all.ReservedBytes.Current + all.ReservedBytes.Freed, all.ReservedBytes.Allocated},
	} {
		if c.got != c.want {
			return fmt.Errorf("%s: counted %d, is %d", c.name, c.got, c.want)
		}
	}
	if allocated > active || active > reserved {
		return fmt.Errorf("allocated %d, active %d, reserved %d", allocated, active, reserved)
	}
	return nil
}

// drawConfig draws settings, a version and a card.
func drawConfig(t *rapid.T) Config {
	v := rapid.SampledFrom([]Version{{1, 13}, {2, 0}, {2, 1}, {2, 6}, {2, 9}, {2, 11}, {2, 12}, {2, 13}}).Draw(t, "torch")
	s := Defaults()
	s.ExpandableSegments = rapid.Bool().Draw(t, "expandable")
	if rapid.Bool().Draw(t, "max split") {
		s.MaxSplitSize = rapid.Int64Range(21, 200).Draw(t, "max_split_size_mb") << 20
		s.MaxNonSplitRounding = rapid.Int64Range(20, 60).Draw(t, "max_non_split_rounding_mb") << 20
	}
	if rapid.Bool().Draw(t, "divisions") {
		d := rapid.SampledFrom([]uint64{1, 2, 4, 8, 16}).Draw(t, "roundup_power2_divisions")
		for i := range s.RoundupPower2Divisions {
			s.RoundupPower2Divisions[i] = d
		}
	}
	if rapid.Bool().Draw(t, "gc") {
		s.GCThreshold = rapid.Float64Range(0.1, 0.9).Draw(t, "garbage_collection_threshold")
		s.MemoryFraction = rapid.Float64Range(0.3, 1).Draw(t, "fraction")
	}
	c := Config{Torch: v, Settings: s}
	if rapid.Bool().Draw(t, "bounded") {
		c.Capacity = rapid.Int64Range(10, 4000).Draw(t, "capacity MiB") << 20
	}
	return c
}

// drawSize draws a request; sizes repeat, as they do in training.
func drawSize() *rapid.Generator[int64] {
	return rapid.OneOf(
		rapid.Int64Range(1, 5000),
		rapid.Int64Range(1, 2<<20),
		rapid.Int64Range(1<<20, 12<<20),
		rapid.Int64Range(10<<20, 300<<20),
		rapid.SampledFrom([]int64{512, 4096, 1 << 20, 1<<20 + 1, 2 << 20, 10 << 20, 20 << 20, 64 << 20}),
	)
}

// act does one random step on a, whose live blocks are in live.
func act(t *rapid.T, a *Allocator, live []Block) []Block {
	streams := []uint64{0, 0, 0, 7, 9}
	switch op := rapid.IntRange(0, 99).Draw(t, "op"); {
	case op < 55 || len(live) == 0:
		b, err := a.Malloc(drawSize().Draw(t, "size"), rapid.SampledFrom(streams).Draw(t, "stream"))
		if err == nil {
			live = append(live, b)
		}
	case op < 95:
		i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
		if rapid.IntRange(0, 9).Draw(t, "cross") == 0 {
			a.RecordStream(live[i], rapid.SampledFrom(streams).Draw(t, "user"))
		}
		a.Free(live[i])
		live[i] = live[len(live)-1]
		live = live[:len(live)-1]
	case op < 97:
		a.EmptyCache()
	default:
		a.Synchronize(rapid.SampledFrom(streams).Draw(t, "done"))
	}
	return live
}

func TestInvariantsHoldOnRandomRequests(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := New(drawConfig(t))
		var live []Block
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			live = act(t, a, live)
			if err := verify(a); err != nil {
				t.Fatal(err)
			}
		}
		for _, b := range live {
			a.Free(b)
		}
		a.EmptyCache()
		if err := verify(a); err != nil {
			t.Fatal(err)
		}
		if r := a.ReservedBytes(); r != 0 {
			t.Fatalf("%d bytes are reserved after everything was given back", r)
		}
	})
}

func TestResetIsAFreshAllocator(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawConfig(t)
		var events []Event
		c.Record = func(e Event) { events = append(events, e) }
		a := New(c)
		seed := rapid.Uint64().Draw(t, "seed")
		run := func() []Event {
			events = nil
			var live []Block
			x := seed
			for range 200 {
				x = x*6364136223846793005 + 1442695040888963407
				if r := x >> 33; r%3 != 0 || len(live) == 0 {
					if b, err := a.Malloc(int64(r%(40<<20))+1, r%2); err == nil {
						live = append(live, b)
					}
				} else {
					i := int(r/3) % len(live)
					a.Free(live[i])
					live = slices.Delete(live, i, i+1)
				}
			}
			return events
		}
		first := run()
		a.Reset()
		if second := run(); !slices.Equal(first, second) {
			t.Fatal("the same requests made other events after Reset")
		}
	})
}
