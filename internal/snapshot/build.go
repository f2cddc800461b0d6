package snapshot

import (
	"fmt"

	"unoom/internal/alloc"
	"unoom/internal/pickle"
)

// What the builder turns containers into.
const (
	kindEvent = pickle.KindUser + iota // row of events
	kindFrame
	kindStack
	kindBlock
	kindSegment
	kindAnnotation
	kindPool
	kindRows // a list of rows of one kind: index of builder.lists
)

// rows is a list of entries of one kind, nearly always consecutive ones.
type rows struct {
	kind     pickle.Kind
	from, to int   // where ids is nil
	ids      []int // else every row
}

// builder turns the containers of a snapshot into rows while they are read.
type builder struct {
	h           *pickle.Heap
	texts       Texts
	frameIDs    map[frame]uint32
	stackIDs    stackTable
	metaIDs     map[[2]uint32]uint32
	poolIDs     map[PoolID]uint32
	lastMeta    [2]uint32
	lastMetaID  uint32
	fields      fieldTable
	events      eventColumns
	blocks      []Block
	segments    []builtSegment
	annotations []Annotation
	lists       []rows
	actions     []alloc.Action // by text id, plus one
	seen        features
	warnings    warnings
	scratch     []uint32
}

type builtSegment struct {
	Segment
	blocks rows
}

func newBuilder(h *pickle.Heap) *builder {
	return &builder{
		h:        h,
		frameIDs: map[frame]uint32{},
		stackIDs: newStackTable(),
		metaIDs:  map[[2]uint32]uint32{{}: 0},
		poolIDs:  map[PoolID]uint32{{}: 0},
		texts: Texts{
			frames: make([]frame, 1), stacks: make([]span, 1),
			metas: make([]Meta, 1), pools: make([]PoolID, 1),
		},
	}
}

// List implements pickle.Builder.
func (b *builder) List(was pickle.Value, items []pickle.Value) (pickle.Value, bool, error) {
	first, err := b.reduced(items[0])
	if err != nil {
		return 0, false, err
	}
	kind := first.Kind()
	switch kind {
	case kindFrame, pickle.KindStr:
		return b.stackList(was, items)
	case kindEvent, kindBlock, kindSegment, kindAnnotation:
		return b.rowList(kind, was, items)
	}
	return 0, false, nil
}

// reduced returns what an item was turned into.
func (b *builder) reduced(v pickle.Value) (pickle.Value, error) {
	r := b.h.Resolve(v)
	if r.Kind() != pickle.KindDict {
		return r, nil
	}
	return b.h.Reduce(b, r)
}

func (b *builder) stackList(was pickle.Value, items []pickle.Value) (pickle.Value, bool, error) {
	ids := b.scratch[:0]
	if was != 0 {
		if was.Kind() != kindStack {
			return 0, false, nil
		}
		ids = append(ids, b.texts.FrameIDs(uint32(was.Payload()))...)
	}
	for _, it := range items {
		r, err := b.reduced(it)
		if err != nil {
			return 0, false, err
		}
		switch r.Kind() {
		case kindFrame:
			ids = append(ids, uint32(r.Payload()))
		case pickle.KindStr:
			id, err := b.frame(frame{name: uint32(r.Payload()), text: true})
			if err != nil {
				return 0, false, err
			}
			ids = append(ids, id)
		default:
			return 0, false, nil
		}
	}
	b.scratch = ids
	id, err := b.stack(ids)
	return pickle.Make(kindStack, uint64(id)), true, err
}

func (b *builder) rowList(kind pickle.Kind, was pickle.Value, items []pickle.Value) (pickle.Value, bool, error) {
	list := rows{kind: kind}
	if was != 0 {
		if was.Kind() != kindRows || b.lists[was.Payload()].kind != kind {
			return 0, false, nil
		}
		list = b.lists[was.Payload()]
	}
	for i, it := range items {
		r, err := b.reduced(it)
		if err != nil {
			return 0, false, err
		}
		if r.Kind() != kind {
			return 0, false, nil
		}
		row := int(r.Payload())
		switch {
		case list.ids == nil && list.to == row && list.from < list.to:
			list.to++
		case list.ids == nil && list.from == list.to:
			list.from, list.to = row, row+1
		default: // entries of other lists among them
			if list.ids == nil {
				n := list.to - list.from
				if err := b.h.Charge(8 * (n + len(items) - i)); err != nil {
					return 0, false, err
				}
				list.ids = make([]int, n, n+len(items)-i)
				for j := range list.ids {
					list.ids[j] = list.from + j
				}
			} else if was != 0 && i == 0 {
				// What was made before must not change.
				if err := b.h.Charge(8 * (len(list.ids) + len(items))); err != nil {
					return 0, false, err
				}
				list.ids = append(make([]int, 0, len(list.ids)+len(items)), list.ids...)
			}
			list.ids = append(list.ids, row)
		}
	}
	b.lists = append(b.lists, list)
	return pickle.Make(kindRows, uint64(len(b.lists)-1)), true, b.h.Charge(64)
}

