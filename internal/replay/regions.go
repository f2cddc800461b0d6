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
		r := region{from: e.Addr, to: e.Addr + uint64(e.Size), shelf: w.segmentShelves[i]}
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
			runs = join(runs, r)
		}
	}
	for _, r := range whole {
		runs = append(runs, r)
	}
	slices.SortFunc(runs, byAddress)
	return runs
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
	seen := c.seenRegions()
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

// seenRegions returns all memory that the final state or a segment event of the
// trace shows, by address.
func (c *Case) seenRegions() []region {
	seen := c.finalRegions()
	for i, at := range c.segmentEvents {
		e := &c.Events[at]
		seen = append(seen, region{
			e.Addr, e.Addr + uint64(e.Size), c.segmentShelves[i],
			e.Action == alloc.SegmentMap || e.Action == alloc.SegmentUnmap,
		})
	}
	slices.SortFunc(seen, byAddress)
	return seen
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

// placeSegments finds out where the memory of each segment event belongs.
//
// What was mapped or allocated for a request belongs where the request does.
// Memory that is given back belongs where a block in it does, or with the
// nearest memory of its stream that is known; without any, its size decides:
// only the segments of the small pool have 2 MiB, as the large pool has none
// below 10 MiB.
func (c *Case) placeSegments() {
	c.segmentShelves = make([]shelf, len(c.segmentEvents))
	known := c.finalRegions()
	next := 0
	for i := range c.ops {
		o := &c.ops[i]
		for ; next < len(c.segmentEvents) && c.segmentEvents[next] <= o.at; next++ {
			e := &c.Events[c.segmentEvents[next]]
			s := &c.segmentShelves[next]
			*s = shelf{e.Stream, c.pools(e.Pool), e.Size == smallPage}
			if (e.Action == alloc.SegmentMap || e.Action == alloc.SegmentAlloc) && (o.kind == opMalloc || o.kind == opFailed) {
				s.pool, s.small = c.poolAt(o), c.Settings.Round(c.Events[o.at].Size) <= smallLimit
			}
			if e.Action == alloc.SegmentMap {
				known = append(known, region{e.Addr, e.Addr + uint64(e.Size), *s, true})
			}
		}
	}
	var tensors []int32
	for i, at := range c.segmentEvents {
		e := &c.Events[at]
		if e.Action != alloc.SegmentUnmap {
			continue
		}
		if tensors == nil {
			tensors = c.byAddress()
			slices.SortFunc(known, byAddress)
		}
		c.segmentShelves[i] = c.shelfOfUnmapped(known, tensors, e)
	}
}

// byAddress returns the tensors of the case by address.
func (c *Case) byAddress() []int32 {
	ids := make([]int32, len(c.all))
	for i := range ids {
		ids[i] = int32(i)
	}
	slices.SortFunc(ids, func(a, b int32) int { return cmp.Compare(c.all[a].addr, c.all[b].addr) })
	return ids
}

// shelfOfUnmapped returns where pages that are given back belong.
func (c *Case) shelfOfUnmapped(known []region, tensors []int32, e *alloc.Event) shelf {
	s := shelf{e.Stream, c.pools(e.Pool), e.Size%c.Settings.LargeSegmentSize != 0}
	i, _ := slices.BinarySearchFunc(known, e.Addr, func(r region, addr uint64) int { return cmp.Compare(r.from, addr) })
	distance := ^uint64(0)
	for _, step := range [...]int{-1, 1} {
		for j := i + min(step, 0); j >= 0 && j < len(known); j += step {
			r := &known[j]
			if !r.expandable || r.shelf.stream != e.Stream || c.poolsRecorded && r.shelf.pool != s.pool {
				continue
			}
			if d := max(e.Addr, r.from) - min(e.Addr, r.from); d < distance {
				distance = d
				s.pool, s.small = r.shelf.pool, r.shelf.small
			}
			break
		}
	}
	if distance > nearBy || e.Size%c.Settings.LargeSegmentSize != 0 {
		s.small = e.Size%c.Settings.LargeSegmentSize != 0
	}
	k, _ := slices.BinarySearchFunc(tensors, e.Addr, func(id int32, addr uint64) int { return cmp.Compare(c.all[id].addr, addr) })
	if k < len(tensors) {
		if t := &c.all[tensors[k]]; t.addr < e.Addr+uint64(e.Size) && t.stream == e.Stream {
			s.small = c.Settings.Round(t.requested(c)) <= smallLimit
		}
	}
	return s
}

// nearBy is how far apart memory of one expandable segment is taken to lie at
// most. Different ones are 9/8 of a card apart.
const nearBy = 1 << 30

// smallLimit is the largest rounded size in the small pool. pytorch v2.12
// kSmallSize.
const smallLimit = 1 << 20
