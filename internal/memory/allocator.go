package memory

import (
	"sync"

	"unoom/internal/alloc"
)

// cachingAllocator is the simulated caching allocator as a device.
type cachingAllocator struct {
	a *alloc.Allocator
	// unbounded says that the card serves any request.
	unbounded bool
	// failed is the first request that the card could not serve.
	failed error
}

func (c *cachingAllocator) malloc(bytes int64, stream uint32) (int32, int64) {
	if c.failed != nil {
		return -1, 0 // the run has ended; what follows only unwinds
	}
	b, err := c.a.Malloc(bytes, uint64(stream))
	if err != nil {
		c.failed = err
		return -1, 0
	}
	return int32(b), c.a.Size(b)
}

func (c *cachingAllocator) free(handle int32) {
	if handle < 0 {
		return
	}
	c.a.Free(alloc.Block(handle))
}

// stage is what a run is played on. Its tables are used again by the runs that
// follow: making them takes longer than a run.
type stage struct {
	x     machine
	dev   cachingAllocator
	trace trace
	// handles are of the storages in a replay.
	handles []int32
}

var stages = sync.Pool{New: func() any { return &stage{} }}

func newStage() *stage { return stages.Get().(*stage) }

// done gives the stage back; what points into it is void.
func (st *stage) done() { stages.Put(st) }

// allocator makes the stage's device a caching allocator of a configuration.
func (st *stage) allocator(conf alloc.Config) {
	if st.dev.a == nil {
		st.dev.a = alloc.New(conf)
	} else {
		st.dev.a.Renew(conf)
	}
	st.dev.failed, st.dev.unbounded = nil, conf.Capacity == 0
}
