package alloc

// A Counter is one figure of torch.cuda.memory_stats.
type Counter struct {
	Current   int64
	Peak      int64 // largest value of Current since the start or ResetPeaks
	Allocated int64 // sum of all increases
	Freed     int64 // sum of all decreases
}

func (c *Counter) up(n int64) {
	c.Current += n
	c.Allocated += n
	c.Peak = max(c.Peak, c.Current)
}

func (c *Counter) down(n int64) {
	c.Current -= n
	c.Freed += n
}

// PoolStats holds the figures of the small pools, the large pools, or all.
type PoolStats struct {
	Allocation         Counter // blocks handed out and not yet freed
	AllocatedBytes     Counter
	Segment            Counter // cudaMalloc'ed segments; expandable ones do not count
	ReservedBytes      Counter
	Active             Counter // handed out, or freed and waiting for another stream
	ActiveBytes        Counter
	InactiveSplit      Counter // free parts of segments that are partly in use
	InactiveSplitBytes Counter
	RequestedBytes     Counter // what was asked for, of the active blocks
}

// Stats is torch.cuda.memory_stats: the same figures, counted the same way.
// Blocks of private pools are in Small or Large like the others.
type Stats struct {
	All, Small, Large   PoolStats
	NumAllocRetries     int64 // requests that were retried after everything cached was freed
	NumOOMs             int64
	NumOOMRejections    int64 // throw_on_cudamalloc_oom, since torch 2.12
	NumSyncAllStreams   int64
	NumDeviceAlloc      int64 // cudaMalloc calls and mappings that succeeded
	NumDeviceFree       int64
	OversizeAllocations Counter
	OversizeSegments    Counter
}

// Stats returns the figures so far.
func (a *Allocator) Stats() Stats {
	s := a.stats
	s.All, s.Small, s.Large = a.tally[0], a.tally[1], a.tally[2]
	return s
}

// AllocatedBytes returns torch.cuda.memory_allocated().
func (a *Allocator) AllocatedBytes() int64 { return a.tally[0].AllocatedBytes.Current }

// ReservedBytes returns torch.cuda.memory_reserved().
func (a *Allocator) ReservedBytes() int64 { return a.tally[0].ReservedBytes.Current }

// ActiveBytes returns the bytes handed out or waiting for another stream.
func (a *Allocator) ActiveBytes() int64 { return a.tally[0].ActiveBytes.Current }

// PeakAllocatedBytes returns torch.cuda.max_memory_allocated().
func (a *Allocator) PeakAllocatedBytes() int64 { return a.tally[0].AllocatedBytes.Peak }

// PeakReservedBytes returns torch.cuda.max_memory_reserved().
func (a *Allocator) PeakReservedBytes() int64 { return a.tally[0].ReservedBytes.Peak }

// PeakActiveBytes returns the peak of ActiveBytes.
func (a *Allocator) PeakActiveBytes() int64 { return a.tally[0].ActiveBytes.Peak }

// ResetPeaks sets every peak to the current value, as
// torch.cuda.reset_peak_memory_stats does.
func (a *Allocator) ResetPeaks() {
	for i := range a.tally {
		t := &a.tally[i]
		for _, c := range [...]*Counter{
			&t.Allocation, &t.AllocatedBytes, &t.Segment, &t.ReservedBytes, &t.Active,
			&t.ActiveBytes, &t.InactiveSplit, &t.InactiveSplitBytes, &t.RequestedBytes,
		} {
			c.Peak = c.Current
		}
	}
	a.stats.OversizeAllocations.Peak = a.stats.OversizeAllocations.Current
	a.stats.OversizeSegments.Peak = a.stats.OversizeSegments.Current
}

// kindOf returns the index of a pool's own figures in tally.
func kindOf(small bool) int {
	if small {
		return 1
	}
	return 2
}

func (a *Allocator) countAlloc(kind int, size, requested int64) {
	for _, t := range [...]*PoolStats{&a.tally[0], &a.tally[kind]} {
		t.Allocation.up(1)
		t.AllocatedBytes.up(size)
		t.Active.up(1)
		t.ActiveBytes.up(size)
		t.RequestedBytes.up(requested)
	}
}

func (a *Allocator) countFreeRequested(kind int, size int64) {
	for _, t := range [...]*PoolStats{&a.tally[0], &a.tally[kind]} {
		t.Allocation.down(1)
		t.AllocatedBytes.down(size)
	}
}

func (a *Allocator) countFreeCompleted(kind int, size, requested int64) {
	for _, t := range [...]*PoolStats{&a.tally[0], &a.tally[kind]} {
		t.Active.down(1)
		t.ActiveBytes.down(size)
		t.RequestedBytes.down(requested)
	}
}

func (a *Allocator) countReserved(kind int, size, segments int64) {
	for _, t := range [...]*PoolStats{&a.tally[0], &a.tally[kind]} {
		switch {
		case size > 0:
			t.ReservedBytes.up(size)
		default:
			t.ReservedBytes.down(-size)
		}
		switch {
		case segments > 0:
			t.Segment.up(segments)
		case segments < 0:
			t.Segment.down(-segments)
		}
	}
}

// countSplit changes the figures of free parts of partly used segments.
func (a *Allocator) countSplit(kind int, blocks, size int64) {
	for _, t := range [...]*PoolStats{&a.tally[0], &a.tally[kind]} {
		switch {
		case blocks > 0:
			t.InactiveSplit.up(blocks)
		case blocks < 0:
			t.InactiveSplit.down(-blocks)
		}
		switch {
		case size > 0:
			t.InactiveSplitBytes.up(size)
		case size < 0:
			t.InactiveSplitBytes.down(-size)
		}
	}
}
