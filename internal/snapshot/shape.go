package snapshot

import (
	"fmt"
	"slices"

	"unoom/internal/pickle"
)

// A field is a key that snapshots are known to have.
type field uint8

// The keys of all kinds of dicts.
const (
	fieldUnknown field = iota
	fieldAction
	fieldActiveSize
	fieldAddr
	fieldAddress
	fieldAllocatedSize
	fieldBlocks
	fieldCategory
	fieldCompileContext
	fieldDevice
	fieldDeviceFree
	fieldFilename
	fieldForwardFrames
	fieldFrames
	fieldFX // fx_node_op and the like: what Inductor adds to frames
	fieldHistory
	fieldIsExpandable
	fieldLine
	fieldName
	fieldPoolID
	fieldRealSize
	fieldRequestedSize
	fieldSegmentPoolID
	fieldSegmentType
	fieldSize
	fieldStage
	fieldState
	fieldStream
	fieldTimeUs
	fieldTotalSize
	fieldUserMetadata
	fieldCount
)

// fieldNames are torch's names. Sources: torch/csrc/cuda/Module.cpp and
// torch/csrc/cuda/memory_snapshot.cpp, 1.13 to 2.12.
func fieldNames() [fieldCount]string {
	return [...]string{
		fieldUnknown: "", fieldAction: "action", fieldActiveSize: "active_size",
		fieldAddr: "addr", fieldAddress: "address", fieldAllocatedSize: "allocated_size",
		fieldBlocks: "blocks", fieldCategory: "category", fieldCompileContext: "compile_context",
		fieldDevice: "device", fieldDeviceFree: "device_free", fieldFilename: "filename",
		fieldForwardFrames: "forward_frames", fieldFrames: "frames", fieldFX: "fx_node_op",
		fieldHistory: "history", fieldIsExpandable: "is_expandable", fieldLine: "line",
		fieldName: "name", fieldPoolID: "pool_id", fieldRealSize: "real_size",
		fieldRequestedSize: "requested_size", fieldSegmentPoolID: "segment_pool_id",
		fieldSegmentType: "segment_type", fieldSize: "size", fieldStage: "stage",
		fieldState: "state", fieldStream: "stream", fieldTimeUs: "time_us",
		fieldTotalSize: "total_size", fieldUserMetadata: "user_metadata",
	}
}

func (f field) String() string { return fieldNames()[f] }

// fieldOf returns the field of a key.
func fieldOf(key string) field {
	switch key {
	case "fx_node_name", "fx_original_trace", "fx_node_info":
		return fieldFX
	case "":
		return fieldUnknown
	}
	names := fieldNames()
	return field(max(0, slices.Index(names[:], key)))
}

// fieldTable remembers the fields of text ids.
type fieldTable struct{ of []uint8 } // field plus one

func (t *fieldTable) get(h *pickle.Heap, key pickle.Value) field {
	id, ok := pickle.StrID(key)
	if !ok {
		return fieldUnknown
	}
	if int(id) < len(t.of) && t.of[id] != 0 {
		return field(t.of[id] - 1)
	}
	f := fieldOf(h.String(id))
	if id < 1<<16 {
		for len(t.of) <= int(id) {
			t.of = append(t.of, 0)
		}
		t.of[id] = uint8(f) + 1
	}
	return f
}

// A shape is what dicts with a certain sequence of keys are.
type shape struct {
	fields []field
	kind   pickle.Kind // kindEvent …, 0 for any other dict
	at     eventAt
}

// eventAt is where the values of a trace entry's fields are, -1 for none.
type eventAt struct {
	action, addr, size, stream, time, compile, user, frames, forward, category, pool int
}

// shapeOf returns what dicts with these keys are.
func (b *builder) shapeOf(keys *pickle.Shape) *shape {
	if s, ok := keys.Tag.(*shape); ok {
		return s
	}
	s := &shape{}
	for _, k := range keys.Keys {
		s.fields = append(s.fields, b.fields.get(b.h, k))
	}
	keys.Tag = s
	s.kind = kindOf(s.fields)
	b.seen.note(s)
	if s.kind == 0 {
		return s
	}
	last := func(fields ...field) int {
		for i := len(s.fields) - 1; i >= 0; i-- { // the last of equal keys counts
			if slices.Contains(fields, s.fields[i]) {
				return 2*i + 1
			}
		}
		return -1
	}
	s.at = eventAt{
		last(fieldAction), last(fieldAddr, fieldDeviceFree), last(fieldSize), last(fieldStream), last(fieldTimeUs),
		last(fieldCompileContext), last(fieldUserMetadata), last(fieldFrames), last(fieldForwardFrames),
		last(fieldCategory), last(fieldPoolID),
	}
	for i, f := range s.fields {
		if key, isText := b.h.Str(keys.Keys[i]); f == fieldUnknown && isText {
			b.warnings.add("unknown_key", kindName(s.kind), fmt.Sprintf("key %q is not known and not read", key))
		}
	}
	return s
}

// kindOf tells what a dict is from its keys.
func kindOf(fields []field) pickle.Kind {
	var has [fieldCount]bool
	for _, f := range fields {
		has[f] = true
	}
	switch {
	case has[fieldAction] && has[fieldSize]:
		return kindEvent
	case has[fieldName] && has[fieldFilename]:
		return kindFrame
	case has[fieldTotalSize] && has[fieldBlocks]:
		return kindSegment
	case has[fieldSize] && has[fieldState]:
		return kindBlock
	case has[fieldStage] && has[fieldName]:
		return kindAnnotation
	}
	return 0
}

func kindName(k pickle.Kind) string {
	switch k {
	case kindEvent:
		return "trace entry"
	case kindFrame:
		return "frame"
	case kindSegment:
		return "segment"
	case kindBlock:
		return "block"
	}
	return "annotation"
}
