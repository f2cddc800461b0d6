package replay

import (
	"cmp"
	"slices"

	"unoom/internal/alloc"
)

// Memory is what the driver gave, from one event to another: a segment, or pages
// of an expandable one that came and went together.
type Memory struct {
	Addr       uint64
	Bytes      int64
	Born       int32 // event; -1 if it was there before the trace
	Freed      int32 // event; Always if it is there at the end
	Stream     uint64
	Small      bool
	Expandable bool
}

// Always is the event at which memory ends that is there at the end.
const Always int32 = 1<<31 - 1

// Memory returns all that the driver gave in the trace, by address.
func (c *Case) Memory() []Memory {
	w := &rewinding{Case: c, start: &Start{}}
	var done, open []Memory
	for _, r := range w.regions() {
		open = append(open, memoryOf(&r, never))
	}
	for i, at := range c.segmentEvents {
		e := &c.Events[at]
		r := region{e.Addr, e.Addr + uint64(e.Size), c.segmentShelves[i], e.Action == alloc.SegmentMap || e.Action == alloc.SegmentUnmap}
		switch e.Action {
		case alloc.SegmentAlloc, alloc.SegmentMap:
			j, _ := slices.BinarySearchFunc(open, r.from, byMemoryAddress)
			open = slices.Insert(open, j, memoryOf(&r, at))
		case alloc.SegmentFree, alloc.SegmentUnmap:
			open, done = end(open, done, r.from, r.to, at)
		}
	}
	done = append(done, open...)
	slices.SortStableFunc(done, func(a, b Memory) int { return cmp.Or(cmp.Compare(a.Addr, b.Addr), cmp.Compare(a.Born, b.Born)) })
	return done
}

func byMemoryAddress(m Memory, addr uint64) int { return cmp.Compare(m.Addr, addr) }

func memoryOf(r *region, born int32) Memory {
	return Memory{
		Addr: r.from, Bytes: int64(r.to - r.from), Born: born, Freed: Always,
		Stream: r.shelf.stream, Small: r.shelf.small, Expandable: r.expandable,
	}
}

// end closes what lies in [from, to) at an event; what reaches out of it goes on.
func end(open, done []Memory, from, to uint64, at int32) ([]Memory, []Memory) {
	i, _ := slices.BinarySearchFunc(open, from, byMemoryAddress)
	if i > 0 && open[i-1].Addr+uint64(open[i-1].Bytes) > from {
		i--
	}
	n := i
	var rest []Memory
	for ; n < len(open) && open[n].Addr < to; n++ {
		m := open[n]
		last := m.Addr + uint64(m.Bytes)
		if m.Addr < from {
			front := m
			front.Bytes = int64(from - m.Addr)
			rest = append(rest, front)
			m.Addr, m.Bytes = from, int64(last-from)
		}
		if last > to {
			back := m
			back.Addr, back.Bytes = to, int64(last-to)
			rest = append(rest, back)
			m.Bytes = int64(to - m.Addr)
		}
		m.Freed = at
		done = append(done, m)
	}
	return slices.Replace(open, i, n, rest...), done
}
