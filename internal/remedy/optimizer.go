package remedy

import (
	"strings"

	"unoom/internal/units"
)

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
