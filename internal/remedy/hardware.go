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
			cards := f.holding(need)
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
		judge:    always("hardware.unified_memory"),
	}}
}

// needed returns the least usable capacity that this request would have needed
// with everything else as it was.
func (f *facts) needed() units.Bytes {
	return f.Account.Capacity + max(0, f.Tried-f.of(account.Free))
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

func precisionRemedies() []Remedy {
	return []Remedy{{
		Code:     "precision.autocast",
		Eases:    slices.Concat(without(capacity, LogitsVocab), nil),
		Exact:    false,
		Slowdown: Range{0.40, 0.95},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			if f.halved() || !f.ownMemory() || f.beyondCard() {
				return never()
			}
			v := because("precision.autocast.unknown")
			weight := 0.5 // nothing says that the run is in fp32
			if f.DType != "" {
				v, weight = because("precision.autocast", f.DType), 1.0
			}
			if act, ok := f.activations(); ok {
				// Matrix products and their inputs halve, norms and softmax stay
				// fp32, and a 16-bit copy of the weights is added.
				v = v.freeing(portion(act, 0.2, 0.5))
			}
			return v.scaled(weight)
		},
	}, {
		Code:     "precision.bf16_weights",
		Eases:    slices.Concat(state, []Cause{OptimizerForeachPeak, PrecisionNotApplied}),
		Exact:    false,
		Slowdown: Range{0.5, 0.95},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			if f.DType == "bfloat16" || f.DType == "bf16" || f.elsewhere() || f.Cap > 0 || f.Method == "qlora" {
				return never()
			}
			v := because("precision.bf16_weights")
			if p, ok := f.params(); ok && f.full() && !f.sharded() {
				v = v.freeing(&units.Estimate{Low: units.Bytes(4 * p), Mid: units.Bytes(8 * p), High: units.Bytes(8 * p)})
			}
			return v
		},
	}, {
		Code:     "precision.make_effective",
		Cures:    []Cause{PrecisionNotApplied},
		Exact:    false,
		Slowdown: Range{0.4, 1},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			v := because("precision.make_effective")
			if p, ok := f.params(); ok {
				v = v.freeing(&units.Estimate{Low: units.Bytes(2 * p), Mid: units.Bytes(2 * p), High: units.Bytes(3.5 * p)})
			}
			return v
		},
	}, {
		Code:     "precision.skip_upcast",
		Eases:    []Cause{PrecisionNotApplied, SequenceTooLong, LogitsVocab, GPUTooSmall},
		Exact:    false,
		Slowdown: Range{0.9, 1},
		Effort:   Edit,
		judge: func(f *facts) verdict {
			if f.Method != "qlora" || f.elsewhere() {
				return never()
			}
			return because("precision.skip_upcast")
		},
	}}
}

// halved reports whether the computation is known to be in 16 bits already.
func (f *facts) halved() bool {
	switch f.DType {
	case "bf16", "bfloat16", "fp16", "float16", "half", "fp8":
		return true
	}
	return f.Method == "qlora"
}

