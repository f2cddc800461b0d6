package alloc

// use is one stream that used a block, in a list.
type use struct {
	stream uint64
	next   int32
}

// queue is the events of one stream that have been recorded, in order: blocks
// that become reusable when the stream has come so far.
type queue struct {
	stream uint64
	blocks []int32
	done   int // the first so many events have completed
}

// RecordStream says that a block is used on another stream, so that after Free
// it must wait for that stream. torch: Tensor.record_stream.
func (a *Allocator) RecordStream(handle Block, stream uint64) {
	if handle == 0 {
		return
	}
	b := &a.blocks[handle]
	if a.shelves[b.shelf].stream == stream {
		return
	}
	for u := b.uses; u != 0; u = a.uses[u].next {
		if a.uses[u].stream == stream {
			return
		}
	}
	id := a.spareUse
	if id != 0 {
		a.spareUse = a.uses[id].next
	} else {
		a.uses = append(a.uses, use{})
		id = int32(len(a.uses) - 1)
	}
	a.uses[id] = use{stream, b.uses}
	b.uses = id
}

// Synchronize says that all work given to a stream so far has ended. Blocks
// that waited only for it are reusable from the next Malloc on.
func (a *Allocator) Synchronize(stream uint64) {
	if q := a.queueOf(stream); q != nil {
		q.done = len(q.blocks)
	}
}

func (a *Allocator) queueOf(stream uint64) *queue {
	for i := range a.queues {
		if a.queues[i].stream == stream {
			return &a.queues[i]
		}
	}
	return nil
}

// queueUses records an event on every stream that used a freed block.
// c10/cuda/CUDACachingAllocator.cpp: insert_events.
func (a *Allocator) queueUses(id int32) {
	b := &a.blocks[id]
	for u := b.uses; u != 0; {
		stream := a.uses[u].stream
		q := a.queueOf(stream)
		if q == nil {
			a.queues = append(a.queues, queue{stream: stream})
			q = &a.queues[len(a.queues)-1]
		}
		q.blocks = append(q.blocks, id)
		b.events++
		next := a.uses[u].next
		a.uses[u].next, a.spareUse = a.spareUse, u
		u = next
	}
	b.uses = 0
	a.waiting++
}

// processEvents frees the blocks whose streams have come far enough.
// c10/cuda/CUDACachingAllocator.cpp: process_events.
func (a *Allocator) processEvents() {
	a.undefer()
	for i := range a.queues {
		q := &a.queues[i]
		done := q.done
		q.done = 0
		if done > 0 {
			a.completeFirst(q, done)
		}
	}
}

// undefer records the events that had to wait for the end of a capture.
func (a *Allocator) undefer() {
	for _, id := range a.deferred {
		a.queueUses(id)
	}
	a.deferred = a.deferred[:0]
}

// completeFirst ends the first n events of a queue.
func (a *Allocator) completeFirst(q *queue, n int) {
	for _, id := range q.blocks[:n] {
		a.endEvent(id)
	}
	q.blocks = q.blocks[:copy(q.blocks, q.blocks[n:])]
}

func (a *Allocator) endEvent(id int32) {
	b := &a.blocks[id]
	if b.events--; b.events == 0 {
		a.waiting--
		a.freeBlock(id)
	}
}

// Settle ends every event: all streams are waited for.
// c10/cuda/CUDACachingAllocator.cpp: synchronize_and_free_events.
func (a *Allocator) Settle() {
	a.undefer()
	for i := range a.queues {
		q := &a.queues[i]
		q.done = 0
		a.completeFirst(q, len(q.blocks))
	}
}

// FreeLater is Free of a block that other streams use, for a caller that knows
// when they are done and calls Complete then.
func (a *Allocator) FreeLater(handle Block) {
	if handle == 0 {
		return
	}
	b := &a.blocks[handle]
	b.events++ // before the free, so that it stays off the shelf
	a.requestFree(int32(handle))
	a.held++
}

// Complete ends a FreeLater.
func (a *Allocator) Complete(handle Block) {
	if handle == 0 {
		return
	}
	a.held--
	a.blocks[handle].events--
	a.freeBlock(int32(handle))
}
