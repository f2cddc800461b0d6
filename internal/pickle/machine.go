// Package pickle reads Python pickles that hold plain data (None, bools, ints,
// floats, strings, lists, dicts, tuples), protocols 2 to 5, without executing
// them.
//
// A pickle is a program. This machine has no opcode that imports, calls or
// builds an object, so the worst a hostile file can do is to be refused, with
// the offset. Memory is bounded by the bytes that were really read; no length
// in the input is believed before the bytes are there. Containers are handed to
// a Builder as soon as they are filled, so that a file of gigabytes needs only
// what the Builder keeps.
//
// It does not read protocols 0 and 1, byte strings or sets.
package pickle

import (
	"encoding/binary"
	"io"
	"math"
)

// maxMarks is the deepest nesting that is read. Snapshots nest less than 20
// deep.
const maxMarks = 10_000

// maxText is the longest text or integer that is read. No name or path comes
// near it.
const maxText = 4 << 20

// maxKeys is how many texts are known as possible keys: keys come early.
const maxKeys = 1 << 12

// machine is the state of one pickle being read.
type machine struct {
	src   *source
	heap  *Heap
	build Builder
	size  int64 // of the whole input, -1 if not known

	stack   []Value
	marks   []int
	fence   int // the stack may not be popped below: the last mark, or 0
	memo    []packed
	memoCol Column
	memoed  int // entries of memo that are set
	// memoFree is how long memo may get before put has to look at it: it has
	// the capacity and is paid for.
	memoFree int
	short    [1 << shortBits]shortText
	// lastShape is that of the last dict; see record.
	lastShape *Shape
	memoOf    []int32 // one more than the memo entry of a text that may be a key
	runs      *runs
	proto     int
}

// shortText is a text of less than shortLimit bytes, with its length in the
// lowest byte of word.
type shortText struct {
	word uint64
	text Value
}

const (
	shortLimit = 7
	shortBits  = 6
)

func shortSlot(word uint64) uint64 { return word * 0x9e3779b97f4a7c15 >> (64 - shortBits) }

// Decode reads one pickle from r into h by way of b and returns its root and
// the protocol. size is the length of the input if it is known, else -1: with it lengths
// that run past the end are refused at once. Zeros may follow the pickle.
func Decode(r io.Reader, size int64, h *Heap, b Builder) (root Value, protocol int, err error) {
	h.Expect(size)
	m := &machine{src: newSource(r, size), heap: h, build: b, size: size, runs: newRuns()}
	root, err = m.run()
	return root, m.proto, err
}

