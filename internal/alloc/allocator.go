package alloc

import (
	"fmt"

	"unoom/internal/units"
)

// A Block is a handle of memory that Malloc handed out, until it is freed. The
// zero Block is no memory: a request of 0 bytes returns it, Free ignores it.
type Block int32

// block is a piece of a segment. Neighbours in address are linked.
type block struct {
	addr        uint64
	size        int64
	requested   int64
	origin      uint64 // what tieOf adds to the address
	gcBase      int64  // calls of the pool when the block became free
	prev, next  int32  // neighbours in address
	binPrev     int32  // neighbours in a freeSet
	binNext     int32
	shelf       int32
	reservation int32 // index+1 of the expandable segment, 0 if the segment is not
	events      int32 // uses on other streams that have not ended
	uses        int32 // head of the list of streams that used the block
	allocated   bool
	mapped      bool
}

func (b *block) split() bool { return b.prev != 0 || b.next != 0 }

// pending reports whether the block waits for other streams.
func (b *block) pending() bool { return b.events > 0 || b.uses != 0 }

// Config is what an Allocator is built from.
type Config struct {
	// Torch is the version whose behaviour is simulated; zero means Latest.
	Torch    Version
	Settings Settings
	// Tie overrules the order of equal blocks of the version.
	Tie TieBreak
	// Capacity is how many bytes the driver can give to this process: the card
	// without what lies outside the allocator. 0 means without bound.
	Capacity int64
	// Total is the memory of the card, from which fractions and the address
	// space of expandable segments follow. 0 means Capacity.
	Total int64
	// Record, if it is set, is called with every event that torch would record.
	Record func(Event)
	// Device takes the place of a card of Capacity bytes.
	Device Device
}

// An Allocator is the caching allocator of one device. It is not safe for
// concurrent use. Once it has reached its size it allocates nothing.
type Allocator struct {
	conf   Settings
	rules  rules
	record func(Event)
	device Device
	limit  int64 // of the memory fraction; noLimit if there is none
	total  int64

	blocks       []block
	spare        []int32 // free entries of blocks
	chunks       chunks
	shelves      []shelf
	pools        []pool
	reservations []reservation
	uses         []use
	spareUse     int32
	queues       []queue
	waiting      int // blocks freed and waiting for other streams
	held         int // blocks freed with FreeLater
	deferred     []int32
	routed       []PoolID // pools that requests go to, the newest last
	counter      uint64
	scratch      []int32
	tally        [3]PoolStats
	stats        Stats // the figures that are not in tally
}

// shelf is the free memory of one pool and stream.
type shelf struct {
	stream   uint64
	pool     int32
	free     freeSet
	unmapped sortedSet // by address; expandable segments only
}

// A Device is the driver, where memory comes from. The usual one is a card of
// Config.Capacity bytes; a replay puts the trace in its place.
type Device interface {
	// Malloc is cudaMalloc.
	Malloc(size int64) (addr uint64, ok bool)
	// Free is cudaFree.
	Free(addr uint64, size int64)
	// Reserve takes address space for an expandable segment of pages.
	Reserve(page int64) (addr uint64, size int64)
	// Map backs addresses with memory, wholly or not at all.
	Map(addr uint64, size int64) bool
	// Unmap takes the memory away again.
	Unmap(addr uint64, size int64)
	// Settle waits for all streams and completes the frees that wait for them,
	// with Allocator.Settle or Allocator.Complete.
	Settle(a *Allocator)
	// FreeBytes is what cudaMemGetInfo reports; -1 if it is not known.
	FreeBytes() int64
	// Reset returns the device to its start.
	Reset()
}

// New returns an empty allocator.
func New(c Config) *Allocator {
	a := &Allocator{}
	a.Renew(c)
	return a
}

// Renew makes a the empty allocator that New returns for a configuration. It
// keeps the memory of a's tables: a run after another does not make them again.
func (a *Allocator) Renew(c Config) {
	if c.Total == 0 {
		c.Total = c.Capacity
	}
	if c.Device == nil {
		c.Device = &card{capacity: c.Capacity, total: c.Total}
	}
	if c.Torch == (Version{}) {
		c.Torch = latest
	}
	a.conf, a.rules, a.record, a.device, a.total = c.Settings.Normal(), rulesOf(c.Torch), c.Record, c.Device, c.Total
	if c.Tie != TieByVersion {
		a.rules.tie = c.Tie
	}
	a.conf.ExpandableSegments = a.conf.ExpandableSegments && a.rules.expandable
	a.limit = noLimit
	if a.conf.MemoryFraction < 1 {
		a.SetMemoryFraction(a.conf.MemoryFraction)
	}
	a.Reset()
}

const noLimit = -1

