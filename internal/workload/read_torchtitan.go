package workload

import "strings"

func looksTorchtitan(n *node) int {
	c := 0
	for _, k := range []string{"training", "parallelism", "activation_checkpoint", "job", "experimental", "float8", "metrics", "profiling", "compile"} {
		if v := n.child(k); v != nil && v.shape == object {
			c++
		}
	}
	if n.at("model.flavor") != nil {
		c += 2
	}
	if c < 2 {
		return 0
	}
	return c
}

// torchtitan reads the TOML of a job.
// Source: torchtitan config/job_config.py (2025); the older names of 2024.
func (r *reader) torchtitan(n *node) {
	r.put(FieldFramework, string(Torchtitan), "training", n.get("training"))
	if v, _ := r.use(n, "model.flavor"); v != nil {
		family, _ := n.at("model.name").str()
		flavor, _ := v.str()
		r.put(FieldModel, titanModel(family, flavor), "model.flavor", v)
	}
	r.use(n, "model.name")
	if _, said := r.number(FieldMicroBatch, n, "training.local_batch_size", "training.batch_size"); !said {
		r.assume(FieldMicroBatch, "8", "training.local_batch_size", "torchtitan: training.local_batch_size is 8")
	}
	if _, said := r.number(FieldSeq, n, "training.seq_len"); !said {
		r.assume(FieldSeq, "2048", "training.seq_len", "torchtitan: training.seq_len is 2048")
	}
	if v := n.at("training.global_batch_size"); v != nil {
		if i, ok := v.integer(); ok && i > 0 {
			r.number(FieldGlobalBatch, n, "training.global_batch_size")
		}
		v.read = true
	}
	for f, keys := range sorted(map[Field][]string{
		FieldTensor:   {"parallelism.tensor_parallel_degree", "training.tensor_parallel_degree"},
		FieldPipeline: {"parallelism.pipeline_parallel_degree", "experimental.pipeline_parallel_degree"},
		FieldContext:  {"parallelism.context_parallel_degree", "experimental.context_parallel_degree"},
		FieldExpert:   {"parallelism.expert_parallel_degree"},
	}) {
		r.number(f, n, keys...)
	}
	r.titanSharding(n)
	r.words(FieldReshard, n, map[string]string{"default": "", "always": "always", "never": "never"}, "parallelism.fsdp_reshard_after_forward")
	mode := r.words(FieldCheckpointing, n, map[string]string{"none": "none", "selective": "selective", "full": "full", "memory_budget": ""}, "activation_checkpoint.mode")
	if v, key := r.use(n, "activation_checkpoint.selective_ac_option"); v != nil && mode == "selective" {
		if s, _ := v.str(); s != "op" {
			r.warn(WarnNotModelled, v, key, s)
		}
	}
	if mode == "" && n.at("activation_checkpoint.mode") == nil {
		r.assume(FieldCheckpointing, "selective", "activation_checkpoint.mode", "torchtitan: activation_checkpoint.mode is selective")
	}
	r.titanNumbers(n)
	r.titanOptimizer(n)
	r.either(FieldCompile, n, "true", "", "compile.enable", "training.compile")
	r.either(FieldOffload, n, string(OffloadParams), "", "training.enable_cpu_offload", "experimental.enable_cpu_offload")
	r.notModelled(n, "activation_checkpoint.memory_budget", "parallelism.enable_async_tensor_parallel", "experimental.enable_async_tensor_parallel", "parallelism.expert_tensor_parallel_degree",
		"memory_estimation.enabled", "lora", "quantize")
	r.quiet(n, "memory_estimation", "compile", "checkpoint", "lr_scheduler", "metrics", "profiling", "job", "comm", "validation", "fault_tolerance", "debug")
	for _, section := range []string{"parallelism", "training", "experimental", "model", "optimizer", "activation_checkpoint", "float8", "quantize"} {
		c := n.get(section)
		for _, k := range []string{"pipeline_parallel_schedule", "pipeline_parallel_schedule_csv", "pipeline_parallel_microbatches", "pipeline_parallel_microbatch_size", "pipeline_parallel_layers_per_stage", "pipeline_parallel_split_points", "disable_loss_parallel",
			"enable_loss_parallel", "data_parallel_type", "context_parallel_rotate_method", "gc_debug", "hf_assets_path", "tokenizer_path", "print_after_conversion", "implementation", "custom_import", "custom_args_module", "filter_fqns", "converters", "warmup_steps",
			"precompute_float8_dynamic_scale_for_fsdp", "force_recompute_fp8_weight_in_bwd", "emulate", "moe_fqns_prototype", "early_stop", "per_op_sac_force_recompute_mm_shapes_by_fqns", "enable_compiled_autograd", "norm_type", "module_fqns_per_model_part"} {
			r.quiet(c, k)
		}
	}
}

