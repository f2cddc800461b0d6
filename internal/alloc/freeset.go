package alloc

import "math/bits"

// A freeSet is the ordered set of the free blocks of one pool and stream, by
// (size, tie): the order in which torch's std::set keeps them.
//
// Blocks are sorted into bins by size, 64 bins for each power of two, so that a
// bin seldom holds more than a few; a bitmap finds the next bin that is not
// empty. The blocks of a bin are linked through the blocks themselves, in order.
// A bin that grows long, as that of many equal blocks does, becomes a sortedSet.
type freeSet struct {
	heads   []int32 // by bin: a block, 0 if there is none, -1-k for the k-th of crowds
	full    []uint64
	summary uint64
	crowds  []sortedSet
	crowded []int32 // the bin of each of crowds
	n       int
}

const (
	binBits = 6
	// bins is enough for blocks of 2^(57-binBits) units, and no more than the
	// summary word can cover.
	bins = 52 << binBits
	// crowd is how many blocks of a bin are linked before it becomes a set.
	crowd = 12
)

// binOf returns the bin of a size: exact up to 64 KiB, then 64 to a power of two.
func binOf(size int64) int {
	u := uint64(size) / unit
	if u < 1<<binBits {
		return int(u)
	}
	e := bits.Len64(u) - 1 - binBits
	return e<<binBits + int(u>>e)
}

func (s *freeSet) init() {
	s.heads = make([]int32, bins)
	s.full = make([]uint64, bins/64)
}

// reset empties the set; its chunks belong to an arena that is reset with it.
func (s *freeSet) reset() {
	for w := s.summary; w != 0; w &= w - 1 {
		i := bits.TrailingZeros64(w)
		for v := s.full[i]; v != 0; v &= v - 1 {
			s.heads[i*64+bits.TrailingZeros64(v)] = 0
		}
		s.full[i] = 0
	}
	for _, bin := range s.crowded {
		s.heads[bin] = 0
	}
	s.summary, s.crowds, s.crowded, s.n = 0, s.crowds[:0], s.crowded[:0], 0
}

// nextBin returns the first bin from bin on that is not empty, and -1 if there
// is none.
func (s *freeSet) nextBin(bin int) int {
	i := bin / 64
	if i >= len(s.full) {
		return -1
	}
	if v := s.full[i] >> (bin % 64); v != 0 {
		return bin + bits.TrailingZeros64(v)
	}
	w := s.summary >> (i + 1) << (i + 1)
	if w == 0 {
		return -1
	}
	i = bits.TrailingZeros64(w)
	return i*64 + bits.TrailingZeros64(s.full[i])
}

// prevBin returns the last bin before bin that is not empty, and -1 if there is
// none.
func (s *freeSet) prevBin(bin int) int {
	i := bin / 64
	if i < len(s.full) {
		if v := s.full[i] & (1<<(bin%64) - 1); v != 0 {
			return i*64 + bits.Len64(v) - 1
		}
	}
	w := s.summary & (1<<i - 1)
	if w == 0 {
		return -1
	}
	i = bits.Len64(w) - 1
	return i*64 + bits.Len64(s.full[i]) - 1
}

// firstIn returns the first block of a bin that is not empty.
func (s *freeSet) firstIn(a *Allocator, bin int) int32 {
	head := s.heads[bin]
	if head > 0 {
		return head
	}
	return s.crowds[-1-head].at(&a.chunks, position{})
}

// lastIn returns the last block of a bin that is not empty.
func (s *freeSet) lastIn(a *Allocator, bin int) int32 {
	id := s.heads[bin]
	if id < 0 {
		c := &s.crowds[-1-id]
		p, _ := c.before(&a.chunks, c.end())
		return c.at(&a.chunks, p)
	}
	for a.blocks[id].binNext != 0 {
		id = a.blocks[id].binNext
	}
	return id
}

// lower returns the first block of at least size bytes, or 0.
func (s *freeSet) lower(a *Allocator, size int64) int32 {
	if s.n == 0 {
		return 0
	}
	bin := binOf(size)
	switch id := s.heads[bin]; {
	case id > 0:
		for ; id != 0; id = a.blocks[id].binNext {
			if a.blocks[id].size >= size {
				return id
			}
		}
	case id < 0:
		c := &s.crowds[-1-id]
		if p, ok := c.lower(&a.chunks, uint64(size), 0); ok {
			return c.at(&a.chunks, p)
		}
	}
	if bin = s.nextBin(bin + 1); bin < 0 {
		return 0
	}
	return s.firstIn(a, bin)
}

