package replay

import (
	"unoom/internal/alloc"
)

// A Question is under which other rules a trace is served again.
type Question struct {
	Torch    alloc.Version
	Tie      alloc.TieBreak // overrules that of the version
	Settings alloc.Settings
	// Capacity is how many bytes the driver can give to the allocator; 0 is
	// without bound.
	Capacity int64
	// Total is the memory of the card; 0 is Capacity.
	Total int64
	// Fresh serves the blocks that live before the trace anew, although the
	// recorded layout would do: so that settings are compared from like states.
	Fresh bool
}

// An Answer is what would have happened.
type Answer struct {
	Question
	Peaks Peaks
	// Start is the state before the first event, as served.
	Start Peaks
	// Rebuilt says that the trace began in the recorded layout. Otherwise the
	// blocks that lived then were requested again, by address, from an empty
	// allocator: what was cached besides them is not there.
	Rebuilt bool
	// StartOOMs counts the blocks that already did not fit before the trace.
	StartOOMs int
	// OOMs counts the requests of the trace that failed. The program is taken to
	// go on without them.
	OOMs int
	// FirstOOM is the event number of the first of them, -1 if there is none.
	FirstOOM int
	FirstErr *alloc.OutOfMemory
	// Saved counts the requests that failed in the recording and do not here.
	Saved int
	// DeviceAllocs counts the cudaMalloc and map calls of the trace itself.
	DeviceAllocs int64
	Stats        alloc.Stats
}

// Fits reports whether every request was served.
func (a *Answer) Fits() bool { return a.OOMs == 0 && a.StartOOMs == 0 }

// WhatIf serves the requests of the case under other rules. r is what Check
// found, which tells where the program emptied the cache.
//
// The requests, frees, streams and the moments when other streams were done are
// those of the trace. Known gap: a program that ran out of memory would have
// gone on differently than one that did not.
func (c *Case) WhatIf(r *Result, q Question) *Answer {
	return c.WhatIfIn(nil, r, q)
}

// WhatIfIn is WhatIf with the blocks array of an earlier run, to save its
// allocation; nil makes one.
func (c *Case) WhatIfIn(blocks []alloc.Block, r *Result, q Question) *Answer {
	if cap(blocks) < len(c.all) {
		blocks = make([]alloc.Block, len(c.all))
	}
	w := &whatIf{Case: c, answer: &Answer{Question: q, FirstOOM: -1}, blocks: blocks[:len(c.all)]}
	clear(w.blocks)
	w.sim = alloc.New(alloc.Config{Torch: q.Torch, Tie: q.Tie, Settings: q.Settings, Capacity: q.Capacity, Total: q.Total})
	w.start(r)
	a := w.answer
	a.Start = Peaks{w.sim.AllocatedBytes(), w.sim.ActiveBytes(), w.sim.ReservedBytes()}
	w.sim.ResetPeaks()
	before := w.sim.Stats().NumDeviceAlloc
	w.run(r.emptied)
	a.Peaks = Peaks{w.sim.PeakAllocatedBytes(), w.sim.PeakActiveBytes(), w.sim.PeakReservedBytes()}
	a.Stats = w.sim.Stats()
	a.DeviceAllocs = a.Stats.NumDeviceAlloc - before
	return a
}

type whatIf struct {
	*Case
	answer *Answer
	sim    *alloc.Allocator
	blocks []alloc.Block
}

// start brings the blocks that live before the trace into being.
func (w *whatIf) start(r *Result) {
	q, s := &w.answer.Question, r.Start
	same := r.Reproducible && q.Settings.Normal() == w.Settings.Normal() && q.Torch == r.Torch && q.Tie == r.Tie && !q.Fresh
	if same && (q.Capacity == 0 || r.Begin.Reserved <= q.Capacity) {
		if restore(w.sim, s, w.blocks) == nil {
			w.answer.Rebuilt = true
			return
		}
		w.sim.Reset() // cannot be: Check restored it
	}
	w.answer.Rebuilt = len(s.live) == 0
	for _, p := range s.live {
		t := &w.all[p.tensor]
		b, err := w.sim.MallocIn(w.poolOfTensor(t), t.requested(w.Case), t.stream)
		if err != nil {
			w.answer.StartOOMs++
			continue
		}
		w.blocks[p.tensor] = b
		if s.Segments[p.segment].Blocks[p.block].State == alloc.Pending {
			w.sim.FreeLater(b)
		}
	}
}

// requested returns what was asked for; the size of the block if the file is
// too old to say.
func (t *tensor) requested(c *Case) int64 {
	if t.size < 0 && t.segment > 0 {
		return c.Segments[t.segment-1].Blocks[t.block].Size
	}
	return t.size
}

// run serves the trace.
func (w *whatIf) run(emptied []int32) {
	sim, blocks, private := w.sim, w.blocks, w.private
	for at := range w.ops {
		o := &w.ops[at]
		if len(emptied) > 0 && emptied[0] == int32(at) {
			sim.EmptyCache()
			emptied = emptied[1:]
		}
		switch o.kind {
		case opMalloc:
			e := &w.Events[o.at]
			var pool alloc.PoolID
			if private {
				pool = w.poolAt(o)
			}
			b, err := sim.MallocIn(pool, e.Size, e.Stream)
			if err != nil {
				w.outOfMemory(o, err)
			}
			blocks[o.tensor] = b
		case opFailed:
			e := &w.Events[o.at]
			b, err := sim.MallocIn(w.poolAt(o), e.Size, e.Stream)
			if err != nil {
				w.outOfMemory(o, err)
				continue
			}
			w.answer.Saved++
			sim.Free(b) // the trace does not say how long it would have lived
		// A trace that contradicts itself may free what is free: hence the tests.
		case opFree:
			if b := blocks[o.tensor]; sim.State(b) == alloc.Active {
				sim.Free(b)
				blocks[o.tensor] = 0
			}
		case opFreeLater:
			if b := blocks[o.tensor]; sim.State(b) == alloc.Active {
				sim.FreeLater(b)
			}
		case opComplete:
			if b := blocks[o.tensor]; sim.State(b) == alloc.Pending {
				sim.Complete(b)
				blocks[o.tensor] = 0
			}
		}
	}
}

func (w *whatIf) outOfMemory(o *op, err error) {
	a := w.answer
	a.OOMs++
	if a.FirstOOM < 0 {
		a.FirstOOM = int(o.at)
		a.FirstErr, _ = err.(*alloc.OutOfMemory)
	}
}

// poolOfTensor returns the private pool of a tensor that lives before the
// trace: that of the segment it lies in at the end, if it is still there.
func (c *Case) poolOfTensor(t *tensor) alloc.PoolID {
	if t.segment > 0 {
		return c.pools(c.Segments[t.segment-1].Pool)
	}
	return alloc.PoolID{}
}
