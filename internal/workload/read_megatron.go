package workload

import (
	"slices"
	"strconv"
	"strings"
)

// looksMegatron: a pretraining script with the sizes of a network among its
// arguments.
func looksMegatron(script string, n *node) bool {
	sizes := among(2, "num_layers", "hidden_size", "num_attention_heads", "seq_length", "max_position_embeddings", "tensor_model_parallel_size", "encoder_num_layers")(n)
	return sizes >= 3 || sizes >= 2 && strings.HasPrefix(script, "pretrain_")
}

// megatron reads the arguments of Megatron-LM's scripts. All of them stay, as
// options by their own names, since the network is made of them.
// Source: Megatron-LM megatron/training/arguments.py.
func (r *reader) megatron(n *node) {
	r.put(FieldFramework, string(Megatron), "num-layers", n.child("num_layers"))
	for i, k := range n.keys {
		v := n.items[i]
		s, ok := v.str()
		switch {
		case !ok:
			s = strings.Join(v.texts(), " ")
		case s == "true":
			s = ""
		case strings.Contains(s, "$") && harmless(k):
			continue
		case strings.Contains(s, "$"):
			r.warn(WarnUnresolved, v, "--"+strings.ReplaceAll(k, "_", "-"), s)
			continue
		}
		r.out.Options[strings.ReplaceAll(k, "_", "-")] = s
	}
	for key, f := range sorted(map[string]Field{"micro_batch_size": FieldMicroBatch, "global_batch_size": FieldGlobalBatch, "tensor_model_parallel_size": FieldTensor, "pipeline_model_parallel_size": FieldPipeline,
		"context_parallel_size": FieldContext, "expert_model_parallel_size": FieldExpert, "num_virtual_stages_per_pipeline_rank": FieldVirtual}) {
		r.number(f, n, key)
	}
	if _, said := r.number(FieldSeq, n, "seq_length", "encoder_seq_length"); said {
		r.number(FieldTargetSeq, n, "decoder_seq_length")
	}
	if per, ok := n.get("num_layers_per_virtual_pipeline_stage").integer(); ok && per > 0 {
		layers, _ := n.get("num_layers").integer()
		if stages := max(r.numberOf(FieldPipeline), 1); layers/stages/per > 1 {
			r.put(FieldVirtual, strconv.FormatInt(layers/stages/per, 10), "num-layers-per-virtual-pipeline-stage", n.get("num_layers_per_virtual_pipeline_stage"))
		}
	}
	r.either(FieldSequence, n, "true", "false", "sequence_parallel")
	if dist := r.either(FieldSharding, n, string(ZeRO1), string(DDP), "use_distributed_optimizer"); !dist {
		r.assume(FieldSharding, string(DDP), "use-distributed-optimizer", "Megatron: use-distributed-optimizer is off")
	}
	if is, _, v, key := r.flag(n, "use_torch_fsdp2"); is {
		r.put(FieldSharding, string(FSDP2), key, v)
	}
	if is, _, v, key := r.flag(n, "use_megatron_fsdp", "use_custom_fsdp"); is {
		r.put(FieldSharding, string(FSDP), key, v)
		r.out.Options["megatron-fsdp"] = ""
	}
	switch {
	case r.either(FieldDType, n, "bf16", "", "bf16"), r.either(FieldDType, n, "fp16", "", "fp16"):
	default:
		r.assume(FieldDType, "fp32", "bf16", "Megatron: neither bf16 nor fp16 is on")
	}
	if v, key := r.use(n, "fp8_format", "fp8"); v != nil {
		s, _ := v.str()
		r.warn(WarnNotModelled, v, key, s)
	}
	r.words(FieldCheckpointing, n, map[string]string{"full": "full", "selective": "selective"}, "recompute_granularity")
	r.either(FieldCheckpointing, n, "selective", "", "recompute_activations")
	r.either(FieldCheckpointing, n, "full", "", "checkpoint_activations")
	// Unknown flags that change the mathematics of memory are Megatron's own to
	// name; the engine refuses what it lacks by them.
	r.words(FieldAttention, n, map[string]string{"flash": "flash", "fused": "flash", "auto": "flash", "unfused": "eager", "local": "eager"}, "attention_backend")
	r.either(FieldAttention, n, "flash", "", "use_flash_attn", "use_flash_attn_v2")
	if _, said := r.out.Settings[FieldAttention]; !said {
		r.assume(FieldAttention, "flash", "attention-backend", "Megatron: attention-backend is auto, which is flash or fused attention")
	}
	r.either(FieldOffload, n, string(OffloadOptimizer), "", "optimizer_cpu_offload")
	if r.text(FieldOptimizer, n, "optimizer") == "" {
		r.assume(FieldOptimizer, "adam", "optimizer", "Megatron: optimizer is adam")
	}
	r.either(FieldLoss, n, "megatron", "", "cross_entropy_loss_fusion")
	if slices.Contains(n.keys, "num_experts") && r.out.Settings[FieldExpert].Value == "" {
		r.assume(FieldExpert, "1", "expert-model-parallel-size", "Megatron: expert-model-parallel-size is 1")
	}
}
