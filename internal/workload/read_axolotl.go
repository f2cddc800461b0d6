package workload

import (
	"strconv"
	"strings"
)

func looksAxolotl(n *node) int {
	if n.child("base_model") == nil {
		return 0
	}
	return 2 + among(0, "datasets", "micro_batch_size", "sequence_len", "adapter", "sample_packing", "load_in_4bit", "num_epochs", "fsdp_config", "pretraining_dataset")(n)
}

// axolotl reads Axolotl's YAML, which is transformers' Trainer under other names.
// Source: axolotl utils/schemas/config.py and validation.py; utils/config.
func (r *reader) axolotl(n *node) {
	r.assume(FieldFramework, string(HFTrainer), "", "Axolotl runs transformers' Trainer")
	r.model(n, "base_model")
	r.use(n, "base_model_config", "tokenizer_config", "model_type")
	for key, f := range sorted(map[string]Field{"micro_batch_size": FieldMicroBatch, "gradient_accumulation_steps": FieldAccumulation, "sequence_len": FieldSeq,
		"tensor_parallel_size": FieldTensor, "lora_r": FieldRank}) {
		r.number(f, n, key)
	}
	r.number(FieldContext, n, "context_parallel_size", "sequence_parallel_degree")
	if r.out.Settings[FieldMicroBatch].Value == "" {
		r.assume(FieldMicroBatch, "1", "micro_batch_size", "Axolotl: micro_batch_size is 1")
	}
	if r.out.Settings[FieldAccumulation].Value == "" {
		r.assume(FieldAccumulation, "1", "gradient_accumulation_steps", "Axolotl: gradient_accumulation_steps is 1")
	}
	if r.out.Settings[FieldSeq].Value == "" {
		r.assume(FieldSeq, "512", "sequence_len", "Axolotl: sequence_len is 512")
	}
	r.axolotlPrecision(n)
	if r.text(FieldOptimizer, n, "optimizer") == "" {
		r.assume(FieldOptimizer, "adamw_torch_fused", "optimizer", "Axolotl: optimizer is adamw_torch_fused")
	}
	r.axolotlAdapter(n)
	r.axolotlCheckpointing(n)
	r.axolotlKernels(n)
	r.either(FieldCompile, n, "true", "", "torch_compile")
	r.use(n, "torch_compile_backend", "torch_compile_mode", "sample_packing", "pad_to_sequence_len", "eval_sample_packing", "batch_flattening", "multipack_real_batches")
	for _, k := range []string{"torch_compile_backend", "torch_compile_mode", "sample_packing", "pad_to_sequence_len", "eval_sample_packing", "batch_flattening", "multipack_real_batches"} {
		r.quiet(n, k)
	}
	if v := n.get("val_set_size"); v != nil {
		v.read = true
		if s, _ := v.str(); s != "0" && s != "0.0" {
			r.put(FieldEval, "true", "val_set_size", v)
			if i, whole := v.integer(); whole && i > 1 { // a share of the data otherwise
				r.put(FieldEvalSamples, strconv.FormatInt(i, 10), "val_set_size", v)
			}
		}
	}
	if _, said := r.number(FieldEvalBatch, n, "eval_batch_size"); !said {
		r.assume(FieldEvalBatch, strconv.FormatInt(max(r.numberOf(FieldMicroBatch), 1), 10), "eval_batch_size", "Axolotl: eval_batch_size is micro_batch_size")
	}
	r.trainerPassages(n)
	r.deepSpeedArgument(n)
	if n.get("fsdp") != nil || n.get("fsdp_config") != nil {
		r.fsdpArguments(n)
	}
	if v, key := r.use(n, "dp_shard_size"); v != nil {
		if i, ok := v.integer(); ok && i > 1 {
			r.number(FieldShard, n, key)
		}
	}
	if v, key := r.use(n, "rl"); v != nil {
		s, _ := v.str()
		r.objective(s, key, v)
	}
	r.notModelled(n, "unfrozen_parameters", "relora_steps", "relora_prune_ratio", "lisa_n_layers", "fp8", "peft_layers_to_transform", "ddp_static_graph", "qat", "trainer_cls", "reward_model", "is_multimodal", "vision_chat_template", "dp_replicate_size", "expert_parallel_size", "galore_rank", "optim_target_modules", "process_reward_model", "quantize_moe_experts", "resize_token_embeddings_to_32x", "ebft")
	r.modulesToSave(n, "lora_modules_to_save", "peft_modules_to_save")
	r.quiet(n, "optim_args", "early_stopping_patience", "overrides_of_model_config", "overrides_of_model_kwargs", "bnb_config_kwargs", "gptq", "fsdp_final_state_dict_type", "fsdp_version", "gpu_memory_limit", "flash_optimum",
		"device_map", "max_memory", "local_rank", "ring_attn_func", "heads_k_stride", "plugins", "batch_size", "use_kernels", "flash_attn_fuse_mlp", "flash_attn_fuse_qkv", "flash_attn_rms_norm", "flash_attn_cross_entropy", "s2_attention", "loss_watchdog_threshold", "loss_watchdog_patience", "liger_rms_norm_gated", "model_quantization_config", "model_quantization_config_kwargs", "flex_attn_compile_kwargs", "max_samples", "trl")
}

