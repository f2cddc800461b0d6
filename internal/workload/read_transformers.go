package workload

import (
	"strconv"
	"strings"
)

// looksTransformers: transformers' TrainingArguments, which TRL's configurations
// and the arguments of most scripts extend.
func looksTransformers(n *node) int {
	return among(1, "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "output_dir", "gradient_checkpointing",
		"model_name_or_path", "learning_rate", "per_device_eval_batch_size", "lr_scheduler_type")(n)
}

// trlKeys are those of TRL's SFTConfig and ModelConfig that nobody else has.
var trlKeys = []string{"dataset_text_field", "assistant_only_loss", "completion_only_loss", "packing", "packing_strategy", "use_peft", "lora_target_modules", "eos_token",
	"activation_offloading", "padding_free"}

func (r *reader) transformers(n *node) {
	r.trainingArguments(n)
	r.modelArguments(n)
	r.lengths(n)
	trl := among(1, trlKeys...)(n) > 0
	if trl && r.out.Settings[FieldSeq].Value == "" {
		r.assume(FieldSeq, "1024", "max_length", "TRL SFTConfig: max_length is 1024")
	}
	r.peftArguments(n)
	r.notModelled(n, "ref_model", "beta_dpo", "precompute_ref_log_probs", "num_generations", "reward_model_path")
}

// words of the settings that several frameworks share.
var (
	halfWords      = map[string]string{"float32": "fp32", "fp32": "fp32", "bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32", "half": "fp16", "float": "fp32", "32": "fp32"}
	attentionWords = map[string]string{"eager": "eager", "sdpa": "sdpa", "flash_attention_2": "flash", "flash_attention_3": "flash", "flash_attention_4": "flash", "flex_attention": "flex", "kernels-community/flash-attn": "flash", "kernels-community/flash-attn2": "flash", "kernels-community/flash-attn3": "flash", "kernels-community/vllm-flash-attn3": "flash", "xformers": "mem-efficient", "sage": "flash"}
)

// objective states what the loss asks for, in the words of LLaMA-Factory's stage
// and of Axolotl's rl. IPO is DPO with another formula over the same tensors.
func (r *reader) objective(word, key string, v *node) {
	switch word {
	case "", "sft", "pt":
	case "dpo", "kto", "simpo", "orpo", "cpo", "ppo", "grpo":
		r.put(FieldObjective, word, key, v)
	case "rm", "reward":
		r.put(FieldObjective, string(Reward), key, v)
	case "ipo":
		r.put(FieldObjective, string(DPO), key, v)
	default:
		r.warn(WarnNotModelled, v, key, word)
	}
}

// trainingArguments reads what TrainingArguments has.
// Source of names and defaults: transformers training_args.py.
func (r *reader) trainingArguments(n *node) {
	r.assume(FieldFramework, string(HFTrainer), "", "the file is of transformers' Trainer")
	if _, said := r.number(FieldMicroBatch, n, "per_device_train_batch_size", "per_gpu_train_batch_size"); !said {
		r.assume(FieldMicroBatch, "8", "per_device_train_batch_size", "TrainingArguments: per_device_train_batch_size is 8")
	}
	if _, said := r.number(FieldAccumulation, n, "gradient_accumulation_steps"); !said {
		r.assume(FieldAccumulation, "1", "gradient_accumulation_steps", "TrainingArguments: gradient_accumulation_steps is 1")
	}
	bf16 := r.either(FieldAutocast, n, "bf16", "", "bf16")
	if !bf16 && !r.either(FieldAutocast, n, "fp16", "", "fp16") {
		r.assume(FieldAutocast, "none", "bf16", "TrainingArguments: bf16 and fp16 are off")
	}
	r.use(n, "fp16")
	// They act on an evaluation by itself, never on one while training goes on.
	r.quiet(n, "fp16_full_eval", "bf16_full_eval", "half_precision_backend", "fp16_opt_level", "fp16_backend")
	if r.text(FieldOptimizer, n, "optim") == "" {
		r.assume(FieldOptimizer, "adamw_torch_fused", "optim", "TrainingArguments: optim is adamw_torch_fused from torch 2.8 on")
	}
	r.notModelled(n, "optim_target_modules", "auto_find_batch_size", "ema")
	r.quiet(n, "optim_args", "torch_empty_cache_steps", "ddp_bucket_cap_mb")
	r.either(FieldCheckpointing, n, "full", "none", "gradient_checkpointing")
	r.either(FieldReentrant, n, "true", "false", "gradient_checkpointing_kwargs.use_reentrant")
	r.either(FieldCompile, n, "true", "", "torch_compile")
	r.quiet(n, "torch_compile_mode", "torch_compile_backend", "accelerator_config", "trackio_space_id", "average_tokens_across_devices")
	r.either(FieldKernels, n, "liger", "", "use_liger_kernel", "use_liger", "use_liger_loss")
	r.quiet(n, "liger_kernel_config")
	r.either(FieldOffload, n, "activations", "", "activation_offloading")
	r.number(FieldTensor, n, "tp_size", "tensor_parallel_size")
	r.parallelism(n.get("parallelism_config"), "")
	r.fsdpArguments(n)
	r.deepSpeedArgument(n)
	r.trainerPassages(n)
}