// Tuple implements pickle.Builder: pairs of integers are pool ids.
func (b *builder) Tuple(items []pickle.Value) (pickle.Value, bool, error) {
	id, ok := b.pair(items)
	if !ok {
		return 0, false, nil
	}
	n, err := b.pool(id)
	return pickle.Make(kindPool, uint64(n)), true, err
}

func (b *builder) pair(items []pickle.Value) (PoolID, bool) {
	if len(items) != 2 {
		return PoolID{}, false
	}
	first, ok1 := b.h.Uint(items[0])
	second, ok2 := b.h.Uint(items[1])
	return PoolID{first, second}, ok1 && ok2
}

func (b *builder) pool(id PoolID) (uint32, error) {
	if n, ok := b.poolIDs[id]; ok {
		return n, nil
	}
	n := uint32(len(b.texts.pools))
	b.poolIDs[id] = n
	b.texts.pools = append(b.texts.pools, id)
	return n, b.h.Charge(64)
}

// Dict implements pickle.Builder.
func (b *builder) Dict(keys *pickle.Shape, items []pickle.Value) (pickle.Value, bool, error) {
	s := b.shapeOf(keys)
	switch s.kind {
	case kindEvent:
		return b.event(s, items)
	case kindFrame:
		return b.frameDict(s, items)
	case kindBlock:
		return b.block(s, items)
	case kindSegment:
		return b.segment(s, items)
	case kindAnnotation:
		return b.annotation(s, items)
	}
	return 0, false, nil
}

// errType says that a field has a value of the wrong type.
func errType(dict string, f field, want string) error {
	return fmt.Errorf("%s: %s is not %s", dict, f, want)
}

func (b *builder) event(s *shape, items []pickle.Value) (pickle.Value, bool, error) {
	var e alloc.Event
	at := &s.at
	id, ok := pickle.StrID(items[at.action])
	if !ok {
		return 0, false, errEvent(fieldAction, "a text")
	}
	if e.Action = b.action(id); e.Action == alloc.Unknown && !opaque(b.h.String(id)) {
		b.warnings.count("unknown_action", "trace", b.h.String(id))
	}
	if at.addr >= 0 {
		if e.Addr, ok = b.h.Uint(items[at.addr]); !ok {
			return 0, false, errEvent(fieldAddr, "a whole number")
		}
	}
	if e.Size, ok = b.h.Int(items[at.size]); !ok {
		return 0, false, errEvent(fieldSize, "a whole number")
	}
	if at.stream >= 0 {
		if e.Stream, ok = b.stream(items[at.stream]); !ok {
			return 0, false, errEvent(fieldStream, "a whole number")
		}
	}
	if at.time >= 0 {
		if e.TimeUs, ok = b.h.Int(items[at.time]); !ok {
			return 0, false, errEvent(fieldTimeUs, "a whole number")
		}
	}
	if at.frames >= 0 {
		if e.Stack, ok = b.stackOf(items[at.frames]); !ok {
			return 0, false, errEvent(fieldFrames, "a list of frames")
		}
	}
	if at.pool >= 0 {
		if e.Pool, ok = b.poolOf(items[at.pool]); !ok {
			return 0, false, errEvent(fieldPoolID, "a pair of whole numbers")
		}
	}
	var meta [2]uint32
	if at.user >= 0 {
		if meta[0], ok = b.textOf(items[at.user]); !ok {
			return 0, false, errEvent(fieldUserMetadata, "a text")
		}
	}
	if at.compile >= 0 {
		if meta[1], ok = b.textOf(items[at.compile]); !ok {
			return 0, false, errEvent(fieldCompileContext, "a text")
		}
	}
	if meta != b.lastMeta {
		id, err := b.meta(meta)
		if err != nil {
			return 0, false, err
		}
		b.lastMeta, b.lastMetaID = meta, id
	}
	e.Meta = b.lastMetaID
	var forward, category uint32
	if at.forward >= 0 {
		if forward, ok = b.stackOf(items[at.forward]); !ok {
			return 0, false, errEvent(fieldForwardFrames, "a list of texts")
		}
	}
	if at.category >= 0 {
		if category, ok = b.textOf(items[at.category]); !ok {
			return 0, false, errEvent(fieldCategory, "a text")
		}
	}
	row, err := b.events.add(b.h, &e, forward, category)
	return pickle.Make(kindEvent, uint64(row)), true, err
}