// run executes opcodes until STOP.
//
// The stack is kept in local variables here, values above sp being garbage, and
// put back into m around every call that uses it: this loop is where the time
// goes.
func (m *machine) run() (Value, error) {
	pos, err := m.src.refill(0)
	if err != nil {
		return 0, err
	}
	if m.src.end == 0 {
		return 0, m.fail(0, Truncated, "the file is empty")
	}
	if m.src.buf[0] != opProto {
		return 0, m.begin(m.src.buf[0])
	}
	m.stack = make([]Value, 0, 512)
	buf := m.src.buf
	stack, sp := m.stack[:cap(m.stack)], 0
	memo := m.memo
	for {
		if m.src.end-pos < slack {
			if pos > m.src.end {
				return 0, m.truncated()
			}
			if pos, err = m.src.refill(pos); err != nil {
				return 0, err
			}
			m.heap.Allow(m.src.base + int64(m.src.end))
		}
		if sp+2 > len(stack) {
			m.stack = stack[:sp]
			if err := m.growStack(); err != nil {
				return 0, m.built(m.src.base+int64(pos), err)
			}
			stack = m.stack[:cap(m.stack)]
		}
		at := pos
		op := buf[pos]
		pos++
		switch op {
		case opBinGet:
			i := int(buf[pos])
			pos++
			if i >= len(memo) || memo[i] == 0 {
				return 0, m.missing(at, i, pos)
			}
			stack[sp] = m.heap.unpack(memo[i])
			sp++
		case opLongBinGet:
			i := int(binary.LittleEndian.Uint32(buf[pos:]))
			pos += 4
			if i >= len(memo) || memo[i] == 0 {
				return 0, m.missing(at, i, pos)
			}
			stack[sp] = m.heap.unpack(memo[i])
			sp++
		case opBinInt1:
			stack[sp] = Make(KindInt, uint64(buf[pos]))
			sp++
			pos++
		case opBinInt2:
			stack[sp] = Make(KindInt, uint64(binary.LittleEndian.Uint16(buf[pos:])))
			sp++
			pos += 2
		case opBinInt:
			stack[sp] = Make(KindInt, uint64(int64(int32(binary.LittleEndian.Uint32(buf[pos:])))))
			sp++
			pos += 4
		case opLong1:
			n := int(buf[pos])
			if n > 7 {
				v, after, err := m.long(at, pos+1, uint64(n))
				if err != nil {
					return 0, err
				}
				stack[sp] = v
				sp++
				pos = after
				continue
			}
			x := int64(0)
			if n > 0 {
				// n bytes, sign extended: shift the rest of the eight out.
				shift := uint(64-8*n) & 63
				x = int64(binary.LittleEndian.Uint64(buf[pos+1:])<<shift) >> shift
			}
			stack[sp] = Make(KindInt, uint64(x))
			sp++
			pos += 1 + n
		case opMemoize:
			if sp == m.fence {
				return 0, m.underflow(at, "MEMOIZE")
			}
			if v := stack[sp-1]; m.memoed == len(memo) && len(memo) < m.memoFree && v.Kind() != KindStr {
				memo = append(memo, m.heap.pack(v))
				m.memoed++
				continue
			}
			m.memo = memo
			if err := m.put(at, m.memoed, stack[sp-1]); err != nil {
				return 0, err
			}
			memo = m.memo
		case opMark:
			if next := buf[pos]; (next == opBinGet || next == opLongBinGet) && sp > m.fence {
				if top := stack[sp-1]; top.Kind() == KindList {
					m.stack, m.memo = stack[:sp], memo
					var done bool
					if pos, done, err = m.references(top, pos); err != nil {
						return 0, err
					}
					stack = m.stack[:cap(m.stack)]
					if done {
						continue
					}
					at = pos - 1 // the window may have moved
				}
			}
			if len(m.marks) == maxMarks {
				return 0, m.fail(m.src.base+int64(at), Malformed, "nested more than %d deep", maxMarks)
			}
			m.marks = append(m.marks, sp)
			m.fence = sp
		case opEmptyDict:
			v, err := m.heap.NewContainer(KindDict)
			if err != nil {
				return 0, m.built(m.src.base+int64(at), err)
			}
			m.stack, m.memo = stack[:sp], memo
			if pos, err = m.record(v, pos); err != nil {
				return 0, err
			}
			stack, sp, memo = m.stack[:cap(m.stack)], len(m.stack), m.memo
		case opEmptyList, opEmptyTuple:
			kind := KindList
			if op == opEmptyTuple {
				kind = KindTuple
			}
			v, err := m.heap.NewContainer(kind)
			if err != nil {
				return 0, m.built(m.src.base+int64(at), err)
			}
			stack[sp] = v
			sp++
		case opShortUnicode:
			if n := buf[pos]; n < shortLimit {
				// Short texts are mostly one that was just there.
				word := binary.LittleEndian.Uint64(buf[pos:]) & (1<<(8*(uint(n)+1)) - 1)
				cached := &m.short[shortSlot(word)]
				if cached.word == word && cached.text != 0 && pos+1+int(n) <= m.src.end {
					stack[sp] = cached.text
					sp++
					pos += 1 + int(n)
					continue
				}
				m.stack = stack[:sp]
				if pos, err = m.text(m.src.base+int64(at), pos+1, uint64(n)); err != nil {
					return 0, err
				}
				sp++
				*cached = shortText{word, stack[sp-1]}
				continue
			}
			m.stack = stack[:sp]
			if pos, err = m.text(m.src.base+int64(at), pos+1, uint64(buf[pos])); err != nil {
				return 0, err
			}
			sp++
		case opSetItems, opAppends:
			m.stack = stack[:sp]
			if err := m.fill(op, at); err != nil {
				return 0, err
			}
			sp = len(m.stack)
		case opStop:
			if pos > m.src.end {
				return 0, m.truncated()
			}
			m.stack = stack[:sp]
			return m.stop(at, pos)
		default:
			if pos > m.src.end {
				return 0, m.truncated()
			}
			m.stack, m.memo = stack[:sp], memo
			if pos, err = m.seldom(op, at, pos); err != nil {
				return 0, err
			}
			stack, sp, memo = m.stack[:cap(m.stack)], len(m.stack), m.memo
		}
	}
}

