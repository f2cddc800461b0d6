package remedy

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"unoom/internal/account"
	"unoom/internal/gpu"
	"unoom/internal/units"
)

func hardwareRemedies() []Remedy {
	return []Remedy{{
		Code:     "hardware.bigger_gpu",
		Cures:    []Cause{GPUTooSmall},
		Eases:    slices.Concat(without(capacity, GPUTooSmall), []Cause{TrainStateTooLarge, OptimizerState, OptimizerForeachPeak}),
		Exact:    true,
		Slowdown: Range{0.4, 1.0},
		Effort:   Purchase,
		judge: func(f *facts) verdict {
			if f.elsewhere() || f.Cap > 0 || f.Account == nil || f.Account.Capacity == 0 || f.beyondCard() {
				return never()
			}
			if f.Slack != nil && f.share(*f.Slack) > 0.10 {
				return never() // the bytes are there, in pieces
			}
			need := f.needed()
			worth := need
			if f.Need == 0 { // the request is not the last one: a few percent more would not do
				worth = max(need, f.Account.Capacity/4*5)
			}
			cards := f.holding(worth)
			if len(cards) == 0 {
				return never()
			}
			// Those of about the least capacity, one of a size in the text.
			var names []string
			for _, c := range cards {
				if len(names) < 3 && c.Total() <= cards[0].Total()*105/100 {
					names = append(names, c.Name)
				}
			}
			gain := cards[0].Total() - f.Account.Capacity
			return because("hardware.bigger_gpu", need, cards[0].Total()).freeing(exactly(gain)).
				with("cards", strings.Join(names, ", "), "min_gib", strconv.FormatFloat(need.GiB(), 'f', 1, 64))
		},
	}, {
		Code:     "hardware.more_gpus",
		Eases:    slices.Concat(state),
		Exact:    true,
		Slowdown: Range{0.5, 1.2},
		Effort:   Purchase,
		judge: func(f *facts) verdict {
			if f.WorldSize > 1 || f.elsewhere() || f.Cap > 0 || f.beyondCard() {
				return never()
			}
			v := because("hardware.more_gpus")
			return v.freeing(f.perParam(fullStateBytes, pureBF16Bytes, 2)).with("gpus", 2)
		},
	}, {
		Code:     "hardware.unified_memory",
		Cures:    []Cause{UnifiedMemoryBoard},
		Exact:    true,
		Slowdown: Range{1, 1},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			if f.Platform == "macos" { // allocator.mps_limit
				return never()
			}
			return because("hardware.unified_memory")
		},
	}}
}

// needed returns the least usable capacity that this request would have needed
// with everything else as it was.
func (f *facts) needed() units.Bytes {
	return max(f.Need, f.Account.Capacity+max(0, f.Tried-f.of(account.Free)))
}

// holding returns the cards of the catalogue that have need bytes, the
// smallest first: whole cards of the vendor in question, no laptops.
func (f *facts) holding(need units.Bytes) []gpu.Card {
	all, err := gpu.Published()
	if err != nil {
		return nil // a test reads the catalogue
	}
	vendor := "nvidia"
	if lower := strings.ToLower(f.GPU); strings.Contains(lower, "amd") || strings.Contains(lower, "radeon") || strings.HasPrefix(lower, "mi") {
		vendor = "amd"
	}
	cards := slices.DeleteFunc(all, func(c gpu.Card) bool {
		return c.Total() < need || c.MIG != "" || c.Laptop || c.Vendor != vendor
	})
	slices.SortStableFunc(cards, func(a, b gpu.Card) int { return cmp.Compare(a.Total(), b.Total()) })
	return cards
}
