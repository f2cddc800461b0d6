package replay

import (
	"cmp"
	"slices"

	"unoom/internal/alloc"
	"unoom/internal/snapshot"
)

// opKind is what the program, or the driver, did.
type opKind uint8

const (
	opMalloc    opKind = iota // a request that was served
	opFailed                  // a request that ran out of memory
	opFree                    // a free that completed at once
	opFreeLater               // a free that waited for other streams
	opComplete                // the end of such a wait
	opSegments                // memory given back outside a request: empty_cache
	opNothing                 // an event that is not the allocator's
)

// An op is one call of the program with the events it made: first to at.
type op struct {
	first, at int32
	tensor    int32
	kind      opKind
}

// never is the event number of what did not happen in the trace.
const never int32 = -1

// A tensor is one use of memory: from an alloc event, or from before the
// trace, to its free.
type tensor struct {
	addr       uint64
	size       int64 // as requested; -1 if only the block's size is known
	stream     uint64
	born       int32 // alloc event
	freed      int32 // free_requested event
	completed  int32 // free_completed event
	segment    int32 // where it lies at the end, index+1 into Case.Segments
	block      int32 // index into its blocks
	wasPending bool  // freed before the trace, completed in it or after
}

// An Oddity is something in a trace that no allocator does.
type Oddity struct {
	Code  string // stable: "alloc_of_live_block" …
	Event int    // the first event that shows it, -1 for the final state
	Count int
}

// tensors is a trace as calls about numbered tensors.
type tensors struct {
	ops      []op
	all      []tensor
	oddities []Oddity
	lastOdd  int32 // the last event that contradicts what was before it
	// segmentEvents are the events about segments.
	segmentEvents  []int32
	segmentShelves []shelf // of each of them
	// poolsRecorded says that the events tell the private pool.
	poolsRecorded bool
	// skippedRequests and skippedCompletions say that the recording leaves out
	// free_requested or free_completed (skip_actions, since torch 2.10).
	skippedRequests, skippedCompletions bool
}

func (t *tensors) odd(code string, event int32) {
	t.lastOdd = max(t.lastOdd, event)
	for i := range t.oddities {
		if t.oddities[i].Code == code {
			t.oddities[i].Count++
			return
		}
	}
	t.oddities = append(t.oddities, Oddity{code, int(event), 1})
}

// number reads the trace once, forward.
func (c *Case) number() {
	c.lastOdd = never
	allocs, requests, completions := 0, 0, 0
	for i := range c.Events {
		c.poolsRecorded = c.poolsRecorded || c.Events[i].Pool != 0
		switch c.Events[i].Action {
		case alloc.Alloc:
			allocs++
		case alloc.FreeRequested:
			requests++
		case alloc.FreeCompleted:
			completions++
		}
	}
	c.skippedRequests = requests == 0 && completions > 0 && c.completesUnrequested()
	c.skippedCompletions = completions == 0 && requests > 0 && c.reusesUncompleted()
	c.ops = make([]op, 0, len(c.Events)-min(requests, completions))
	c.all = make([]tensor, 0, allocs+max(0, requests-allocs)+64)
	live := newAddresses(1024)
	waiting := newAddresses(16)
	first := never // of the segment events that belong to the next call
	for i := int32(0); i < int32(len(c.Events)); i++ {
		e := &c.Events[i]
		o := op{first: i, at: i, tensor: never, kind: opNothing}
		if e.Addr == 0 && (e.Action == alloc.Alloc || e.Action == alloc.FreeRequested || e.Action == alloc.FreeCompleted) {
			c.odd("address_zero", i)
			continue
		}
		switch e.Action {
		case alloc.SegmentAlloc, alloc.SegmentFree, alloc.SegmentMap, alloc.SegmentUnmap:
			c.segmentEvents = append(c.segmentEvents, i)
			if first == never {
				first = i
			}
			continue
		case alloc.Alloc:
			if first != never {
				o.first = first
			}
			o.kind, o.tensor = opMalloc, c.newTensor(e)
			c.all[o.tensor].born = i
			if live.put(e.Addr, o.tensor) {
				c.odd("alloc_of_live_block", i)
			}
		case alloc.OOM:
			if first != never {
				o.first = first
			}
			o.kind = opFailed
		case alloc.FreeRequested:
			id, known := live.take(e.Addr)
			if !known {
				id = c.newTensor(e)
			}
			c.all[id].freed = i
			o.kind, o.tensor = opFreeLater, id
			if i+1 < int32(len(c.Events)) && c.Events[i+1].Action == alloc.FreeCompleted && c.Events[i+1].Addr == e.Addr {
				o.kind, o.at = opFree, i+1
				c.all[id].completed = i + 1
			} else if c.skippedCompletions {
				o.kind = opFree
				c.all[id].completed = i
			} else if waiting.put(e.Addr, id) {
				c.odd("free_of_freed_block", i)
			}
		case alloc.FreeCompleted:
			id, known := waiting.take(e.Addr)
			o.kind = opComplete
			if !known && c.skippedRequests {
				o.kind = opFree
				if id, known = live.take(e.Addr); known {
					c.all[id].freed = i
				}
			}
			if !known {
				id = c.newTensor(e)
				c.all[id].wasPending = true
				if _, alive := live.get(e.Addr); alive {
					c.odd("completed_before_requested", i)
				}
			}
			c.all[id].completed = i
			o.tensor = id
		}
		if first != never && o.first == i {
			// Segment events that no request follows.
			c.ops = append(c.ops, op{first: first, at: i - 1, tensor: never, kind: opSegments})
		}
		first = never
		c.ops = append(c.ops, o)
		i = o.at
	}
	if first != never {
		c.ops = append(c.ops, op{first: first, at: int32(len(c.Events)) - 1, tensor: never, kind: opSegments})
	}
	c.placeLast(live, waiting)
	c.placeSegments()
}

