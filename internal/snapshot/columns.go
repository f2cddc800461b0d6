package snapshot

import (
	"encoding/binary"
	"hash/maphash"
	"slices"

	"unoom/internal/alloc"
	"unoom/internal/pickle"
)

// eventColumns holds all events in the order in which they were read.
type eventColumns struct {
	all      []alloc.Event
	col      pickle.Column
	forward  []uint32 // empty until an event has one
	category []uint32
}

// eventBytes is the size of an alloc.Event.
const eventBytes = 48

func (c *eventColumns) add(h *pickle.Heap, e *alloc.Event, forward, category uint32) (int, error) {
	if err := h.Charge(eventBytes); err != nil {
		return 0, err
	}
	n := len(c.all)
	if n == cap(c.all) {
		c.all = append(make([]alloc.Event, 0, c.col.Room(h, n)), c.all...)
	}
	c.all = append(c.all, *e)
	if err := put(h, &c.forward, n, forward); err != nil {
		return 0, err
	}
	return n, put(h, &c.category, n, category)
}

// put stores v at index i of a sparse column.
func put(h *pickle.Heap, column *[]uint32, i int, v uint32) error {
	if v == 0 {
		return nil
	}
	if more := i + 1 - len(*column); more > 0 {
		if err := h.Charge(4 * more); err != nil {
			return err
		}
		*column = append(*column, make([]uint32, more)...)
	}
	(*column)[i] = v
	return nil
}

// cut returns the rows of a device.
func (c *eventColumns) cut(list rows) (events []alloc.Event, forward, category []uint32) {
	switch {
	case list.ids == nil:
		events = c.all[list.from:list.to:list.to]
	default:
		events = make([]alloc.Event, len(list.ids))
		for i, row := range list.ids {
			events[i] = c.all[row]
		}
	}
	return events, column(c.forward, list), column(c.category, list)
}

func column(all []uint32, list rows) []uint32 {
	if len(all) == 0 {
		return nil
	}
	out := make([]uint32, list.len())
	any := false
	for i := range out {
		if row := list.at(i); row < len(all) && all[row] != 0 {
			out[i] = all[row]
			any = true
		}
	}
	if !any {
		return nil
	}
	return out
}

func (l rows) len() int {
	if l.ids != nil {
		return len(l.ids)
	}
	return l.to - l.from
}

func (l rows) at(i int) int {
	if l.ids != nil {
		return l.ids[i]
	}
	return l.from + i
}

// stackTable finds stacks by their frames.
type stackTable struct {
	seed  maphash.Seed
	slots []uint32 // stack ids; 0 is free
	count int
	bytes []byte // scratch of hash
}

func newStackTable() stackTable {
	return stackTable{seed: maphash.MakeSeed(), slots: make([]uint32, 1024)}
}

// stack returns the id of a list of frames, new if it was not seen before.
func (b *builder) stack(ids []uint32) (uint32, error) {
	t := &b.stackIDs
	i := t.hash(ids)
	for ; ; i++ {
		id := t.slots[i&uint64(len(t.slots)-1)]
		if id == 0 {
			break
		}
		if slices.Equal(b.texts.FrameIDs(id), ids) {
			return id, nil
		}
	}
	if err := b.h.Charge(4*len(ids) + 24); err != nil {
		return 0, err
	}
	id := uint32(len(b.texts.stacks))
	from := uint32(len(b.texts.frameOf))
	b.texts.frameOf = append(b.texts.frameOf, ids...)
	b.texts.stacks = append(b.texts.stacks, span{from, uint32(len(b.texts.frameOf))})
	t.slots[i&uint64(len(t.slots)-1)] = id
	if t.count++; 2*t.count > len(t.slots) {
		t.slots = make([]uint32, 2*len(t.slots))
		for id := uint32(1); int(id) < len(b.texts.stacks); id++ {
			i := t.hash(b.texts.FrameIDs(id))
			for t.slots[i&uint64(len(t.slots)-1)] != 0 {
				i++
			}
			t.slots[i&uint64(len(t.slots)-1)] = id
		}
	}
	return id, nil
}

func (t *stackTable) hash(ids []uint32) uint64 {
	t.bytes = t.bytes[:0]
	for _, id := range ids {
		t.bytes = binary.LittleEndian.AppendUint32(t.bytes, id)
	}
	return maphash.Bytes(t.seed, t.bytes)
}
