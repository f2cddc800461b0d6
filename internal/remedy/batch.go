package remedy

import (
	"slices"

	"unoom/internal/units"
)

func batchRemedies() []Remedy {
	return []Remedy{{
		Code:  "accumulate.split",
		Cures: []Cause{BatchTooLarge},
		Eases: slices.Concat(without(capacity, BatchTooLarge, InputTooLarge), []Cause{
			Fragmentation, OptimizerForeachPeak, MaskedLibraryInit, MaskedNVMLAssert, DPImbalance,
		}),
		Exact:    true,
		Slowdown: Range{1.00, 1.15}, // smaller kernels; the same samples for each optimizer step
		Effort:   Setting,
		judge:    judgeSplit,
	}, {
		Code:     "accumulate.sync_each_batch",
		Cures:    []Cause{ShardingNotEffective},
		Eases:    slices.Concat(state, []Cause{BatchTooLarge}),
		Exact:    true,
		Slowdown: Range{1.02, 1.20}, // one reduce-scatter for each micro-batch
		Effort:   Setting,
		judge: func(f *facts) verdict {
			if f.Accumulation < 2 || f.Sharding != "fsdp" || !f.ownMemory() {
				return never()
			}
			v := because("accumulate.sync_each_batch", f.Accumulation)
			// no_sync keeps the gradients of all parameters unsharded.
			// Source: accelerate docs, concept_guides/gradient_synchronization.
			if p, ok := f.params(); ok && f.WorldSize > 1 {
				rest := 1 - 1/float64(f.WorldSize)
				v = v.freeing(&units.Estimate{
					Low: units.Bytes(2 * p * rest), Mid: units.Bytes(3 * p * rest), High: units.Bytes(4 * p * rest),
				})
			}
			return v.with("accumulation_now", f.Accumulation)
		},
	}, {
		Code:     "batch.reduce",
		Cures:    []Cause{BatchTooLarge},
		Eases:    slices.Concat(without(capacity, BatchTooLarge, InputTooLarge), []Cause{MixedGPUs}),
		Exact:    false,
		Slowdown: Range{1.00, 1.15},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			v := judgeSplit(f)
			if v.applies {
				v.why = Reason{ID: "remedy.why.batch.reduce"}
			}
			return v.scaled(0.4) // accumulate.split does the same and keeps the batch
		},
	}, {
		Code:     "batch.by_length",
		Cures:    []Cause{LongestBatch},
		Exact:    false,
		Slowdown: Range{0.80, 1.00},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			if !f.ownMemory() {
				return never()
			}
			return because("batch.by_length")
		},
	}, {
		Code:     "batch.eval",
		Cures:    []Cause{EvalWorkloadLarger},
		Eases:    []Cause{EvalAccumulatesPredictions, EvalNoGrad},
		Exact:    true,
		Slowdown: Range{1.00, 1.05}, // of the evaluation only
		Effort:   Setting,
		judge: func(f *facts) verdict {
			if f.elsewhere() || f.EvalBatch == 1 {
				return never()
			}
			v := because("batch.eval")
			if f.EvalBatch > 1 {
				now, next := f.EvalBatch, SmallerEvalBatch(f.EvalBatch, f.MicroBatch)
				v = because("batch.eval.from", now, next)
				return v.with("eval_batch", next, "eval_batch_now", now)
			}
			if f.MicroBatch > 0 {
				return v.with("eval_batch", f.MicroBatch)
			}
			return v
		},
	}, {
		Code:     "batch.per_gpu",
		Cures:    []Cause{MixedGPUs},
		Exact:    true,
		Slowdown: Range{1.00, 1.30},
		Effort:   Edit,
		judge:    always("batch.per_gpu"),
	}}
}

// judgeSplit judges a smaller micro-batch: not outside the training pass, not
// where one sample is left, not where most of the card is held by others.
func judgeSplit(f *facts) verdict {
	if !f.ownMemory() || f.MicroBatch == 1 {
		return never()
	}
	act, known := f.activations()
	if f.MicroBatch == 0 {
		v := because("accumulate.split.unknown")
		if known {
			v = v.freeing(portion(act, 0.5, 0.5))
		}
		return v.with("micro_batch", "B/2", "accumulation", "(2*A)")
	}
	k := f.splitBy(act, known)
	micro, accum := f.MicroBatch/k, max(1, f.Accumulation)*k
	v := because("accumulate.split", f.MicroBatch, max(1, f.Accumulation), micro, accum)
	if known {
		// The peak moves with the batch, so that a part of what was no activation
		// goes with them, or a part of them stays.
		gone := 1 - 1/float64(k)
		low, high := 0.9*gone, min(1, 1.1*gone)
		if act.Low == act.High {
			low, high = gone, gone
		}
		v = v.freeing(portion(act, low, high))
	}
	effective := micro * accum * f.WorldSize // 0: the number of GPUs is not known
	return v.with("micro_batch", micro, "accumulation", accum, "effective_batch", effective,
		"micro_batch_now", f.MicroBatch, "accumulation_now", f.Accumulation)
}

// splitBy returns by how much to divide the micro-batch: the least divisor of
// it whose middle saving covers the shortfall and 5 % of the card as reserve.
// In the middle of a forward pass the rest of it is still to come; the middle
// guess is that it would have needed twice what it has, so a quarter has to do.
func (f *facts) splitBy(act units.Estimate, known bool) int {
	if f.SplitBy > 1 && f.MicroBatch%f.SplitBy == 0 {
		return f.SplitBy
	}
	_, high, ok := f.shortfall()
	least := 2
	if f.Phase == PhaseForward {
		least = 3
	}
	for k := 2; k <= f.MicroBatch; k++ {
		if f.MicroBatch%k != 0 || k < least && f.MicroBatch > least {
			continue
		}
		if !known || !ok {
			return k
		}
		saved := float64(act.Mid) * (1 - 1/float64(k))
		if saved >= float64(high)+0.05*float64(f.Account.Capacity) {
			return k
		}
	}
	return f.MicroBatch
}

// without returns the causes that are not in drop.
func without(causes []Cause, drop ...Cause) []Cause {
	return slices.DeleteFunc(slices.Clone(causes), func(c Cause) bool { return slices.Contains(drop, c) })
}

// SmallerEvalBatch is the batch that batch.eval proposes in place of another: that
// of training where it is smaller, else half.
func SmallerEvalBatch(now, training int) int {
	if training > 0 && training < now {
		return training
	}
	return max(1, now/2)
}
