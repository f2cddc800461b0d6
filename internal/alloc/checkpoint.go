package alloc

// A Checkpoint is a copy of an allocator's state, to try something and go back.
// The zero value is ready to use; it keeps its memory from one Save to the next.
// It does not hold the state of the Device.
type Checkpoint struct {
	a Allocator
}

// Save copies the state of a into c.
func (a *Allocator) Save(c *Checkpoint) { copyState(&c.a, a) }

// Load sets a to the state that c holds. Both must be of one allocator.
func (a *Allocator) Load(c *Checkpoint) { copyState(a, &c.a) }

func copyState(to, from *Allocator) {
	to.limit = from.limit
	to.blocks = append(to.blocks[:0], from.blocks...)
	to.spare = append(to.spare[:0], from.spare...)
	to.chunks.all = append(to.chunks.all[:0], from.chunks.all...)
	to.chunks.free = append(to.chunks.free[:0], from.chunks.free...)
	to.shelves = resize(to.shelves, len(from.shelves))
	for i := range from.shelves {
		s, f := &to.shelves[i], &from.shelves[i]
		s.stream, s.pool = f.stream, f.pool
		s.free.copyFrom(&f.free)
		s.unmapped.copyFrom(&f.unmapped)
	}
	to.pools = resize(to.pools, len(from.pools))
	for i := range from.pools {
		shelves := append(to.pools[i].shelves[:0], from.pools[i].shelves...)
		to.pools[i] = from.pools[i]
		to.pools[i].shelves = shelves
	}
	to.reservations = append(to.reservations[:0], from.reservations...)
	to.uses, to.spareUse = append(to.uses[:0], from.uses...), from.spareUse
	to.queues = resize(to.queues, len(from.queues))
	for i := range from.queues {
		q, f := &to.queues[i], &from.queues[i]
		q.stream, q.done, q.blocks = f.stream, f.done, append(q.blocks[:0], f.blocks...)
	}
	to.waiting, to.held = from.waiting, from.held
	to.deferred = append(to.deferred[:0], from.deferred...)
	to.routed = append(to.routed[:0], from.routed...)
	to.counter = from.counter
	to.tally, to.stats = from.tally, from.stats
}

func (s *sortedSet) copyFrom(f *sortedSet) {
	s.order = append(s.order[:0], f.order...)
	s.mins = append(s.mins[:0], f.mins...)
	s.n = f.n
}

func (s *freeSet) copyFrom(f *freeSet) {
	s.heads = append(s.heads[:0], f.heads...)
	s.full = append(s.full[:0], f.full...)
	s.crowds = resize(s.crowds, len(f.crowds))
	for i := range f.crowds {
		s.crowds[i].copyFrom(&f.crowds[i])
	}
	s.crowded = append(s.crowded[:0], f.crowded...)
	s.summary, s.n = f.summary, f.n
}

// resize returns s with n elements; what it had stays.
func resize[T any](s []T, n int) []T {
	for len(s) < n {
		var zero T
		s = append(s, zero)
	}
	return s[:n]
}