// deepSpeedArgument follows --deepspeed: a file, or its content.
func (r *reader) deepSpeedArgument(n *node) {
	v, key := r.use(n, "deepspeed", "deepspeed_config", "deepspeed_config_file", "ds_config")
	switch {
	case v == nil:
	case v.shape == object:
		r.deepSpeed(v)
	default:
		if s, _ := v.str(); s != "" && s != "true" && s != "false" {
			r.follow(v, key, s)
		}
	}
}

// fsdpArguments reads the Trainer's fsdp and fsdp_config.
func (r *reader) fsdpArguments(n *node) {
	c := n.get("fsdp_config")
	if c != nil && c.shape == scalar { // a file
		c.read = true
		s, _ := c.str()
		if found, ok := r.find(s); ok {
			if data, err := r.open(found); err == nil {
				if t, err := parse(found, data); err == nil {
					c = t
				}
			}
		} else {
			r.warn(WarnMissingFile, c, "fsdp_config", s)
		}
	}
	v, key := r.use(n, "fsdp")
	var words []string
	if v != nil {
		markAll(v)
		words = v.texts()
		if b, ok := v.truth(); ok && b {
			words = []string{"full_shard"}
		} else if ok {
			words = nil
		}
	}
	if len(words) == 0 && (v != nil || c == nil || c.shape != object || len(c.keys) == 0 || r.out.Kind != KindAxolotl) {
		if c != nil {
			markAll(c)
		}
		return
	}
	at := v
	if at == nil {
		at, key = c, "fsdp_config"
	}
	sharding := string(FSDP)
	if two, _ := n.get("fsdp_version").integer(); two == 2 {
		sharding = string(FSDP2)
	}
	r.use(n, "fsdp_version")
	for _, w := range words {
		switch strings.ToLower(w) {
		case "full_shard", "auto_wrap":
		case "shard_grad_op":
			r.put(FieldReshard, "never", key, at)
		case "no_shard":
			sharding = string(DDP)
			r.out.Options["fsdp-no-shard"] = ""
		case "hybrid_shard", "hybrid_shard_zero2":
			r.warn(WarnNotModelled, at, key, w)
		case "offload":
			r.put(FieldOffload, string(OffloadParams), key, at)
		}
	}
	r.put(FieldSharding, sharding, key, at)
	if c != nil && c.shape == object {
		r.fsdpPlugin(c, sharding)
	}
}

