package plan

import (
	"strings"

	"unoom/internal/speed"
	"unoom/internal/workload"
)

// upcastOption says that accelerate's FSDP keeps 16-bit weights that are trained
// in float32 and gathers them in 16 bits, which is what it does under
// mixed_precision.
// Source: accelerate accelerator.py, prepare_model for FSDP.
const upcastOption = "upcast"

// choiceOf writes a workload in the terms of a search.
func choiceOf(w *workload.Workload) Choice {
	p := w.Parallel
	one := func(n int64) int { return int(max(n, 1)) }
	c := Choice{
		Micro: one(w.MicroBatch), Accumulation: one(w.Accumulation), Seq: one(w.Seq),
		Data: one(p.Data), Tensor: one(p.Tensor), Pipeline: one(p.Pipeline), Chunks: one(p.Virtual), Context: one(p.Context), Expert: one(p.Expert),
		Sharding: shardingOf(w), Precision: precisionOf(w), Method: FullTune, Optimizer: optimizerOf(w), Loss: lossOf(w.Loss), Attention: attentionOf(w.Attention),
		Kernels: kernelsOf(w), Recompute: RecomputeNone,
	}
	c.GPUs = c.Data * c.Tensor * c.Pipeline * c.Context
	c.Shard = c.Data
	if p.Shard > 0 {
		c.Shard = max(1, int(p.Shard)/c.Context)
	}
	if c.Sharding == speed.NoSharding || c.Sharding == speed.DDP {
		c.Shard = 1
	}
	switch w.Method {
	case workload.LoRA, workload.DoRA:
		c.Method = LoRA
	case workload.QLoRA, workload.QDoRA:
		c.Method = QLoRA
	}
	if c.Method != FullTune {
		c.Rank = one(w.Adapter.Rank)
	}
	per := one(int64((w.Model.Layers() + c.Pipeline - 1) / c.Pipeline))
	switch w.Checkpointing {
	case workload.FullCheckpoint:
		c.Recompute, c.Layers = RecomputeFull, per
		if n := int(w.CheckpointLayers); n > 0 && n < per {
			c.Layers = n
		}
	case workload.Selective:
		c.Recompute, c.Layers = RecomputeSelective, per
	}
	switch w.Offload {
	case workload.OffloadOptimizer:
		c.OffloadOptimizer = true
	case workload.OffloadParams:
		c.OffloadWeights, c.OffloadOptimizer = true, c.Method == FullTune
	case workload.OffloadActivations:
		c.OffloadActivations = true
	case workload.OffloadOptimizerAct:
		c.OffloadOptimizer, c.OffloadActivations = true, true
	}
	c.Expandable = strings.Contains(strings.ToLower(w.AllocConf), "expandable_segments:true")
	return c
}

func shardingOf(w *workload.Workload) speed.Sharding {
	alone := w.Parallel.Data <= 1 && w.Parallel.Context <= 1
	switch w.Sharding {
	case workload.ZeRO1:
		return speed.ZeRO1
	case workload.ZeRO2:
		return speed.ZeRO2
	case workload.ZeRO3:
		return speed.ZeRO3
	case workload.FSDP, workload.FSDP2:
		return speed.FSDP
	}
	if alone {
		return speed.NoSharding
	}
	if w.Framework == workload.Megatron && w.Optimizer.Distributed {
		return speed.ZeRO1
	}
	return speed.DDP
}

func precisionOf(w *workload.Workload) Precision {
	if w.FP8 != workload.NoFP8 {
		return Mixed8
	}
	if v, ok := w.Option(upcastOption); ok && v == "fp32" {
		return Mixed16
	}
	switch w.Precision {
	case workload.FP32:
		return Float32
	case workload.AMPBF16, workload.AMPFP16:
		return Mixed16
	}
	// DeepSpeed and Megatron keep float32 copies of 16-bit weights.
	if w.Framework == workload.Megatron || w.Framework == workload.DeepSpeed {
		return Mixed16
	}
	switch w.Sharding {
	case workload.ZeRO1, workload.ZeRO2, workload.ZeRO3:
		return Mixed16
	}
	return Pure16
}

// half reports whether the 16-bit format of a workload is float16.
func half(w *workload.Workload) bool {
	return w.Precision == workload.FP16 || w.Precision == workload.AMPFP16
}

