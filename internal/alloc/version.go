package alloc

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A Version is a release of torch, as far as the allocator distinguishes them.
type Version struct{ Major, Minor int }

// Latest is the newest version whose behaviour is known; a later one is taken
// to behave like it.
var latest = Version{2, 14}

// Latest returns the newest version whose behaviour is known.
func Latest() Version { return latest }

// ParseVersion reads "2.4", "2.4.1", "2.4.0a0+gitabc" or "v2.4".
func ParseVersion(text string) (Version, error) {
	major, rest, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(text), "v"), ".")
	digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
	a, err1 := strconv.Atoi(major)
	b, err2 := strconv.Atoi(rest[:digits])
	if !ok || err1 != nil || err2 != nil || a < 0 {
		return Version{}, fmt.Errorf("torch version %q: want two numbers, as in 2.4", text)
	}
	if a == 0 || a == 1 && b < oldest.Minor {
		return Version{}, fmt.Errorf("torch version %s: the allocator is known from %s on", text, oldest)
	}
	return Version{a, b}, nil
}

// oldest is the first version with today's segment sizes and max_split_size.
var oldest = Version{1, 10}

// String writes the version as torch does, without the patch level.
func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// Before reports whether v is an earlier release than w.
func (v Version) Before(w Version) bool {
	return v.Major < w.Major || v.Major == w.Major && v.Minor < w.Minor
}

// TieBreak is how a pool orders free blocks of one stream and one size.
type TieBreak uint8

// The orders.
const (
	TieByVersion TieBreak = iota // as the version of torch does
	TieByAddress
	TieByCounter // the order in which the block objects were made
	TieBySegment // the order of the segments, then the address
)

// rules is how one version behaves. Every field has its row in changes.
type rules struct {
	tie                     TieBreak
	expandable              bool // expandable_segments exists
	divisionsPerSize        bool // roundup_power2_divisions takes a list
	lastDivisionKept        bool // the entry ">" begins after the last explicit one
	oversizeSkipsExpandable bool // release_available_cached_blocks leaves them alone
	newestPoolFirst         bool // nested pools: the one begun last is asked first
	fallbackBeforeFlush     bool // pools with use_on_oom serve before anything is freed
	fullFractionIsNoLimit   bool // a memory fraction of 1.0 removes the limit
	largeSegmentSize        bool // large_segment_size_mb exists
	rejectOption            bool // throw_on_cudamalloc_oom exists
}

// change is one behaviour that a release introduced.
type change struct {
	since  Version
	source string
	apply  func(*rules)
}

// changes lists, oldest first, what differs from torch 1.10. Releases named
// here are those of the branch in which the change was first read.
func changes() []change {
	return []change{
		{
			Version{2, 0}, "v2.0.0 c10/cuda/CUDACachingAllocator.cpp: parseRoundUpPower2Divisions reads a list",
			func(r *rules) { r.divisionsPerSize = true },
		},
		{
			Version{2, 1}, "v2.1.0 c10/cuda/CUDACachingAllocator.cpp: struct ExpandableSegment",
			func(r *rules) { r.expandable = true },
		},
		{
			Version{2, 7}, "setMemoryFraction of v2.7: allowed_memory_maximum is an optional, unset at 1.0",
			func(r *rules) { r.fullFractionIsNoLimit = true },
		},
		{
			Version{2, 9}, "v2.9 get_pool walks captures_underway backwards; release_available_cached_blocks tests expandable_segment_",
			func(r *rules) { r.newestPoolFirst, r.oversizeSkipsExpandable = true, true },
		},
		{
			Version{2, 11}, "pull request 172056: AcceleratorAllocatorConfig::large_segment_size; std::fill from last_idx + 1",
			func(r *rules) { r.largeSegmentSize, r.lastDivisionKept = true, true },
		},
		{
			Version{2, 12}, "pull requests 178362 (registration counter) and 179473; try_mempool_fallback moved before the releases",
			func(r *rules) { r.tie, r.fallbackBeforeFlush, r.rejectOption = TieByCounter, true, true },
		},
		{
			Version{2, 13}, "pull requests 183489 and 183591: one counter for a segment, then the address",
			func(r *rules) { r.tie = TieBySegment },
		},
	}
}

// rulesOf returns the behaviour of a version.
func rulesOf(v Version) rules {
	r := rules{tie: TieByAddress}
	for _, c := range changes() {
		if v.Before(c.since) {
			break
		}
		c.apply(&r)
	}
	return r
}

// Distinct returns the versions from oldest to newest that behave differently
// from the one before, the newest first. Each stands for those after it.
func Distinct(oldest, newest Version) []Version {
	out := []Version{newest}
	for _, c := range slices.Backward(changes()) {
		if oldest.Before(c.since) && !newest.Before(c.since) {
			before := Version{c.since.Major, c.since.Minor - 1}
			if c.since.Minor == 0 {
				before = Version{1, 13} // the last of torch 1
			}
			out = append(out, before)
		}
	}
	return out
}
