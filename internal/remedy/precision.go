package remedy

import (
	"slices"

	"unoom/internal/units"
)

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
