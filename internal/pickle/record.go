package pickle

import "encoding/binary"

// A Shape is a sequence of keys. A snapshot has about ten, so that a dict is
// recognised by comparing its keys to those of one before.
type Shape struct {
	Keys []Value
	// Tag is for the Builder to note what such dicts are.
	Tag any

	template []templateKey
	// follower is the shape of the dict that came after the last one of this
	// shape.
	follower *Shape
}

// templateKey is how the pickler writes a key that it wrote before: a memo
// reference, of which n bytes under mask are want.
type templateKey struct {
	want, mask uint64
	n          int
}

// maxShapes bounds the search in hostile files; dicts of further shapes are read
// too, but slower.
const maxShapes = 64

// shapeOf returns the shape of a dict given as keys and values in turn.
func (h *Heap) shapeOf(items []Value) *Shape {
next:
	for i, s := range h.shapes {
		if 2*len(s.Keys) != len(items) {
			continue
		}
		for j, k := range s.Keys {
			if items[2*j] != k {
				continue next
			}
		}
		if i > 0 { // the next dict is probably like this one
			h.shapes[i], h.shapes[i-1] = h.shapes[i-1], s
		}
		return s
	}
	s := &Shape{}
	for i := 0; i < len(items); i += 2 {
		s.Keys = append(s.Keys, items[i])
	}
	if len(h.shapes) < maxShapes {
		h.shapes = append(h.shapes, s)
	}
	return s
}

// learn makes s the prediction for the next dict of the sort.
func (m *machine) learn(s *Shape) {
	if m.lastShape != nil {
		m.lastShape.follower = s
	}
	m.lastShape = s
	if s.template != nil || len(s.Keys) > maxTemplate {
		return
	}
	template := make([]templateKey, len(s.Keys))
	for i, k := range s.Keys {
		id, ok := StrID(k)
		if !ok || int(id) >= len(m.memoOf) || m.memoOf[id] == 0 {
			return
		}
		template[i] = reference(int(m.memoOf[id]) - 1)
	}
	s.template = template
}

// reference returns how a pickler refers to a memo entry.
func reference(entry int) templateKey {
	if entry < 256 {
		return templateKey{opBinGet | uint64(entry)<<8, 0xffff, 2}
	}
	return templateKey{opLongBinGet | uint64(entry)<<8, 0xff_ffff_ffff, 5}
}

// maxTemplate is the most keys that a template has, and longestField the most
// bytes that a key and a value take which record reads.
const (
	maxTemplate  = 32
	longestField = 32
)

