package remedy

import (
	"strconv"
	"strings"

	"unoom/internal/account"
	"unoom/internal/units"
)

func allocatorRemedies() []Remedy {
	return []Remedy{{
		Code:     "allocator.expandable_segments",
		Cures:    []Cause{Fragmentation},
		Eases:    []Cause{LongestBatch, EvalWorkloadLarger},
		Exact:    true,
		Slowdown: Range{0.95, 1.02},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			if is(f.ExpandableSegments, true) || strings.Contains(f.AllocatorConf, "expandable_segments:True") {
				return never() // already on
			}
			switch f.Platform {
			case "windows", "wsl", "jetson":
				return never() // no support for it: pytorch#122057
			}
			v, ok := f.joinable("allocator.expandable_segments")
			if !ok {
				return never()
			}
			return v.with("other_options", otherOptions(f.AllocatorConf, "expandable_segments"))
		},
	}, {
		Code:     "allocator.expandable_off",
		Cures:    []Cause{},
		Eases:    []Cause{UnifiedMemoryBoard, DriverOrHardware, HostRAMOrCommit, MaskedNVMLAssert},
		Exact:    true,
		Slowdown: Range{1, 1},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			if !is(f.ExpandableSegments, true) || (f.Platform != "jetson" && f.Platform != "wsl") {
				return never()
			}
			return because("allocator.expandable_off").
				with("other_options", otherOptions(f.AllocatorConf, "expandable_segments"))
		},
	}, {
		Code:     "allocator.max_split_size",
		Cures:    []Cause{Fragmentation},
		Exact:    true,
		Slowdown: Range{1, 1.10},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			if is(f.ExpandableSegments, true) || strings.Contains(f.AllocatorConf, "max_split_size_mb") {
				return never()
			}
			v, ok := f.joinable("allocator.max_split_size")
			if !ok {
				return never()
			}
			return v.with("max_split_mb", f.maxSplit(),
				"other_options", otherOptions(f.AllocatorConf, "max_split_size_mb")).scaled(0.6)
		},
	}, {
		Code:     "allocator.preallocate",
		Eases:    []Cause{LongestBatch, Fragmentation},
		Exact:    true,
		Slowdown: Range{1, 1},
		Effort:   Edit,
		judge: func(f *facts) verdict {
			if _, ok := f.joinable(""); !ok {
				return never()
			}
			return because("allocator.preallocate").scaled(0.8)
		},
	}, {
		Code:     "allocator.raise_cap",
		Cures:    []Cause{MemoryCap},
		Exact:    true,
		Slowdown: Range{1, 1},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			if f.Platform == "macos" { // allocator.mps_limit
				return never()
			}
			if f.Cap == 0 || f.Account == nil {
				return because("allocator.raise_cap.unknown")
			}
			free := f.of(account.Free)
			return because("allocator.raise_cap", f.Cap, f.Account.Capacity, free).
				freeing(exactly(free)).surely(f.above(free))
		},
	}, {
		Code:     "allocator.mps_limit",
		Cures:    []Cause{UnifiedMemoryBoard, MemoryCap},
		Eases:    []Cause{BatchTooLarge, GPUTooSmall},
		Exact:    true,
		Slowdown: Range{1, 3}, // the system may swap
		Effort:   Setting,
		judge: func(f *facts) verdict {
			if f.Platform != "macos" {
				return never()
			}
			return because("allocator.mps_limit")
		},
	}, {
		Code:     "allocator.leave_headroom",
		Cures:    []Cause{NCCLOutsideAllocator, MaskedLibraryInit},
		Eases:    []Cause{MaskedNVMLAssert, MaskedIllegalAccess},
		Exact:    true,
		Slowdown: Range{1, 1.05},
		Effort:   Edit,
		judge: func(f *facts) verdict {
			v := because("allocator.leave_headroom")
			if f.Account == nil || f.Account.Capacity == 0 {
				return v.with("fraction", "0.95")
			}
			// NCCL and the library handles take 0.5 to 2 GiB on most cards.
			share := 1 - (1.5*float64(units.GiB)+float64(f.of(account.Outside)))/float64(f.Account.Capacity)
			share = min(max(share, 0.80), 0.95)
			return v.with("fraction", strconv.FormatFloat(share, 'f', 2, 64))
		},
	}, {
		Code:     "allocator.no_preallocation",
		Cures:    []Cause{Preallocation},
		Exact:    true,
		Slowdown: Range{1, 1.05},
		Effort:   Setting,
		judge:    always("allocator.no_preallocation"),
	}, {
		Code:     "allocator.no_cudagraphs",
		Cures:    []Cause{CompileOrCUDAGraph},
		Exact:    true,
		Slowdown: Range{1.0, 1.3},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			if is(f.Compile, false) {
				return never()
			}
			pools := f.of(account.PrivatePools)
			if pools == 0 {
				return because("allocator.no_cudagraphs.unknown")
			}
			return because("allocator.no_cudagraphs", pools).freeing(exactly(pools))
		},
	}}
}

// joinable judges the remedies against fragmentation. The proof is a sum: free
// plus cached minus the request. Where it is negative no arrangement of the
// pieces could have served the request, and where next to nothing is cached
// there are no pieces to join.
func (f *facts) joinable(id string) (verdict, bool) {
	cached := f.of(account.Cached)
	if f.Slack == nil || *f.Slack < 0 || cached == 0 {
		return never(), false
	}
	if f.share(cached) < 0.05 {
		return never(), false // what every job has in odd pieces
	}
	v := because(id, cached, f.Tried, *f.Slack).scaled(1)
	// Which part of the pieces becomes usable is assumed: half at least.
	switch {
	case f.share(*f.Slack-cached/2) >= 0.10:
		v = v.surely(yes())
	case f.share(*f.Slack) < 0.10:
		// It would serve this request and leave little for the next.
		v.why.ID = "remedy.why.allocator.tight"
		v = v.scaled(0.6)
	}
	return v.freeing(portion(units.Exactly(cached), 0.5, 1)), true
}

// above says yes where the free memory beyond the cap serves the request twice.
func (f *facts) above(free units.Bytes) *bool {
	if f.Tried > 0 && free >= 2*f.Tried {
		return yes()
	}
	return nil
}

// maxSplit chooses max_split_size_mb: below the request, so that blocks of its
// size are never cut for smaller ones, and at least the 20 MiB segment that
// PyTorch insists on. Source: c10/cuda/CUDAAllocatorConfig.cpp, parseMaxSplitSize.
func (f *facts) maxSplit() int {
	mb := 512
	for mb > 32 && units.Bytes(mb)*units.MiB >= f.Tried {
		mb /= 2
	}
	return mb
}

// otherOptions returns the options of an allocator configuration except one, as
// they have to stand before it, so that setting it keeps the others.
func otherOptions(conf, except string) string {
	var kept strings.Builder
	for o := range strings.SplitSeq(conf, ",") {
		if o = strings.TrimSpace(o); o != "" && !strings.HasPrefix(o, except+":") {
			kept.WriteString(o + ",")
		}
	}
	return kept.String()
}