// seldom executes the opcodes that are rare in snapshots.
func (m *machine) seldom(op byte, at, pos int) (int, error) {
	buf, offset := m.src.buf, m.src.base+int64(at)
	need := func(n int) bool { return len(m.stack)-m.fence >= n }
	switch op {
	case opNone:
		m.stack = append(m.stack, Make(KindNone, 0))
	case opNewTrue, opNewFalse:
		m.stack = append(m.stack, NewBool(op == opNewTrue))
	case opBinFloat:
		v, err := m.heap.NewFloat(math.Float64frombits(binary.BigEndian.Uint64(buf[pos:])))
		if err != nil {
			return 0, m.built(offset, err)
		}
		m.stack = append(m.stack, v)
		pos += 8
	case opLong4:
		n := int32(binary.LittleEndian.Uint32(buf[pos:]))
		if n < 0 {
			return 0, m.fail(offset, Malformed, "LONG4 has a negative length")
		}
		v, after, err := m.long(at, pos+4, uint64(n))
		if err != nil {
			return 0, err
		}
		m.stack = append(m.stack, v)
		pos = after
	case opBinUnicode:
		return m.text(offset, pos+4, uint64(binary.LittleEndian.Uint32(buf[pos:])))
	case opBinUnicode8:
		return m.text(offset, pos+8, binary.LittleEndian.Uint64(buf[pos:]))
	case opBinPut, opLongBinPut:
		i := int(buf[pos])
		pos++
		if op == opLongBinPut {
			i = int(binary.LittleEndian.Uint32(buf[pos-1:]))
			pos += 3
		}
		if !need(1) {
			return 0, m.underflow(at, "BINPUT")
		}
		return pos, m.put(at, i, m.stack[len(m.stack)-1])
	case opTuple1, opTuple2, opTuple3:
		n := int(op) - opTuple1 + 1
		if !need(n) {
			return 0, m.underflow(at, "TUPLE")
		}
		return pos, m.gather(offset, KindTuple, len(m.stack)-n)
	case opTuple, opList, opDict:
		kind := KindTuple
		if op == opList {
			kind = KindList
		} else if op == opDict {
			kind = KindDict
		}
		if len(m.marks) == 0 {
			return 0, m.fail(offset, Malformed, "no MARK for %q", op)
		}
		from := m.fence
		m.unmark()
		return pos, m.gather(offset, kind, from)
	case opAppend:
		if !need(2) || m.stack[len(m.stack)-2].Kind() != KindList {
			return 0, m.fail(offset, Malformed, "APPEND without a list")
		}
		n := len(m.stack)
		err := m.heap.Fill(m.build, m.stack[n-2], m.stack[n-1:])
		m.stack = m.stack[:n-1]
		return pos, m.built(offset, err)
	case opSetItem:
		if !need(3) || m.stack[len(m.stack)-3].Kind() != KindDict {
			return 0, m.fail(offset, Malformed, "SETITEM without a dict")
		}
		n := len(m.stack)
		err := m.heap.Fill(m.build, m.stack[n-3], m.stack[n-2:])
		m.stack = m.stack[:n-2]
		return pos, m.built(offset, err)
	case opPop:
		// As in CPython, POP right after a MARK takes the mark.
		if len(m.marks) > 0 && len(m.stack) == m.fence {
			m.unmark()
			return pos, nil
		}
		if !need(1) {
			return 0, m.underflow(at, "POP")
		}
		m.stack = m.stack[:len(m.stack)-1]
	case opPopMark:
		if len(m.marks) == 0 {
			return 0, m.fail(offset, Malformed, "POP_MARK without a MARK")
		}
		m.stack = m.stack[:m.fence]
		m.unmark()
	case opDup:
		if !need(1) {
			return 0, m.underflow(at, "DUP")
		}
		m.stack = append(m.stack, m.stack[len(m.stack)-1])
	case opProto:
		if buf[pos] > highestProtocol {
			return 0, m.fail(offset, NotAPickle, "pickle protocol %d is not known", buf[pos])
		}
		m.proto = int(buf[pos])
		pos++
	case opFrame:
		n := binary.LittleEndian.Uint64(buf[pos:])
		pos += 8
		if m.size >= 0 && n > uint64(max(0, m.size-m.src.base-int64(pos))) {
			return 0, m.fail(offset, Truncated, "a frame of %d bytes runs past the end of the file", n)
		}
	default:
		return 0, m.refuse(op, offset, pos)
	}
	return pos, nil
}