// fsdpPlugin reads the options of accelerate's FSDP, with or without the prefix
// that its environment needs.
// Source: accelerate utils/dataclasses.py, FullyShardedDataParallelPlugin.
func (r *reader) fsdpPlugin(c *node, sharding string) {
	c.read = true
	either := func(k string) []string { return []string{"fsdp_" + k, k} }
	if v, key := r.use(c, append(either("version"), "fsdp_version")...); v != nil {
		if i, _ := v.integer(); i == 2 {
			sharding = string(FSDP2)
			r.put(FieldSharding, sharding, key, v)
		}
	}
	if v, key := r.use(c, either("sharding_strategy")...); v != nil {
		switch s, _ := v.str(); strings.ToUpper(s) {
		case "FULL_SHARD", "1":
		case "SHARD_GRAD_OP", "2":
			r.put(FieldReshard, "never", key, v)
		case "NO_SHARD", "3":
			r.put(FieldSharding, string(DDP), key, v)
			r.out.Options["fsdp-no-shard"] = ""
		default:
			r.warn(WarnNotModelled, v, key, s)
		}
	}
	if v, key := r.use(c, either("reshard_after_forward")...); v != nil {
		s, _ := v.str()
		switch strings.ToLower(s) {
		case "false", "shard_grad_op":
			r.put(FieldReshard, "never", key, v)
		case "true", "full_shard":
		default:
			r.warn(WarnNotModelled, v, key, s)
		}
	}
	r.either(FieldOffload, c, string(OffloadParams), "", either("offload_params")...)
	r.either(FieldOffload, c, string(OffloadParams), "", either("cpu_offload")...)
	r.either(FieldCheckpointing, c, "full", "", either("activation_checkpointing")...)
	r.stateDictType(c, sharding, either("state_dict_type")...)
	for _, k := range c.keys { // the rest is about wrapping, loading and saving
		markAll(c.child(k))
	}
}

// parallelism reads accelerate's ParallelismConfig.
func (r *reader) parallelism(c *node, prefix string) {
	if c == nil {
		return
	}
	c.read = true
	r.number(FieldTensor, c, prefix+"tp_size")
	r.number(FieldContext, c, prefix+"cp_size", prefix+"sp_size")
	if v, key := r.use(c, prefix+"dp_shard_size"); v != nil {
		if i, ok := v.integer(); ok && i > 1 {
			cp := max(r.numberOf(FieldContext), 1)
			r.put(FieldShard, strconv.FormatInt(i*cp, 10), key, v)
			if r.out.Settings[FieldSharding].Value == "" {
				r.put(FieldSharding, string(FSDP2), key, v)
			}
		}
	}
	for _, k := range c.keys {
		markAll(c.child(k))
	}
}

// numberOf is what has been stated so far.
func (r *reader) numberOf(f Field) int64 {
	n, _ := wholeNumber(r.out.Settings[f].Value)
	return n
}

// modelArguments reads which model, and how it is loaded.
func (r *reader) modelArguments(n *node) {
	r.model(n, "model_name_or_path", "base_model", "model_path", "pretrained_model_name_or_path", "model_name", "model_id", "config_name")
	r.use(n, "config_name", "tokenizer_name", "tokenizer_name_or_path")
	r.words(FieldWeights, n, halfWords, "torch_dtype", "dtype", "model_dtype")
	r.words(FieldAttention, n, attentionWords, "attn_implementation", "attn_impl")
	if is, _, v, key := r.flag(n, "use_flash_attn", "use_flash_attention_2", "flash_attn", "use_flash_attention"); is {
		r.put(FieldAttention, "flash", key, v)
	}
}

// lengths reads how long a sample is, in the words of the scripts.
func (r *reader) lengths(n *node) {
	r.number(FieldSeq, n, "max_length", "max_seq_length", "max_seq_len", "block_size", "model_max_length", "seq_length", "max_source_length", "cutoff_len", "sequence_len")
	r.number(FieldTargetSeq, n, "max_target_length")
	r.use(n, "max_target_length", "max_prompt_length", "val_max_target_length")
	if is, said, v, key := r.flag(n, "padding_free"); said && is {
		r.out.Options["padding-free"] = ""
		_ = v
		_ = key
	}
	r.use(n, "packing", "pad_to_max_length", "pad_to_multiple_of", "group_by_length")
}

