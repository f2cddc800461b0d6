package alloc

import "math/bits"

// The sizes of the allocator, in bytes.
// pytorch v2.12 c10/core/AllocatorConfig.h and c10/cuda/CUDACachingAllocator.cpp;
// unchanged since v1.1 (pull request 17120).
const (
	smallLimit    = 1 << 20  // kSmallSize: a rounded size up to this is in the small pool
	smallBuffer   = 2 << 20  // kSmallBuffer: segment of the small pool, page when expandable
	largeBuffer   = 20 << 20 // kLargeBuffer: segment of requests below minLargeAlloc
	minLargeAlloc = 10 << 20 // kMinLargeAlloc: from here on a request has its own segment
	roundLarge    = 2 << 20  // kRoundLarge: rounding of those segments

	// largestRequest is where malloc gives up without trying.
	// c10/cuda/CUDACachingAllocator.cpp: one_exa_bytes.
	largestRequest = 1152921504606846976
)

// divisionEntries is the length of the table of roundup_power2_divisions: one
// entry for each power of two from 1 MiB to 32 GiB.
// c10/core/AllocatorConfig.cpp: kRoundUpPowerOfTwoIntervals.
const divisionEntries = 16

// Round returns the size of the block that a request of n bytes asks for.
// c10/cuda/CUDACachingAllocator.cpp: round_size, roundup_power2_next_division.
func (s *Settings) Round(n int64) int64 {
	if n < unit {
		return unit
	}
	if s.anyDivision {
		d := int64(s.RoundupPower2Divisions[divisionIndex(n)])
		bypassed := s.RoundupBypassThreshold > 0 && n > s.RoundupBypassThreshold
		if d > 1 && n > unit*d && !bypassed {
			return roundDivision(n, d)
		}
	}
	return (n + unit - 1) &^ (unit - 1)
}

// divisionIndex returns the entry of the division table for a size.
func divisionIndex(n int64) int {
	return min(max(bits.Len64(uint64(n))-1-20, 0), divisionEntries-1)
}

// roundDivision rounds n up to a multiple of the d-th part of the power of two
// below it.
func roundDivision(n, d int64) int64 {
	floor := int64(1) << (bits.Len64(uint64(n)) - 1)
	if n == floor {
		return n
	}
	part := floor >> (bits.Len64(uint64(d)) - 1)
	if part == 0 {
		return floor << 1
	}
	low := n &^ (part - 1)
	if low == n {
		return n
	}
	return low + part
}

// SegmentSize returns what cudaMalloc is asked for when a rounded size finds no
// block. c10/cuda/CUDACachingAllocator.cpp: get_allocation_size.
func (s *Settings) SegmentSize(rounded int64) int64 {
	switch {
	case rounded <= smallLimit:
		return smallBuffer
	case rounded < minLargeAlloc:
		return s.LargeSegmentSize
	default:
		return (rounded + roundLarge - 1) / roundLarge * roundLarge
	}
}

// LargestTail returns by how much a block of the large pool can be larger than
// the rounded request it serves: what is not split off.
// c10/cuda/CUDACachingAllocator.cpp: should_split, get_free_block.
func (s *Settings) LargestTail(rounded int64) int64 {
	if rounded >= s.MaxSplitSize {
		return max(s.MaxNonSplitRounding-unit, smallLimit)
	}
	return smallLimit
}
