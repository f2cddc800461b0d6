package workload

import "strings"

// accelerate reads the file of `accelerate config`.
// Source: accelerate commands/config/config_args.py, commands/launch.py.
func (r *reader) accelerate(n *node) {
	r.number(FieldGPUs, n, "num_processes")
	r.use(n, "num_machines", "gpu_ids", "machine_rank")
	r.words(FieldAutocast, n, map[string]string{"no": "none", "false": "none", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8"}, "mixed_precision")
	r.number(FieldAccumulation, n, "gradient_accumulation_steps")
	r.parallelism(n.get("parallelism_config"), "parallelism_config_")
	kind, _ := n.get("distributed_type").str()
	v, key := r.use(n, "distributed_type")
	switch strings.ToUpper(strings.TrimPrefix(kind, "DistributedType.")) {
	case "", "NO":
	case "MULTI_GPU":
		r.put(FieldSharding, string(DDP), key, v)
	case "FSDP":
		r.put(FieldSharding, string(FSDP), key, v)
		if c := n.get("fsdp_config"); c != nil {
			r.fsdpPlugin(c, string(FSDP))
		}
	case "DEEPSPEED":
		r.acceleratedDeepSpeed(n.get("deepspeed_config"))
	case "MEGATRON_LM":
		r.acceleratedMegatron(n.get("megatron_lm_config"))
	default:
		r.warn(WarnNotModelled, v, key, kind)
	}
	if is, said, v, key := r.flag(n, "use_cpu"); said && is {
		r.warn(WarnNotModelled, v, key, "true")
	}
	if c := n.get("dynamo_config"); c != nil {
		markAll(c)
		if b, _ := c.get("dynamo_backend").str(); b != "" && !strings.EqualFold(b, "no") {
			r.put(FieldCompile, "true", "dynamo_backend", c)
		}
	}
	for _, k := range []string{"fsdp_config", "deepspeed_config", "megatron_lm_config", "tpu_env", "fp8_config", "ipex_config", "mpirun_config"} {
		r.quiet(n, k) // those of other distributed types have no effect
	}
}

// acceleratedDeepSpeed reads accelerate's own words for DeepSpeed, or the file
// that they name.
func (r *reader) acceleratedDeepSpeed(c *node) {
	if c == nil {
		return
	}
	c.read = true
	if v, key := r.use(c, "deepspeed_config_file"); v != nil {
		s, _ := v.str()
		r.follow(v, key, s)
	}
	if v, key := r.use(c, "zero_stage"); v != nil {
		s, _ := v.str()
		r.zeroStage(v, key, s)
	}
	r.words(FieldAccumulation, c, nil)
	r.number(FieldAccumulation, c, "gradient_accumulation_steps")
	r.offloaded(c, "offload_optimizer_device", "offload_param_device")
	for _, k := range c.keys {
		markAll(c.child(k))
	}
}

func (r *reader) zeroStage(v *node, key, stage string) {
	m, ok := map[string]string{"0": "ddp", "1": "zero1", "2": "zero2", "3": "zero3"}[stage]
	if !ok {
		r.warn(WarnUnknownValue, v, key, stage)
		return
	}
	r.put(FieldSharding, m, key, v)
}

// offloaded states what DeepSpeed keeps in host memory.
func (r *reader) offloaded(c *node, optimizer, params string) {
	off := func(key string) (*node, string, bool) {
		v, k := r.use(c, key)
		s, _ := v.str()
		s = strings.ToLower(s)
		return v, k, s == "cpu" || s == "nvme"
	}
	if v, k, is := off(optimizer); is {
		r.put(FieldOffload, string(OffloadOptimizer), k, v)
	}
	if v, k, is := off(params); is {
		r.put(FieldOffload, string(OffloadParams), k, v)
	}
}

// acceleratedMegatron reads accelerate's plug-in for Megatron-LM.
func (r *reader) acceleratedMegatron(c *node) {
	if c == nil {
		return
	}
	c.read = true
	r.number(FieldTensor, c, "megatron_lm_tp_degree")
	r.number(FieldPipeline, c, "megatron_lm_pp_degree")
	r.number(FieldAccumulation, c, "megatron_lm_num_micro_batches")
	r.either(FieldSequence, c, "true", "false", "megatron_lm_sequence_parallelism")
	r.either(FieldCheckpointing, c, "selective", "none", "megatron_lm_recompute_activations")
	r.either(FieldSharding, c, "zero1", "ddp", "megatron_lm_use_distributed_optimizer")
	r.quiet(c, "megatron_lm_gradient_clipping")
}