// SetMemoryFraction limits what the allocator reserves to a part of the card,
// as torch.cuda.set_per_process_memory_fraction does. It needs Config.Total.
func (a *Allocator) SetMemoryFraction(f float64) {
	a.limit = noLimit
	if a.total > 0 && (f < 1 || !a.rules.fullFractionIsNoLimit) {
		a.limit = int64(f * float64(a.total))
	}
}

// Reset returns the allocator to its start, empty and with all figures at
// zero, and keeps its memory. Blocks handed out before are void.
func (a *Allocator) Reset() {
	a.blocks = append(a.blocks[:0], block{}) // entry 0 is no block
	a.spare = a.spare[:0]
	a.chunks.reset()
	for i := range a.shelves {
		a.shelves[i].free.reset()
		a.shelves[i].unmapped.reset()
	}
	if len(a.pools) == 0 {
		a.pools = append(a.pools, pool{small: true}, pool{})
		a.shelfOf(poolSmall, 0)
		a.shelfOf(poolLarge, 0)
	}
	for i := range a.pools {
		a.pools[i].reset()
	}
	a.reservations = a.reservations[:0]
	a.uses, a.spareUse = append(a.uses[:0], use{}), 0
	for i := range a.queues {
		a.queues[i].blocks, a.queues[i].done = a.queues[i].blocks[:0], 0
	}
	a.waiting, a.held, a.deferred, a.routed = 0, 0, a.deferred[:0], a.routed[:0]
	a.counter = 0
	a.tally, a.stats = [3]PoolStats{}, Stats{}
	a.device.Reset()
}

// OutOfMemory is a request that failed, with the figures of torch's message.
type OutOfMemory struct {
	Requested int64 // as asked for
	Tried     int64 // "Tried to allocate": the segment that was asked of the driver
	Allocated int64
	Reserved  int64
	Free      int64 // free memory of the device, -1 if it is not known
	Limit     int64 // "allowed": from the memory fraction, -1 if there is none
	Rejected  bool  // by throw_on_cudamalloc_oom, without trying
}

func (e *OutOfMemory) Error() string {
	return fmt.Sprintf("CUDA out of memory: tried to allocate %s with %s allocated and %s reserved",
		units.Bytes(e.Tried), units.Bytes(e.Allocated), units.Bytes(e.Reserved))
}

// Malloc hands out a block for a request of size bytes on a stream (0 is the
// default stream). The error is an *OutOfMemory.
func (a *Allocator) Malloc(size int64, stream uint64) (Block, error) {
	return a.malloc(a.route(), size, stream)
}

// MallocIn is Malloc from a private pool; see Pool.
func (a *Allocator) MallocIn(id PoolID, size int64, stream uint64) (Block, error) {
	return a.malloc(a.poolOf(id), size, stream)
}

// request is a malloc under way.
type request struct {
	shelf      int32
	kind       int
	size       int64 // rounded
	segment    int64
	expandable bool
	rejected   bool
}

// malloc serves a request from the pool pair that begins at index base.
func (a *Allocator) malloc(base int32, requested int64, stream uint64) (Block, error) {
	if requested <= 0 {
		return 0, nil
	}
	if requested >= largestRequest {
		return 0, a.outOfMemory(&request{segment: requested}, requested, stream)
	}
	if len(a.routed) == 0 && (a.waiting > 0 || len(a.deferred) > 0) {
		a.processEvents()
	}
	r := request{size: a.conf.Round(requested), kind: 2, expandable: a.conf.ExpandableSegments}
	if r.size <= smallLimit {
		r.kind = 1
	} else {
		base++
	}
	r.shelf = a.shelfOf(base, stream)
	if a.limit >= 0 && a.conf.GCThreshold > 0 {
		a.pools[base].calls++
	}
	b := a.search(&r)
	if b == 0 {
		r.segment = a.conf.SegmentSize(r.size)
		if b = a.obtain(&r); b == 0 {
			return 0, a.outOfMemory(&r, requested, stream)
		}
	}
	return a.handOut(b, &r, requested), nil
}

// obtain gets memory for a request that no cached block serves.
func (a *Allocator) obtain(r *request) int32 {
	if a.limit >= 0 && a.conf.GCThreshold > 0 {
		a.collectGarbage()
	}
	if b := a.grow(r); b != 0 || r.rejected {
		return b
	}
	if a.rules.fallbackBeforeFlush {
		if b := a.fallback(r); b != 0 {
			return b
		}
	}
	if a.releaseOversize(r) {
		if b := a.grow(r); b != 0 || r.rejected {
			return b
		}
	}
	if len(a.routed) == 0 {
		a.releaseCached()
		a.stats.NumAllocRetries++
		if b := a.grow(r); b != 0 || r.rejected {
			return b
		}
	}
	if !a.rules.fallbackBeforeFlush {
		return a.fallback(r)
	}
	return 0
}

