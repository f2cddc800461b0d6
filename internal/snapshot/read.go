package snapshot

import (
	"fmt"
	"strconv"

	"unoom/internal/pickle"
)

// finish makes the snapshot of what was built.
func (b *builder) finish(root pickle.Value) (*Snapshot, error) {
	s := &Snapshot{}
	if list, ok := b.rowsOf(root, kindSegment); ok {
		b.seen.traces = false
		b.takeSegments(s, list)
	} else {
		tops := b.findTops(nil, root, 0)
		if len(tops) == 0 {
			return nil, b.notASnapshot(root)
		}
		if len(tops) > 1 {
			b.warnings.add("several_snapshots", "file", fmt.Sprintf("the file holds %d snapshots, one for each rank perhaps; only the first is read", len(tops)))
		}
		top := tops[0]
		if err := b.takeTop(s, top); err != nil {
			return nil, err
		}
	}
	s.Torch = b.seen.torch()
	s.Warnings = b.warnings.all()
	s.Texts = b.texts
	s.Texts.strings = b.h.Strings()
	return s, nil
}

// notASnapshot says what a file that was read holds instead.
func (b *builder) notASnapshot(root pickle.Value) error {
	root = b.h.Resolve(root)
	e := &FormatError{Msg: "this holds no segments and no device_traces, so it is not a memory snapshot", Mistake: NotASnapshot}
	if _, ok := b.h.Get(root, "traceEvents"); ok {
		e.Mistake = ProfilerTrace
		return e
	}
	// export_memory_timeline writes [times, sizes] or rows of four numbers.
	rows := b.h.Items(root)
	if root.Kind() != pickle.KindList || len(rows) == 0 {
		return e
	}
	first := b.h.Items(b.h.Resolve(rows[0]))
	if len(first) > 0 {
		if _, number := b.h.Int(first[0]); number && (len(rows) == 2 || len(first) == 4) {
			e.Mistake = MemoryTimeline
		}
	}
	return e
}

// maxWrap is how deep in dicts, lists and tuples of the user's own a snapshot
// is looked for.
const maxWrap = 4

// findTops appends the dicts with a snapshot's keys.
func (b *builder) findTops(to []pickle.Value, v pickle.Value, depth int) []pickle.Value {
	v = b.h.Resolve(v)
	if v.Kind() == pickle.KindDict {
		_, segments := b.h.Get(v, "segments")
		_, traces := b.h.Get(v, "device_traces")
		if segments || traces {
			return append(to, v)
		}
	}
	if depth == maxWrap {
		return to
	}
	items := b.h.Items(v)
	for _, it := range items[:min(len(items), 200)] {
		to = b.findTops(to, it, depth+1)
	}
	return to
}

func (b *builder) takeTop(s *Snapshot, top pickle.Value) error {
	items := b.h.Items(top)
	for i := 0; i < len(items); i += 2 {
		key, ok := b.h.Str(items[i])
		if !ok {
			b.warnings.add("unknown_key", "snapshot", "a key that is not a text is not read")
			continue
		}
		v := items[i+1]
		switch key {
		case "segments":
			list, ok := b.rowsOf(v, kindSegment)
			if !ok {
				return &FormatError{"segments", "not a list of segments", Damaged}
			}
			s.Segments = nil
			b.takeSegments(s, list)
		case "device_traces":
			b.seen.traces = true
			if err := b.takeTraces(s, v); err != nil {
				return err
			}
		case "allocator_settings":
			b.seen.settings = true
			b.takeSettings(s, v)
		case "external_annotations":
			b.seen.annotations = true
			list, ok := b.rowsOf(v, kindAnnotation)
			if !ok {
				b.warnings.add("annotations", "external_annotations", "not a list of annotations; not read")
				continue
			}
			s.Annotations = make([]Annotation, 0, list.len())
			for j := range list.len() {
				s.Annotations = append(s.Annotations, b.annotations[list.at(j)])
			}
		case "host_segments":
			b.seen.host = true
			if list, ok := b.rowsOf(v, kindSegment); ok {
				s.HostSegments = list.len()
			} else {
				s.HostSegments = len(b.h.Items(b.h.Resolve(v)))
			}
		case "host_traces":
			b.seen.host = true
		default:
			s.Extra = append(s.Extra, key)
			b.warnings.add("unknown_key", "snapshot", fmt.Sprintf("key %q is not known and not read", key))
		}
	}
	return nil
}

