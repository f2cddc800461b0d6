// Package lives turns the trace of a memory snapshot into the lives of tensors:
// which memory was held from when to when, by which call, in which phase and
// step of a training run, and what it was — weights, gradients, optimizer state,
// activations, temporaries.
//
// Invariants: at the end of the trace the living tensors are the active blocks of
// the snapshot; Allocated after each event is the sum of the living. Sizes are
// those of blocks: exact for blocks that live at the end, else the request as
// torch rounds it, which may lack an unsplit tail (package replay knows it). What
// a tensor is, is deduced; a tensor of which nothing tells it is of kind Unknown.
// This package does not judge: that is package diagnose's.
package lives

import (
	"unoom/internal/alloc"
	"unoom/internal/snapshot"
)

// Before and Never are the event numbers of what the trace does not have.
const (
	Before int32 = -1
	Never  int32 = 1<<31 - 1
)

// A Tensor is one use of memory, from its request to its free. Tensors that
// share storage are one.
type Tensor struct {
	Addr   uint64
	Bytes  int64 // of the block
	Asked  int64 // as requested; -1 if the file is too old to say
	Born   int32 // event of the alloc; Before if it lived before the trace
	Freed  int32 // event of the free; Never if it lives at the end
	Stack  uint32
	Meta   uint32
	Kind   Kind
	Within Phase // in which it was born
}

// LivesAfter reports whether the tensor lives after event i; -1 is the start.
func (t *Tensor) LivesAfter(i int32) bool { return t.Born <= i && t.Freed > i }

// A History is what happened on one device.
type History struct {
	Device   int
	Snapshot *snapshot.Snapshot
	Events   []alloc.Event
	// Tensors lists those from before the trace first, then by birth.
	Tensors []Tensor
	// Start and End are what was allocated before and after the trace.
	Start, End int64
	// StartReserved and EndReserved are the same for the segments.
	StartReserved, EndReserved int64
	// Peak is the moment with the most allocated memory.
	Peak Moment
	// PeakReserved is the largest size of the segments.
	PeakReserved int64
	// OOMs are the events at which a request failed.
	OOMs []int32
	// Steps are the boundaries of training steps; see Steps.
	Steps Steps
	// Recorded says that there is a trace at all: more than the ring of one
	// event that torch keeps when it does not record.
	Recorded bool
	// Checkpointing and Compiled say that the stacks show activation
	// checkpointing, or compiled code.
	Checkpointing, Compiled bool

	phases []Phase // by event
	runEnd []int32 // by event, the last event of the run of one phase it is in
	worked []int32 // by event, how many requests of a forward or backward came before
	traits []trait // by stack
	// backward says that the trace shows one, evaluation that it shows nothing
	// but evaluation.
	backward bool
	forward  []uint32
}

// A Moment is a point of the trace.
type Moment struct {
	Event     int32 // after this event; Before is the start
	Allocated int64
	Reserved  int64
}

// Of reads the history of a device. settings are the allocator's, by which
// requests are rounded.
func Of(s *snapshot.Snapshot, device int, settings alloc.Settings) *History {
	h := &History{Device: device, Snapshot: s}
	settings = settings.Normal()
	if device < len(s.Traces) {
		h.Events, h.forward = s.Traces[device].Events, s.Traces[device].Forward
		h.Recorded = len(h.Events) > 1
	}
	h.collect(s, settings)
	h.totals()
	h.readStacks()
	h.findPhases()
	h.findSteps()
	h.classify()
	return h
}

// collect makes the tensors of the events and of the final blocks.
func (h *History) collect(s *snapshot.Snapshot, settings alloc.Settings) {
	live := make(map[uint64]int32, 1024)
	var early []Tensor // freed in the trace, not born in it
	var born []Tensor
	for i := range h.Events {
		e := &h.Events[i]
		switch e.Action {
		case alloc.Alloc:
			live[e.Addr] = int32(len(born))
			born = append(born, Tensor{
				Addr: e.Addr, Bytes: settings.Round(e.Size), Asked: e.Size,
				Born: int32(i), Freed: Never, Stack: e.Stack, Meta: e.Meta,
			})
		case alloc.FreeRequested, alloc.FreeCompleted:
			if id, ok := live[e.Addr]; ok {
				born[id].Freed = int32(i)
				delete(live, e.Addr)
			} else if e.Action == alloc.FreeRequested {
				early = append(early, Tensor{
					Addr: e.Addr, Bytes: settings.Round(e.Size), Asked: e.Size, Born: Before, Freed: int32(i),
				})
			}
		case alloc.OOM:
			h.OOMs = append(h.OOMs, int32(i))
		}
	}
	seen := make(map[uint64]bool, len(live))
	for i := range s.Segments {
		seg := &s.Segments[i]
		if int(seg.Device) != h.Device {
			continue
		}
		h.EndReserved += seg.Total
		for j := range seg.Blocks {
			b := &seg.Blocks[j]
			if b.State != snapshot.Active {
				continue
			}
			if id, ok := live[b.Address]; ok {
				born[id].Bytes = b.Size
				if born[id].Stack == 0 {
					born[id].Stack = b.Stack
				}
				seen[b.Address] = true
				continue
			}
			early = append(early, Tensor{
				Addr: b.Address, Bytes: b.Size, Asked: b.Requested, Born: Before, Freed: Never, Stack: b.Stack,
			})
		}
	}
	for addr, id := range live {
		if !seen[addr] {
			// No allocator loses a block; a file made by hand may. It is taken to
			// end with its own event, so that the sums agree.
			born[id].Freed = born[id].Born
		}
	}
	h.Tensors = append(early, born...)
}

