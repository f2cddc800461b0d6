package memory

import (
	"unoom/internal/alloc"
)

// cachingAllocator is the simulated caching allocator as a device.
type cachingAllocator struct {
	a *alloc.Allocator
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
