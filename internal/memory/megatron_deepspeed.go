package memory

import (
	"unoom/internal/workload"
)

// Megatron-DeepSpeed runs Megatron's older layers under DeepSpeed's pipeline
// engine and its ZeRO optimizer: gradients stay in 16 bits with the parameters,
// float32 parameters and Adam's moments are divided over the replicas.
// Source: bigscience-workshop/Megatron-DeepSpeed (megatron/model,
// megatron/training.py); microsoft/DeepSpeed runtime/pipe/engine.py,
// runtime/pipe/schedule.py, runtime/zero/stage_1_and_2.py (0.5 and 0.6).

// reduceBucket is how many elements are brought together for one reduction.
// Source: DeepSpeed runtime/zero/config.py, reduce_bucket_size.
const reduceBucket = 500_000_000

// prepareMegatronDeepSpeed loads a pipeline rank.
func prepareMegatronDeepSpeed(x *machine, w *workload.Workload, lib library) (*megatron, error) {
	if w.Sharding != workload.ZeRO1 {
		return nil, &NotModelled{"sharding " + string(w.Sharding) + " in Megatron-DeepSpeed"}
	}
	c := w.Clone()
	c.Sharding = workload.DDP // Megatron's own optimizer has no part in it
	if c.Options == nil {
		c.Options = map[string]string{}
	}
	c.Options["transformer-impl"] = "local"
	c.Options["no-gradient-accumulation-fusion"] = ""
	switch c.Precision {
	case workload.BF16:
		c.Options["bf16"] = ""
	case workload.FP16:
		c.Options["fp16"] = ""
	}
	return newMegatron(x, c, lib, true)
}

// flatten makes the flat 16-bit parameters, the float32 ones of this replica and
// Adam's moments of them, which DeepSpeed makes before the first step.
func (ld *megatronLoader) flatten() {
	m := ld.m
	x := m.x
	undo := x.as(Weights, "weights")
	flat := x.alloc(m.residual.size(m.params))
	undo()
	for i, id := range ld.ids {
		x.release(x.params[id].t.st)
		x.params[id].t.st, ld.ws[i].st = flat, flat
	}
	share := ceilDiv(m.params, m.dp)
	undo = x.as(OptimizerState, "float32 parameters")
	x.alloc(f32.size(share))
	undo()
	defer x.as(OptimizerState, "optimizer state")()
	x.alloc(f32.size(share))
	x.alloc(f32.size(share))
}

// zeroStep reduces the gradients in buckets, takes their norm, and steps on a
// float32 copy of this replica's share.
func (m *megatron) zeroStep(params int) {
	x := m.x
	defer x.as(Temporaries, "optimizer step")()
	ps := x.params[:params]
	bucket := int64(0)
	for i := len(ps) - 1; i >= 0; i-- {
		if bucket > 0 && bucket+ps[i].t.n > reduceBucket {
			x.scratch(m.residual.size(bucket))
			bucket = 0
		}
		bucket += ps[i].t.n
	}
	x.scratch(m.residual.size(bucket))
	share := ceilDiv(m.params, m.dp)
	for i := range ps {
		// The norm of each gradient, or of this replica's part, in float64.
		x.scratch(8 * min(ps[i].t.n, share))
	}
	flat := x.alloc(m.residual.size(share))
	up := x.alloc(f32.size(share))
	x.release(flat)
	x.release(up)
	for i := range ps {
		x.dropGrad(&ps[i])
	}
}