// next returns the block after id, or 0.
func (s *freeSet) next(a *Allocator, id int32) int32 {
	b := &a.blocks[id]
	bin := binOf(b.size)
	if head := s.heads[bin]; head < 0 {
		c := &s.crowds[-1-head]
		p, _ := c.lower(&a.chunks, uint64(b.size), a.tieOf(b))
		if p, ok := c.next(&a.chunks, p); ok {
			return c.at(&a.chunks, p)
		}
	} else if b.binNext != 0 {
		return b.binNext
	}
	if bin = s.nextBin(bin + 1); bin < 0 {
		return 0
	}
	return s.firstIn(a, bin)
}

// before returns the block before id, or the last one if id is 0; 0 if there is
// none.
func (s *freeSet) before(a *Allocator, id int32) int32 {
	bin := len(s.heads)
	if id != 0 {
		b := &a.blocks[id]
		bin = binOf(b.size)
		if head := s.heads[bin]; head < 0 {
			c := &s.crowds[-1-head]
			p, _ := c.lower(&a.chunks, uint64(b.size), a.tieOf(b))
			if p, ok := c.before(&a.chunks, p); ok {
				return c.at(&a.chunks, p)
			}
		} else if b.binPrev != 0 {
			return b.binPrev
		}
	}
	if bin = s.prevBin(bin); bin < 0 {
		return 0
	}
	return s.lastIn(a, bin)
}

// insert adds a block.
func (s *freeSet) insert(a *Allocator, id int32) {
	s.n++
	b := &a.blocks[id]
	bin := binOf(b.size)
	head := s.heads[bin]
	if head <= 0 {
		s.full[bin/64] |= 1 << (bin % 64)
		s.summary |= 1 << (bin / 64)
	}
	if head < 0 {
		s.crowds[-1-head].insert(&a.chunks, uint64(b.size), a.tieOf(b), id)
		return
	}
	if head == 0 {
		s.heads[bin], b.binPrev, b.binNext = id, 0, 0
		return
	}
	tie := a.tieOf(b)
	prev, at := int32(0), head
	length := 1
	for at != 0 {
		n := &a.blocks[at]
		if less(uint64(n.size), a.tieOf(n), uint64(b.size), tie) == 0 {
			break
		}
		prev, at = at, n.binNext
		length++
	}
	b.binPrev, b.binNext = prev, at
	if prev == 0 {
		s.heads[bin] = id
	} else {
		a.blocks[prev].binNext = id
	}
	if at != 0 {
		a.blocks[at].binPrev = id
	}
	if length > crowd {
		s.gather(a, bin)
	}
}

// gather makes a sortedSet of a long bin.
func (s *freeSet) gather(a *Allocator, bin int) {
	if len(s.crowds) < cap(s.crowds) {
		s.crowds = s.crowds[:len(s.crowds)+1]
		s.crowds[len(s.crowds)-1].reset()
	} else {
		s.crowds = append(s.crowds, sortedSet{})
	}
	c := &s.crowds[len(s.crowds)-1]
	for id := s.heads[bin]; id != 0; id = a.blocks[id].binNext {
		b := &a.blocks[id]
		c.insert(&a.chunks, uint64(b.size), a.tieOf(b), id)
	}
	s.heads[bin] = int32(-len(s.crowds))
	s.crowded = append(s.crowded, int32(bin))
}

// remove takes a block out.
func (s *freeSet) remove(a *Allocator, id int32) {
	s.n--
	b := &a.blocks[id]
	bin := binOf(b.size)
	if head := s.heads[bin]; head < 0 {
		c := &s.crowds[-1-head]
		c.remove(&a.chunks, uint64(b.size), a.tieOf(b))
		if c.n == 0 {
			s.clear(bin)
		}
		return
	}
	if b.binNext != 0 {
		a.blocks[b.binNext].binPrev = b.binPrev
	}
	if b.binPrev != 0 {
		a.blocks[b.binPrev].binNext = b.binNext
		return
	}
	s.heads[bin] = b.binNext
	if b.binNext == 0 {
		s.clear(bin)
	}
}

// clear marks a bin as empty. One that was crowded stays a set.
func (s *freeSet) clear(bin int) {
	s.full[bin/64] &^= 1 << (bin % 64)
	if s.full[bin/64] == 0 {
		s.summary &^= 1 << (bin / 64)
	}
}

// appendTo appends the blocks of the set, in order, to ids.
func (s *freeSet) appendTo(a *Allocator, ids []int32) []int32 {
	if s.n == 0 {
		return ids
	}
	for bin := s.nextBin(0); bin >= 0; bin = s.nextBin(bin + 1) {
		if head := s.heads[bin]; head < 0 {
			ids = s.crowds[-1-head].appendTo(&a.chunks, ids)
			continue
		}
		for id := s.heads[bin]; id != 0; id = a.blocks[id].binNext {
			ids = append(ids, id)
		}
	}
	return ids
}
