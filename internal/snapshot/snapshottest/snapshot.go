package snapshottest

import (
	"unoom/internal/alloc"
	"unoom/internal/snapshot"
)

// Frames writes a stack as torch does: a list of dicts, each of which may be
// given as a *Shared of its own.
func Frames(frames []snapshot.Frame) List {
	list := List{}
	for _, f := range frames {
		list = append(list, FrameOf(f))
	}
	return list
}

// FrameOf writes one frame.
func FrameOf(f snapshot.Frame) Dict {
	return Dict{"name", f.Name, "filename", f.File, "line", f.Line}
}

// ActionName is torch's name of an action.
func ActionName(a alloc.Action) string {
	return map[alloc.Action]string{
		alloc.Alloc: "alloc", alloc.FreeRequested: "free_requested", alloc.FreeCompleted: "free_completed",
		alloc.SegmentAlloc: "segment_alloc", alloc.SegmentFree: "segment_free", alloc.SegmentMap: "segment_map",
		alloc.SegmentUnmap: "segment_unmap", alloc.Snapshot: "snapshot", alloc.OOM: "oom",
	}[a]
}

// Event writes a trace entry as torch 2.10 does. frames may be nil for none.
func Event(e alloc.Event, frames any, user string) Dict {
	addr := "addr"
	if e.Action == alloc.OOM {
		addr = "device_free"
	}
	d := Dict{
		"action", Interned(ActionName(e.Action)),
		addr, e.Addr, "size", e.Size, "stream", e.Stream, "time_us", e.TimeUs,
		"compile_context", "N/A", "user_metadata", metadata(user),
	}
	if frames != nil {
		d = append(d, "frames", frames)
	}
	return d
}

// metadata is one object where it is empty, as in Python.
func metadata(user string) any {
	if user == "" {
		return Interned("")
	}
	return user
}

// Of returns the value that Write needs to write a snapshot that was read, in
// the newest layout.
func Of(s *snapshot.Snapshot) Dict {
	w := &of{s: s, frames: map[uint32]*Shared{}, stacks: map[uint32]*Shared{}}
	segments := List{}
	for _, seg := range s.Segments {
		segments = append(segments, w.segment(seg))
	}
	traces := List{}
	for _, t := range s.Traces {
		traces = append(traces, Lazy{len(t.Events), func(i int) any { return w.event(t, i) }})
	}
	d := Dict{"segments", segments}
	if s.Traces != nil {
		d = append(d, "device_traces", traces)
	}
	if s.Settings != nil {
		d = append(d, "allocator_settings", Settings(*s.Settings))
	}
	if s.Annotations != nil {
		list := List{}
		for _, a := range s.Annotations {
			stage := "END"
			if a.Start {
				stage = "START"
			}
			list = append(list, Dict{"stage", stage, "name", a.Name, "device", int(a.Device), "time_us", a.TimeUs})
		}
		d = append(d, "external_annotations", list)
	}
	return d
}

// Settings writes the allocator's settings.
func Settings(set snapshot.Settings) Dict {
	roundup := Dict{}
	for i, n := range set.Roundup {
		roundup = append(roundup, itoa(1<<i), n)
	}
	return Dict{
		"PYTORCH_CUDA_ALLOC_CONF", set.Conf, "max_split_size", set.MaxSplitSize,
		"garbage_collection_threshold", set.GCThreshold, "expandable_segments", set.ExpandableSegments,
		"graph_capture_record_stream_reuse", false, "roundup_power2_divisions", roundup,
	}
}

type of struct {
	s      *snapshot.Snapshot
	frames map[uint32]*Shared
	stacks map[uint32]*Shared
}

func (w *of) stack(id uint32) any {
	if id == 0 {
		return List{}
	}
	if known := w.stacks[id]; known != nil {
		return known
	}
	list := List{}
	for _, f := range w.s.FrameIDs(id) {
		frame := w.frames[f]
		if frame == nil {
			frame = Share(FrameOf(w.s.Frame(f)))
			w.frames[f] = frame
		}
		list = append(list, frame)
	}
	shared := Share(list)
	w.stacks[id] = shared
	return shared
}

func (w *of) segment(seg snapshot.Segment) Dict {
	kind := "large"
	if seg.Small {
		kind = "small"
	}
	blocks := List{}
	for _, b := range seg.Blocks {
		state := map[snapshot.State]string{
			snapshot.Inactive: "inactive", snapshot.Active: "active_allocated", snapshot.PendingFree: "active_pending_free",
		}[b.State]
		blocks = append(blocks, Dict{
			"address", b.Address, "size", b.Size, "requested_size", b.Requested,
			"state", Interned(state), "frames", w.stack(b.Stack),
		})
	}
	pool := w.s.Pool(seg.Pool)
	return Dict{
		"device", int(seg.Device), "address", seg.Address, "total_size", seg.Total,
		"allocated_size", seg.Allocated, "active_size", seg.Active, "requested_size", seg.Requested,
		"stream", seg.Stream, "segment_type", Interned(kind), "segment_pool_id", Tuple{pool[0], pool[1]},
		"is_expandable", seg.Expandable, "frames", w.stack(seg.Stack), "blocks", blocks,
	}
}

func (w *of) event(t snapshot.Trace, i int) Dict {
	e := t.Events[i]
	m := w.s.Meta(e.Meta)
	d := Event(e, w.stack(e.Stack), m.User)
	if m.Compile != "" {
		d.Set("compile_context", m.Compile)
	}
	if !t.Timed {
		d = d.Without("time_us")
	}
	pool := w.s.Pool(e.Pool)
	d = append(d, "pool_id", Tuple{pool[0], pool[1]})
	if t.Forward != nil && t.Forward[i] != 0 {
		lines := List{}
		for _, f := range w.s.Stack(t.Forward[i]) {
			lines = append(lines, f.Name)
		}
		d = append(d, "forward_frames", lines)
	}
	return d
}
