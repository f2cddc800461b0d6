package alloc

import (
	"cmp"
	"slices"
)

// Fingerprint returns a number that is the same, as far as 64 bits can tell, where
// two moments of one allocator are: the same requests get the same addresses from
// then on. It is false while something is under way that it does not cover: frees
// that wait for other streams, a private pool that is begun, or the ages that
// garbage collection goes by.
func (a *Allocator) Fingerprint() (uint64, bool) {
	if a.waiting > 0 || a.held > 0 || len(a.deferred) > 0 || len(a.routed) > 0 || a.limit >= 0 && a.conf.GCThreshold > 0 {
		return 0, false
	}
	unused := make([]bool, len(a.blocks))
	unused[0] = true
	for _, id := range a.spare {
		unused[id] = true
	}
	ids := a.scratch[:0]
	for id := range a.blocks {
		if !unused[id] {
			ids = append(ids, int32(id))
		}
	}
	a.scratch = ids
	var sum uint64
	for _, id := range ids {
		b := &a.blocks[id]
		h := mix(b.addr) ^ uint64(b.size)
		h = mix(h) ^ uint64(b.shelf)<<2
		if b.allocated {
			h ^= 1
		}
		if b.mapped {
			h ^= 2
		}
		sum += mix(h)
	}
	if a.rules.tie == TieByCounter {
		// Every cut has a number of its own: what decides is their order.
		slices.SortFunc(ids, func(i, j int32) int { return cmp.Compare(a.blocks[i].origin, a.blocks[j].origin) })
		for _, id := range ids {
			sum = mix(sum) ^ a.blocks[id].addr
		}
	}
	return mix(sum ^ uint64(a.ReservedBytes())), true
}

// mix spreads the bits of a number over all 64.
// Source: Sebastiano Vigna's splitmix64, https://prng.di.unimi.it/splitmix64.c.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
