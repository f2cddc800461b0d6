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

// Code says how the two differ: a stable word for messages.
func (d *Difference) Code() string {
	want, got := d.Want.Action, d.Got.Action
	released := func(a alloc.Action) bool { return a == alloc.SegmentFree || a == alloc.SegmentUnmap }
	obtained := func(a alloc.Action) bool { return a == alloc.SegmentAlloc || a == alloc.SegmentMap }
	switch {
	case d.Extra:
		return "extra_event"
	case got == alloc.Unknown:
		return "missing_event"
	case want == got && d.Want.Addr != d.Got.Addr:
		return "other_address"
	case want == got && d.Want.Size != d.Got.Size:
		return "other_size"
	case want == got:
		return "other_stream"
	case obtained(want) && got == alloc.Alloc:
		return "served_from_cache"
	case want == alloc.Alloc && got == alloc.OOM, want == alloc.Alloc && obtained(got):
		return "not_in_cache"
	case released(want) || released(got):
		return "released_otherwise"
	case want == alloc.OOM:
		return "did_not_fail"
	}
	return "other_action"
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

	Torch   alloc.Version
	Tie     alloc.TieBreak // if it is not that of the version
	Start   *Start
	Checked int // events that were compared
	// Skipped counts the events before these: the rest of a call that began
	// before the trace or, where Why says so, contradictions of what follows.
	Skipped     int
	Differences []Difference
	Misfits     []Misfit
	// GuessedConf is the configuration that reproduces a trace whose file does not
	// tell it, if that is not the default one.
	GuessedConf string
	// ByAge says that of equal blocks the older is taken, as since torch 2.12, and
	// that the ages of those of the start were deduced from the order of their use.
	// AgesLearned counts the choices that corrected this.
	ByAge       bool
	AgesLearned int
	// More says that the comparison was given up after so many differences.
	More   bool
	Peaks  Peaks
	Begin  Peaks // the values of the rebuilt start
	Stats  alloc.Stats
	Blocks map[snapshot.State]int // of the final state
	OOMs   int                    // requests that failed
	Usable Usable

	emptied []int32 // ops at which the program emptied the cache
	bytes   []int64 // by event; see BlockBytes
}

// BlockBytes returns the size of the block that an alloc event handed out or
// that, if it lived before the trace, a free_requested event gave back. It is 0
// for other events, and unless Case.KeepBytes was set.
func (r *Result) BlockBytes(event int) int64 {
	if event < 0 || event >= len(r.bytes) {
		return 0
	}
	return r.bytes[event]
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
// the newest first, and the one with the fewest mismatches stands. The order of
// equal blocks changed twice around torch 2.12, also within its releases: from
// there on each order is tried.
func (c *Case) Check() *Result {
	var best *Result
	try := func(v alloc.Version, tie alloc.TieBreak) bool {
		r := c.CheckAs(v, tie)
		if best == nil || r.Mismatches() < best.Mismatches() {
			best = r
		}
		return !r.Reproducible || r.Mismatches() == 0
	}
	for _, v := range alloc.Distinct(c.Oldest, c.Newest) {
		if try(v, alloc.TieByVersion) {
			return best
		}
	}
	if !c.Newest.Before(alloc.Version{Major: 2, Minor: 12}) {
		for _, tie := range []alloc.TieBreak{alloc.TieBySegment, alloc.TieByAddress, alloc.TieByCounter} {
			if try(c.Newest, tie) {
				break
			}
		}
	}
	if best.Reproducible && best.Mismatches() > 0 && !c.SettingsKnown {
		best = c.guessSettings(best)
	}
	return best
}

// guessSettings tries the usual settings on a trace that its file does not tell
// the settings of, and takes those that reproduce it.
func (c *Case) guessSettings(best *Result) *Result {
	for _, conf := range SweepConfs(best.Torch) {
		set, err := alloc.ParseConf(conf, best.Torch, alloc.Defaults())
		if err != nil || set.ExpandableSegments != c.Settings.ExpandableSegments || set == c.Settings {
			continue
		}
		other := *c
		other.Settings, other.tensors = set, tensors{}
		other.number()
		if r := other.CheckAs(best.Torch, best.Tie); r.Reproducible && r.Mismatches() == 0 {
			r.GuessedConf = conf
			*c = other
			return r
		}
	}
	return best
}

// CheckAs is Check as one version of torch and one order of equal blocks.
func (c *Case) CheckAs(v alloc.Version, tie alloc.TieBreak) *Result {
	r := &Result{Torch: v, Tie: tie, Reproducible: true, Blocks: c.blockCounts()}
	r.Start = c.Rewind(0)
	if r.Why = append(slices.Clone(c.oddities), r.Start.Oddities...); len(r.Why) > 0 {
		r.Reproducible = false
		return c.checkRest(r)
	}
	if c.KeepBytes {
		r.bytes = make([]int64, len(c.Events))
	}
	run := &checking{Case: c, result: r}
	c.learnAges(r)
	if err := run.begin(r.Start); err != nil {
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
		run.takePeaks()
		if c.midCall(at, r.Start) {
			r.Skipped = int(c.ops[at].at) + 1
		} else {
			r.Differences = append(r.Differences, *run.oracle.differ)
		}
		if len(r.Differences) == mostDifferences || at+1 == len(c.ops) {
			r.More = at+1 < len(c.ops)
			run.sim = nil
			break
		}
		// Go on from the state that the trace itself shows.
		r.Checked = int(c.ops[at].at) + 1
		if err := run.begin(c.Rewind(r.Checked)); err != nil {
			r.More = true
			run.sim = nil
			break
		}
	}
	if len(r.Differences) > 0 {
		if o := c.outsiders(); o.Count > 0 {
			return &Result{Torch: v, Tie: tie, Blocks: r.Blocks, Start: r.Start, Why: []Oddity{o}}
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

// midCall reports whether an op may be the rest of a call that began before the
// trace: a request whose search, and what was done to serve it, are not
// recorded.
func (c *Case) midCall(at int, s *Start) bool {
	kind := c.ops[at].kind
	return at == 0 && len(s.Segments) > 0 && (kind == opMalloc || kind == opFailed || kind == opSegments)
}

// checkRest compares what follows the last contradiction in a trace: a
// recording that was paused, or whose beginning has holes as torch 2.0's, is
// sound from some event on.
func (c *Case) checkRest(r *Result) *Result {
	from := int(c.lastOdd) + 1
	if from == 0 || from >= len(c.Events) {
		return r
	}
	rest := *c
	rest.Events, rest.tensors = c.Events[from:], tensors{}
	rest.number()
	if len(rest.oddities) > 0 {
		return r
	}
	sound := rest.CheckAs(r.Torch, r.Tie)
	if !sound.Reproducible {
		return r
	}
	sound.Skipped, sound.Why = from, r.Why
	for i := range sound.Differences {
		sound.Differences[i].Event += from
	}
	*c = rest // what-if runs begin there, too
	return sound
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