// record reads a dict as the one that came last in its place: EMPTY_DICT was
// read, pos is after it. Whatever is not as predicted is left to the main loop,
// with the machine in the state that the main loop would have brought it to.
//
// This is only a faster way through the same opcodes: keys are compared, not
// looked up, and do not go through the dispatch.
func (m *machine) record(dict Value, pos int) (int, error) {
	buf := m.src.buf
	stack, sp := m.stack[:cap(m.stack)], len(m.stack)
	stack[sp] = dict
	sp++
	s := m.lastShape
	if s != nil {
		s = s.follower
	}
	if s == nil || s.template == nil || sp+2*maxTemplate+2 > len(stack) || m.src.end-pos < longestField {
		m.stack = stack[:sp]
		return pos, nil
	}
	if buf[pos] == opMemoize {
		if m.memoed == len(m.memo) && m.memoed < m.memoFree {
			m.memo = append(m.memo, m.heap.pack(dict))
			m.memoed++
		} else if err := m.put(pos, m.memoed, dict); err != nil {
			return 0, err
		}
		pos++
	}
	memo := m.memo
	if buf[pos] != opMark || len(m.marks) == maxMarks {
		m.stack = stack[:sp]
		return pos, nil
	}
	pos++
	m.marks = append(m.marks, sp)
	m.fence = sp
	from := sp
	for i := range s.template {
		k := &s.template[i]
		if m.src.end-pos < longestField {
			m.stack = stack[:sp]
			return pos, nil
		}
		if (binary.LittleEndian.Uint64(buf[pos:])^k.want)&k.mask != 0 {
			m.stack = stack[:sp]
			m.relearn(k, s.Keys[i], pos)
			return pos, nil
		}
		pos += k.n
		stack[sp] = s.Keys[i]
		sp++
		var v Value
		switch op := buf[pos]; op {
		case opBinGet:
			if e := int(buf[pos+1]); e < len(memo) {
				v = m.heap.unpack(memo[e])
			}
			pos += 2
		case opLongBinGet:
			if e := int(binary.LittleEndian.Uint32(buf[pos+1:])); e < len(memo) {
				v = m.heap.unpack(memo[e])
			}
			pos += 5
		case opBinInt1:
			v = Make(KindInt, uint64(buf[pos+1]))
			pos += 2
		case opBinInt2:
			v = Make(KindInt, uint64(binary.LittleEndian.Uint16(buf[pos+1:])))
			pos += 3
		case opBinInt:
			v = Make(KindInt, uint64(int64(int32(binary.LittleEndian.Uint32(buf[pos+1:])))))
			pos += 5
		case opLong1:
			n := int(buf[pos+1])
			if n == 0 || n > 7 {
				m.stack = stack[:sp]
				return pos, nil
			}
			shift := uint(64-8*n) & 63
			v = Make(KindInt, uint64(int64(binary.LittleEndian.Uint64(buf[pos+2:])<<shift)>>shift))
			pos += 2 + n
		case opShortUnicode:
			word := binary.LittleEndian.Uint64(buf[pos+1:])
			n := int(buf[pos+1])
			word &= 1<<(8*(uint(n)+1)&63) - 1
			cached := &m.short[shortSlot(word)]
			if n >= shortLimit || cached.word != word || cached.text == 0 {
				m.stack = stack[:sp]
				return pos, nil
			}
			v = cached.text
			pos += 2 + n
			if buf[pos] == opMemoize {
				if m.memoed == len(memo) && m.memoed < m.memoFree {
					memo = append(memo, m.heap.pack(v))
					m.memo = memo
					m.memoed++
				} else if err := m.put(pos, m.memoed, v); err != nil {
					return 0, err
				}
				memo = m.memo
				pos++
			}
		case opEmptyList:
			list, err := m.heap.NewContainer(KindList)
			if err != nil {
				return 0, m.built(m.src.base+int64(pos), err)
			}
			v = list
			pos++
			if buf[pos] == opMemoize {
				if m.memoed == len(memo) && m.memoed < m.memoFree {
					memo = append(memo, m.heap.pack(v))
					m.memo = memo
					m.memoed++
				} else if err := m.put(pos, m.memoed, v); err != nil {
					return 0, err
				}
				memo = m.memo
				pos++
			}
			if next := buf[pos+1]; buf[pos] == opMark && (next == opBinGet || next == opLongBinGet) {
				stack[sp] = v
				m.stack = stack[:sp+1]
				after, done, err := m.references(list, pos+1)
				if err != nil {
					return 0, err
				}
				if !done {
					return after - 1, nil // to the MARK
				}
				stack = m.stack[:cap(m.stack)]
				pos = after
			}
		default:
			m.stack = stack[:sp]
			return pos, nil
		}
		if v == 0 {
			return 0, m.fail(m.src.base+int64(pos), Malformed, "a memo entry before here was never set")
		}
		stack[sp] = v
		sp++
	}
	m.stack = stack[:sp]
	if buf[pos] != opSetItems || pos >= m.src.end {
		return pos, nil
	}
	m.unmark()
	if err := m.heap.fillNew(m.build, dict, s, stack[from:sp]); err != nil {
		return 0, m.built(m.src.base+int64(pos), err)
	}
	m.stack = stack[:from]
	m.lastShape.follower = s
	m.lastShape = s
	return pos + 1, nil
}

// relearn changes a template whose key is the same text, but another object in
// the pickle.
func (m *machine) relearn(k *templateKey, key Value, pos int) {
	entry := -1
	switch m.src.buf[pos] {
	case opBinGet:
		entry = int(m.src.buf[pos+1])
	case opLongBinGet:
		entry = int(binary.LittleEndian.Uint32(m.src.buf[pos+1:]))
	}
	if entry >= 0 && entry < len(m.memo) && m.heap.unpack(m.memo[entry]) == key {
		*k = reference(entry)
	}
}

// forget drops what relies on memo entries that change.
func (m *machine) forget() {
	m.runs.reset()
	for _, s := range m.heap.shapes {
		s.template = nil
	}
	clear(m.memoOf)
}
