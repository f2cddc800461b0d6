package memory

import (
	"math/bits"

	"unoom/internal/alloc"
)

// watched is after how many micro-batches of a step nobody looks any more whether
// they recur.
const watched = 8

// microBatches plays the n micro-batches of a step, and leaves out those that only
// repeat what was played. All of them do the same but the first, which makes the
// gradients, and the last, which the step follows. So where machine and allocator
// are after one as they were after an earlier one, those that follow go round
// between the two: they reach no higher, and leave what was there before. Two in
// turn is the common case, as a loop holds its batch until it has the next.
// carried is what the player itself counts from one to the next.
//
// TestMicroBatchesThatRecurNeedNotBePlayed holds this to playing each.
func (x *machine) microBatches(n int, carried func() int64, play func(micro int)) {
	var before [2]uint64 // after the latest, and after the one before it
	known := 0
	for micro := 0; micro < n; micro++ {
		play(micro)
		left := n - 2 - micro // before the last one
		if left <= 0 || n < 4 || micro >= watched || x.each {
			continue
		}
		now, ok := x.fingerprint(carried())
		if !ok {
			known = 0
			continue
		}
		skip := 0
		switch {
		case known > 0 && now == before[0]:
			skip = left
		case known > 1 && now == before[1]:
			skip = left / 2 * 2
		}
		micro += skip
		x.skipped = x.skipped || skip > 0
		before = [2]uint64{now, before[0]}
		known++
	}
}

// fingerprint is the same, as far as 64 bits can tell, at two moments of a run
// from which on the same operations have the same effect: what lives, in the order
// in which it was made and where it lies, what the allocator has, and what the
// player carries. It is false where the allocator cannot say.
func (x *machine) fingerprint(carried int64) (uint64, bool) {
	sum := uint64(x.cur)
	stir := func(v uint64) { sum = bits.RotateLeft64(sum*0x9e3779b97f4a7c15, 29) ^ v }
	stir(uint64(carried))
	var a *alloc.Allocator
	if d, ok := x.dev.(*cachingAllocator); ok {
		if d.failed != nil {
			return 0, false
		}
		a = d.a
		f, ok := a.Fingerprint()
		if !ok {
			return 0, false
		}
		stir(f)
	}
	for i := range x.sts {
		s := &x.sts[i]
		if s.refs <= 0 {
			continue
		}
		stir(uint64(s.bytes))
		stir(uint64(s.refs)<<32 | uint64(s.item)<<16 | uint64(s.marks))
		switch {
		case s.empty:
			stir(1)
		case a != nil:
			stir(a.Addr(alloc.Block(s.handle)))
		}
	}
	for i := range x.params {
		stir(uint64(x.params[i].pending))
	}
	return sum, true
}
