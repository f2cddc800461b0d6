package replay

import (
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
const (
	mostDifferences  = 50
	leastDifferences = 3
	rewoundEvents    = 3_000_000 // by all rewinds of a comparison, about
)

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
		most := min(mostDifferences, max(leastDifferences, rewoundEvents/len(c.Events)))
		if len(r.Differences) >= most || at+1 == len(c.ops) {
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