// outsiders counts the blocks that are handed out where the trace and the final
// state know no segment. Only a trace that is not reproduced can have any.
func (c *Case) outsiders() (o Oddity) {
	o = Oddity{"alloc_outside_segments", int(never), 0}
	known := c.seenRegions()
	// The end of the furthest region so far: regions can overlap in time.
	ends := make([]uint64, len(known))
	for i, r := range known {
		ends[i] = r.to
		if i > 0 {
			ends[i] = max(ends[i], ends[i-1])
		}
	}
	for i := range c.all {
		t := &c.all[i]
		if t.born == never {
			continue
		}
		at, found := slices.BinarySearchFunc(known, t.addr, func(r region, addr uint64) int { return cmp.Compare(r.from, addr) })
		if !found {
			at--
		}
		if at < 0 || t.addr >= ends[at] {
			if o.Count++; o.Event < 0 {
				o.Event = int(t.born)
			}
		}
	}
	return o
}

// completesUnrequested reports whether a block that is handed out in the trace
// is completely freed in it.
func (c *Case) completesUnrequested() bool {
	live := newAddresses(1024)
	for i := range c.Events {
		switch e := &c.Events[i]; e.Action {
		case alloc.Alloc:
			if e.Addr != 0 {
				live.put(e.Addr, 0)
			}
		case alloc.FreeCompleted:
			if _, known := live.get(e.Addr); known {
				return true
			}
		}
	}
	return false
}

// reusesUncompleted reports whether an address is handed out again whose free
// was requested: then it was completed as well.
func (c *Case) reusesUncompleted() bool {
	freed := newAddresses(1024)
	for i := range c.Events {
		switch e := &c.Events[i]; e.Action {
		case alloc.FreeRequested:
			if e.Addr != 0 {
				freed.put(e.Addr, 0)
			}
		case alloc.Alloc:
			if _, known := freed.get(e.Addr); known {
				return true
			}
		}
	}
	return false
}

func (c *Case) newTensor(e *alloc.Event) int32 {
	c.all = append(c.all, tensor{
		addr: e.Addr, size: e.Size, stream: e.Stream, born: never, freed: never, completed: never, block: never,
	})
	return int32(len(c.all) - 1)
}

// placeLast joins the tensors that live at the end with the final blocks.
func (c *Case) placeLast(live, waiting *addresses) {
	for i := range c.Segments {
		seg := &c.Segments[i]
		for j := range seg.Blocks {
			b := &seg.Blocks[j]
			if b.State != snapshot.Active && b.State != snapshot.PendingFree {
				continue
			}
			pending := b.State == snapshot.PendingFree
			from := live
			if pending {
				from = waiting
			}
			id, known := from.take(b.Address)
			if !known {
				c.all = append(c.all, tensor{
					addr: b.Address, size: b.Requested, stream: seg.Stream,
					born: never, freed: never, completed: never, wasPending: pending,
				})
				id = int32(len(c.all) - 1)
			}
			c.all[id].segment, c.all[id].block = int32(i)+1, int32(j)
		}
	}
	if live.n+waiting.n > 0 {
		c.odd("live_block_not_in_final_state", never)
		c.oddities[len(c.oddities)-1].Count = live.n + waiting.n
	}
}