// fill executes SETITEMS and APPENDS.
func (m *machine) fill(op byte, at int) error {
	offset := m.src.base + int64(at)
	if len(m.marks) == 0 {
		return m.fail(offset, Malformed, "no MARK for %q", op)
	}
	mark := m.fence
	m.unmark()
	if mark == m.fence {
		return m.fail(offset, Malformed, "nothing to fill before the MARK")
	}
	target := m.stack[mark-1]
	items := m.stack[mark:]
	switch {
	case op == opSetItems && target.Kind() != KindDict:
		return m.fail(offset, Malformed, "SETITEMS on something that is not a dict")
	case op == opAppends && target.Kind() != KindList:
		return m.fail(offset, Malformed, "APPENDS on something that is not a list")
	case op == opSetItems && len(items)%2 != 0:
		return m.fail(offset, Malformed, "a key without a value")
	}
	var err error
	if op == opSetItems && m.heap.objs[target.Payload()] == 0 && len(items) > 0 {
		s := m.heap.shapeOf(items)
		m.learn(s)
		err = m.heap.fillNew(m.build, target, s, items)
	} else {
		err = m.heap.Fill(m.build, target, items)
	}
	m.stack = m.stack[:mark]
	return m.built(offset, err)
}

// gather replaces the values from index from up by a container of them.
func (m *machine) gather(offset int64, kind Kind, from int) error {
	items := m.stack[from:]
	if kind == KindDict && len(items)%2 != 0 {
		return m.fail(offset, Malformed, "a key without a value")
	}
	v, err := m.heap.NewContainer(kind)
	if err == nil {
		err = m.heap.Fill(m.build, v, items)
	}
	m.stack = append(m.stack[:from], v)
	return m.built(offset, err)
}

func (m *machine) unmark() {
	m.marks = m.marks[:len(m.marks)-1]
	m.fence = 0
	if len(m.marks) > 0 {
		m.fence = m.marks[len(m.marks)-1]
	}
}

// put stores v as memo entry i.
func (m *machine) put(at, i int, v Value) error {
	if i == len(m.memo) && i < m.memoFree && v.Kind() != KindStr {
		m.memo = append(m.memo, m.heap.pack(v))
		m.memoed++
		return nil
	}
	offset := m.src.base + int64(at)
	// Picklers count up from 0, so that an index never exceeds the bytes read.
	if int64(i) > offset {
		return m.fail(offset, Malformed, "memo entry %d is out of all proportion", i)
	}
	if i >= len(m.memo) {
		if i >= m.memoFree {
			const ahead = 1024
			if err := m.heap.Charge(4 * (i + ahead - m.memoFree)); err != nil {
				return m.built(offset, err)
			}
			if i+ahead > cap(m.memo) {
				m.memo = append(make([]packed, 0, max(i+ahead, m.memoCol.Room(m.heap, len(m.memo)))), m.memo...)
			}
			m.memoFree = i + ahead
		}
		m.memo = m.memo[:i+1] // zeroed by make, and never shortened
	}
	if m.memo[i] == 0 {
		m.memoed++
	} else if m.heap.unpack(m.memo[i]) != v {
		m.forget()
	}
	if id := int(v.Payload()); v.Kind() == KindStr && id < maxKeys && i < math.MaxInt32 {
		for len(m.memoOf) <= id {
			m.memoOf = append(m.memoOf, 0)
		}
		m.memoOf[id] = int32(i + 1)
	}
	m.memo[i] = m.heap.pack(v)
	return nil
}