func optimizerOf(w *workload.Workload) Optimizer {
	name := strings.ToLower(w.Optimizer.Name)
	switch {
	case strings.Contains(name, "8bit"), strings.Contains(name, "8-bit"), strings.Contains(name, "bnb"):
		return AdamW8bit
	case w.Optimizer.Paged, strings.Contains(name, "paged"):
		return PagedAdamW
	case strings.Contains(name, "adafactor"):
		return Adafactor
	case strings.Contains(name, "lion"):
		return Lion
	case strings.Contains(name, "sgd"):
		return Momentum
	case w.Optimizer.Impl == "fused", strings.Contains(name, "fused"):
		return AdamWFused
	}
	return AdamW
}

func lossOf(l workload.Loss) Loss {
	switch l {
	case workload.LossChunked:
		return ChunkedLoss
	case workload.LossLiger, workload.LossCCE, workload.LossMegatron:
		return FusedLoss
	}
	return PlainLoss
}

func attentionOf(a workload.Attention) Attention {
	switch a {
	case workload.Eager, workload.MathSDPA:
		return EagerAttention
	case workload.Flash:
		return FlashAttention
	}
	return SDPAAttention
}

func kernelsOf(w *workload.Workload) speed.Kernels {
	switch {
	case w.Framework == workload.Megatron:
		return speed.Megatron
	case w.Compile:
		return speed.Compiled
	case w.Kernels.FusedNorm != "" || w.Kernels.FusedMLP != "", w.Framework == workload.Torchtitan, w.Framework == workload.Composer:
		return speed.Fused
	}
	return speed.Eager
}

// apply returns the workload with what a choice changes of the base choice. The
// target is the stack the result is written for.
func apply(w *workload.Workload, base, c *Choice, target Target) *workload.Workload {
	n := w.Clone()
	n.MicroBatch, n.Accumulation, n.Seq = int64(c.Micro), int64(c.Accumulation), int64(c.Seq)
	n.Parallel = workload.Parallel{
		World: int64(c.GPUs), Data: int64(c.Data), Tensor: int64(c.Tensor), Pipeline: int64(c.Pipeline), Virtual: int64(c.Chunks), Context: int64(c.Context), Expert: int64(c.Expert),
		Rank: w.Parallel.Rank, Sequence: w.Parallel.Sequence,
	}
	if c.Tensor > 1 && (target == Torchtitan || target == Megatron) {
		n.Parallel.Sequence = true
	}
	if c.Sharding == speed.FSDP && c.Shard < c.Data {
		n.Parallel.Shard = int64(c.Shard * c.Context)
	}
	n.Framework = frameworkFor(w.Framework, c, target)
	if c.Sharding != base.Sharding || n.Framework != w.Framework {
		n.Sharding = shardingFor(w, c, target)
		n.Optimizer.Distributed = target == Megatron && c.Sharding == speed.ZeRO1
	}
	if c.Precision != base.Precision || c.Sharding != base.Sharding || c.Method != base.Method || n.Framework != w.Framework {
		n.Precision = precisionFor(w, c, n.Framework)
	}
	upcast := n.Framework == workload.HFTrainer && n.Sharding == workload.FSDP && c.Method == FullTune && c.Precision == Mixed16
	if _, had := w.Option(upcastOption); had || upcast {
		setOption(n, upcastOption, map[bool]string{true: "fp32"}[upcast])
		if upcast && n.Precision == workload.AMPBF16 {
			n.Precision = workload.BF16
		} else if upcast && n.Precision == workload.AMPFP16 {
			n.Precision = workload.FP16
		}
	}
	if c.Precision == Mixed8 && base.Precision != Mixed8 {
		n.FP8 = workload.FP8Tensorwise
		if target == Megatron {
			n.FP8 = workload.FP8Delayed
		}
	}
	applyMethod(n, base, c)
	if c.Optimizer != base.Optimizer {
		n.Optimizer.Name, n.Optimizer.Impl, n.Optimizer.Paged = "adamw_torch", "foreach", false
		switch c.Optimizer {
		case AdamWFused:
			n.Optimizer.Name, n.Optimizer.Impl = "adamw_torch_fused", "fused"
		case AdamW8bit:
			n.Optimizer.Name, n.Optimizer.Impl = "adamw_bnb_8bit", ""
		case PagedAdamW:
			n.Optimizer.Name, n.Optimizer.Impl, n.Optimizer.Paged = "paged_adamw_32bit", "", true
		case Adafactor:
			n.Optimizer.Name, n.Optimizer.Impl = "adafactor", ""
		}
	}
	if c.Loss != base.Loss {
		switch {
		case c.Loss == ChunkedLoss:
			n.Loss = workload.LossChunked
			if n.Kernels.ChunkedLoss == 0 {
				n.Kernels.ChunkedLoss = 8 // torchtitan's and torchtune's number of pieces
			}
		case c.Loss == FusedLoss && target == Megatron:
			n.Loss = workload.LossMegatron
		case c.Loss == FusedLoss:
			n.Loss = workload.LossLiger
		default:
			n.Loss = workload.LossPlain
		}
	}
	if c.Attention != base.Attention {
		n.Attention = map[Attention]workload.Attention{EagerAttention: workload.Eager, SDPAAttention: workload.SDPA, FlashAttention: workload.Flash}[c.Attention]
	}
	n.Checkpointing = map[Recompute]workload.Checkpointing{RecomputeNone: workload.NoCheckpointing, RecomputeSelective: workload.Selective, RecomputeFull: workload.FullCheckpoint}[c.Recompute]
	per := (w.Model.Layers() + c.Pipeline - 1) / c.Pipeline
	n.CheckpointLayers = 0
	if c.Recompute == RecomputeFull && c.Layers < per {
		n.CheckpointLayers = int64(c.Layers)
	}
	switch {
	case c.OffloadWeights:
		n.Offload = workload.OffloadParams
	case c.OffloadOptimizer && c.OffloadActivations:
		n.Offload = workload.OffloadOptimizerAct
	case c.OffloadOptimizer:
		n.Offload = workload.OffloadOptimizer
	case c.OffloadActivations:
		n.Offload = workload.OffloadActivations
	default:
		n.Offload = workload.NoOffload
	}
	if c.Expandable && !base.Expandable {
		n.AllocConf = withExpandable(n.AllocConf)
	}
	return n
}

