package alloc

import "fmt"

// State is what a block is doing.
type State uint8

// The states, by torch's names.
const (
	Inactive State = iota // "inactive"
	Active                // "active_allocated"
	Pending               // "active_pending_free"
	Unmapped              // address space of an expandable segment without memory
)

// A SegmentState is a segment at one moment: one cudaMalloc or, if Page is not
// 0, the address space of an expandable segment.
type SegmentState struct {
	Addr   uint64
	Stream uint64
	Pool   PoolID
	Small  bool
	Page   int64
	// Age orders segments of equal blocks where the tie is broken by segment; 0 is
	// the order of the calls of Restore.
	Age    uint64
	Blocks []BlockState // without gaps, by address
}

// Size returns the sum of the blocks.
func (s *SegmentState) Size() int64 {
	var n int64
	for i := range s.Blocks {
		n += s.Blocks[i].Size
	}
	return n
}

// A BlockState is a block at one moment.
type BlockState struct {
	Size      int64
	Requested int64
	State     State
	// Age orders equal blocks where the tie is broken by the order in which they
	// were made; 0 is the order of Restore.
	Age uint64
}

// Restore puts a segment into the allocator as it was at some moment, and calls
// live with each block that is Active or Pending: the caller ends a Pending one
// with Complete. No events are recorded; the figures count the blocks as handed
// out once. It refuses states that no allocator can be in.
func (a *Allocator) Restore(s *SegmentState, live func(i int, b Block)) error {
	if len(s.Blocks) == 0 {
		return fmt.Errorf("segment %#x has no blocks", s.Addr)
	}
	base := a.poolOf(s.Pool)
	if !s.Small {
		base++
	}
	shelf := a.shelfOf(base, s.Stream)
	kind := kindOf(s.Small)
	origin, reservationID := a.restoredOrigin(s.Age, s.Addr), int32(0)
	if s.Page > 0 {
		a.reservations = append(a.reservations, reservation{s.Addr, s.Size(), s.Page})
		reservationID = int32(len(a.reservations))
	} else {
		a.countReserved(kind, s.Size(), 1)
		a.pools[base].mallocs++
	}
	if c, ok := a.device.(*card); ok {
		c.adopt(s)
	}
	addr, prev := s.Addr, int32(0)
	for i := range s.Blocks {
		in := &s.Blocks[i]
		switch {
		case in.Size <= 0 || in.Size%unit != 0 || addr%unit != 0:
			return fmt.Errorf("block %#x has %d bytes: the allocator deals in multiples of %d", addr, in.Size, unit)
		case (in.State == Active || in.State == Pending) && (in.Requested < 0 || in.Requested > in.Size):
			return fmt.Errorf("block %#x of %d bytes serves a request of %d", addr, in.Size, in.Requested)
		case in.State == Unmapped && s.Page == 0:
			return fmt.Errorf("block %#x is unmapped in a segment that is not expandable", addr)
		}
		id := a.newBlock()
		b := &a.blocks[id]
		*b = block{
			addr: addr, size: in.Size, requested: in.Requested, prev: prev, shelf: shelf,
			reservation: reservationID, mapped: in.State != Unmapped, origin: origin,
		}
		switch {
		case a.rules.tie != TieByCounter:
		case in.Age > 0:
			b.origin = a.restoredOrigin(in.Age, addr)
		case i > 0:
			b.origin = a.originOf(b)
		}
		if prev != 0 {
			a.blocks[prev].next = id
		}
		prev = id
		addr += uint64(in.Size)
		if b.mapped && s.Page > 0 {
			a.countReserved(kind, in.Size, 0)
			a.pools[base].mallocs++
		}
		switch in.State {
		case Active, Pending:
			b.allocated = in.State == Active
			a.countAlloc(kind, b.size, b.requested)
			if !b.allocated {
				b.events = 1
				a.held++
				a.countFreeRequested(kind, b.size)
			}
			live(i, Block(id))
		default:
			if b.mapped && s.Page == 0 && len(s.Blocks) > 1 {
				a.countSplit(kind, 1, b.size)
			}
			a.shelve(id)
		}
	}
	return nil
}

// restoredOrigin is newOrigin with a given age.
func (a *Allocator) restoredOrigin(age, addr uint64) uint64 {
	if age == 0 {
		return a.newOrigin(addr)
	}
	was := a.counter
	a.counter = age - 1
	origin := a.newOrigin(addr)
	a.counter = max(was, age)
	return origin
}

