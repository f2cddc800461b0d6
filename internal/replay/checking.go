package replay

import (
	"cmp"
	"slices"

	"unoom/internal/alloc"
	"unoom/internal/snapshot"
)

// checking is a Check under way.
type checking struct {
	*Case
	result *Result
	sim    *alloc.Allocator
	oracle *oracle
	// held are completions, by event, that a flush may have made; lastHeld are
	// those that the current op begins with.
	held, lastHeld []int32
	saved          alloc.Checkpoint
}

// begin sets the simulation to a state.
func (c *checking) begin(s *Start) error {
	c.oracle = &oracle{Case: c.Case, spaces: c.addressSpaces(), tensor: make([]alloc.Block, len(c.all))}
	c.sim = alloc.New(alloc.Config{
		Torch: c.result.Torch, Tie: c.result.Tie, Settings: c.Settings, Device: c.oracle, Record: c.oracle.record,
	})
	c.oracle.sim = c.sim
	if err := restore(c.sim, s, c.oracle.tensor); err != nil {
		return err
	}
	c.sim.ResetPeaks()
	c.held = c.held[:0]
	return nil
}

// restore puts a start into an empty simulation and fills in the blocks of the
// tensors that live in it.
func restore(sim *alloc.Allocator, s *Start, blocks []alloc.Block) error {
	next := 0
	for i := range s.Segments {
		err := sim.Restore(&s.Segments[i], func(_ int, b alloc.Block) {
			blocks[s.live[next].tensor] = b
			next++
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *checking) takePeaks() {
	p := &c.result.Peaks
	p.Allocated = max(p.Allocated, c.sim.PeakAllocatedBytes())
	p.Active = max(p.Active, c.sim.PeakActiveBytes())
	p.Reserved = max(p.Reserved, c.sim.PeakReservedBytes())
	u := &c.result.Usable
	u.AtLeast = p.Reserved
	if b := c.oracle.refused; b > 0 && (u.Below == 0 || b < u.Below) {
		u.Below = b
	}
}

// step runs one op.
func (c *checking) step(at int) {
	o := &c.ops[at]
	c.oracle.cursor, c.oracle.end = o.first, o.at+1
	if o.kind == opFree || o.kind == opFreeLater || o.kind == opComplete {
		want := alloc.Active
		if o.kind == opComplete {
			want = alloc.Pending
		}
		if c.sim.State(c.oracle.tensor[o.tensor]) != want {
			c.oracle.differ = &Difference{Event: int(o.first), Want: c.Events[o.first]}
			return
		}
	}
	if c.result.bytes != nil && (o.kind == opFree || o.kind == opFreeLater) && c.all[o.tensor].born == never {
		c.result.bytes[o.first] = c.sim.Size(c.oracle.tensor[o.tensor])
	}
	switch o.kind {
	case opFree:
		if c.freedByFlush(at) {
			c.oracle.end = o.at
			c.sim.FreeLater(c.oracle.tensor[o.tensor])
			c.held = append(c.held, o.at)
			break
		}
		c.sim.Free(c.oracle.tensor[o.tensor])
	case opFreeLater:
		c.sim.FreeLater(c.oracle.tensor[o.tensor])
	case opComplete:
		if len(c.held) > 0 || c.flushOf(at) != nil {
			c.held = append(c.held, o.first)
			return
		}
		c.sim.Complete(c.oracle.tensor[o.tensor])
	case opSegments:
		c.takeHeld()
		if at+1 < len(c.ops) && c.ops[at+1].kind == opComplete {
			// More completes after this: what came before did not wait for it.
			c.oracle.end = o.first
			c.completeAll(c.lastHeld)
			c.oracle.cursor, c.oracle.end = o.first, o.at+1
			if c.oracle.differ == nil && c.beginsFlush(at) {
				c.held = append(c.held, o.first)
				return
			}
		}
		c.emptyCache(at)
	case opMalloc, opFailed:
		c.malloc(at)
	}
	if c.oracle.differ == nil && c.oracle.cursor < c.oracle.end && o.kind != opNothing {
		c.oracle.differ = &Difference{Event: int(c.oracle.cursor), Want: c.Events[c.oracle.cursor]}
	}
}

// flushOf returns the op whose flush the completion at an op can be a part of:
// when segments are given back, or a request fails, directly after it and those
// that follow it, then all streams were waited for. It returns nil otherwise.
func (c *checking) flushOf(at int) *op {
	for at++; at < len(c.ops) && c.ops[at].kind == opComplete; at++ {
	}
	if at == len(c.ops) {
		return nil
	}
	switch o := &c.ops[at]; o.kind {
	case opFailed:
		return o
	case opMalloc:
		// Growing an expandable segment can succeed after a flush without an
		// event of the driver.
		e := &c.Events[o.at]
		if c.givesBack(o.first) || c.Settings.ExpandableSegments && !c.sim.Fits(c.poolAt(o), e.Size, e.Stream) {
			return o
		}
	case opSegments:
		if c.givesBack(o.first) {
			return o
		}
	}
	return nil
}

// beginsFlush reports whether segments that are given back before some frees
// complete belong to the request after these: oversize blocks go first, then
// all streams are waited for.
func (c *checking) beginsFlush(at int) bool {
	if at+1 == len(c.ops) || c.ops[at+1].kind != opComplete {
		return false
	}
	segments := c.ops[at].first
	for at++; at < len(c.ops) && c.ops[at].kind == opComplete; at++ {
	}
	if at == len(c.ops) || c.ops[at].kind != opMalloc && c.ops[at].kind != opFailed {
		return false
	}
	if a := c.Events[segments].Action; a == alloc.SegmentMap || a == alloc.SegmentAlloc {
		return true // emptying the cache asks for nothing
	}
	o := &c.ops[at]
	e := &c.Events[o.at]
	addr, ok := c.sim.FirstOversize(c.poolAt(o), e.Size, e.Stream)
	return ok && c.Events[segments].Addr == addr
}

// freedByFlush reports whether a free that looks immediate was none: the request
// after it would have been served, had the block been free, but was not.
func (c *checking) freedByFlush(at int) bool {
	o := c.flushOf(at)
	if o == nil || o.kind == opSegments {
		return false
	}
	e, pool := &c.Events[o.at], c.poolAt(o)
	return !c.sim.Fits(pool, e.Size, e.Stream) && c.sim.FitsAfter(c.oracle.tensor[c.ops[at].tensor], pool, e.Size, e.Stream)
}

func (c *Case) givesBack(event int32) bool {
	a := c.Events[event].Action
	return a == alloc.SegmentFree || a == alloc.SegmentUnmap
}

// takeHeld begins the current op with the completions that were put aside.
func (c *checking) takeHeld() {
	c.lastHeld = append(c.lastHeld[:0], c.held...)
	if len(c.held) > 0 {
		c.oracle.cursor = c.held[0]
		c.held = c.held[:0]
	}
}

// completeAll completes the frees of these events.
func (c *checking) completeAll(events []int32) {
	for _, event := range events {
		if id := c.oracle.waitingAt(event); id != never && c.oracle.differ == nil {
			c.sim.Complete(c.oracle.tensor[id])
		}
	}
}

// waitingAt returns the tensor that is completed by an event.
func (o *oracle) waitingAt(at int32) int32 {
	i, found := slices.BinarySearchFunc(o.ops, at, func(x op, at int32) int { return cmp.Compare(x.at, at) })
	if !found || o.ops[i].kind != opComplete && o.ops[i].kind != opFree {
		return never
	}
	return o.ops[i].tensor
}

// A reading is one way in which a request can have come to its events.
type reading struct {
	emptied bool // the program emptied the cache before it
	early   bool // the frees before it completed before its search
}

// malloc replays a request with everything it made happen.
//
// What stands before a request in a trace can have been done for it, when it
// failed at first, or before it. The trace does not say. The likeliest reading
// is tried first, and the first that fits is taken.
func (c *checking) malloc(at int) {
	o := &c.ops[at]
	e := &c.Events[o.at]
	pool := c.poolAt(o)
	var readings []reading
	switch {
	case c.givesBack(o.first) && (c.servedFromCache(o) || c.sim.Fits(pool, e.Size, e.Stream) || c.releasesOtherwise(pool, e)):
		readings = []reading{{emptied: true}, {}, {early: true}, {emptied: true, early: true}}
	case c.givesBack(o.first):
		readings = []reading{{}, {emptied: true}, {early: true}, {emptied: true, early: true}}
	case len(c.held) > 0 && o.kind == opMalloc:
		readings = []reading{{early: true}, {}}
	case len(c.held) > 0:
		readings = []reading{{}, {early: true}}
	default:
		c.serve(at, pool)
		return
	}
	c.takeHeld()
	before := *c.oracle
	c.sim.Save(&c.saved)
	var first *Difference
	for i, r := range readings {
		if i > 0 {
			c.sim.Load(&c.saved)
			*c.oracle = before
		}
		c.serveAs(at, pool, r)
		if c.oracle.differ == nil {
			return
		}
		if i == 0 {
			first = c.oracle.differ
		}
	}
	c.oracle.differ = first
}

// serveAs replays a request under one reading.
func (c *checking) serveAs(at int, pool alloc.PoolID, r reading) {
	if r.early {
		c.completeAll(c.lastHeld)
	}
	if r.emptied && c.oracle.differ == nil {
		c.sim.EmptyCache()
	}
	if c.oracle.differ == nil {
		c.serve(at, pool)
	}
	if r.emptied && c.oracle.differ == nil {
		c.result.emptied = append(c.result.emptied, int32(at))
	}
}

// serve replays the request of an op.
func (c *checking) serve(at int, pool alloc.PoolID) {
	o := &c.ops[at]
	e := &c.Events[o.at]
	b, err := c.sim.MallocIn(pool, e.Size, e.Stream)
	switch {
	case c.oracle.differ != nil:
	case c.oracle.cursor < c.oracle.end:
		c.oracle.differ = &Difference{Event: int(c.oracle.cursor), Want: c.Events[c.oracle.cursor]}
	case err != nil:
		c.result.OOMs++
		free := int64(e.Addr)
		if oom := err.(*alloc.OutOfMemory); free < oom.Tried {
			c.result.Usable.AtOOM = max(c.result.Usable.AtOOM, c.sim.ReservedBytes()+free)
		}
	case o.kind == opMalloc:
		c.oracle.tensor[o.tensor] = b
		if c.result.bytes != nil {
			c.result.bytes[o.at] = c.sim.Size(b)
		}
	}
}

// servedFromCache reports whether a request got its block without the driver
// giving anything: after a flush of its own it could not.
func (c *Case) servedFromCache(o *op) bool {
	a := c.Events[max(o.at-1, o.first)].Action
	return o.kind == opMalloc && a != alloc.SegmentAlloc && a != alloc.SegmentMap
}

// releasesOtherwise reports whether a request that fails at first would begin by
// giving back another block than the trace does: an oversize one.
func (c *checking) releasesOtherwise(pool alloc.PoolID, e *alloc.Event) bool {
	addr, ok := c.sim.FirstOversize(pool, e.Size, e.Stream)
	if !ok {
		return false
	}
	first := &c.Events[c.oracle.cursor]
	return first.Action != alloc.SegmentFree || first.Addr != addr
}

// emptyCache replays torch.cuda.empty_cache.
func (c *checking) emptyCache(at int) {
	c.result.emptied = append(c.result.emptied, int32(at))
	c.sim.EmptyCache()
}

// poolAt returns the private pool that a request was served from: the event
// says it since torch 2.12; before, the segment in which it lies does.
func (c *Case) poolAt(o *op) alloc.PoolID {
	if id := c.pools(c.Events[o.at].Pool); id != (alloc.PoolID{}) || o.kind == opFailed {
		return id
	}
	if !c.private {
		return alloc.PoolID{}
	}
	addr := c.Events[o.at].Addr
	i, found := slices.BinarySearchFunc(c.Segments, addr, func(s snapshot.Segment, addr uint64) int {
		return cmp.Compare(s.Address, addr)
	})
	if !found {
		i--
	}
	if i < 0 || addr >= c.Segments[i].Address+uint64(c.Segments[i].Total) {
		return alloc.PoolID{}
	}
	return c.pools(c.Segments[i].Pool)
}
