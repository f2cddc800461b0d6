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
	b, err := c.a.Malloc(bytes, uint64(stream))
	if err != nil {
		if c.failed == nil {
			c.failed = err
		}
		return 0, 0
	}
	return int32(b), c.a.Size(b)
}

func (c *cachingAllocator) free(handle int32) {
	c.a.Free(alloc.Block(handle))
}