// titanModel names torchtitan's models as they are published.
func titanModel(family, flavor string) string {
	switch strings.ToLower(family) {
	case "llama3":
		return "llama-3.1-" + strings.ToLower(flavor)
	case "llama2":
		return "llama-2-" + strings.ToLower(flavor)
	}
	return family + "-" + flavor
}

// titanSharding: FSDP2 over all ranks that are left unless a degree says less.
func (r *reader) titanSharding(n *node) {
	v, key := r.use(n, "parallelism.data_parallel_shard_degree", "training.data_parallel_shard_degree", "training.data_parallel_degree")
	replicate, at := r.use(n, "parallelism.data_parallel_replicate_degree", "training.data_parallel_replicate_degree")
	shard, ok := v.integer()
	many, _ := replicate.integer()
	switch {
	case !ok || shard < 0:
		r.put(FieldSharding, string(FSDP2), "parallelism", n.get("parallelism"))
	case shard > 1:
		r.put(FieldSharding, string(FSDP2), key, v)
		if many > 1 {
			r.put(FieldShard, v.text, key, v)
		}
	case many > 1 || many < 0:
		r.put(FieldSharding, string(DDP), at, replicate)
	default:
		r.put(FieldSharding, string(FSDP2), key, v)
	}
}

func (r *reader) titanNumbers(n *node) {
	r.use(n, "training.mixed_precision_param", "training.mixed_precision_reduce")
	for _, k := range []string{"training.mixed_precision_param", "training.mixed_precision_reduce", "training.dtype"} {
		r.use(n, k)
	}
	if v := n.at("training.dtype"); v != nil {
		if s, _ := v.str(); s != "" && s != "float32" { // weights in another dtype
			r.warn(WarnNotModelled, v, "training.dtype", s)
		}
	}
	dtype := "amp-bf16"
	at, key := n.at("training.mixed_precision_param"), "training.mixed_precision_param"
	if s, _ := at.str(); s == "float32" {
		dtype = "fp32"
	}
	eight := n.get("float8")
	on, _ := n.at("float8.enable_float8_linear").truth()
	for _, c := range append(n.at("model.converters").texts(), n.at("quantize.linear.float8").texts()...) {
		on = on || strings.Contains(c, "float8")
	}
	if on {
		dtype, at, key = "fp8", eight, "float8"
		if gather, _ := n.at("float8.enable_fsdp_float8_all_gather").truth(); gather {
			r.out.Options["fp8-all-gather"] = ""
		}
	}
	if eight != nil {
		markAll(eight)
	}
	if at == nil {
		r.assume(FieldDType, dtype, "training.mixed_precision_param", "torchtitan: training.mixed_precision_param is bfloat16")
		return
	}
	r.put(FieldDType, dtype, key, at)
}

func (r *reader) titanOptimizer(n *node) {
	name := "adamw"
	at, key := r.use(n, "optimizer.name")
	if at != nil {
		name, _ = at.str()
		name = strings.ToLower(name)
	}
	how, _ := n.at("optimizer.implementation").str()
	fused, said := n.at("optimizer.fused").truth()
	if strings.HasPrefix(name, "adam") && (how == "fused" || how == "" && (!said || fused)) {
		name = "adamw_torch_fused"
	}
	if at == nil {
		r.assume(FieldOptimizer, name, "optimizer.name", "torchtitan: optimizer.name is AdamW, fused")
	} else {
		r.put(FieldOptimizer, name, key, at)
	}
	r.either(FieldInBackward, n, "true", "", "optimizer.early_step_in_backward")
	if o := n.get("optimizer"); o != nil {
		markAll(o)
	}
}
