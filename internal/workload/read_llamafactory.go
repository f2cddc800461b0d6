package workload

func looksLLaMAFactory(n *node) int {
	c := among(1, "finetuning_type", "stage", "template", "cutoff_len", "lora_target", "pref_beta", "freeze_trainable_layers", "quantization_bit", "flash_attn", "disable_gradient_checkpointing")(n)
	if c == 0 || n.child("model_name_or_path") == nil && c < 2 {
		return 0
	}
	return c + 1 + looksTransformers(n)
}

// llamaFactory reads LLaMA-Factory's YAML, which extends transformers'
// arguments.
// Source: LLaMA-Factory src/llamafactory/hparams/*.py, model/loader.py,
// model/adapter.py.
func (r *reader) llamaFactory(n *node) {
	r.out.Options["flavour"] = "llama-factory"
	if v, key := r.use(n, "stage"); v != nil {
		stage, _ := v.str()
		if how, _ := n.get("pref_loss").str(); stage == "dpo" && (how == "orpo" || how == "simpo") {
			stage = how
		}
		r.objective(stage, key, v)
	}
	r.trainingArguments(n)
	r.model(n, "model_name_or_path")
	if _, said := r.number(FieldSeq, n, "cutoff_len"); !said {
		r.assume(FieldSeq, "2048", "cutoff_len", "LLaMA-Factory DataArguments: cutoff_len is 2048")
	}
	r.use(n, "packing", "neat_packing", "padding_free", "compute_dtype")
	for _, k := range []string{"packing", "neat_packing", "padding_free"} {
		r.quiet(n, k)
	}
	r.words(FieldAttention, n, map[string]string{"auto": "sdpa", "disabled": "eager", "sdpa": "sdpa", "fa2": "flash", "fa3": "flash", "flash_attention_2": "flash"}, "flash_attn")
	r.llamaFactoryMethod(n)
	// It checkpoints unless told otherwise, with use_reentrant.
	if off, said, v, key := r.flag(n, "disable_gradient_checkpointing"); said {
		value := "full"
		if off {
			value = "none"
		}
		r.put(FieldCheckpointing, value, key, v)
	} else if _, fsdp := r.out.Settings[FieldCheckpointing]; !fsdp {
		r.assume(FieldCheckpointing, "full", "disable_gradient_checkpointing", "LLaMA-Factory ModelArguments: disable_gradient_checkpointing is false")
	}
	if n.get("use_reentrant_gc") != nil {
		r.either(FieldReentrant, n, "true", "false", "use_reentrant_gc")
	}
	r.either(FieldKernels, n, "liger", "", "enable_liger_kernel")
	r.either(FieldKernels, n, "unsloth", "", "use_unsloth")
	// Both are frozen unless the file says otherwise, which matters where there are images.
	for key, option := range map[string]string{"freeze_vision_tower": "freeze-vision", "freeze_multi_modal_projector": "freeze-projector"} {
		if frozen, said, _, _ := r.flag(n, key); frozen || !said && n.get("image_max_pixels") != nil {
			r.out.Options[option] = ""
		}
	}
	r.notModelled(n, "use_badam", "use_apollo", "shift_attn", "mixture_of_depths", "use_llama_pro", "reward_model", "ref_model", "freeze_extra_modules",
		"train_mm_proj_only", "moe_aux_loss_coef", "additional_target", "upcast_lmhead_output", "use_mca", "use_unsloth_gc", "use_kt", "pissa_init")
	r.quiet(n, "pref_beta", "pref_loss", "pref_ftx", "upcast_layernorm", "freeze_language_model", "quantization_device_map", "infer_backend", "infer_dtype",
		"simpo_gamma", "ppo_epochs", "kto_chosen_weight", "kto_rejected_weight", "use_swanlab", "double_quantization", "quantization_method", "use_v1_kernels", "use_kv_cache", "image_max_pixels", "video_max_pixels", "create_new_adapter", "adapter_name_or_path", "enable_thinking", "val_size", "max_samples", "sample_backend")
	if v := n.get("use_muon"); v != nil {
		r.either(FieldOptimizer, n, "muon", "", "use_muon")
	}
	if on, _, v, key := r.flag(n, "use_galore"); on {
		r.put(FieldOptimizer, "galore_adamw", key, v)
	}
	for _, k := range n.keys {
		if len(k) > 7 && (k[:7] == "galore_" || k[:7] == "apollo_") {
			r.quiet(n, k)
		}
	}
}

func (r *reader) llamaFactoryMethod(n *node) {
	r.quantised(n)
	kind := r.words(FieldMethod, n, map[string]string{"lora": "lora", "full": "full", "freeze": "frozen", "oft": ""}, "finetuning_type")
	if kind == "" {
		if n.get("finetuning_type") == nil {
			r.assume(FieldMethod, string(LoRA), "finetuning_type", "LLaMA-Factory FinetuningArguments: finetuning_type is lora")
		}
		kind = string(LoRA)
	}
	if v := n.get("finetuning_type"); v != nil && v.text == "oft" {
		r.warn(WarnNotModelled, v, "finetuning_type", "oft")
		r.put(FieldMethod, string(LoRA), "finetuning_type", v)
	}
	autocast := r.out.Settings[FieldAutocast]
	// Trained weights are turned into float32 unless pure_bf16, ZeRO-3 or FSDP.
	if pure, _, v, key := r.flag(n, "pure_bf16"); pure {
		r.put(FieldWeights, "bf16", key, v)
		if autocast.Value == "" { // it computes in the weights' dtype
			r.put(FieldAutocast, "none", key, v)
		}
	}
	switch kind {
	case "lora":
		if _, said := r.number(FieldRank, n, "lora_rank"); !said {
			r.assume(FieldRank, "8", "lora_rank", "LLaMA-Factory: lora_rank is 8")
		}
		r.targets(n, "lora_target")
		if r.out.Settings[FieldTargets].Value == "" {
			r.assume(FieldTargets, "all-linear", "lora_target", "LLaMA-Factory: lora_target is all")
		}
		r.text(FieldDropout, n, "lora_dropout")
		r.either(FieldMethod, n, string(DoRA), "", "use_dora")
		if autocast.Value != "" { // the base is loaded in the compute dtype
			r.out.Settings[FieldWeights] = autocast
		}
	case "frozen":
		if v, key := r.use(n, "freeze_trainable_layers"); v != nil {
			s, _ := v.str()
			r.warn(WarnNotModelled, v, key, s)
		}
	}
	for _, k := range []string{"lora_rank", "lora_dropout", "lora_target", "use_dora", "pure_bf16", "freeze_trainable_layers", "freeze_trainable_modules"} {
		r.quiet(n, k)
	}
}
