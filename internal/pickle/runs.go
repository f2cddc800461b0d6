package pickle

import (
	"bytes"
	"hash/maphash"
)

// runs remembers what lists written wholly as memo references were turned into,
// by the bytes of the references. Call stacks are such lists and make up three
// quarters of a snapshot; equal stacks have equal bytes.
type runs struct {
	seed  maphash.Seed
	slots []run
	count int
	bytes []byte
}

type run struct {
	hash     uint64
	off, len uint32
	value    Value // 0: the slot is free
}

// maxRunBytes bounds what is kept, so that offsets fit 32 bits. A full table is
// started anew.
const maxRunBytes = 1 << 30

func newRuns() *runs {
	return &runs{seed: maphash.MakeSeed(), slots: make([]run, 1024)}
}

func (t *runs) reset() {
	if t.count > 0 {
		*t = runs{seed: t.seed, slots: make([]run, 1024)}
	}
}

// find returns the value of a run, 0 if it is new, and its hash for add.
func (t *runs) find(raw []byte) (Value, uint64) {
	hash := maphash.Bytes(t.seed, raw)
	mask := uint64(len(t.slots) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		s := &t.slots[i]
		if s.value == 0 {
			return 0, hash
		}
		if s.hash == hash && bytes.Equal(t.bytes[s.off:s.off+s.len], raw) {
			return s.value, hash
		}
	}
}

// add remembers a run that find did not know. It returns how many bytes more
// it holds now.
func (t *runs) add(raw []byte, hash uint64, v Value) int {
	if len(t.bytes)+len(raw) > maxRunBytes {
		t.reset()
	}
	before := cap(t.bytes) + 24*len(t.slots)
	if 2*t.count >= len(t.slots) {
		old := t.slots
		t.slots = make([]run, 2*len(old))
		for _, s := range old {
			if s.value != 0 {
				t.place(s)
			}
		}
	}
	t.place(run{hash, uint32(len(t.bytes)), uint32(len(raw)), v})
	t.bytes = append(t.bytes, raw...)
	t.count++
	return cap(t.bytes) + 24*len(t.slots) - before
}

func (t *runs) place(s run) {
	mask := uint64(len(t.slots) - 1)
	i := s.hash & mask
	for t.slots[i].value != 0 {
		i = (i + 1) & mask
	}
	t.slots[i] = s
}
