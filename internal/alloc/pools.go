package alloc

import "slices"

// A PoolID names a private pool: (0,k) for one made by the user, (k,0) for one
// of a CUDA graph. The zero PoolID is the default pool.
type PoolID [2]uint64

// pool is the small or the large half of a pair: the default pair or that of a
// private pool.
type pool struct {
	id      PoolID
	small   bool
	noSplit bool
	begun   bool // a private pool that exists
	onOOM   bool // serves requests of the default pool that failed
	users   int  // captures and owners that still use it
	mallocs int  // segments it holds
	calls   int64
	shelves []int32 // by stream
}

// reset empties the pool. Its shelves stay, to be filled again.
func (p *pool) reset() {
	p.begun, p.users, p.mallocs, p.calls = false, 0, 0, 0
}

// Where the pools are in Allocator.pools: each pair has its small half first.
const (
	poolSmall   int32 = 0
	poolLarge   int32 = 1
	poolPrivate int32 = 2
)

// poolOf returns the index of the pair of a pool, made if it is new.
func (a *Allocator) poolOf(id PoolID) int32 {
	if id == (PoolID{}) {
		return poolSmall
	}
	for i := poolPrivate; i < int32(len(a.pools)); i += 2 {
		if a.pools[i].id == id {
			if !a.pools[i].begun {
				a.pools[i].begun, a.pools[i].users = true, 1
			}
			return i
		}
	}
	a.pools = append(a.pools, pool{id: id, small: true, begun: true, users: 1}, pool{id: id})
	return int32(len(a.pools) - 2)
}

// PoolOption is what a private pool can be told.
type PoolOption int

// The options of torch.cuda.MemPool.
const (
	NoSplit  PoolOption = iota // blocks are never cut, since torch 2.10
	UseOnOOM                   // free blocks serve failed requests of the default pool, since 2.8
)

// SetPool sets an option of a private pool.
func (a *Allocator) SetPool(id PoolID, o PoolOption) {
	i := a.poolOf(id)
	for j := i; j < i+2; j++ {
		switch o {
		case NoSplit:
			a.pools[j].noSplit = true
		case UseOnOOM:
			a.pools[j].onOOM = true
		}
	}
}

// BeginPool sends the requests that follow to a private pool, as a capture of a
// CUDA graph or torch.cuda.use_mem_pool does, until EndPool. While a pool is
// begun nothing is given back to the driver and no deferred free completes.
func (a *Allocator) BeginPool(id PoolID) {
	known := slices.ContainsFunc(a.pools, func(p pool) bool { return p.id == id && p.begun })
	if i := a.poolOf(id); known {
		a.pools[i].users++
	}
	a.routed = append(a.routed, id)
}

// EndPool ends what BeginPool began.
func (a *Allocator) EndPool(id PoolID) {
	for i := len(a.routed) - 1; i >= 0; i-- {
		if a.routed[i] == id {
			a.routed = slices.Delete(a.routed, i, i+1)
			return
		}
	}
}

// ReleasePool ends one use of a private pool. Without any, its free segments
// are given back when the cache is next emptied.
func (a *Allocator) ReleasePool(id PoolID) {
	if p := &a.pools[a.poolOf(id)]; p.users > 0 {
		p.users--
	}
}

// route returns the pair of pools that requests go to.
func (a *Allocator) route() int32 {
	switch {
	case len(a.routed) == 0:
		return poolSmall
	case a.rules.newestPoolFirst:
		return a.poolOf(a.routed[len(a.routed)-1])
	default:
		return a.poolOf(a.routed[0])
	}
}

// fallback serves a request of the default pool from a pool made with
// use_on_oom. c10/cuda/CUDACachingAllocator.cpp: try_mempool_fallback.
func (a *Allocator) fallback(r *request) int32 {
	s := &a.shelves[r.shelf]
	if s.pool >= poolPrivate {
		return 0
	}
	half, stream := s.pool, s.stream
	for i := poolPrivate; i < int32(len(a.pools)); i += 2 {
		if !a.pools[i].onOOM || !a.pools[i].begun {
			continue
		}
		other := *r
		other.expandable = false
		other.shelf = a.shelfOf(i+half, stream)
		if b := a.search(&other); b != 0 {
			*r = other
			return b
		}
	}
	return 0
}

// shelfOf returns the shelf of a pool for a stream, made if it is new.
func (a *Allocator) shelfOf(p int32, stream uint64) int32 {
	shelves := a.pools[p].shelves
	for _, s := range shelves {
		if a.shelves[s].stream == stream {
			return s
		}
	}
	id := int32(len(a.shelves))
	a.shelves = append(a.shelves, shelf{stream: stream, pool: p})
	a.shelves[id].free.init()
	at := slices.IndexFunc(shelves, func(s int32) bool { return a.shelves[s].stream > stream })
	if at < 0 {
		at = len(shelves)
	}
	a.pools[p].shelves = slices.Insert(shelves, at, id)
	return id
}

// eventPool is what Event.Pool holds for a shelf: 0 for the default pool, k for
// the k-th private pool of this allocator.
func (a *Allocator) eventPool(shelf int32) uint32 { return uint32(a.shelves[shelf].pool / 2) }