func errEvent(f field, want string) error { return errType("trace entry", f, want) }

// meta interns what the program said about an event, given as text ids.
func (b *builder) meta(key [2]uint32) (uint32, error) {
	m := Meta{User: b.h.String(key[0]), Compile: b.h.String(key[1])}
	if m.Compile == "N/A" { // torch's word for none
		m.Compile, key[1] = "", 0
	}
	if id, ok := b.metaIDs[key]; ok {
		return id, nil
	}
	id := uint32(len(b.texts.metas))
	b.metaIDs[key] = id
	b.texts.metas = append(b.texts.metas, m)
	return id, b.h.Charge(80)
}

// action returns the action of a text id.
func (b *builder) action(id uint32) alloc.Action {
	if int(id) < len(b.actions) && b.actions[id] != 0 {
		return b.actions[id] - 1
	}
	a := actionOf(b.h.String(id))
	if id < 1<<16 {
		for len(b.actions) <= int(id) {
			b.actions = append(b.actions, 0)
		}
		b.actions[id] = a + 1
	}
	return a
}

// actionOf maps torch's names of actions.
func actionOf(name string) alloc.Action {
	switch name {
	case "alloc":
		return alloc.Alloc
	case "free_requested":
		return alloc.FreeRequested
	case "free_completed":
		return alloc.FreeCompleted
	case "segment_alloc":
		return alloc.SegmentAlloc
	case "segment_free":
		return alloc.SegmentFree
	case "segment_map":
		return alloc.SegmentMap
	case "segment_unmap":
		return alloc.SegmentUnmap
	case "snapshot":
		return alloc.Snapshot
	case "oom":
		return alloc.OOM
	}
	return alloc.Unknown
}

// opaque reports whether an action is torch's, but not the allocator's: notes of
// the program, in nightlies of 2024 and since 2.14.
func opaque(name string) bool { return name == "user_defined" || name == "annotate" }

// stream reads a stream handle. It is a pointer, which some writers print as a
// signed number.
func (b *builder) stream(v pickle.Value) (uint64, bool) {
	if u, ok := b.h.Uint(v); ok {
		return u, true
	}
	n, ok := b.h.Int(v)
	return uint64(n), ok || v.Kind() == pickle.KindNone
}

// stackOf reads a list of frames or of texts.
func (b *builder) stackOf(v pickle.Value) (uint32, bool) {
	switch r := b.h.Resolve(v); r.Kind() {
	case kindStack:
		return uint32(r.Payload()), true
	case pickle.KindList:
		return 0, b.h.Items(r) == nil
	case pickle.KindNone:
		return 0, true
	}
	return 0, false
}

// textOf reads a text or None.
func (b *builder) textOf(v pickle.Value) (uint32, bool) {
	if v.Kind() == pickle.KindNone {
		return 0, true
	}
	return pickle.StrID(v)
}

// poolOf reads a pool id: a tuple or, in JSON, a list.
func (b *builder) poolOf(v pickle.Value) (uint32, bool) {
	r := b.h.Resolve(v)
	if r.Kind() == kindPool {
		return uint32(r.Payload()), true
	}
	id, ok := b.pair(b.h.Items(r))
	if !ok {
		return 0, false
	}
	n, err := b.pool(id)
	return n, err == nil
}

func (b *builder) frameDict(s *shape, items []pickle.Value) (pickle.Value, bool, error) {
	const what = "frame"
	var fr frame
	for i, f := range s.fields {
		v := items[2*i+1]
		ok := true
		switch f {
		case fieldName:
			fr.name, ok = b.textOf(v)
		case fieldFilename:
			fr.file, ok = b.textOf(v)
		case fieldLine:
			// C++ frames without a line have size_t's -1, which is beyond Int.
			n, isInt := b.h.Int(v)
			if !isInt && v.Kind() != pickle.KindNone && b.h.Big(v) == nil {
				return 0, false, errType(what, f, "a whole number")
			}
			if isInt {
				fr.line = int32(n)
			}
		}
		if !ok {
			return 0, false, errType(what, f, "a text")
		}
	}
	id, err := b.frame(fr)
	return pickle.Make(kindFrame, uint64(id)), true, err
}

func (b *builder) frame(fr frame) (uint32, error) {
	if id, ok := b.frameIDs[fr]; ok {
		return id, nil
	}
	id := uint32(len(b.texts.frames))
	b.frameIDs[fr] = id
	b.texts.frames = append(b.texts.frames, fr)
	return id, b.h.Charge(64)
}
