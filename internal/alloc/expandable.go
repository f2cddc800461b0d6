package alloc

// reservation is an expandable segment: address space of which parts are
// backed by pages.
type reservation struct {
	base uint64
	size int64
	page int64
}

// growExpandable maps pages for a request and returns its block, off the
// shelf, or 0. c10/cuda/CUDACachingAllocator.cpp: try_allocate_expandable_block.
func (a *Allocator) growExpandable(r *request) int32 {
	id := a.findAddressSpace(r)
	if id == 0 {
		return 0
	}
	if !a.blocks[id].mapped && !a.mapBlock(id, min(a.blocks[id].size, r.size), r.kind) {
		return 0
	}
	for a.blocks[id].size < r.size {
		next := a.blocks[id].next
		if next == 0 || a.blocks[next].mapped {
			return 0 // cannot be: findAddressSpace counted the bytes
		}
		if !a.mapBlock(next, min(r.size-a.blocks[id].size, a.blocks[next].size), r.kind) {
			return 0
		}
		id = next
	}
	a.unshelve(id)
	return id
}

// findAddressSpace returns the lowest free or unmapped block from which free
// and unmapped blocks reach over the size of the request.
// c10/cuda/CUDACachingAllocator.cpp: find_expandable_block.
func (a *Allocator) findAddressSpace(r *request) int32 {
	if id := a.reservedSpace(r); id != 0 {
		return id
	}
	page := int64(smallBuffer)
	if r.kind == 2 {
		page = a.conf.LargeSegmentSize
	}
	base, size := a.device.Reserve(page)
	if size < r.size {
		return 0
	}
	return a.newReservation(r.shelf, base, size, page)
}

// reservedSpace is findAddressSpace in the address space there is.
func (a *Allocator) reservedSpace(r *request) int32 {
	set := &a.shelves[r.shelf].unmapped
	if set.n > 0 {
		for p, ok := (position{}), true; ok; p, ok = set.next(&a.chunks, p) {
			id := set.at(&a.chunks, p)
			if prev := a.blocks[id].prev; prev != 0 && a.reusable(prev) {
				id = prev
			}
			var bytes int64
			for at := id; at != 0 && bytes < r.size && a.reusable(at); at = a.blocks[at].next {
				bytes += a.blocks[at].size
			}
			if bytes >= r.size {
				return id
			}
		}
	}
	return 0
}

func (a *Allocator) reusable(id int32) bool {
	return !a.blocks[id].allocated && !a.blocks[id].pending()
}

// newReservation enters address space, as one unmapped block.
func (a *Allocator) newReservation(shelf int32, base uint64, size, page int64) int32 {
	a.reservations = append(a.reservations, reservation{base, size, page})
	id := a.newBlock()
	a.blocks[id] = block{
		addr: base, size: size, shelf: shelf,
		reservation: int32(len(a.reservations)), origin: a.newOrigin(base),
	}
	a.shelve(id)
	return id
}

// mapBlock backs the first size bytes of an unmapped block, rounded up to whole
// pages, and makes them a free block, merged with its neighbours.
// c10/cuda/CUDACachingAllocator.cpp: map_block.
func (a *Allocator) mapBlock(id int32, size int64, kind int) bool {
	b := &a.blocks[id]
	page := a.reservations[b.reservation-1].page
	size = (size + page - 1) / page * page
	addr := b.addr
	if !a.device.Map(addr, size) {
		return false
	}
	a.unshelve(id)
	if size < b.size {
		rest := a.newBlock() // may move blocks
		b = &a.blocks[id]
		a.blocks[rest] = block{
			addr: addr + uint64(size), size: b.size - size, prev: id, next: b.next,
			shelf: b.shelf, reservation: b.reservation, origin: a.originOf(b),
		}
		if b.next != 0 {
			a.blocks[b.next].prev = rest
		}
		b.next, b.size = rest, size
		a.shelve(rest)
	}
	b.mapped = true
	a.merge(id, b.prev)
	a.merge(id, b.next)
	a.shelve(id)
	a.countReserved(kind, size, 0)
	a.stats.NumDeviceAlloc++
	if a.record != nil {
		a.emit(SegmentMap, b, addr, size)
	}
	return true
}

// unmap gives back the whole pages of a free block.
// c10/cuda/CUDACachingAllocator.cpp: unmap_block.
func (a *Allocator) unmap(id int32) {
	b := &a.blocks[id]
	v := a.reservations[b.reservation-1]
	page := uint64(v.page)
	from := v.base + (b.addr-v.base+page-1)/page*page
	to := v.base + (b.addr+uint64(b.size)-v.base)/page*page
	if from >= to {
		return
	}
	a.unshelve(id)
	if before := int64(from - b.addr); before > 0 {
		a.cutFree(id, b.addr, before, true)
	}
	b = &a.blocks[id] // cutFree may move blocks
	if after := int64(b.addr + uint64(b.size) - to); after > 0 {
		a.cutFree(id, to, after, false)
	}
	b = &a.blocks[id]
	size := int64(to - from)
	b.addr, b.size, b.mapped = from, size, false
	kind := a.kind(b)
	a.merge(id, b.prev)
	a.merge(id, b.next)
	a.shelve(id)
	a.device.Unmap(from, size)
	a.countReserved(kind, -size, 0)
	a.pools[a.shelves[b.shelf].pool].mallocs--
	a.stats.NumDeviceFree++
	if a.record != nil {
		a.emit(SegmentUnmap, b, from, size)
	}
	if !b.split() { // all of the address space: it is given up
		a.unshelve(id)
		a.spare = append(a.spare, id)
	}
}

// cutFree makes a free block of a piece at the front or the back of block id,
// whose own bounds the caller sets.
func (a *Allocator) cutFree(id int32, addr uint64, size int64, front bool) {
	piece := a.newBlock() // may move blocks
	b, p := &a.blocks[id], &a.blocks[piece]
	*p = block{addr: addr, size: size, shelf: b.shelf, reservation: b.reservation, mapped: true, origin: a.originOf(b)}
	if front {
		p.prev, p.next = b.prev, id
		if p.prev != 0 {
			a.blocks[p.prev].next = piece
		}
		b.prev = piece
		b.addr += uint64(size)
		b.size -= size
	} else {
		p.prev, p.next = id, b.next
		if p.next != 0 {
			a.blocks[p.next].prev = piece
		}
		b.next = piece
		b.size -= size
	}
	a.shelve(piece)
}