// totals adds up what was allocated and reserved.
func (h *History) totals() {
	deltas := h.deltas()
	for i := range h.Tensors {
		if h.Tensors[i].Born == Before {
			h.Start += h.Tensors[i].Bytes
		}
	}
	h.StartReserved = h.EndReserved
	for i := range h.Events {
		h.StartReserved -= reservedBy(&h.Events[i])
	}
	allocated, reserved := h.Start, h.StartReserved
	h.Peak = Moment{Before, allocated, reserved}
	h.PeakReserved = reserved
	for i := range h.Events {
		allocated += deltas[i]
		reserved += reservedBy(&h.Events[i])
		if allocated > h.Peak.Allocated {
			h.Peak = Moment{int32(i), allocated, reserved}
		}
		h.PeakReserved = max(h.PeakReserved, reserved)
	}
	h.End = allocated
}

// deltas returns by how much each event changes what is allocated.
func (h *History) deltas() []int64 {
	deltas := make([]int64, len(h.Events))
	for i := range h.Tensors {
		t := &h.Tensors[i]
		if t.Born >= 0 {
			deltas[t.Born] += t.Bytes
		}
		if t.Freed != Never {
			deltas[t.Freed] -= t.Bytes
		}
	}
	return deltas
}

// reservedBy returns by how much an event changes what is reserved.
func reservedBy(e *alloc.Event) int64 {
	switch e.Action {
	case alloc.SegmentAlloc, alloc.SegmentMap:
		return e.Size
	case alloc.SegmentFree, alloc.SegmentUnmap:
		return -e.Size
	}
	return 0
}

// Timeline returns what was allocated and reserved after each event.
func (h *History) Timeline() (allocated, reserved []int64) {
	allocated, reserved = h.deltas(), make([]int64, len(h.Events))
	a, r := h.Start, h.StartReserved
	for i := range h.Events {
		a += allocated[i]
		r += reservedBy(&h.Events[i])
		allocated[i], reserved[i] = a, r
	}
	return allocated, reserved
}

// KindTimeline returns what each kind had allocated after each event.
func (h *History) KindTimeline() [Kinds][]int64 {
	var lines [Kinds][]int64
	var sum [Kinds]int64
	for k := range lines {
		lines[k] = make([]int64, len(h.Events))
	}
	for i := range h.Tensors {
		t := &h.Tensors[i]
		if t.Born >= 0 {
			lines[t.Kind][t.Born] += t.Bytes
		} else {
			sum[t.Kind] += t.Bytes
		}
		if t.Freed != Never {
			lines[t.Kind][t.Freed] -= t.Bytes
		}
	}
	for k := range lines {
		for i := range lines[k] {
			sum[k] += lines[k][i]
			lines[k][i] = sum[k]
		}
	}
	return lines
}

// At returns the moment after an event; Before is the start.
func (h *History) At(event int32) Moment {
	m := Moment{event, h.Start, h.StartReserved}
	for i := range h.Tensors {
		t := &h.Tensors[i]
		if t.Born >= 0 && t.Born <= event {
			m.Allocated += t.Bytes
		}
		if t.Freed <= event {
			m.Allocated -= t.Bytes
		}
	}
	for i := int32(0); i <= event; i++ {
		m.Reserved += reservedBy(&h.Events[i])
	}
	return m
}

// LivingAfter returns the numbers of the tensors that live after an event.
func (h *History) LivingAfter(event int32) []int32 {
	var ids []int32
	for i := range h.Tensors {
		if h.Tensors[i].LivesAfter(event) {
			ids = append(ids, int32(i))
		}
	}
	return ids
}

// KindsAfter returns what each kind has allocated after an event.
func (h *History) KindsAfter(event int32) [Kinds]int64 {
	var sum [Kinds]int64
	for i := range h.Tensors {
		if t := &h.Tensors[i]; t.LivesAfter(event) {
			sum[t.Kind] += t.Bytes
		}
	}
	return sum
}
