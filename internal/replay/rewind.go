package replay

import (
	"cmp"
	"slices"

	"unoom/internal/alloc"
)

// A Start is the state of the allocator before one event of a trace, rebuilt
// from the state at the end and the events between.
type Start struct {
	Segments []alloc.SegmentState
	// Deduced counts the blocks whose size had to be worked out from the request
	// and the neighbours, because they are gone at the end.
	Deduced int
	// InDoubt counts those of them that could be larger, by an unsplit tail that
	// no event shows. InDoubtBytes is the most that this could add up to.
	InDoubt      int
	InDoubtBytes int64
	// Oddities are contradictions between the events and the final state.
	Oddities []Oddity

	live []placed // in the order of Segments and their blocks
}

// placed says where a live tensor is in a Start.
type placed struct{ segment, block, tensor int32 }

func (s *Start) odd(code string, event int32) {
	for i := range s.Oddities {
		if s.Oddities[i].Code == code {
			s.Oddities[i].Count++
			return
		}
	}
	s.Oddities = append(s.Oddities, Oddity{code, int(event), 1})
}

// rewinding is a Rewind under way.
type rewinding struct {
	*Case
	start *Start
	event int32 // the state before this event is built
	alive []int32
	next  int // the first of alive that has no place yet
	tails []tail
	found bool // tails is made
}

// Rewind rebuilds the state before event k; 0 is the beginning of the trace.
//
// The layout follows from which blocks lived: two free neighbours are always
// merged, so a segment is its live blocks and the largest gaps between them.
func (c *Case) Rewind(k int) *Start {
	w := &rewinding{Case: c, start: &Start{}, event: int32(k)}
	w.alive = w.liveTensors()
	regions := w.regions()
	spaces := c.addressSpaces()
	for len(regions) > 0 {
		n := 1
		seg := alloc.SegmentState{
			Addr: regions[0].from, Stream: regions[0].shelf.stream,
			Pool: regions[0].shelf.pool, Small: regions[0].shelf.small,
		}
		end := regions[0].to
		if regions[0].expandable {
			space := spaceOf(spaces, regions[0].from)
			seg.Addr, seg.Page, end = space.from, c.page(seg.Small), space.to
			for n < len(regions) && regions[n].from < end {
				n++
			}
		}
		at := seg.Addr
		for _, run := range regions[:n] {
			unmapped(&seg, at, run.from)
			w.fill(&seg, &run)
			at = run.to
		}
		unmapped(&seg, at, end)
		w.start.Segments = append(w.start.Segments, seg)
		regions = regions[n:]
	}
	w.skipTo(^uint64(0))
	return w.start
}

func unmapped(seg *alloc.SegmentState, from, to uint64) {
	if to > from {
		seg.Blocks = append(seg.Blocks, alloc.BlockState{Size: int64(to - from), State: alloc.Unmapped})
	}
}

// page returns the size of the pages of an expandable segment.
func (c *Case) page(small bool) int64 {
	if small {
		return smallPage
	}
	return c.Settings.LargeSegmentSize
}

// smallPage is the page of the expandable segments of the small pool and the
// size of its other segments. pytorch v2.12 kSmallBuffer.
const smallPage = 2 << 20

// liveTensors returns the tensors that are not completely freed before the
// event, by address.
func (w *rewinding) liveTensors() []int32 {
	var ids []int32
	for i := range w.all {
		t := &w.all[i]
		if t.born >= w.event || t.completed != never && t.completed < w.event {
			continue
		}
		ids = append(ids, int32(i))
	}
	slices.SortFunc(ids, func(a, b int32) int { return cmp.Compare(w.all[a].addr, w.all[b].addr) })
	return ids
}

// pending reports whether a live tensor was already freed and only waits.
func (w *rewinding) pending(t *tensor) bool {
	return t.wasPending || t.freed != never && t.freed < w.event
}

// skipTo passes over tensors that lie in no segment.
func (w *rewinding) skipTo(addr uint64) {
	for ; w.next < len(w.alive) && w.all[w.alive[w.next]].addr < addr; w.next++ {
		w.start.odd("block_outside_segments", w.all[w.alive[w.next]].freed)
	}
}

