package pickle

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
)

// runs remembers what lists written wholly as memo references were turned into,
// by the bytes of the references. Call stacks are such lists and make up three
// quarters of a snapshot; equal stacks have equal bytes.
type runs struct {
	seed  maphash.Seed
	slots []int32 // by hash: index of known, 0 for a free slot
	known []run   // known[0] is not used
	bytes []byte
	// What followed the last two runs before is likely to follow them again:
	// training repeats itself.
	guess []int32
	last  [2]int32
}

type run struct {
	hash     uint64
	off, len uint32
	value    Value
}

const guessBits = 13

// maxRunBytes bounds what is kept, so that offsets fit 32 bits. A full table is
// started anew.
const maxRunBytes = 1 << 30

func newRuns() *runs {
	return &runs{seed: maphash.MakeSeed(), slots: make([]int32, 256), known: make([]run, 1)}
}

func (t *runs) reset() {
	if len(t.known) > 1 {
		*t = *newRuns()
	}
}

func (t *runs) guessAt() *int32 {
	if t.guess == nil {
		t.guess = make([]int32, 1<<guessBits)
	}
	return &t.guess[(uint32(t.last[0])*0x9e3779b1^uint32(t.last[1])*0x85ebca6b)>>(32-guessBits)]
}

// follow notes that run i came next.
func (t *runs) follow(i int32) {
	*t.guessAt() = i
	t.last = [2]int32{t.last[1], i}
}

// expect returns the value and the length of the run at the start of data, if
// it is the one that is likely to come now and APPENDS follows. Equal bytes have
// equal opcodes, so that the end need not be looked for.
func (t *runs) expect(data []byte) (Value, int) {
	i := *t.guessAt()
	r := &t.known[i]
	n := int(r.len)
	if i == 0 || n >= len(data) || data[n] != opAppends || !bytes.Equal(t.bytes[r.off:int(r.off)+n], data[:n]) {
		return 0, 0
	}
	t.last = [2]int32{t.last[1], i}
	return r.value, n
}

// find returns the value of a run, 0 if it is new, and its hash for add.
func (t *runs) find(raw []byte) (Value, uint64) {
	hash := maphash.Bytes(t.seed, raw)
	mask := uint64(len(t.slots) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		n := t.slots[i]
		if n == 0 {
			return 0, hash
		}
		if r := &t.known[n]; r.hash == hash && bytes.Equal(t.bytes[r.off:r.off+r.len], raw) {
			t.follow(n)
			return r.value, hash
		}
	}
}

// add remembers a run that find did not know. It returns how many bytes more
// it holds now.
func (t *runs) add(raw []byte, hash uint64, v Value) int {
	if len(t.bytes)+len(raw) > maxRunBytes {
		t.reset()
	}
	before := cap(t.bytes) + 24*cap(t.known) + 4*len(t.slots)
	if 2*len(t.known) >= len(t.slots) {
		t.slots = make([]int32, 2*len(t.slots))
		for i := range t.known[1:] {
			t.place(int32(i + 1))
		}
	}
	t.known = append(t.known, run{hash, uint32(len(t.bytes)), uint32(len(raw)), v})
	t.place(int32(len(t.known) - 1))
	t.follow(int32(len(t.known) - 1))
	t.bytes = append(t.bytes, raw...)
	return cap(t.bytes) + 24*cap(t.known) + 4*len(t.slots) - before
}

func (t *runs) place(n int32) {
	mask := uint64(len(t.slots) - 1)
	i := t.known[n].hash & mask
	for t.slots[i] != 0 {
		i = (i + 1) & mask
	}
	t.slots[i] = n
}

// references handles a list that is written wholly as memo references, as call
// stacks are: MARK was read, pos is at the first reference. If done is false
// nothing happened but a move of the window.
func (m *machine) references(list Value, pos int) (after int, done bool, err error) {
	if m.heap.objs[list.Payload()] != 0 {
		return pos, false, nil
	}
	if v, n := m.runs.expect(m.src.buf[pos:m.src.end]); v != 0 {
		m.heap.objs[list.Payload()] = m.heap.pack(v)
		return pos + n + 1, true, nil
	}
	end := m.runEnd(pos)
	if end >= m.src.end-slack && !m.src.eof {
		if pos, err = m.src.refill(pos - 1); err != nil { // the MARK stays
			return 0, false, err
		}
		pos++
		m.heap.Allow(m.src.base + int64(m.src.end))
		end = m.runEnd(pos)
	}
	if end >= m.src.end || m.src.buf[end] != opAppends {
		return pos, false, nil
	}
	raw := m.src.buf[pos:end]
	known, hash := m.runs.find(raw)
	if known != 0 {
		m.heap.objs[list.Payload()] = m.heap.pack(known)
		return end + 1, true, nil
	}
	base := len(m.stack)
	for p := pos; p < end; {
		var i int
		at := p
		if m.src.buf[p] == opBinGet {
			i = int(m.src.buf[p+1])
			p += 2
		} else {
			i = int(binary.LittleEndian.Uint32(m.src.buf[p+1:]))
			p += 5
		}
		if i >= len(m.memo) || m.memo[i] == 0 {
			return 0, false, m.missing(at, i, p)
		}
		if len(m.stack)+2 > cap(m.stack) {
			if err := m.growStack(); err != nil {
				return 0, false, m.built(m.src.base+int64(at), err)
			}
		}
		m.stack = append(m.stack, m.heap.unpack(m.memo[i]))
	}
	offset := m.src.base + int64(end)
	err = m.heap.Fill(m.build, list, m.stack[base:])
	m.stack = m.stack[:base]
	if err != nil {
		return 0, false, m.built(offset, err)
	}
	if made := m.heap.unpack(m.heap.objs[list.Payload()]); made.Kind() >= KindUser {
		if err := m.heap.Charge(m.runs.add(raw, hash, made)); err != nil {
			return 0, false, m.built(offset, err)
		}
	}
	return end + 1, true, nil
}

// runEnd returns the position after the memo references that begin at pos, or
// somewhere within the last slack bytes of the window if they reach that far.
func (m *machine) runEnd(pos int) int {
	buf, last := m.src.buf, m.src.end-slack
	if m.src.eof {
		last = m.src.end
	}
	for pos < last {
		switch buf[pos] {
		case opBinGet:
			pos += 2
		case opLongBinGet:
			pos += 5
		default:
			return pos
		}
	}
	return pos
}