func (a *Allocator) outOfMemory(r *request, requested int64, stream uint64) error {
	e := &OutOfMemory{
		Requested: requested, Tried: r.segment, Allocated: a.AllocatedBytes(), Reserved: a.ReservedBytes(),
		Free: a.device.FreeBytes(), Limit: a.limit, Rejected: r.rejected,
	}
	if r.rejected {
		a.stats.NumOOMRejections++
		return e
	}
	a.stats.NumOOMs++
	if a.record != nil {
		a.record(Event{Action: OOM, Addr: uint64(max(e.Free, 0)), Size: r.size, Stream: stream, Pool: a.eventPool(r.shelf)})
	}
	return e
}

// search returns the best block that is free, taken off its shelf, or 0.
// c10/cuda/CUDACachingAllocator.cpp: get_free_block.
func (a *Allocator) search(r *request) int32 {
	set := &a.shelves[r.shelf].free
	id := a.find(set, r)
	if id != 0 {
		set.remove(a, id)
	}
	return id
}

// find is search without taking.
func (a *Allocator) find(set *freeSet, r *request) int32 {
	id := set.lower(a, r.size)
	if id == 0 {
		return 0
	}
	if a.blocks[id].reservation != 0 {
		if id = a.findExpandable(set, id, r); id == 0 {
			return 0
		}
	}
	if !a.lends(a.blocks[id].size, r.size) {
		return 0
	}
	return id
}

// lends reports whether a block of one size may serve a request of another: an
// oversize block is neither cut nor lent to a much smaller request.
func (a *Allocator) lends(block, request int64) bool {
	limit := a.conf.MaxSplitSize
	switch {
	case limit == Unlimited:
		return true
	case request < limit:
		return block < limit
	}
	return block < request+a.conf.MaxNonSplitRounding
}

// findExpandable goes on from an expandable block: to one with less room to
// grow or, when the option is off, to one that is not expandable.
func (a *Allocator) findExpandable(set *freeSet, id int32, r *request) int32 {
	if !r.expandable {
		for id != 0 && a.blocks[id].reservation != 0 {
			id = set.next(a, id)
		}
		return id
	}
	for a.blocks[id].reservation != 0 {
		next := set.next(a, id)
		if next == 0 || a.room(next) >= a.room(id) {
			break
		}
		id = next
	}
	return id
}

// room is the size that a free block can grow to without moving.
func (a *Allocator) room(id int32) int64 {
	b := &a.blocks[id]
	if b.next != 0 && !a.blocks[b.next].mapped {
		return b.size + a.blocks[b.next].size
	}
	return b.size
}

// handOut gives block id to a request, cut to size where the rules allow it.
// c10/cuda/CUDACachingAllocator.cpp: should_split, alloc_found_block.
func (a *Allocator) handOut(id int32, r *request, requested int64) Block {
	b := &a.blocks[id]
	wasSplit := b.split()
	if a.shouldSplit(b, r) {
		front := a.newBlock() // may move blocks
		b = &a.blocks[id]
		f := &a.blocks[front]
		*f = block{
			addr: b.addr, size: r.size, prev: b.prev, next: id, shelf: b.shelf,
			reservation: b.reservation, mapped: true, origin: a.originOf(b),
		}
		if f.prev != 0 {
			a.blocks[f.prev].next = front
		}
		b.prev = front
		b.addr += uint64(r.size)
		b.size -= r.size
		a.shelve(id)
		if f.reservation == 0 {
			if wasSplit {
				a.countSplit(r.kind, 0, -f.size)
			} else {
				a.countSplit(r.kind, 1, b.size)
			}
		}
		id, b = front, f
	} else if wasSplit && b.reservation == 0 {
		a.countSplit(r.kind, -1, -b.size)
	}
	b.allocated = true
	b.requested = requested
	if a.record != nil {
		a.emit(Alloc, b, b.addr, requested)
	}
	a.countAlloc(r.kind, b.size, requested)
	if b.size >= a.conf.MaxSplitSize {
		a.stats.OversizeAllocations.up(1)
	}
	return Block(id)
}

func (a *Allocator) shouldSplit(b *block, r *request) bool {
	p := &a.pools[a.shelves[b.shelf].pool]
	if p.noSplit {
		return false
	}
	rest := b.size - r.size
	if p.small || r.expandable {
		return rest >= unit
	}
	return rest > smallLimit && r.size < a.conf.MaxSplitSize
}

// Free gives a block back. It is reusable at once, or, if other streams used
// it, when they are done with it.
func (a *Allocator) Free(handle Block) {
	if handle == 0 {
		return
	}
	id := int32(handle)
	a.requestFree(id)
	switch {
	case a.blocks[id].uses == 0:
		a.freeBlock(id)
	case len(a.routed) > 0:
		a.deferred = append(a.deferred, id)
	default:
		a.queueUses(id)
	}
}