// AgeAt returns the size of the free block that begins at an address, and its
// age, or that of its segment: what breaks the tie between equal blocks. It
// returns false if no free block begins there, or if the address breaks ties.
func (a *Allocator) AgeAt(addr uint64) (size int64, age uint64, ok bool) {
	if a.rules.tie == TieByAddress {
		return 0, 0, false
	}
	for i := range a.shelves {
		a.scratch = a.shelves[i].free.appendTo(a, a.scratch[:0])
		for _, id := range a.scratch {
			b := &a.blocks[id]
			if b.addr != addr {
				continue
			}
			if a.rules.tie == TieBySegment {
				return b.size, a.tieOf(b) >> segmentTieBits, true
			}
			return b.size, b.origin, true
		}
	}
	return 0, 0, false
}

// Tie returns what breaks the tie between equal blocks.
func (a *Allocator) Tie() TieBreak { return a.rules.tie }

// Fits reports whether a request would be served from memory that is free in
// the allocator, without asking the driver.
func (a *Allocator) Fits(id PoolID, size int64, stream uint64) bool {
	r := a.ask(id, size, stream)
	if a.find(&a.shelves[r.shelf].free, &r) != 0 {
		return true
	}
	if !r.expandable {
		return false
	}
	// A block that the search may not lend can still be where growing begins.
	at := a.reservedSpace(&r)
	return at != 0 && a.blocks[at].mapped && a.blocks[at].size >= r.size
}

// ask makes the request that Malloc would make.
func (a *Allocator) ask(id PoolID, size int64, stream uint64) request {
	r := request{size: a.conf.Round(size), kind: 1, expandable: a.conf.ExpandableSegments}
	base := a.poolOf(id)
	if r.size > smallLimit {
		r.kind = 2
		base++
	}
	r.shelf = a.shelfOf(base, stream)
	return r
}

// FirstOversize returns the address of the unsplittable block that is the first
// to be given back when the driver refuses a request, and false if there is none.
func (a *Allocator) FirstOversize(id PoolID, size int64, stream uint64) (uint64, bool) {
	r := a.ask(id, size, stream)
	ids, _ := a.oversize(&r)
	if len(ids) == 0 {
		return 0, false
	}
	return a.blocks[ids[0]].addr, true
}

// FitsAfter reports whether a request would be served from the block that b
// becomes part of when it is freed.
func (a *Allocator) FitsAfter(handle Block, id PoolID, size int64, stream uint64) bool {
	b, r := &a.blocks[handle], a.ask(id, size, stream)
	if b.shelf != r.shelf {
		return false
	}
	room := b.size
	for _, n := range [...]int32{b.prev, b.next} {
		if n != 0 && a.reusable(n) && a.blocks[n].mapped {
			room += a.blocks[n].size
		}
	}
	return room >= r.size && a.lends(room, r.size)
}

// Waiting returns the number of blocks freed with FreeLater, or restored as
// Pending, that are not yet completed.
func (a *Allocator) Waiting() int { return a.held }

// State returns what the block of a handle is doing; Inactive for the zero Block.
func (a *Allocator) State(handle Block) State {
	b := &a.blocks[handle]
	switch {
	case b.allocated:
		return Active
	case b.pending():
		return Pending
	}
	return Inactive
}

// A Piece is a block as Walk reports it.
type Piece struct {
	Addr      uint64
	Size      int64
	Requested int64
	Stream    uint64
	Pool      PoolID
	Small     bool
	Expands   bool // of an expandable segment
	State     State
	First     bool // no block of the segment lies before it
	Handle    Block
}

// Walk calls visit with every block, segment by segment in the order in which
// the segments came, and in a segment by address.
func (a *Allocator) Walk(visit func(Piece)) {
	spare := make([]bool, len(a.blocks))
	for _, id := range a.spare {
		spare[id] = true
	}
	for id := int32(1); id < int32(len(a.blocks)); id++ {
		if spare[id] || a.blocks[id].prev != 0 {
			continue
		}
		for at := id; at != 0; at = a.blocks[at].next {
			b := &a.blocks[at]
			s := &a.shelves[b.shelf]
			p := &a.pools[s.pool&^1]
			piece := Piece{
				Addr: b.addr, Size: b.size, Requested: b.requested, Stream: s.stream, Pool: p.id,
				Small: s.pool&1 == 0, Expands: b.reservation != 0, First: at == id, Handle: Block(at),
			}
			switch {
			case b.allocated:
				piece.State = Active
			case b.pending():
				piece.State = Pending
			case !b.mapped:
				piece.State = Unmapped
			}
			visit(piece)
		}
	}
}

// String returns torch's name of the state.
func (s State) String() string {
	names := [...]string{"inactive", "active_allocated", "active_pending_free", "unmapped"}
	if int(s) < len(names) {
		return names[s]
	}
	return "unknown"
}