func optimizerRemedies() []Remedy {
	return []Remedy{{
		Code:     "optimizer.fused",
		Cures:    []Cause{OptimizerForeachPeak},
		Eases:    []Cause{OptimizerState},
		Exact:    true,
		Slowdown: Range{0.9, 1.0},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			if is(f.FusedOptimizer, true) || f.elsewhere() || (f.Phase != PhaseStep && f.Phase != PhaseUnknown) {
				return never()
			}
			v := because("optimizer.fused")
			// _foreach_sqrt holds one more copy of a state. Source: torch/optim/adamw.py.
			if p, ok := f.params(); ok && f.full() && !f.sharded() {
				v = v.freeing(&units.Estimate{Low: units.Bytes(2 * p), Mid: units.Bytes(4 * p), High: units.Bytes(4 * p)})
			}
			return v
		},
	}, {
		Code:     "optimizer.8bit",
		Cures:    []Cause{OptimizerState},
		Eases:    []Cause{TrainStateTooLarge, OptimizerForeachPeak, GPUTooSmall},
		Exact:    false,
		Slowdown: Range{1.00, 1.08},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			if !f.adam() || f.elsewhere() || f.Cap > 0 || f.Method == "lora" || f.Method == "qlora" {
				return never()
			}
			v := because("optimizer.8bit")
			if p, ok := f.params(); ok && !f.sharded() {
				// Two states of 4 (or 2) bytes become one byte and 8/256 each.
				// Source: arXiv:2110.02861; blocks of 256 in bitsandbytes.
				v = v.freeing(&units.Estimate{Low: units.Bytes(1.97 * p), Mid: units.Bytes(5.97 * p), High: units.Bytes(5.97 * p)})
			}
			return v
		},
	}, {
		Code:     "optimizer.factored",
		Eases:    []Cause{OptimizerState, TrainStateTooLarge, OptimizerForeachPeak},
		Exact:    false,
		Slowdown: Range{1.00, 1.10},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			if !f.adam() || f.elsewhere() || f.Cap > 0 || !f.full() {
				return never()
			}
			v := because("optimizer.factored")
			if p, ok := f.params(); ok && !f.sharded() {
				v = v.freeing(&units.Estimate{Low: units.Bytes(4 * p), Mid: units.Bytes(8 * p), High: units.Bytes(8 * p)})
			}
			return v
		},
	}, {
		Code:     "optimizer.in_backward",
		Eases:    []Cause{TrainStateTooLarge, OptimizerState},
		Exact:    true,
		Slowdown: Range{1.00, 1.10},
		Effort:   Edit,
		judge: func(f *facts) verdict {
			// Gradients must not be summed over micro-batches, clipped by their
			// global norm or sharded by somebody else.
			if f.Accumulation > 1 || f.WorldSize > 1 || f.sharded() || f.elsewhere() || f.Cap > 0 || !f.full() {
				return never()
			}
			v := because("optimizer.in_backward")
			if p, ok := f.params(); ok {
				v = v.freeing(&units.Estimate{Low: units.Bytes(2 * p), Mid: units.Bytes(2 * p), High: units.Bytes(4 * p)})
			}
			return v
		},
	}}
}

// adam reports whether the optimizer keeps two states for each parameter in
// full precision, as far as is known: one that is not named is taken as Adam.
func (f *facts) adam() bool {
	name := strings.ToLower(f.Optimizer)
	if name == "" {
		return true
	}
	for _, small := range []string{"8bit", "4bit", "paged", "galore", "apollo", "mini", "fp8"} {
		if strings.Contains(name, small) {
			return false
		}
	}
	return strings.Contains(name, "adam")
}

func offloadRemedies() []Remedy {
	return []Remedy{{
		Code:     "offload.optimizer",
		Eases:    []Cause{OptimizerState, TrainStateTooLarge, OptimizerForeachPeak, GPUTooSmall},
		Exact:    true,
		Slowdown: Range{1.2, 2.5},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			if f.elsewhere() || f.Cap > 0 || !f.full() {
				return never()
			}
			v := because("offload.optimizer")
			if p, ok := f.params(); ok {
				if f.WorldSize > 1 && (f.sharded() || f.Sharding == "zero1" || f.Sharding == "zero2") {
					p /= float64(f.WorldSize)
				}
				v = v.freeing(&units.Estimate{Low: units.Bytes(4 * p), Mid: units.Bytes(8 * p), High: units.Bytes(12 * p)})
			}
			return v
		},
	}, {
		Code:     "offload.parameters",
		Eases:    []Cause{TrainStateTooLarge, GPUTooSmall},
		Exact:    true,
		Slowdown: Range{1.5, 5},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			if f.elsewhere() || f.Cap > 0 || (f.weight(TrainStateTooLarge) < 0.2 && f.Phase != PhaseLoad) {
				return never()
			}
			return because("offload.parameters")
		},
	}, {
		Code:     "offload.activations",
		Eases:    []Cause{SequenceTooLong, ActivationsNoCheckpointing, BatchTooLarge},
		Exact:    true,
		Slowdown: Range{1.05, 2.0},
		Effort:   Edit,
		judge: func(f *facts) verdict {
			if !f.ownMemory() || f.beyondCard() {
				return never()
			}
			v := because("offload.activations")
			if act, ok := f.activations(); ok {
				v = v.freeing(portion(act, 0.3, 0.8))
			}
			return v.scaled(0.8)
		},
	}}
}
