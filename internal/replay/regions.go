package replay

import (
	"cmp"
	"slices"

	"unoom/internal/alloc"
)

// region is memory that the driver had given: a segment, or one run of mapped
// pages of an expandable one.
type region struct {
	from, to   uint64
	shelf      shelf
	expandable bool
}

// shelf says where the blocks of a region are kept.
type shelf struct {
	stream uint64
	pool   alloc.PoolID
	small  bool
}

func byAddress(a, b region) int { return cmp.Compare(a.from, b.from) }

// finalRegions returns the memory at the end of the trace, by address.
func (c *Case) finalRegions() []region {
	regions := make([]region, 0, len(c.Segments))
	for i := range c.Segments {
		s := &c.Segments[i]
		regions = append(regions, region{
			s.Address, s.Address + uint64(s.Total),
			shelf{s.Stream, c.pools(s.Pool), s.Small}, s.Expandable,
		})
	}
	return regions
}

// regions returns the memory before the event: that of the end, with the
// segment events undone from the last one back.
func (w *rewinding) regions() []region {
	whole := map[uint64]region{}
	var runs []region
	for _, r := range w.finalRegions() {
		if r.expandable {
			runs = append(runs, r)
		} else {
			whole[r.from] = r
		}
	}
	for i := len(w.segmentEvents) - 1; i >= 0 && w.segmentEvents[i] >= w.event; i-- {
		at := w.segmentEvents[i]
		e := &w.Events[at]
		r := region{from: e.Addr, to: e.Addr + uint64(e.Size), shelf: w.shelfOf(e)}
		switch e.Action {
		case alloc.SegmentAlloc:
			if _, known := whole[r.from]; !known {
				w.start.odd("segment_not_in_final_state", at)
			}
			delete(whole, r.from)
		case alloc.SegmentFree:
			if _, known := whole[r.from]; known {
				w.start.odd("segment_freed_and_there", at)
			}
			whole[r.from] = r
		case alloc.SegmentMap:
			var all bool
			if runs, all = subtract(runs, r); !all {
				w.start.odd("segment_not_in_final_state", at)
			}
		case alloc.SegmentUnmap:
			r.expandable = true
			r.shelf = w.runShelf(r)
			runs = join(runs, r)
		}
	}
	for _, r := range whole {
		runs = append(runs, r)
	}
	slices.SortFunc(runs, byAddress)
	return runs
}

// shelfOf returns where a segment of an event belongs. Only the segments of
// the small pool have 2 MiB: the large pool has none below 10 MiB.
func (c *Case) shelfOf(e *alloc.Event) shelf {
	return shelf{e.Stream, c.pools(e.Pool), e.Size == smallPage}
}

// subtract takes r out of runs, and reports whether all of it was there.
func subtract(runs []region, r region) ([]region, bool) {
	var out []region
	var covered uint64
	for _, run := range runs {
		from, to := max(run.from, r.from), min(run.to, r.to)
		if from >= to {
			out = append(out, run)
			continue
		}
		covered += to - from
		if run.from < from {
			front := run
			front.to = from
			out = append(out, front)
		}
		if to < run.to {
			back := run
			back.from = to
			out = append(out, back)
		}
	}
	return out, covered == r.to-r.from
}

// join adds r to runs, which stay sorted, and joins it with its neighbours.
func join(runs []region, r region) []region {
	i, _ := slices.BinarySearchFunc(runs, r, byAddress)
	runs = slices.Insert(runs, i, r)
	if i+1 < len(runs) && runs[i].to == runs[i+1].from && runs[i].shelf == runs[i+1].shelf {
		runs[i].to = runs[i+1].to
		runs = slices.Delete(runs, i+1, i+2)
	}
	if i > 0 && runs[i-1].to == runs[i].from && runs[i-1].shelf == runs[i].shelf {
		runs[i-1].to = runs[i].to
		runs = slices.Delete(runs, i, i+1)
	}
	return runs
}

// spaceWithoutBound is the most address space an expandable segment is given
// here, when nothing that lies behind it says less: its true size is 9/8 of
// the card, which a snapshot does not tell.
const spaceWithoutBound = 1 << 42

// addressSpaces returns the address space of every expandable segment that the
// case ever shows, from the lowest address that was mapped in it.
//
// Neighbouring runs of one stream and pool are taken to be of one reservation.
// Known gap: a stream that exhausts the address space of one, 9/8 of the card,
// gets a second, which is then taken for the same.
func (c *Case) addressSpaces() []region {
	var seen []region
	for _, r := range c.finalRegions() {
		seen = append(seen, r)
	}
	for _, at := range c.segmentEvents {
		e := &c.Events[at]
		r := region{from: e.Addr, to: e.Addr + uint64(e.Size), shelf: c.shelfOf(e)}
		if e.Action == alloc.SegmentMap || e.Action == alloc.SegmentUnmap {
			r.expandable = true
			r.shelf = c.runShelf(r)
		}
		seen = append(seen, r)
	}
	slices.SortFunc(seen, byAddress)
	var spaces []region
	for i, r := range seen {
		if n := len(spaces); r.expandable && n > 0 && spaces[n-1].shelf == r.shelf && i > 0 && seen[i-1].expandable {
			spaces[n-1].to = max(spaces[n-1].to, r.to)
		} else if r.expandable {
			spaces = append(spaces, r)
		}
	}
	for i := range spaces {
		s := &spaces[i]
		end := s.from + spaceWithoutBound
		j, _ := slices.BinarySearchFunc(seen, s.to, func(r region, addr uint64) int { return cmp.Compare(r.from, addr) })
		if j < len(seen) && (seen[j].shelf != s.shelf || !seen[j].expandable) {
			end = min(end, seen[j].from)
		}
		page := uint64(c.page(s.shelf.small))
		s.to = max(s.to, s.from+(end-s.from)/page*page)
	}
	return spaces
}

// spaceOf returns the address space that holds addr.
func spaceOf(spaces []region, addr uint64) region {
	i, found := slices.BinarySearchFunc(spaces, addr, func(r region, addr uint64) int { return cmp.Compare(r.from, addr) })
	if !found {
		i--
	}
	if i < 0 {
		return region{from: addr, to: addr}
	}
	return spaces[i]
}

// runShelf says where pages that were mapped or unmapped belong: to the pool of
// the nearest pages of that stream at the end of the trace or, without any, to
// the one whose pages can have that size.
func (c *Case) runShelf(r region) shelf {
	best, distance := r.shelf, uint64(1<<40)
	best.small = (r.to-r.from)%uint64(c.Settings.LargeSegmentSize) != 0
	for i := range c.Segments {
		s := &c.Segments[i]
		if !s.Expandable || s.Stream != r.shelf.stream {
			continue
		}
		d := r.from - s.Address
		if s.Address > r.from {
			d = s.Address - r.from
		}
		if d < distance {
			distance, best = d, shelf{s.Stream, c.pools(s.Pool), s.Small}
		}
	}
	return best
}
