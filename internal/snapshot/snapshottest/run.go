package snapshottest

import (
	"cmp"
	"slices"

	"unoom/internal/alloc"
	"unoom/internal/snapshot"
)

// A Run is a program that allocates, on a simulated card, and is recorded as
// torch records one.
type Run struct {
	a       *alloc.Allocator
	set     alloc.Settings
	events  []alloc.Event
	stacks  []*Shared // by event
	by      *Shared
	clock   int64
	known   map[*snapshot.Frame]*Shared
	live    map[uint64]*Shared // stacks of living blocks, by address
	ranges  List
	started int // events before this are not in the ring
}

// NewRun returns a run on a card of capacity bytes for the allocator, 0 for no
// bound.
func NewRun(capacity int64, set alloc.Settings) *Run {
	r := &Run{set: set.Normal(), clock: 1_750_000_000_000_000, known: map[*snapshot.Frame]*Shared{}, live: map[uint64]*Shared{}}
	r.a = alloc.New(alloc.Config{
		Torch: alloc.Version{Major: 2, Minor: 10}, Settings: r.set, Capacity: capacity, Total: capacity,
		Record: func(e alloc.Event) {
			r.clock += 7
			e.TimeUs = r.clock
			r.events = append(r.events, e)
			r.stacks = append(r.stacks, r.by)
			switch e.Action {
			case alloc.Alloc:
				r.live[e.Addr] = r.by
			case alloc.FreeRequested:
				delete(r.live, e.Addr)
			}
		},
	})
	return r
}

// At says from which stack the following calls come, innermost frame first. Pass
// the same frames again to share them.
func (r *Run) At(stack ...*snapshot.Frame) {
	list := List{}
	for _, f := range stack {
		if r.known[f] == nil {
			r.known[f] = Share(FrameOf(*f))
		}
		list = append(list, r.known[f])
	}
	r.by = Share(list)
}

// Alloc requests memory; ok is false if the card is full.
func (r *Run) Alloc(size int64) (block alloc.Block, ok bool) {
	b, err := r.a.Malloc(size, 0)
	return b, err == nil
}

// Free gives memory back.
func (r *Run) Free(blocks ...alloc.Block) {
	for _, b := range blocks {
		r.a.Free(b)
	}
}

// Range records one end of a user range.
func (r *Run) Range(name string, start bool) {
	stage := "END"
	if start {
		stage = "START"
	}
	r.clock++
	r.ranges = append(r.ranges, Dict{"stage", stage, "name", name, "device", 0, "time_us", r.clock})
	r.clock++
}

// Forget drops the events so far, as a ring that is full does.
func (r *Run) Forget() { r.started = len(r.events) }

// Snapshot writes the run down as torch 2.10 does.
func (r *Run) Snapshot() Dict {
	events := r.events[r.started:]
	trace := Lazy{len(events), func(i int) any {
		var stack any
		if s := r.stacks[r.started+i]; s != nil {
			stack = s
		}
		return Event(events[i], stack, "")
	}}
	return Dict{
		"segments", r.segments(), "device_traces", List{trace},
		"allocator_settings", Settings(snapshot.Settings{
			Conf: r.set.Conf(), MaxSplitSize: -1, ExpandableSegments: r.set.ExpandableSegments,
		}),
		"external_annotations", r.ranges,
	}
}

func (r *Run) segments() List {
	var pieces []alloc.Piece
	r.a.Walk(func(p alloc.Piece) {
		if p.State != alloc.Unmapped {
			pieces = append(pieces, p)
		}
	})
	slices.SortFunc(pieces, func(a, b alloc.Piece) int { return cmp.Compare(a.Addr, b.Addr) })
	list := List{}
	for len(pieces) > 0 {
		n, total, allocated, requested := 0, int64(0), int64(0), int64(0)
		blocks := List{}
		for n < len(pieces) && (n == 0 || !pieces[n].First && pieces[n].Addr == pieces[0].Addr+uint64(total)) {
			p := pieces[n]
			state, stack := "inactive", any(List{})
			if p.State == alloc.Active {
				state = "active_allocated"
				allocated += p.Size
				requested += p.Requested
				if s := r.live[p.Addr]; s != nil {
					stack = s
				}
			}
			blocks = append(blocks, Dict{
				"address", p.Addr, "size", p.Size, "requested_size", p.Requested, "state", Interned(state), "frames", stack,
			})
			total += p.Size
			n++
		}
		kind := "large"
		if pieces[0].Small {
			kind = "small"
		}
		list = append(list, Dict{
			"device", 0, "address", pieces[0].Addr, "total_size", total, "allocated_size", allocated, "active_size", allocated,
			"requested_size", requested, "stream", 0, "segment_type", Interned(kind), "segment_pool_id", Tuple{0, 0},
			"is_expandable", pieces[0].Expands, "frames", List{}, "blocks", blocks,
		})
		pieces = pieces[n:]
	}
	return list
}
