package replay

import (
	"cmp"
	"slices"

	"unoom/internal/alloc"
	"unoom/internal/snapshot"
)

// A Difference is an event that the simulation does not reproduce.
type Difference struct {
	Event int         // number in the trace
	Want  alloc.Event // of the trace; zero if the trace has none there
	Got   alloc.Event // of the simulation; zero if it made none
	Extra bool        // the simulation made an event more than the trace
}

// A Misfit is a block of the final state that the simulation does not have.
type Misfit struct {
	Addr      uint64
	Want, Got alloc.BlockState // Size 0: no block begins there
}

// Peaks are the largest values from the start of a trace to its end, counted
// in blocks as torch does.
type Peaks struct{ Allocated, Active, Reserved int64 }

// A Result says how a trace was reproduced.
type Result struct {
	// Reproducible is false if no allocator made these events; Why says what
	// shows it.
	Reproducible bool
	Why          []Oddity

	Torch       alloc.Version
	Start       *Start
	Checked     int // events that were compared
	Differences []Difference
	Misfits     []Misfit
	// More says that the comparison was given up after so many differences.
	More   bool
	Peaks  Peaks
	Begin  Peaks // the values of the rebuilt start
	Stats  alloc.Stats
	Blocks map[snapshot.State]int // of the final state
	OOMs   int                    // requests that failed
	Usable Usable

	emptied []int32 // ops at which the program emptied the cache
}

// Usable is what a trace tells of the memory that the driver could give to the
// allocator: the card without what others and the context hold.
type Usable struct {
	// AtLeast was reserved at the peak.
	AtLeast int64
	// Below is what the driver refused to go up to; 0 if it never refused.
	Below int64
	// AtOOM is what was reserved and what was free when a request failed; 0 if
	// none did, or if something else than the card set the limit.
	AtOOM int64
}

// Bytes is the best single figure: 0 if the trace never met a bound.
func (u Usable) Bytes() int64 {
	switch {
	case u.AtOOM > 0:
		return u.AtOOM
	case u.Below > u.AtLeast:
		return u.Below - 1
	case u.Below > 0:
		return u.AtLeast
	}
	return 0
}

// Mismatches counts what differs: events and blocks.
func (r *Result) Mismatches() int { return len(r.Differences) + len(r.Misfits) }

// mostDifferences is where a comparison is given up: the simulation is wrong
// there, and each further difference costs a rewind.
const mostDifferences = 50

// Check replays a case and compares every event, and the final layout.
//
// If the file fits several versions of torch whose rules differ, each is tried,
// the newest first, and the one with the fewest mismatches stands.
func (c *Case) Check() *Result {
	var best *Result
	for _, v := range alloc.Distinct(c.Oldest, c.Newest) {
		r := c.CheckAs(v)
		if best == nil || r.Mismatches() < best.Mismatches() {
			best = r
		}
		if !r.Reproducible || r.Mismatches() == 0 {
			break
		}
	}
	return best
}

// CheckAs is Check as one version of torch.
func (c *Case) CheckAs(v alloc.Version) *Result {
	r := &Result{Torch: v, Reproducible: true, Blocks: c.blockCounts()}
	r.Start = c.Rewind(0)
	if r.Why = append(slices.Clone(c.oddities), r.Start.Oddities...); len(r.Why) > 0 {
		r.Reproducible = false
		return r
	}
	run := &checking{Case: c, result: r}
	if err := run.begin(r.Start, v); err != nil {
		r.Reproducible = false
		r.Why = []Oddity{{"impossible_state", int(never), 1}}
		return r
	}
	r.Begin = Peaks{run.sim.AllocatedBytes(), run.sim.ActiveBytes(), run.sim.ReservedBytes()}
	r.Peaks = r.Begin
	for at := 0; at < len(c.ops); at++ {
		run.step(at)
		if run.oracle.differ == nil {
			continue
		}
		r.Differences = append(r.Differences, *run.oracle.differ)
		run.takePeaks()
		if len(r.Differences) == mostDifferences || at+1 == len(c.ops) {
			r.More = at+1 < len(c.ops)
			run.sim = nil
			break
		}
		// Go on from the state that the trace itself shows.
		r.Checked = int(c.ops[at].at) + 1
		if err := run.begin(c.Rewind(r.Checked), v); err != nil {
			r.More = true
			run.sim = nil
			break
		}
	}
	if run.sim != nil {
		r.Checked = len(c.Events)
		run.takePeaks()
		r.Stats = run.sim.Stats()
		r.Misfits = c.misfits(run.sim)
	}
	return r
}

