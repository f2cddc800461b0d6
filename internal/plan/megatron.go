package plan

import (
	"strconv"

	"unoom/internal/model"
	"unoom/internal/workload"
)

// asMegatron writes a workload with a network of another library as Megatron's
// arguments would, which is what the engine plays for it: the network with fused
// matrices, and the settings as options by their names without dashes. It
// returns the workload itself where it is Megatron's already or cannot be
// written so.
func asMegatron(w *workload.Workload) *workload.Workload {
	m := w.Model
	if w.Framework != workload.Megatron || m.Type == "megatron" || m.Family != model.Decoder || len(m.Stacks) != 1 || len(m.Stacks[0].Layers) == 0 {
		return w
	}
	l := m.Stacks[0].Layers[0]
	for _, other := range m.Stacks[0].Layers {
		if other != l && (other.MoE != nil || other.SSM != nil) {
			return w
		}
	}
	if l.Attention == nil || l.Attention.MLA != nil || l.MLP == nil || l.MoE != nil || l.SSM != nil {
		return w
	}
	out := w.Clone()
	set := func(name, value string) { setOption(out, name, value) }
	on := func(name string, is bool) {
		if is {
			if out.Options == nil {
				out.Options = map[string]string{}
			}
			out.Options[name] = ""
		}
	}
	number := func(name string, n int64) { set(name, strconv.FormatInt(n, 10)) }
	a := l.Attention
	number("num-layers", int64(len(m.Stacks[0].Layers)))
	number("hidden-size", m.Hidden)
	number("ffn-hidden-size", l.MLP.FFN)
	number("num-attention-heads", a.Heads)
	number("kv-channels", a.HeadDim)
	if a.KVHeads > 0 && a.KVHeads != a.Heads {
		on("group-query-attention", true)
		number("num-query-groups", a.KVHeads)
	}
	number("max-position-embeddings", max(m.MaxSeq, w.Seq))
	number("tensor-model-parallel-size", max(w.Parallel.Tensor, 1))
	on("swiglu", l.MLP.Gated)
	on("qk-layernorm", a.QKNorm != model.NoQKNorm)
	on("disable-bias-linear", !l.MLP.Bias)
	on("untie-embeddings-and-output-weights", !m.TiedHead)
	on("bf16", !half(w))
	on("fp16", half(w))
	on("accumulate-allreduce-grads-in-fp32", half(w))
	on("cross-entropy-loss-fusion", w.Loss == workload.LossMegatron)
	if w.CheckpointLayers > 0 { // the first layers of each stage
		set("recompute-method", "block")
		number("recompute-num-layers", w.CheckpointLayers)
	}
	set("hidden-dropout", "0")
	set("attention-dropout", "0")
	switch a.Position {
	case model.Rope:
		set("position-embedding-type", "rope")
	case model.NoPosition:
		set("position-embedding-type", "none")
	}
	if l.Norm.Kind == model.RMSNorm {
		set("normalization", "RMSNorm")
	}
	if w.Parallel.Virtual > 1 {
		number("num-virtual-stages-per-pipeline-rank", w.Parallel.Virtual)
	}
	if w.Optimizer.Distributed {
		out.Sharding = workload.ZeRO1
	}
	written, err := model.FromMegatron(m.Name, m.Vocab, func(name string) (string, bool) {
		v, ok := out.Options[name]
		return v, ok
	})
	if err != nil {
		return w
	}
	out.Model = written
	return out
}