// peftArguments reads adapters and quantised bases in the words of TRL's
// ModelConfig, peft's examples and qlora.py.
func (r *reader) peftArguments(n *node) {
	lora, said, at, key := r.flag(n, "use_peft", "use_lora", "lora_enable", "use_peft_lora", "peft")
	_, hasRank := r.number(FieldRank, n, "lora_r", "lora_rank", "peft_lora_r")
	r.targets(n, "lora_target_modules", "lora_target", "target_modules")
	r.text(FieldDropout, n, "lora_dropout")
	quant := r.quantised(n)
	dora := r.either(FieldMethod, n, "dora", "", "use_dora", "lora_use_dora")
	switch {
	case said && !lora:
		delete(r.out.Settings, FieldRank)
		delete(r.out.Settings, FieldTargets)
		delete(r.out.Settings, FieldDropout)
		return
	case dora:
	case lora:
		r.put(FieldMethod, string(LoRA), key, at)
	case hasRank:
		r.put(FieldMethod, string(LoRA), "lora_r", n.get("lora_r"))
	case quant:
		r.put(FieldMethod, string(QLoRA), "load_in_4bit", n.get("load_in_4bit"))
	default:
		return
	}
	if !hasRank && lora {
		r.assume(FieldRank, "16", "lora_r", "TRL ModelConfig: lora_r is 16")
	}
	r.modulesToSave(n, "lora_modules_to_save", "modules_to_save")
}

func (r *reader) modulesToSave(n *node, keys ...string) {
	if v, key := r.use(n, keys...); v != nil {
		markAll(v)
		if t := v.texts(); len(t) > 0 {
			r.out.Options["modules-to-save"] = strings.Join(t, ",")
			r.warn(WarnNotModelled, v, key, strings.Join(t, ", "))
		}
	}
}

// targets states the modules that get adapters.
func (r *reader) targets(n *node, keys ...string) {
	v, key := r.use(n, keys...)
	if v == nil {
		return
	}
	markAll(v)
	t := v.texts()
	if len(t) == 1 && (t[0] == "all" || t[0] == "all-linear") {
		t = []string{"all-linear"}
	}
	for i := range t { // a path or a pattern: its last name
		t[i] = strings.Trim(t[i][strings.LastIndexAny(t[i], ".|")+1:], `()$\[]"'`)
	}
	if len(t) > 0 {
		r.put(FieldTargets, strings.Join(t, ","), key, v)
	}
}

// quantised reads bitsandbytes' settings.
func (r *reader) quantised(n *node) bool {
	base := ""
	four, _, v, key := r.flag(n, "load_in_4bit", "use_4bit_quantization", "use_4bit")
	if bits, at := r.use(n, "bits", "quantization_bit"); bits != nil {
		if i, _ := bits.integer(); i == 4 || i == 8 {
			v, key, four = bits, at, i == 4
			if i == 8 {
				base = string(Int8)
			}
		}
	}
	if eight, _, at, name := r.flag(n, "load_in_8bit", "use_8bit_quantization"); eight {
		v, key, base = at, name, string(Int8)
	}
	if four {
		base = string(NF4)
		double, said, _, _ := r.flag(n, "use_bnb_nested_quant", "bnb_4bit_use_double_quant", "double_quant", "use_nested_quant", "double_quantization")
		if double || !said && (r.out.Kind == KindLLaMAFactory || r.out.Kind == KindAxolotl) {
			base = string(NF4Double)
		}
	}
	r.use(n, "use_bnb_nested_quant", "bnb_4bit_use_double_quant", "double_quant", "use_nested_quant", "double_quantization", "bnb_4bit_quant_type", "quant_type", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage", "quantization_type", "quantization_method")
	for _, k := range []string{"bnb_4bit_quant_type", "quant_type", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage", "quantization_type", "quantization_method"} {
		r.use(n, k)
	}
	if base == "" {
		return false
	}
	r.put(FieldBase, base, key, v)
	return true
}

// peft reads an adapter_config.json.
func (r *reader) peft(n *node) {
	kind, _ := n.get("peft_type").str()
	v, key := r.use(n, "peft_type")
	if strings.ToUpper(kind) != "LORA" {
		r.warn(WarnNotModelled, v, key, kind)
	}
	method := string(LoRA)
	if dora, _, _, _ := r.flag(n, "use_dora"); dora {
		method = string(DoRA)
	}
	r.put(FieldMethod, method, "peft_type", v)
	r.number(FieldRank, n, "r")
	r.targets(n, "target_modules")
	r.text(FieldDropout, n, "lora_dropout")
	r.model(n, "base_model_name_or_path")
	r.modulesToSave(n, "modules_to_save")
	if r.out.Settings[FieldRank].Value == "" {
		r.assume(FieldRank, "8", "r", "peft LoraConfig: r is 8")
	}
	for _, k := range n.keys {
		markAll(n.child(k))
	}
}
