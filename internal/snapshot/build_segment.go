package snapshot

import (
	"unoom/internal/pickle"
)

// Segments, their blocks, and the annotations beside them.

func (b *builder) block(s *shape, items []pickle.Value) (pickle.Value, bool, error) {
	const what = "block"
	blk := Block{Requested: -1}
	for i, f := range s.fields {
		v := items[2*i+1]
		ok, want := true, "a whole number"
		switch f {
		case fieldAddress:
			blk.Address, ok = b.h.Uint(v)
		case fieldSize:
			blk.Size, ok = b.h.Int(v)
		case fieldRequestedSize:
			blk.Requested, ok = b.h.Int(v)
		case fieldFrames:
			blk.Stack, ok = b.stackOf(v)
			want = "a list of frames"
		case fieldState:
			var id uint32
			id, ok = pickle.StrID(v)
			want = "a text"
			blk.State = stateOf(b.h.String(id))
			if ok && blk.State == UnknownState {
				b.warnings.count("unknown_state", "block", b.h.String(id))
			}
		case fieldHistory:
			b.history(v, &blk)
		}
		if !ok {
			return 0, false, errType(what, f, want)
		}
	}
	if len(b.blocks) == cap(b.blocks) {
		if err := b.h.Charge(40 * max(64, len(b.blocks)/4)); err != nil {
			return 0, false, err
		}
		b.blocks = append(make([]Block, 0, len(b.blocks)+max(64, len(b.blocks)/4)), b.blocks...)
	}
	b.blocks = append(b.blocks, blk)
	return pickle.Make(kindBlock, uint64(len(b.blocks)-1)), true, nil
}

// stateOf maps torch's names of block states. "active_awaiting_free" is only in
// the docstring.
func stateOf(name string) State {
	switch name {
	case "inactive":
		return Inactive
	case "active_allocated":
		return Active
	case "active_pending_free", "active_awaiting_free":
		return PendingFree
	}
	return UnknownState
}

// history takes size and stack of a block from the list that torch 1.12 to 2.0
// kept of its uses, newest first.
func (b *builder) history(v pickle.Value, blk *Block) {
	items := b.h.Items(b.h.Resolve(v))
	if len(items) == 0 {
		return
	}
	latest := b.h.Resolve(items[0])
	if size, ok := b.h.Get(latest, "real_size"); ok {
		if n, ok := b.h.Int(size); ok && blk.Requested < 0 {
			blk.Requested = n
		}
	}
	for _, key := range []string{"frames", "cpp_frames"} {
		if frames, ok := b.h.Get(latest, key); ok && blk.Stack == 0 {
			blk.Stack, _ = b.stackOf(frames)
		}
	}
}

func (b *builder) segment(s *shape, items []pickle.Value) (pickle.Value, bool, error) {
	const what = "segment"
	seg := builtSegment{}
	seg.Requested = -1
	for i, f := range s.fields {
		v := items[2*i+1]
		ok, want := true, "a whole number"
		switch f {
		case fieldDevice:
			var n int64
			n, ok = b.h.Int(v)
			seg.Device = int32(n)
		case fieldAddress:
			seg.Address, ok = b.h.Uint(v)
		case fieldTotalSize:
			seg.Total, ok = b.h.Int(v)
		case fieldAllocatedSize:
			seg.Allocated, ok = b.h.Int(v)
		case fieldActiveSize:
			seg.Active, ok = b.h.Int(v)
		case fieldRequestedSize:
			seg.Requested, ok = b.h.Int(v)
		case fieldStream:
			seg.Stream, ok = b.stream(v)
		case fieldSegmentType:
			var text string
			text, ok = b.h.Str(v)
			want = "a text"
			seg.Small = text == "small"
		case fieldSegmentPoolID:
			seg.Pool, ok = b.poolOf(v)
			want = "a pair of whole numbers"
		case fieldIsExpandable:
			seg.Expandable, ok = b.h.Bool(v)
			want = "True or False"
		case fieldFrames:
			seg.Stack, ok = b.stackOf(v)
			want = "a list of frames"
		case fieldBlocks:
			seg.blocks, ok = b.rowsOf(v, kindBlock)
			want = "a list of blocks"
		}
		if !ok {
			return 0, false, errType(what, f, want)
		}
	}
	b.segments = append(b.segments, seg)
	return pickle.Make(kindSegment, uint64(len(b.segments)-1)), true, b.h.Charge(200)
}

// rowsOf reads a list of rows of one kind.
func (b *builder) rowsOf(v pickle.Value, kind pickle.Kind) (rows, bool) {
	r := b.h.Resolve(v)
	switch r.Kind() {
	case kindRows:
		list := b.lists[r.Payload()]
		return list, list.kind == kind
	case pickle.KindList, pickle.KindTuple:
		return rows{kind: kind}, b.h.Items(r) == nil
	}
	return rows{}, false
}

func (b *builder) annotation(s *shape, items []pickle.Value) (pickle.Value, bool, error) {
	const what = "annotation"
	var a Annotation
	for i, f := range s.fields {
		v := items[2*i+1]
		ok, want := true, "a whole number"
		switch f {
		case fieldStage:
			var text string
			text, ok = b.h.Str(v)
			want = "a text"
			a.Start = text == "START"
		case fieldName:
			a.Name, ok = b.h.Str(v)
			want = "a text"
		case fieldDevice:
			var n int64
			n, ok = b.h.Int(v)
			a.Device = int32(n)
		case fieldTimeUs:
			a.TimeUs, ok = b.h.Int(v)
		}
		if !ok {
			return 0, false, errType(what, f, want)
		}
	}
	b.annotations = append(b.annotations, a)
	return pickle.Make(kindAnnotation, uint64(len(b.annotations)-1)), true, b.h.Charge(80)
}
