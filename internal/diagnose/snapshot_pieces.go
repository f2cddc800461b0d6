package diagnose

import (
	"cmp"
	"slices"

	"unoom/internal/alloc"
	"unoom/internal/lives"
	"unoom/internal/units"
)

// Pieces is how the memory that is reserved but not in use lies about.
type Pieces struct {
	Segments int
	// Cached is reserved and not allocated; of it, Whole lies in segments without
	// a living block, which the allocator can give back, and Stuck in others.
	Cached, Whole, Stuck units.Bytes
	// Largest is the largest free block, of any pool and stream.
	Largest units.Bytes
	// Reachable is the largest free block that the failed request could have had:
	// of its own stream, in the default pool, and not of the small pool if it is
	// large. It is 0 if none failed.
	Reachable units.Bytes
	// OtherStreams is what of Cached lies in segments of other streams than most.
	OtherStreams, PrivatePools units.Bytes
	// Pinned are the segments with the most free bytes that living blocks keep
	// from being given back, the largest first.
	Pinned []Pinned
}

// A Pinned segment is mostly free, but for some blocks.
type Pinned struct {
	Address     uint64
	Total, Free units.Bytes
	Held        units.Bytes // by the living blocks
	Blocks      int         // living ones
	Largest     units.Bytes // free block
	// Stack, Place and Kind are of the largest living block.
	Stack  uint32
	Place  lives.Place
	Kind   lives.Kind
	Stream uint64
}

// Alike reports whether two segments look the same but for their address.
func (p Pinned) Alike(q Pinned) bool {
	return p.Total == q.Total && p.Free == q.Free && p.Blocks == q.Blocks && p.Kind == q.Kind && p.Place == q.Place
}

// maxPinned is how many pinned segments are kept.
const maxPinned = 20

// stateAt returns the segments after the moment.
func (h *Held) stateAt() []alloc.SegmentState {
	return h.Case.Rewind(int(h.Moment.Event) + 1).Segments
}

// findPieces measures the free blocks at the moment.
func (h *Held) findPieces() Pieces {
	segments := h.stateAt()
	holders := map[uint64]*lives.Tensor{}
	for i := range h.History.Tensors {
		if t := &h.History.Tensors[i]; t.LivesAfter(h.Moment.Event) {
			holders[t.Addr] = t
		}
	}
	p := Pieces{}
	byStream := map[uint64]units.Bytes{}
	for i := range segments {
		seg := &segments[i]
		pin := Pinned{Address: seg.Addr, Stream: seg.Stream}
		at := seg.Addr
		var most int64
		for _, b := range seg.Blocks {
			addr, size := at, units.Bytes(b.Size)
			at += uint64(b.Size)
			switch b.State {
			case alloc.Unmapped:
				continue
			case alloc.Inactive:
				pin.Free += size
				pin.Largest = max(pin.Largest, size)
				if h.reaches(seg) {
					p.Reachable = max(p.Reachable, size)
				}
			default:
				pin.Held += size
				pin.Blocks++
				if b.Size > most {
					most = b.Size
					if t := holders[addr]; t != nil {
						pin.Stack, pin.Kind, pin.Place = t.Stack, t.Kind, h.History.PlaceOfTensor(t)
					}
				}
			}
			pin.Total += size
		}
		if pin.Total == 0 {
			continue
		}
		p.Segments++
		p.Largest = max(p.Largest, pin.Largest)
		byStream[seg.Stream] += pin.Free
		if seg.Pool != (alloc.PoolID{}) {
			p.PrivatePools += pin.Free
		}
		switch {
		case pin.Blocks == 0:
			p.Whole += pin.Free
		default:
			p.Stuck += pin.Free
			if pin.Free > 0 {
				p.Pinned = append(p.Pinned, pin)
			}
		}
	}
	p.Cached = p.Whole + p.Stuck
	var all, most units.Bytes
	for _, b := range byStream {
		all += b
		most = max(most, b)
	}
	p.OtherStreams = all - most
	slices.SortStableFunc(p.Pinned, func(a, b Pinned) int { return cmp.Compare(b.Free, a.Free) })
	p.Pinned = p.Pinned[:min(len(p.Pinned), maxPinned)]
	return p
}

// reaches reports whether the failed request could have been served from a
// segment: the allocator never lends across streams, pools or sizes.
func (h *Held) reaches(seg *alloc.SegmentState) bool {
	const smallLimit = 1 << 20 // pytorch c10/cuda/CUDACachingAllocator.cpp, kSmallSize
	r := h.Request
	return r != nil && seg.Stream == r.Stream && seg.Pool == (alloc.PoolID{}) && seg.Small == (r.Bytes <= smallLimit)
}