func (r *reader) axolotlPrecision(n *node) {
	dtype := func(key, autocast, weights string) bool {
		v, k := r.use(n, key)
		if v == nil && key != "bf16" {
			return false
		}
		if v == nil { // "auto" is bfloat16 on a card that has it
			c := n.child(key)
			if s, _ := c.str(); c == nil || s != "auto" {
				return false
			}
			v, k = c, key
		} else if s, _ := v.str(); s == "full" {
			autocast = "none"
		} else if b, ok := v.truth(); !ok || !b {
			return false
		}
		r.put(FieldAutocast, autocast, k, v)
		r.put(FieldWeights, weights, k, v)
		return true
	}
	switch {
	case dtype("bf16", "bf16", "bf16"), dtype("bfloat16", "none", "bf16"), dtype("fp16", "fp16", "fp16"), dtype("float16", "none", "fp16"):
	default:
		r.assume(FieldAutocast, "none", "bf16", "Axolotl: no bf16, fp16, bfloat16 or float16 is on")
	}
	for _, k := range []string{"bf16", "fp16", "bfloat16", "float16"} {
		r.quiet(n, k)
	}
	r.words(FieldWeights, n, halfWords, "torch_dtype", "dtype")
}

func (r *reader) axolotlAdapter(n *node) {
	kind := r.words(FieldMethod, n, map[string]string{"lora": "lora", "qlora": "qlora", "dora": "dora"}, "adapter")
	r.quantised(n)
	if double, said, v, key := r.flag(n, "bnb_config_kwargs.bnb_4bit_use_double_quant"); said && !double && r.out.Settings[FieldBase].Value == string(NF4Double) {
		r.put(FieldBase, string(NF4), key, v)
	}
	r.text(FieldDropout, n, "lora_dropout")
	r.targets(n, "lora_target_modules", "peft_target_modules")
	r.either(FieldTargets, n, "all-linear", "", "lora_target_linear")
	if r.either(FieldMethod, n, string(DoRA), "", "peft_use_dora") && kind == "qlora" {
		r.put(FieldMethod, string(QDoRA), "peft_use_dora", n.get("peft_use_dora"))
	}
	r.quiet(n, "lora_model_dir", "peft", "lora_target_parameters")
	if kind != "" {
		return
	}
	for _, f := range []Field{FieldRank, FieldDropout, FieldTargets, FieldBase, FieldMethod} { // they go with an adapter
		delete(r.out.Settings, f)
	}
}

func (r *reader) axolotlCheckpointing(n *node) {
	v, key := r.use(n, "gradient_checkpointing")
	s, _ := v.str()
	switch strings.ToLower(s) {
	case "":
	case "offload", "unsloth", "offload_disk":
		r.put(FieldCheckpointing, "full", key, v)
		r.put(FieldOffload, string(OffloadActivations), key, v)
	default:
		r.either(FieldCheckpointing, n, "full", "none", key)
	}
	r.either(FieldReentrant, n, "true", "false", "gradient_checkpointing_kwargs.use_reentrant")
	if on, said, v, key := r.flag(n, "activation_offloading"); said && on {
		r.put(FieldOffload, string(OffloadActivations), key, v)
	} else if v := n.get("activation_offloading"); v != nil {
		v.read = true
	}
}

func (r *reader) axolotlKernels(n *node) {
	for _, a := range []struct{ key, means string }{{"eager_attention", "eager"}, {"sdp_attention", "sdpa"}, {"xformers_attention", "mem-efficient"}, {"flex_attention", "flex"}, {"flash_attention", "flash"}} {
		r.either(FieldAttention, n, a.means, "", a.key)
	}
	r.words(FieldAttention, n, attentionWords, "attn_implementation")
	for _, key := range []string{"liger_rope", "liger_layer_norm", "liger_swiglu", "liger_glu_activation", "liger_rms_norm"} {
		if on, _, v, _ := r.flag(n, key); on && key != "liger_rope" && key != "liger_layer_norm" {
			r.put(FieldKernels, "liger", key, v)
		}
	}
	r.either(FieldLoss, n, "liger", "", "liger_fused_linear_cross_entropy")
	r.either(FieldLoss, n, "cce", "", "cut_cross_entropy")
	r.either(FieldLoss, n, "chunked", "", "chunked_cross_entropy")
	r.quiet(n, "liger_cross_entropy", "liger_use_token_scaling", "unsloth_cross_entropy_loss", "unsloth_rms_norm", "unsloth_rope")
	for _, k := range []string{"lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel"} {
		if on, said, v, _ := r.flag(n, k); said && on {
			r.out.Options["lora-kernels"] = ""
			_ = v
		}
	}
}
