// Package snapshot reads PyTorch's CUDA memory snapshots: the segments and
// blocks of the caching allocator at one moment, and the trace of what led
// there.
//
// It reads what torch 1.12 to 2.14 write, from Python or from C++, as a pickle,
// gzipped, in a zip, inside the HTML page of _memory_viz.py, or as JSON. The
// file is never executed (see package pickle) and read in one pass; equal
// texts, frames and stacks are held once, a trace event takes 48 bytes.
//
// Invariants: a Snapshot holds what the file says, also where it contradicts
// itself; Warnings name what was odd. Ids of texts, stacks, metas and pools
// start at 0 for "none". It does not interpret: rewinding and replaying is
// package alloc's, blaming is package diagnose's.
package snapshot

import "unoom/internal/alloc"

// A Snapshot is one file.
type Snapshot struct {
	// Torch is the range of versions that write files with these keys.
	Torch Range
	// Form is how the file was written.
	Form Form
	// Segments of all devices, in the order of the file: device by device,
	// each by address.
	Segments []Segment
	// Traces has one entry per device, by ordinal; devices without events
	// have an empty one. It is nil where the file has no trace at all.
	Traces []Trace
	// Settings is nil where the file does not tell them.
	Settings *Settings
	// Annotations are the user ranges of record_function, oldest first.
	Annotations []Annotation
	// HostSegments counts the segments of pinned host memory, which are not
	// read further.
	HostSegments int
	// Extra are the unknown top-level keys.
	Extra    []string
	Warnings []Warning

	Texts
}

// Form is how a snapshot was written down.
type Form struct {
	Container string // "pickle" or "json", after what is around it: "gzip+pickle"
	Protocol  int    // of the pickle; 0 if it is none
}

// A Warning is something odd in a file that was read all the same.
type Warning struct {
	Code  string // stable: "unknown_key", "unknown_action" …
	Msg   string
	Where string
}

// A Segment is what one cudaMalloc returned or, if Expandable, one run of mapped
// pages.
type Segment struct {
	Address   uint64
	Total     int64
	Allocated int64
	Active    int64
	Requested int64 // summed over active blocks; -1 if the file does not say
	Stream    uint64
	Device    int32
	Pool      uint32 // private pool, an index into Texts.Pools; 0 is the default pool
	Stack     uint32 // of the cudaMalloc
	Small     bool   // of the small pool
	// Expandable says that the segment grows by mapping pages.
	Expandable bool
	Blocks     []Block // by address, without gaps
}

// State is what a block is doing.
type State uint8

// The states, by torch's names.
const (
	Inactive    State = iota // "inactive"
	Active                   // "active_allocated"
	PendingFree              // "active_pending_free": freed, but another stream may still use it
	UnknownState
)

// A Block is a part of a segment.
type Block struct {
	Address   uint64
	Size      int64
	Requested int64  // -1 if the file does not say; meaningless for inactive blocks
	Stack     uint32 // of the allocation, 0 if not recorded
	State     State
}

// A Trace is what happened on one device, oldest event first.
type Trace struct {
	Device int
	Events []alloc.Event
	// Timed says that the events carry TimeUs.
	Timed bool
	// Forward has, for each event, the stack of the forward operation whose
	// backward made it; nil where the file has none.
	Forward []uint32
	// Category has, for each event, the text id of what profile_plot says the
	// tensor is; nil where the file has none.
	Category []uint32
}

// Ring reports whether the trace is the ring of one event that torch keeps when
// history is not recorded: it says nothing.
func (t Trace) Ring() bool { return len(t.Events) == 1 }

// An Annotation is one end of a user range.
type Annotation struct {
	Name   string
	TimeUs int64
	Device int32
	Start  bool
}

// Settings are the allocator's, at the moment of the snapshot.
type Settings struct {
	// Conf is the last string parsed, "" if none.
	Conf string
	// MaxSplitSize in bytes, -1 for no limit.
	MaxSplitSize int64
	// GCThreshold is the garbage collection threshold, 0 for off.
	GCThreshold float64
	// ExpandableSegments says that new segments are expandable.
	ExpandableSegments bool
	// Roundup has the power-of-two divisions for sizes from 1 MiB (entry 0) to
	// 32 GiB (entry 15).
	Roundup [16]int64
	// Other has every other setting, as printed.
	Other map[string]string
}

// Version is a release of torch.
type Version struct{ Major, Minor int }

// Range is the oldest and the newest torch that write such a file. Newest is
// zero if no later version is known to differ.
type Range struct{ Oldest, Newest Version }