// long reads an integer of n bytes at pos.
func (m *machine) long(at, pos int, n uint64) (Value, int, error) {
	offset := m.src.base + int64(at)
	data, after, ok, err := m.take(offset, pos, n)
	if err != nil || !ok {
		return 0, 0, err
	}
	for len(data) > 1 { // drop bytes that only repeat the sign
		last, before := data[len(data)-1], data[len(data)-2]
		if (last != 0 || before >= 0x80) && (last != 0xff || before < 0x80) {
			break
		}
		data = data[:len(data)-1]
	}
	if len(data) <= 7 {
		x := int64(0)
		for i, b := range data {
			x |= int64(b) << (8 * i)
		}
		if len(data) > 0 {
			s := 64 - 8*len(data)
			x = x << s >> s
		}
		return Make(KindInt, uint64(x)), after, nil
	}
	v, err := m.heap.newWide(append([]byte(nil), data...))
	return v, after, m.built(offset, err)
}

// text reads a string of n bytes at pos and pushes it.
func (m *machine) text(offset int64, pos int, n uint64) (int, error) {
	data, after, ok, err := m.take(offset, pos, n)
	if err != nil || !ok {
		return 0, err
	}
	m.heap.Allow(m.src.base + int64(m.src.end))
	v, err := m.heap.NewStr(data)
	m.stack = append(m.stack, v)
	return after, m.built(offset, err)
}

// take is source.take with the error for an input that ends too early.
func (m *machine) take(offset int64, pos int, n uint64) ([]byte, int, bool, error) {
	if m.size >= 0 && n > uint64(max(0, m.size-m.src.base-int64(pos))) {
		return nil, 0, false, m.fail(offset, Truncated, "%d bytes are announced, but the file ends before", n)
	}
	if n > maxText {
		return nil, 0, false, m.fail(offset, Unjustified, "one text of %d bytes", n)
	}
	data, after, ok, err := m.src.take(pos, n)
	if err == nil && !ok {
		err = m.fail(offset, Truncated, "%d bytes are announced, but the file ends before", n)
	}
	return data, after, ok, err
}

func (m *machine) growStack() error {
	more := max(1024, cap(m.stack)/2)
	if err := m.heap.Charge(8 * more); err != nil {
		return err
	}
	m.stack = append(make([]Value, 0, cap(m.stack)+more), m.stack...)
	return nil
}

// maxPadding is how many zeros may follow a pickle; torch's HTML pages have up
// to three.
const maxPadding = 4096

// stop ends the pickle: one value must be left, and only zeros may follow. The
// value is returned also where something else follows.
func (m *machine) stop(at, pos int) (Value, error) {
	offset := m.src.base + int64(at)
	if len(m.marks) > 0 || len(m.stack) != 1 {
		return 0, m.fail(offset, Malformed, "the pickle ends with %d values instead of one", len(m.stack))
	}
	root := m.stack[0]
	m.memo, m.stack, m.runs = nil, nil, nil
	for {
		for pos < m.src.end {
			if m.src.buf[pos] != 0 || m.src.base+int64(pos) > offset+maxPadding {
				return root, m.fail(m.src.base+int64(pos), Malformed, "something follows the end of the pickle")
			}
			pos++
		}
		if m.src.eof {
			return root, nil
		}
		var err error
		if pos, err = m.src.refill(pos); err != nil {
			return 0, err
		}
	}
}

// begin says why an input that does not begin with PROTO is not read.
func (m *machine) begin(first byte) error {
	switch first {
	case '(', ']', '}', ')', 'I', 'L', 'F', 'S', 'V', 'N', 'l', 'd', 'c':
		return m.fail(0, Text, "this may be a pickle of protocol 0 or 1; only 2 to 5 are read")
	}
	return m.fail(0, NotAPickle, "not a pickle: the first byte is 0x%02x, not 0x80", first)
}
