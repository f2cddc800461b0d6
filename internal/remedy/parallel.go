package remedy

import (
	"slices"

	"unoom/internal/account"
	"unoom/internal/units"
)

func parallelRemedies() []Remedy {
	return []Remedy{{
		Code:     "parallel.fsdp",
		Cures:    []Cause{TrainStateTooLarge},
		Eases:    []Cause{GPUTooSmall, OptimizerState, ResumeDoubleLoad},
		Exact:    true,
		Slowdown: Range{1.05, 1.40}, // all-gather of the weights twice a step; depends on the links
		Effort:   Rework,
		judge: func(f *facts) verdict {
			if f.elsewhere() || f.Cap > 0 || f.sharded() || f.WorldSize == 1 {
				return never()
			}
			if f.WorldSize > 1 {
				v := because("parallel.fsdp", f.WorldSize).with("gpus", f.WorldSize)
				return v.freeing(f.perParam(fullStateBytes, pureBF16Bytes, f.WorldSize))
			}
			return because("parallel.fsdp.unknown")
		},
	}, {
		Code:     "parallel.shard_optimizer",
		Cures:    []Cause{OptimizerState},
		Eases:    []Cause{TrainStateTooLarge, GPUTooSmall, OptimizerForeachPeak},
		Exact:    true,
		Slowdown: Range{1.00, 1.10},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			if f.elsewhere() || f.Cap > 0 || f.WorldSize < 2 || f.sharded() || f.Sharding == "zero1" || f.Sharding == "zero2" {
				return never()
			}
			return because("parallel.shard_optimizer", f.WorldSize).
				freeing(f.perParam(12, 4, f.WorldSize)).with("gpus", f.WorldSize)
		},
	}, {
		Code:     "parallel.tensor",
		Eases:    []Cause{TrainStateTooLarge, SequenceTooLong, LogitsVocab},
		Exact:    true,
		Slowdown: Range{1.10, 1.50},
		Effort:   Rework,
		judge:    many("parallel.tensor"),
	}, {
		Code:     "parallel.pipeline",
		Eases:    []Cause{TrainStateTooLarge},
		Exact:    true,
		Slowdown: Range{1.05, 1.40}, // the bubble, (p-1)/m of the compute
		Effort:   Rework,
		judge:    many("parallel.pipeline"),
	}, {
		Code:     "parallel.context",
		Cures:    []Cause{SequenceTooLong},
		Eases:    []Cause{LogitsVocab},
		Exact:    true,
		Slowdown: Range{1.02, 1.25},
		Effort:   Rework,
		judge:    many("parallel.context"),
	}, {
		Code:     "parallel.ddp",
		Cures:    []Cause{DPImbalance},
		Exact:    true,
		Slowdown: Range{0.6, 0.95},
		Effort:   Edit,
		judge: func(f *facts) verdict {
			if f.Sharding == "ddp" || f.sharded() {
				return never()
			}
			return because("parallel.ddp").with("gpus", f.WorldSize)
		},
	}, {
		Code:     "parallel.set_device",
		Cures:    []Cause{RanksShareGPU},
		Eases:    []Cause{WrongGPU},
		Exact:    true,
		Slowdown: Range{1, 1},
		Effort:   Edit,
		judge:    always("parallel.set_device"),
	}, {
		Code:     "parallel.choose_gpu",
		Cures:    []Cause{WrongGPU},
		Eases:    []Cause{OtherProcess, OrphanProcess, DriverOrHardware, NotOOMDeviceBusy},
		Exact:    true,
		Slowdown: Range{1, 1},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			held := f.of(account.OtherProcesses, account.OutsideOrOther)
			v := because("parallel.choose_gpu.unknown")
			if f.share(held) > 0.18 {
				v = because("parallel.choose_gpu", f.Account.Device, held)
				if f.held() > 0 {
					v = v.freeing(exactly(f.held())).surely(f.covers(f.held()))
				}
			}
			return v.with(f.where()...)
		},
	}, {
		Code:     "parallel.device_map",
		Cures:    []Cause{WrongPlacement},
		Exact:    true,
		Slowdown: Range{1, 1.3},
		Effort:   Edit,
		judge:    always("parallel.device_map"),
	}, {
		Code:     "parallel.make_effective",
		Cures:    []Cause{ShardingNotEffective},
		Exact:    true,
		Slowdown: Range{1, 1.2},
		Effort:   Edit,
		judge: func(f *facts) verdict {
			v := because("parallel.make_effective").with("gpus", f.WorldSize)
			if f.WorldSize > 1 {
				v = v.freeing(f.perParam(fullStateBytes, leastWeightBytes, f.WorldSize))
			}
			return v
		},
	}, {
		Code:     "parallel.sharded_checkpoint",
		Cures:    []Cause{SaveGathersFullState},
		Eases:    []Cause{ResumeDoubleLoad},
		Exact:    true,
		Slowdown: Range{1, 1},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			if f.WorldSize == 1 {
				return never()
			}
			v := because("parallel.sharded_checkpoint")
			if f.weight(ResumeDoubleLoad) > f.weight(SaveGathersFullState) {
				return because("parallel.sharded_checkpoint.resume")
			}
			if p, ok := f.params(); ok {
				v = v.freeing(&units.Estimate{Low: units.Bytes(2 * p), Mid: units.Bytes(4 * p), High: units.Bytes(4 * p)})
			}
			return v
		},
	}, {
		Code:     "parallel.bucket_view",
		Eases:    slices.Concat(state, []Cause{BatchTooLarge}),
		Exact:    true,
		Slowdown: Range{1, 1},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			if f.Sharding != "ddp" || f.WorldSize < 2 || f.elsewhere() || f.Cap > 0 {
				return never()
			}
			v := because("parallel.bucket_view")
			if p, ok := f.params(); ok && f.full() {
				v = v.freeing(&units.Estimate{Low: units.Bytes(2 * p), Mid: units.Bytes(3 * p), High: units.Bytes(4 * p)})
			}
			return v
		},
	}, {
		Code:     "parallel.nccl_buffers",
		Cures:    []Cause{NCCLOutsideAllocator},
		Exact:    true,
		Slowdown: Range{1.00, 1.20},
		Effort:   Setting,
		judge:    always("parallel.nccl_buffers"),
	}}
}

// many is the judge of the model-parallel remedies: they need several cards
// and a job whose own memory is what does not fit.
func many(id string) func(*facts) verdict {
	return func(f *facts) verdict {
		if f.WorldSize < 2 || f.elsewhere() || f.Cap > 0 {
			return never()
		}
		return because(id, f.WorldSize).with("gpus", f.WorldSize)
	}
}

// perParam returns the saving of splitting between low and high bytes for each
// parameter over n cards, nil if the model is not known or only adapters train.
func (f *facts) perParam(high, low float64, n int) *units.Estimate {
	p, ok := f.params()
	if !ok || !f.full() {
		return nil
	}
	p *= 1 - 1/float64(n)
	e := units.Estimate{Low: units.Bytes(low * p), Mid: units.Bytes((low + high) / 2 * p), High: units.Bytes(high * p)}
	if a, ok := f.allocated(); ok { // no more than is there
		e.High = min(e.High, a)
		e.Low, e.Mid = min(e.Low, e.High), min(e.Mid, e.High)
	}
	return &e
}
