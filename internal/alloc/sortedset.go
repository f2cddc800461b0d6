package alloc

import "math/bits"

// unit is the granularity of every size and address the allocator deals in.
// pytorch v2.12 c10/cuda/CUDACachingAllocator.h: kMinBlockSize.
const unit = 512

// chunkLen is the number of entries of a chunk: short enough to shift by a few
// cache lines, long enough that the list of chunks stays short.
const chunkLen = 32

// A sortedSet is an ordered set of blocks by (size, tie), of any number. It is a
// list of sorted chunks, so that a search touches few cache lines and an
// insertion moves at most one chunk. The chunks are taken from an arena and never
// given back: nothing is allocated once the set has reached its size.
type sortedSet struct {
	order []int32 // chunks in order
	mins  []entryKey
	n     int
}

// entryKey is the first key of a chunk.
type entryKey struct{ size, tie uint64 }

// A chunk is up to chunkLen entries in ascending order.
type chunk struct {
	n int32
	e [chunkLen]entry
}

type entry struct {
	size, tie uint64
	id        int32
}

// position is an entry of a sortedSet: the index into order, and into the chunk.
type position struct{ at, in int }

// less reports as 1 or 0 whether (size, tie) a is below b, without a branch.
func less(aSize, aTie, bSize, bTie uint64) int {
	_, borrow := bits.Sub64(aTie, bTie, 0)
	_, borrow = bits.Sub64(aSize, bSize, borrow)
	return int(borrow)
}

// chunks is the arena that the sets of one allocator share.
type chunks struct {
	all  []chunk
	free []int32
}

func (c *chunks) take() int32 {
	if n := len(c.free); n > 0 {
		id := c.free[n-1]
		c.free = c.free[:n-1]
		c.all[id].n = 0
		return id
	}
	c.all = append(c.all, chunk{})
	return int32(len(c.all) - 1)
}

// reset empties the arena and keeps its memory.
func (c *chunks) reset() {
	c.free = c.free[:0]
	for i := len(c.all) - 1; i >= 0; i-- {
		c.free = append(c.free, int32(i))
	}
}

// reset empties the set; its chunks belong to an arena that is reset with it.
func (s *sortedSet) reset() { s.order, s.mins, s.n = s.order[:0], s.mins[:0], 0 }

// lower returns the first entry that is not below (size, tie), and false if
// there is none.
func (s *sortedSet) lower(c *chunks, size, tie uint64) (position, bool) {
	if s.n == 0 {
		return position{}, false
	}
	at := s.chunkFor(size, tie)
	in := c.all[s.order[at]].lower(size, tie)
	if in == int(c.all[s.order[at]].n) {
		at, in = at+1, 0
		if at == len(s.order) {
			return position{}, false
		}
	}
	return position{at, in}, true
}

// chunkFor returns the last chunk whose first key is not above (size, tie).
func (s *sortedSet) chunkFor(size, tie uint64) int {
	lo, n := 0, len(s.mins)-1 // the answer is among lo..lo+n
	for n > 0 {
		half := (n + 1) / 2
		m := &s.mins[lo+half]
		if less(size, tie, m.size, m.tie) == 0 {
			lo += half
			n -= half
		} else {
			n = half - 1
		}
	}
	return lo
}

// lower returns the first entry of the chunk that is not below (size, tie).
func (c *chunk) lower(size, tie uint64) int {
	lo, n := 0, int(c.n)
	for n > 0 {
		half := n / 2
		m := (lo + half) & (chunkLen - 1)
		step := -less(c.e[m].size, c.e[m].tie, size, tie) // all ones if m is below
		lo += (half + 1) & step
		n = half&^step | (n-half-1)&step
	}
	return lo
}

// insert adds an entry. The key must not be in the set.
func (s *sortedSet) insert(c *chunks, size, tie uint64, id int32) {
	if s.n == 0 {
		if len(s.order) == 0 {
			s.order = append(s.order, c.take())
			s.mins = append(s.mins, entryKey{})
		}
	}
	at := 0
	if s.n > 0 {
		at = s.chunkFor(size, tie)
	}
	k := &c.all[s.order[at]]
	if k.n == chunkLen {
		at, k = s.split(c, at, size, tie)
	}
	in := k.lower(size, tie)
	n := int(k.n)
	copy(k.e[in+1:n+1], k.e[in:n])
	k.e[in] = entry{size, tie, id}
	k.n++
	s.n++
	if in == 0 {
		s.mins[at] = entryKey{size, tie}
	}
}

// split halves a full chunk and returns the half that (size, tie) belongs to.
func (s *sortedSet) split(c *chunks, at int, size, tie uint64) (int, *chunk) {
	id := c.take() // may move the arena
	old, fresh := &c.all[s.order[at]], &c.all[id]
	const half = chunkLen / 2
	copy(fresh.e[:half], old.e[half:])
	old.n, fresh.n = half, half
	s.order = append(s.order, 0)
	copy(s.order[at+2:], s.order[at+1:])
	s.order[at+1] = id
	s.mins = append(s.mins, entryKey{})
	copy(s.mins[at+2:], s.mins[at+1:])
	s.mins[at+1] = entryKey{fresh.e[0].size, fresh.e[0].tie}
	if less(size, tie, fresh.e[0].size, fresh.e[0].tie) == 0 {
		return at + 1, fresh
	}
	return at, old
}

// remove takes out the entry with this key, which must be in the set.
func (s *sortedSet) remove(c *chunks, size, tie uint64) {
	at := s.chunkFor(size, tie)
	s.removeAt(c, position{at, c.all[s.order[at]].lower(size, tie)})
}

// removeAt takes out the entry at p.
func (s *sortedSet) removeAt(c *chunks, p position) {
	k := &c.all[s.order[p.at]]
	n := int(k.n)
	copy(k.e[p.in:n-1], k.e[p.in+1:n])
	k.n--
	s.n--
	switch {
	case k.n == 0 && len(s.order) > 1:
		c.free = append(c.free, s.order[p.at])
		s.order = append(s.order[:p.at], s.order[p.at+1:]...)
		s.mins = append(s.mins[:p.at], s.mins[p.at+1:]...)
	case k.n > 0 && p.in == 0:
		s.mins[p.at] = entryKey{k.e[0].size, k.e[0].tie}
	case k.n == 0:
		s.mins[p.at] = entryKey{} // any first key will be above it
	}
}

// at returns the block at p.
func (s *sortedSet) at(c *chunks, p position) int32 { return c.all[s.order[p.at]].e[p.in].id }

// next returns the entry after p.
func (s *sortedSet) next(c *chunks, p position) (position, bool) {
	if p.in++; p.in < int(c.all[s.order[p.at]].n) {
		return p, true
	}
	p.at, p.in = p.at+1, 0
	return p, p.at < len(s.order)
}

// before returns the entry before p; p may be one past the end.
func (s *sortedSet) before(c *chunks, p position) (position, bool) {
	if p.in > 0 {
		p.in--
		return p, true
	}
	if p.at == 0 {
		return p, false
	}
	p.at--
	p.in = int(c.all[s.order[p.at]].n) - 1
	return p, true
}

// end is one past the last entry.
func (s *sortedSet) end() position { return position{len(s.order), 0} }

// appendTo appends the blocks of the set, in order, to ids.
func (s *sortedSet) appendTo(c *chunks, ids []int32) []int32 {
	if s.n == 0 {
		return ids
	}
	for _, at := range s.order {
		k := &c.all[at]
		for i := range k.n {
			ids = append(ids, k.e[i].id)
		}
	}
	return ids
}