// setOption sets a framework's own setting of a workload that is not shared, or
// takes it out where the value is empty.
func setOption(w *workload.Workload, name, value string) {
	if value == "" {
		delete(w.Options, name)
		return
	}
	if w.Options == nil {
		w.Options = map[string]string{}
	}
	w.Options[name] = value
}

// withExpandable adds the setting to an allocator configuration, and takes out
// what would contradict it.
func withExpandable(conf string) string {
	out := []string{"expandable_segments:True"}
	for part := range strings.SplitSeq(conf, ",") {
		key, _, _ := strings.Cut(part, ":")
		if key = strings.TrimSpace(key); key != "" && key != "expandable_segments" {
			out = append(out, strings.TrimSpace(part))
		}
	}
	return strings.Join(out, ",")
}

// frameworkFor is the framework that runs a choice: the one in use where the
// target is served by it.
func frameworkFor(now workload.Framework, c *Choice, target Target) workload.Framework {
	switch target {
	case Torchtitan:
		return workload.Torchtitan
	case Megatron:
		return workload.Megatron
	case DeepSpeed:
		if now == workload.HFTrainer { // the Trainer drives DeepSpeed
			return now
		}
		return workload.DeepSpeed
	case HF:
		return workload.HFTrainer
	}
	return now
}

func shardingFor(w *workload.Workload, c *Choice, target Target) workload.Sharding {
	switch c.Sharding {
	case speed.DDP:
		return workload.DDP
	case speed.ZeRO1:
		return workload.ZeRO1
	case speed.ZeRO2:
		return workload.ZeRO2
	case speed.ZeRO3:
		return workload.ZeRO3
	case speed.FSDP:
		if target == Torchtitan || w.Sharding == workload.FSDP2 || w.Framework == workload.Torchtitan {
			return workload.FSDP2
		}
		return workload.FSDP // accelerate's default is still version 1
	}
	return workload.NoSharding
}

func precisionFor(w *workload.Workload, c *Choice, f workload.Framework) workload.Precision {
	amp, plain := workload.AMPBF16, workload.BF16
	if half(w) {
		amp, plain = workload.AMPFP16, workload.FP16
	}
	switch {
	case c.Precision == Float32:
		return workload.FP32
	case c.Precision == Pure16, c.Method != FullTune: // frozen weights need no float32 copies
		return plain
	}
	switch c.Sharding {
	case speed.ZeRO1, speed.ZeRO2, speed.ZeRO3:
		return plain // float32 copies are the optimizer's
	}
	if f == workload.Megatron || f == workload.DeepSpeed {
		return plain
	}
	return amp
}

// applyMethod puts adapters beside frozen weights, or quantises them.
func applyMethod(n *workload.Workload, base, c *Choice) {
	if c.Method == base.Method {
		return
	}
	switch c.Method {
	case FullTune:
		n.Method = workload.Full
	case LoRA:
		n.Method = workload.LoRA
	case QLoRA:
		n.Method = workload.QLoRA
		n.Base = workload.NF4Double
	}
	if c.Method != FullTune {
		n.Adapter.Rank = int64(c.Rank)
		if len(n.Adapter.Targets) == 0 {
			n.Adapter.Targets = []string{"all-linear"}
		}
	}
}
