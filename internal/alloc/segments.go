package alloc

// grow gets memory from the driver for a request: a segment of its own or a
// larger expandable one. It returns 0 if the driver, or the limit, says no.
// c10/cuda/CUDACachingAllocator.cpp: alloc_block.
func (a *Allocator) grow(r *request) int32 {
	reserved := a.ReservedBytes()
	if a.limit >= 0 && reserved+r.segment > a.limit {
		return 0
	}
	if a.conf.ThrowOnOOM && a.rules.rejectOption && a.total > 0 &&
		reserved+r.segment > int64(a.conf.MemoryFraction*float64(a.total)) {
		r.rejected = true
		return 0
	}
	if r.expandable {
		id := a.growExpandable(r)
		if id != 0 {
			a.pools[a.shelves[r.shelf].pool].mallocs++
		}
		return id
	}
	addr, ok := a.device.Malloc(r.segment)
	if !ok {
		return 0
	}
	return a.newSegment(r.shelf, r.kind, addr, r.segment)
}

// newSegment enters memory that cudaMalloc returned, as one block off the shelf.
func (a *Allocator) newSegment(shelf int32, kind int, addr uint64, size int64) int32 {
	id := a.newBlock()
	b := &a.blocks[id]
	*b = block{addr: addr, size: size, shelf: shelf, mapped: true, origin: a.newOrigin(addr)}
	a.pools[a.shelves[shelf].pool].mallocs++
	a.countReserved(kind, size, 1)
	if size >= a.conf.MaxSplitSize {
		a.stats.OversizeSegments.up(1)
	}
	a.stats.NumDeviceAlloc++
	if a.record != nil {
		a.emit(SegmentAlloc, b, addr, size)
	}
	return id
}

// releaseSegment gives a free, unsplit block back to the driver.
// c10/cuda/CUDACachingAllocator.cpp: release_block.
func (a *Allocator) releaseSegment(id int32) {
	b := &a.blocks[id]
	if a.record != nil {
		a.emit(SegmentFree, b, b.addr, b.size)
	}
	a.stats.NumDeviceFree++
	a.device.Free(b.addr, b.size)
	a.pools[a.shelves[b.shelf].pool].mallocs--
	a.countReserved(a.kind(b), -b.size, -1)
	if b.size >= a.conf.MaxSplitSize {
		a.stats.OversizeSegments.down(1)
	}
	a.unshelve(id)
	a.spare = append(a.spare, id)
}

// EmptyCache gives every segment back that is wholly free, as
// torch.cuda.empty_cache does.
func (a *Allocator) EmptyCache() { a.releaseCached() }

// releaseCached is c10/cuda/CUDACachingAllocator.cpp: release_cached_blocks of
// the default pool.
func (a *Allocator) releaseCached() {
	if len(a.routed) == 0 {
		a.stats.NumSyncAllStreams++
		a.device.Settle(a)
		a.releasePool(poolLarge)
		a.releasePool(poolSmall)
	}
	for i := poolPrivate; i < int32(len(a.pools)); i += 2 {
		if p := &a.pools[i]; p.begun && p.users == 0 {
			a.releasePool(i)
			a.releasePool(i + 1)
		}
	}
}

// releasePool gives back the wholly free segments of one pool, then the free
// pages of its expandable ones, streams ascending, then sizes.
// c10/cuda/CUDACachingAllocator.cpp: release_blocks.
func (a *Allocator) releasePool(pool int32) {
	ids := a.scratch[:0]
	for _, s := range a.pools[pool].shelves {
		ids = a.shelves[s].free.appendTo(a, ids)
	}
	a.scratch = ids
	expandable := ids[:0]
	for _, id := range ids {
		if b := &a.blocks[id]; b.reservation != 0 {
			expandable = append(expandable, id)
		} else if !b.split() {
			a.releaseSegment(id)
		}
	}
	for _, id := range expandable {
		a.unmap(id)
	}
}

// releaseOversize gives back unsplittable blocks, just enough for a request.
// c10/cuda/CUDACachingAllocator.cpp: release_available_cached_blocks.
func (a *Allocator) releaseOversize(r *request) bool {
	ids, enough := a.oversize(r)
	for _, id := range ids {
		a.releaseSegment(id)
	}
	return enough
}

// oversize returns the blocks that releaseOversize gives back, in order, and
// whether they are enough.
func (a *Allocator) oversize(r *request) ([]int32, bool) {
	limit := a.conf.MaxSplitSize
	if limit == Unlimited {
		return nil, false
	}
	ids := a.scratch[:0]
	set := &a.shelves[r.shelf].free
	want := max(r.size, limit)
	id := set.lower(a, want)
	if id != 0 && a.blocks[id].reservation == 0 {
		a.scratch = append(ids, id)
		return a.scratch, true
	}
	if id != 0 && !a.rules.oversizeSkipsExpandable {
		return nil, false // torch would fail an assertion here
	}
	// No single block is large enough: several, the largest first.
	var released int64
	for released < want {
		if id = set.before(a, id); id == 0 {
			break
		}
		b := &a.blocks[id]
		if b.size < limit {
			break
		}
		if b.reservation == 0 {
			released += b.size
			ids = append(ids, id)
		}
	}
	a.scratch = ids
	return ids, released >= want
}

// collectGarbage gives back the older of the wholly free large segments when
// more than the threshold of the limit is reserved.
// c10/cuda/CUDACachingAllocator.cpp: garbage_collect_cached_blocks.
func (a *Allocator) collectGarbage() {
	threshold := int64(a.conf.GCThreshold * float64(a.limit))
	excess := a.ReservedBytes() - threshold
	if excess <= 0 {
		return
	}
	p := &a.pools[poolLarge]
	ids := a.scratch[:0]
	for _, s := range p.shelves {
		ids = a.shelves[s].free.appendTo(a, ids)
	}
	a.scratch = ids
	age := func(id int32) int64 { return p.calls - a.blocks[id].gcBase }
	var total, count int64
	for _, id := range ids {
		if !a.blocks[id].split() {
			total += age(id)
			count++
		}
	}
	var reclaimed int64
	for freed := true; freed && reclaimed < excess && count > 0; {
		limit := float64(total) / float64(count)
		freed = false
		kept := ids[:0]
		for _, id := range ids {
			b := &a.blocks[id]
			if b.split() || b.reservation != 0 || float64(age(id)) < limit {
				kept = append(kept, id)
				continue
			}
			freed = true
			reclaimed += b.size
			total -= age(id)
			count--
			a.releaseSegment(id)
		}
		ids = kept
	}
}
