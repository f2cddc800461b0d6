package workload

import "strings"

// looksDeepSpeed: the keys that every DeepSpeed configuration has one of.
func looksDeepSpeed(n *node) int {
	c := 0
	if n.get("zero_optimization") != nil {
		c += 4
	}
	c += among(1, "train_micro_batch_size_per_gpu", "train_batch_size", "gradient_clipping", "steps_per_print", "wall_clock_breakdown", "zero_allow_untested_optimizer", "tensor_parallel")(n)
	for _, k := range []string{"bf16", "fp16"} {
		if n.at(k+".enabled") != nil {
			c += 2
		}
	}
	return c
}

// deepSpeedSizes are the buffers whose sizes decide memory. They keep their own
// names as options of the workload.
var deepSpeedSizes = []string{"reduce_bucket_size", "allgather_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold", "stage3_max_live_parameters",
	"stage3_max_reuse_distance", "max_live_parameters", "max_reuse_distance", "contiguous_gradients", "overlap_comm", "reduce_scatter", "allgather_partitions"}

// deepSpeed reads a DeepSpeed JSON. "auto" is left to what the Trainer says.
// Source: DeepSpeed runtime/config.py, runtime/zero/config.py.
func (r *reader) deepSpeed(n *node) {
	n.read = true
	if r.out.Kind == KindDeepSpeed && r.depth == 0 {
		r.assume(FieldFramework, string(DeepSpeed), "", "the file is DeepSpeed's")
	}
	r.number(FieldMicroBatch, n, "train_micro_batch_size_per_gpu")
	r.number(FieldAccumulation, n, "gradient_accumulation_steps")
	r.number(FieldGlobalBatch, n, "train_batch_size")
	bf16, said16, v, _ := r.flag(n, "bf16.enabled", "bfloat16.enabled")
	if bf16 {
		r.put(FieldAutocast, "bf16", "bf16.enabled", v)
	}
	if fp16, _, v, _ := r.flag(n, "fp16.enabled"); fp16 {
		r.put(FieldAutocast, "fp16", "fp16.enabled", v)
	} else if !bf16 && said16 {
		_ = v
	}
	r.notModelled(n, "amp", "fp16.fp16_master_weights_and_grads", "data_types.grad_accum_dtype", "torch_autocast", "pipeline", "sparse_attention", "compression_training", "mics_shard_size")
	if z := n.get("zero_optimization"); z != nil {
		r.zero(z)
	}
	if v, key := r.use(n, "optimizer.type"); v != nil {
		s, _ := v.str()
		r.put(FieldOptimizer, deepSpeedOptimizer(s), key, v)
	}
	if o := n.get("optimizer"); o != nil {
		markAll(o)
	}
	r.number(FieldTensor, n, "tensor_parallel.autotp_size")
	r.number(FieldContext, n, "sequence_parallel_size")
	// Its checkpointing settings take effect only for models that call
	// deepspeed.checkpointing themselves.
	if v := n.get("activation_checkpointing"); v != nil {
		markAll(v)
		r.warn(WarnNoEffect, v, "activation_checkpointing", "…")
	}
	r.quiet(n, "scheduler", "communication_data_type", "prescale_gradients", "gradient_predivide_factor", "sparse_gradients", "zero_force_ds_cpu_optimizer", "compile", "checkpoint", "train_steps")
	for _, k := range []string{"bf16", "fp16", "bfloat16"} {
		if c := n.get(k); c != nil {
			markAll(c)
		}
	}
}

func (r *reader) zero(z *node) {
	z.read = true
	if v, key := r.use(z, "stage"); v != nil {
		s, _ := v.str()
		r.zeroStage(v, "zero_optimization."+key, s)
	}
	for key, what := range sorted(map[string]Offload{"offload_optimizer": OffloadOptimizer, "offload_param": OffloadParams}) {
		c := z.get(key)
		if c == nil {
			continue
		}
		d, _ := c.get("device").str()
		markAll(c)
		if d == "cpu" || d == "nvme" {
			if have := r.out.Settings[FieldOffload].Value; have != string(OffloadParams) {
				r.put(FieldOffload, string(what), key+".device", c.get("device"))
			}
		}
	}
	r.either(FieldOffload, z, string(OffloadOptimizer), "", "cpu_offload")
	r.either(FieldOffload, z, string(OffloadParams), "", "cpu_offload_params")
	r.either(FieldSave, z, string(SaveFull), "", "stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save")
	for _, k := range deepSpeedSizes {
		if v, _ := r.use(z, k); v != nil {
			r.out.Options[k], _ = v.str()
		}
	}
	r.notModelled(z, "zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients", "mics_shard_size")
	r.quiet(z, "sub_group_size", "gather_16bit_weights_on_model_save", "round_robin_gradients", "ignore_unused_parameters", "cpu_offload_use_pin_memory", "log_trace_cache_warnings", "memory_efficient_linear", "use_all_reduce_for_fetch_params", "leaf_module", "pipeline_loading_checkpoint", "override_module_apply")
}

// deepSpeedOptimizer names its optimizers as the field does.
func deepSpeedOptimizer(name string) string {
	switch strings.ToLower(name) {
	case "adam", "adamw", "fusedadam", "deepspeedcpuadam", "cpuadam":
		return "adamw"
	case "lion", "fusedlion":
		return "lion"
	case "sgd":
		return "sgd"
	case "adagrad":
		return "adagrad"
	case "muon":
		return "muon"
	}
	return strings.ToLower(name)
}
