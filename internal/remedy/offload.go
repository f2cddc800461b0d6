package remedy

import (
	"unoom/internal/units"
)

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
			if f.elsewhere() || f.Cap > 0 || (f.weight(TrainStateTooLarge) < 0.2 && f.Phase != PhaseLoad && f.Framework.Trains()) {
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