func (c *Case) blockCounts() map[snapshot.State]int {
	counts := map[snapshot.State]int{}
	for i := range c.Segments {
		for j := range c.Segments[i].Blocks {
			counts[c.Segments[i].Blocks[j].State]++
		}
	}
	return counts
}

// checking is a Check under way.
type checking struct {
	*Case
	result *Result
	sim    *alloc.Allocator
	oracle *oracle
	held   []int32 // completions that a flush may have made
}

// begin sets the simulation to a state.
func (c *checking) begin(s *Start, v alloc.Version) error {
	c.oracle = &oracle{Case: c.Case, spaces: c.addressSpaces(), tensor: make([]alloc.Block, len(c.all))}
	c.sim = alloc.New(alloc.Config{Torch: v, Settings: c.Settings, Device: c.oracle, Record: c.oracle.record})
	c.oracle.sim = c.sim
	if err := restore(c.sim, s, c.oracle.tensor); err != nil {
		return err
	}
	c.sim.ResetPeaks()
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
	switch o.kind {
	case opFree:
		c.sim.Free(c.oracle.tensor[o.tensor])
	case opFreeLater:
		c.sim.FreeLater(c.oracle.tensor[o.tensor])
	case opComplete:
		if c.flushFollows(at) {
			c.held = append(c.held, o.first)
			return
		}
		c.sim.Complete(c.oracle.tensor[o.tensor])
	case opSegments:
		c.takeHeld()
		c.emptyCache(at)
	case opMalloc, opFailed:
		c.takeHeld()
		c.malloc(at)
	}
	if c.oracle.differ == nil && c.oracle.cursor < c.oracle.end && o.kind != opNothing {
		c.oracle.differ = &Difference{Event: int(c.oracle.cursor), Want: c.Events[c.oracle.cursor]}
	}
}

// flushFollows reports whether the completion at an op, or the ones after it,
// stand directly before segments that are given back: then giving back waited
// for the streams, and the completion is a part of it.
func (c *checking) flushFollows(at int) bool {
	for at++; at < len(c.ops) && c.ops[at].kind == opComplete; at++ {
	}
	if at == len(c.ops) {
		return false
	}
	switch o := &c.ops[at]; o.kind {
	case opMalloc, opFailed, opSegments:
		return c.givesBack(o.first)
	}
	return false
}

func (c *Case) givesBack(event int32) bool {
	a := c.Events[event].Action
	return a == alloc.SegmentFree || a == alloc.SegmentUnmap
}

// takeHeld begins the current op with the completions that were put aside.
func (c *checking) takeHeld() {
	if len(c.held) > 0 {
		c.oracle.cursor = c.held[0]
		c.held = c.held[:0]
	}
}

// waitingAt returns the tensor that is completed by an event.
func (o *oracle) waitingAt(at int32, _ *alloc.Event) int32 {
	i, found := slices.BinarySearchFunc(o.ops, at, func(x op, at int32) int { return cmp.Compare(x.at, at) })
	if !found || o.ops[i].kind != opComplete {
		return never
	}
	return o.ops[i].tensor
}

// malloc replays a request with everything it made happen.
func (c *checking) malloc(at int) {
	o := &c.ops[at]
	e := &c.Events[o.at]
	pool := c.poolAt(o)
	if c.givesBack(o.first) && c.sim.Fits(pool, e.Size, e.Stream) {
		// The request needed nothing to be given back: the program emptied the
		// cache before it.
		c.emptyCache(at)
	}
	if c.oracle.differ != nil {
		return
	}
	b, err := c.sim.MallocIn(pool, e.Size, e.Stream)
	switch {
	case err != nil:
		c.result.OOMs++
		free := int64(e.Addr)
		if oom := err.(*alloc.OutOfMemory); free < oom.Tried && c.oracle.differ == nil {
			c.result.Usable.AtOOM = max(c.result.Usable.AtOOM, c.sim.ReservedBytes()+free)
		}
	case o.kind == opMalloc:
		c.oracle.tensor[o.tensor] = b
	}
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