// fill appends the blocks of one run of memory: the live ones and the gaps.
func (w *rewinding) fill(seg *alloc.SegmentState, run *region) {
	w.skipTo(run.from)
	at := run.from
	gap := func(to uint64) {
		if to > at {
			seg.Blocks = append(seg.Blocks, alloc.BlockState{Size: int64(to - at)})
		}
	}
	for ; w.next < len(w.alive) && w.all[w.alive[w.next]].addr < run.to; w.next++ {
		id := w.alive[w.next]
		t := &w.all[id]
		if t.addr < at {
			w.start.odd("blocks_overlap", t.freed)
			continue
		}
		gap(t.addr)
		limit := run.to
		if w.next+1 < len(w.alive) {
			limit = min(limit, w.all[w.alive[w.next+1]].addr)
		}
		b := alloc.BlockState{Requested: t.size, State: alloc.Active}
		if w.pending(t) {
			b.State = alloc.Pending
		}
		if t.segment > 0 {
			b.Size = w.Segments[t.segment-1].Blocks[t.block].Size
		} else {
			b.Size = w.deduce(t, run, int64(limit-t.addr))
			w.start.Deduced++
		}
		if b.Size > int64(limit-t.addr) {
			w.start.odd("blocks_overlap", t.freed)
			b.Size = int64(limit - t.addr)
		}
		if b.Requested < 0 {
			b.Requested = b.Size
		}
		w.start.live = append(w.start.live, placed{int32(len(w.start.Segments)), int32(len(seg.Blocks)), id})
		seg.Blocks = append(seg.Blocks, b)
		at = t.addr + uint64(b.Size)
	}
	gap(run.to)
}

// deduce returns the size of a block of which only the request is known, and
// that there are room bytes to the next live block or the end.
//
// A block is as large as its rounded request, or larger by a tail that was not
// worth cutting off. A gap too small to be a free block is such a tail. Behind
// a larger gap a tail can still hide; the first block that is later cut from
// the gap shows where the gap begins.
func (w *rewinding) deduce(t *tensor, run *region, room int64) int64 {
	size := w.Settings.Round(t.size)
	gap := room - size
	if gap <= 0 || run.shelf.small || run.expandable {
		return size
	}
	most := w.Settings.LargestTail(size)
	if gap <= most {
		return room
	}
	end := t.addr + uint64(size)
	if first := w.firstIn(end, end+uint64(most), t.completed); first != 0 {
		return int64(first - t.addr)
	}
	w.start.InDoubt++
	w.start.InDoubtBytes += min(most, gap)
	return size
}

// tail is an alloc event, to be found by address.
type tail struct {
	addr  uint64
	event int32
}

// findTails sorts the alloc events from the event on by address.
func (w *rewinding) findTails() []tail {
	var tails []tail
	for i := range w.all {
		if t := &w.all[i]; t.born >= w.event && t.born != never {
			tails = append(tails, tail{t.addr, t.born})
		}
	}
	slices.SortFunc(tails, func(a, b tail) int {
		return cmp.Or(cmp.Compare(a.addr, b.addr), cmp.Compare(a.event, b.event))
	})
	return tails
}

// firstIn returns the address of the first block handed out in [from, to]
// before an event, or 0.
func (w *rewinding) firstIn(from, to uint64, before int32) uint64 {
	if !w.found {
		w.tails, w.found = w.findTails(), true
	}
	i, _ := slices.BinarySearchFunc(w.tails, from, func(t tail, addr uint64) int { return cmp.Compare(t.addr, addr) })
	best := tail{event: before}
	if before == never {
		best.event = int32(len(w.Events))
	}
	for ; i < len(w.tails) && w.tails[i].addr <= to; i++ {
		if w.tails[i].event < best.event {
			best = w.tails[i]
		}
	}
	return best.addr
}

// Live returns the number of blocks that live before the event.
func (s *Start) Live() int { return len(s.live) }