// requestFree is the first half of Free: the tensor is dead.
func (a *Allocator) requestFree(id int32) {
	b := &a.blocks[id]
	if !b.allocated {
		panic("alloc: a block is freed that is not allocated")
	}
	b.allocated = false
	a.countFreeRequested(a.kind(b), b.size)
	if a.record != nil {
		a.emit(FreeRequested, b, b.addr, b.requested)
	}
	if b.size >= a.conf.MaxSplitSize {
		a.stats.OversizeAllocations.down(1)
	}
}

// freeBlock makes a block reusable, merged with its free neighbours.
// c10/cuda/CUDACachingAllocator.cpp: free_block.
func (a *Allocator) freeBlock(id int32) {
	b := &a.blocks[id]
	if a.record != nil {
		a.emit(FreeCompleted, b, b.addr, b.requested)
	}
	kind := a.kind(b)
	a.countFreeCompleted(kind, b.size, b.requested)
	var blocks, size int64
	if merged := a.merge(id, b.prev); merged > 0 {
		blocks, size = blocks-1, size-merged
	}
	if merged := a.merge(id, b.next); merged > 0 {
		blocks, size = blocks-1, size-merged
	}
	if b.split() {
		blocks, size = blocks+1, size+b.size
	}
	if b.reservation == 0 && (blocks != 0 || size != 0) {
		a.countSplit(kind, blocks, size)
	}
	a.shelve(id)
}

// merge takes a neighbour into block id if both are free and backed alike, and
// returns the bytes it took. c10/cuda/CUDACachingAllocator.cpp: try_merge_blocks.
func (a *Allocator) merge(id, neighbour int32) int64 {
	if neighbour == 0 {
		return 0
	}
	b, n := &a.blocks[id], &a.blocks[neighbour]
	if n.allocated || n.pending() || n.mapped != b.mapped {
		return 0
	}
	a.unshelve(neighbour)
	if b.prev == neighbour {
		b.addr, b.prev = n.addr, n.prev
		if b.prev != 0 {
			a.blocks[b.prev].next = id
		}
	} else {
		b.next = n.next
		if b.next != 0 {
			a.blocks[b.next].prev = id
		}
	}
	b.size += n.size
	a.spare = append(a.spare, neighbour)
	return n.size
}

// shelve puts a free block into the set it belongs to.
func (a *Allocator) shelve(id int32) {
	b := &a.blocks[id]
	s := &a.shelves[b.shelf]
	if !b.mapped {
		s.unmapped.insert(&a.chunks, 0, b.addr, id)
		return
	}
	b.gcBase = a.pools[s.pool].calls
	s.free.insert(a, id)
}

// unshelve takes a free block out of its set.
func (a *Allocator) unshelve(id int32) {
	b := &a.blocks[id]
	s := &a.shelves[b.shelf]
	if !b.mapped {
		s.unmapped.remove(&a.chunks, 0, b.addr)
		return
	}
	s.free.remove(a, id)
}

// tieOf orders free blocks of one size: see TieBreak.
func (a *Allocator) tieOf(b *block) uint64 {
	if a.rules.tie == TieByCounter {
		return b.origin
	}
	return b.origin + b.addr/unit
}

// segmentTieBits is the room that a tie has for the offset in a segment, in
// units: 2^40 of them are 512 TiB.
const segmentTieBits = 40

// newOrigin returns the origin of the first block of a segment at addr.
func (a *Allocator) newOrigin(addr uint64) uint64 {
	a.counter++
	switch a.rules.tie {
	case TieByCounter:
		return a.counter
	case TieBySegment:
		return a.counter<<segmentTieBits - addr/unit
	}
	return 0
}

// originOf returns the origin of a block that is cut off b.
func (a *Allocator) originOf(b *block) uint64 {
	if a.rules.tie == TieByCounter {
		a.counter++
		return a.counter
	}
	return b.origin
}

// newBlock returns an unused entry. It may move all blocks.
func (a *Allocator) newBlock() int32 {
	if n := len(a.spare); n > 0 {
		id := a.spare[n-1]
		a.spare = a.spare[:n-1]
		return id
	}
	a.blocks = append(a.blocks, block{})
	return int32(len(a.blocks) - 1)
}

func (a *Allocator) kind(b *block) int { return kindOf(a.pools[a.shelves[b.shelf].pool].small) }

// emit records an event about a block.
func (a *Allocator) emit(action Action, b *block, addr uint64, size int64) {
	a.record(Event{Action: action, Addr: addr, Size: size, Stream: a.shelves[b.shelf].stream, Pool: a.eventPool(b.shelf)})
}

// Addr returns the address of a block.
func (a *Allocator) Addr(b Block) uint64 { return a.blocks[b].addr }

// Size returns the size of a block, which can be above what was asked for.
func (a *Allocator) Size(b Block) int64 { return a.blocks[b].size }