func (b *builder) takeSegments(s *Snapshot, list rows) {
	s.Segments = make([]Segment, 0, list.len())
	for i := range list.len() {
		built := b.segments[list.at(i)]
		seg := built.Segment
		if built.blocks.ids == nil {
			seg.Blocks = b.blocks[built.blocks.from:built.blocks.to:built.blocks.to]
		} else {
			for _, j := range built.blocks.ids {
				seg.Blocks = append(seg.Blocks, b.blocks[j])
			}
		}
		at, sum := seg.Address, int64(0)
		for j := range seg.Blocks {
			blk := &seg.Blocks[j]
			if !b.seen.blockAddress {
				blk.Address = at
			}
			at += uint64(blk.Size)
			sum += blk.Size
		}
		if sum != seg.Total && len(seg.Blocks) > 0 {
			b.warnings.count("segment_sum", "segments", "the blocks do not add up to the segment")
		}
		s.Segments = append(s.Segments, seg)
	}
}

func (b *builder) takeTraces(s *Snapshot, v pickle.Value) error {
	const where = "device_traces"
	v = b.h.Resolve(v)
	if list, ok := b.rowsOf(v, kindEvent); ok && list.len() > 0 {
		// One list instead of one for each device: seen in hand-made files.
		b.warnings.add("flat_traces", where, "one list of events instead of one for each device; taken as device 0")
		s.Traces = []Trace{b.trace(0, list)}
		return nil
	}
	if k := v.Kind(); k != pickle.KindList && k != pickle.KindTuple {
		return &FormatError{where, "not a list with one list for each device", Damaged}
	}
	s.Traces = []Trace{}
	for device, it := range b.h.Items(v) {
		list, ok := b.rowsOf(it, kindEvent)
		if !ok {
			return &FormatError{where + "[" + strconv.Itoa(device) + "]", "not a list of trace entries", Damaged}
		}
		s.Traces = append(s.Traces, b.trace(device, list))
	}
	return nil
}

func (b *builder) trace(device int, list rows) Trace {
	t := Trace{Device: device, Timed: b.seen.entryTime}
	t.Events, t.Forward, t.Category = b.events.cut(list)
	return t
}

func (b *builder) takeSettings(s *Snapshot, v pickle.Value) {
	v = b.h.Resolve(v)
	if v.Kind() != pickle.KindDict {
		b.warnings.add("settings", "allocator_settings", "not a dict; not read")
		return
	}
	set := &Settings{MaxSplitSize: -1, Other: map[string]string{}}
	items := b.h.Items(v)
	for i := 0; i < len(items); i += 2 {
		key, _ := b.h.Str(items[i])
		val := items[i+1]
		ok := true
		switch key {
		case "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF":
			set.Conf, ok = b.h.Str(val)
		case "max_split_size":
			set.MaxSplitSize, ok = b.h.Int(val)
		case "garbage_collection_threshold":
			set.GCThreshold, ok = b.h.Float(val)
		case "expandable_segments":
			set.ExpandableSegments, ok = b.h.Bool(val)
		case "roundup_power2_divisions":
			ok = b.divisions(set, b.h.Resolve(val))
		default:
			if key == "graph_capture_record_stream_reuse" {
				b.seen.reuseSetting = true
			}
			set.Other[key] = b.show(val)
		}
		if !ok {
			b.warnings.add("settings", "allocator_settings", fmt.Sprintf("%s has a value of an unexpected type", key))
		}
	}
	s.Settings = set
}

// divisions reads {"1": n, "2": n, … "32768": n}, the keys being MiB.
func (b *builder) divisions(set *Settings, v pickle.Value) bool {
	items := b.h.Items(v)
	for i := 0; i < len(items); i += 2 {
		key, _ := b.h.Str(items[i])
		n, ok := b.h.Int(items[i+1])
		if !ok {
			return false
		}
		for e := range set.Roundup {
			if key == strconv.Itoa(1<<e) {
				set.Roundup[e] = n
			}
		}
	}
	return v.Kind() == pickle.KindDict
}

// show prints a plain value.
func (b *builder) show(v pickle.Value) string {
	if text, ok := b.h.Str(v); ok {
		return text
	}
	if t, ok := b.h.Bool(v); ok {
		return strconv.FormatBool(t)
	}
	if n := b.h.Big(v); n != nil {
		return n.String()
	}
	if f, ok := b.h.Float(v); ok {
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return ""
}
