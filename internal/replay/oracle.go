package replay

import "unoom/internal/alloc"

// oracle is the driver of a replay. CUDA's answers are not for the simulation
// to know: a segment is given if and only if the trace has it next, at the
// address the trace has. What the allocator then records is compared with the
// trace, event by event.
type oracle struct {
	*Case
	spaces []region
	cursor int32 // the next event that must come
	end    int32 // events from here on belong to later calls
	tensor []alloc.Block
	differ *Difference // the first event that came out otherwise
	// refused is the least that the allocator would have reserved, had the driver
	// not refused; 0 if it never did.
	refused int64
	sim     *alloc.Allocator
}

// refuse notes that the driver did not give size bytes.
func (o *oracle) refuse(size int64) {
	if most := o.sim.ReservedBytes() + size; o.differ == nil && (o.refused == 0 || most < o.refused) {
		o.refused = most
	}
}

func (o *oracle) nextIs(action alloc.Action) (*alloc.Event, bool) {
	if o.cursor >= o.end {
		return nil, false
	}
	e := &o.Events[o.cursor]
	return e, e.Action == action
}

// record compares an event of the simulation with the next one of the trace.
func (o *oracle) record(got alloc.Event) {
	if o.differ != nil {
		return
	}
	if got.Action == alloc.FreeRequested && o.skippedRequests || got.Action == alloc.FreeCompleted && o.skippedCompletions {
		return
	}
	if o.cursor >= o.end {
		o.differ = &Difference{Event: int(o.end), Got: got, Extra: true}
		return
	}
	want := &o.Events[o.cursor]
	if want.Action != got.Action || want.Addr != got.Addr && got.Action != alloc.OOM ||
		want.Size != got.Size || want.Stream != got.Stream {
		o.differ = &Difference{Event: int(o.cursor), Want: *want, Got: got}
		return
	}
	o.cursor++
}

// Malloc says yes if the trace says so.
func (o *oracle) Malloc(size int64) (uint64, bool) {
	if e, ok := o.nextIs(alloc.SegmentAlloc); ok && e.Size == size {
		return e.Addr, true
	}
	o.refuse(size)
	return 0, false
}

// Map says yes if the trace has this very mapping next.
func (o *oracle) Map(addr uint64, size int64) bool {
	if e, ok := o.nextIs(alloc.SegmentMap); ok && e.Addr == addr && e.Size == size {
		return true
	}
	o.refuse(size)
	return false
}

// Reserve returns the address space in which the trace maps next.
func (o *oracle) Reserve(page int64) (uint64, int64) {
	e, ok := o.nextIs(alloc.SegmentMap)
	if !ok {
		o.refuse(page)
		return 0, 0 // the driver had no memory to map, so nothing is left of it
	}
	space := spaceOf(o.spaces, e.Addr)
	size := int64(space.to-e.Addr) / page * page
	return e.Addr, max(size, e.Size)
}

// Settle completes the frees that the trace completes here.
func (o *oracle) Settle(a *alloc.Allocator) {
	for {
		if _, ok := o.nextIs(alloc.FreeCompleted); !ok {
			return
		}
		id := o.waitingAt(o.cursor)
		if id < 0 {
			return
		}
		a.Complete(o.tensor[id])
		if o.differ != nil {
			return
		}
	}
}

// The driver takes everything back, and tells nothing.
func (o *oracle) Free(uint64, int64)  {}
func (o *oracle) Unmap(uint64, int64) {}
func (o *oracle) FreeBytes() int64    { return -1 }
func (o *oracle) Reset()              {}
