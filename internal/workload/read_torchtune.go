package workload

import (
	"path"
	"regexp"
	"strings"
)

// looksTorchtune: things are built from the path of a Python object.
func looksTorchtune(n *node) int {
	c := 0
	for _, item := range n.items {
		if item.shape == object && item.child("_component_") != nil {
			c += 3
		}
	}
	return c
}

func component(n *node) string {
	s, _ := n.get("_component_").str()
	return s
}

// torchtune reads the YAML of a recipe.
// Source: torchtune recipes/*.py and recipes/configs.
func (r *reader) torchtune(n *node) {
	n0 := func(key string) *node { return n.get(key) }
	r.put(FieldFramework, string(Torchtune), "_component_", n0("model"))
	r.torchtuneModel(n)
	r.assume(FieldSharding, string(FSDP2), "", "torchtune's distributed recipes use fully_shard")
	for key, f := range sorted(map[string]Field{"batch_size": FieldMicroBatch, "gradient_accumulation_steps": FieldAccumulation, "tensor_parallel_dim": FieldTensor, "context_parallel_dim": FieldContext, "data_parallel_shard_dim": FieldShard}) {
		if v := n.get(key); v != nil {
			if i, ok := v.integer(); ok && i < 1 { // -1: all that are left
				v.read = true
				continue
			}
			r.number(f, n, key)
		}
	}
	if r.out.Settings[FieldAccumulation].Value == "" {
		r.assume(FieldAccumulation, "1", "gradient_accumulation_steps", "torchtune: gradient_accumulation_steps is 1")
	}
	if v := r.words(FieldDType, n, halfWords, "dtype"); v == "" {
		r.assume(FieldDType, "bf16", "dtype", "torchtune's recipes: dtype is bf16")
	}
	if o := n0("optimizer"); o != nil {
		name := component(o)
		fused, _ := o.get("fused").truth()
		base := strings.ToLower(name[strings.LastIndex(name, ".")+1:])
		switch {
		case strings.Contains(base, "pagedadamw8bit"):
			base = "paged_adamw_8bit"
		case strings.Contains(base, "8bit"):
			base = "adamw_8bit"
		case strings.Contains(base, "4bit"):
			base = "adamw_4bit"
		case strings.Contains(base, "pagedadam"):
			base = "paged_adamw"
		case strings.HasPrefix(base, "adam") && fused:
			base = "adamw_torch_fused"
		case strings.HasPrefix(base, "adam"):
			base = "adamw"
		}
		r.put(FieldOptimizer, base, "optimizer._component_", o.get("_component_"))
		markAll(o)
	}
	r.either(FieldInBackward, n, "true", "false", "optimizer_in_bwd")
	if l := n0("loss"); l != nil {
		markAll(l)
		if c := component(l); strings.Contains(c, "Chunked") || strings.Contains(c, "LinearCrossEntropy") {
			r.put(FieldLoss, string(LossChunked), "loss._component_", l.get("_component_"))
		}
	}
	r.either(FieldCheckpointing, n, "full", "none", "enable_activation_checkpointing")
	if v, key := r.use(n, "ac_mode"); v != nil {
		if s, _ := v.str(); s == "selective" {
			r.put(FieldCheckpointing, "selective", key, v)
		}
	}
	r.notModelled(n, "ac_option")
	r.either(FieldOffload, n, string(OffloadActivations), "", "enable_activation_offloading")
	r.either(FieldOffload, n, string(OffloadParams), "", "fsdp_cpu_offload")
	r.either(FieldReshard, n, "always", "never", "fsdp_reshard_after_forward")
	if c := n.get("compile"); c != nil && c.shape == object { // by part
		markAll(c)
		if on, _ := c.get("model").truth(); on {
			r.put(FieldCompile, "true", "compile.model", c.get("model"))
		}
	} else {
		r.either(FieldCompile, n, "true", "false", "compile")
	}
	if packed, said := n.at("dataset.packed").truth(); !said || !packed {
		r.out.Options["packed"] = "false"
	}
	if t := n0("tokenizer"); t != nil {
		r.number(FieldSeq, t, "max_seq_len")
		markAll(t)
	}
	r.notModelled(n, "quantizer", "teacher_model", "ref_checkpointer", "base_model_path", "reward_and_value_model", "num_generations", "grpo_samples", "forward_batch_size", "enable_fp8_training")
	r.quiet(n, "batch_size_val", "checkpointer", "tensor_parallel_plan", "clip_grad_norm", "metric_logger", "profiler", "dataset", "dataset_val", "log_level", "log_peak_memory_stats", "cudnn_deterministic_mode",
		"data_parallel_replicate_dim", "save_adapter_weights_only", "low_cpu_ram", "fp8_recipe_name", "float8_recipe_name", "memory_efficient_fsdp_wrap", "lr_scheduler", "output_dir", "temp_dir", "name")
}

var tuneBuilder = regexp.MustCompile(`^([a-z_]+?)(\d*)(?:_(\d))?_((?:\d_)?\d+b|mini)(?:_(?:base|instruct|classifier|reward.*))?$`)

// tuneModel names the model of one of torchtune's builders as it is published:
// llama3_1_8b is llama-3.1-8b, qwen2_5_0_5b_instruct is qwen2.5-0.5b.
func tuneModel(builder string) string {
	m := tuneBuilder.FindStringSubmatch(builder)
	if m == nil {
		return strings.ReplaceAll(builder, "_", "-")
	}
	family, version, size := strings.ReplaceAll(m[1], "_", ""), m[2], strings.ReplaceAll(m[4], "_", ".")
	if m[3] != "" {
		version += "." + m[3]
	}
	switch {
	case family == "codellama":
		return "codellama-" + size
	case family == "mistral":
		return "mistral-" + size + "-v0.1"
	case family == "phi" && version == "4":
		return "phi-4"
	case family == "llama" && version == "3.3":
		return "llama-3.1-" + size // of the same sizes
	case family == "qwen":
		return family + version + "-" + size
	case version == "":
		return family + "-" + size
	}
	return family + "-" + version + "-" + size
}

// torchtuneModel reads the builder of the model: the checkpoint's folder names
// the model, else the builder does.
func (r *reader) torchtuneModel(n *node) {
	m := n.get("model")
	name := component(m)
	base := name[strings.LastIndex(name, ".")+1:]
	plain, quantised := strings.CutPrefix(base, "qlora_")
	plain, adapted := strings.CutPrefix(plain, "lora_")
	if at := n.at("checkpointer.checkpoint_dir"); at != nil {
		if dir, _ := at.str(); dir != "" && !strings.Contains(dir, "$") && !strings.Contains(path.Base(path.Clean(dir)), "_output") && path.Base(path.Clean(dir)) != "tmp" {
			r.put(FieldModel, strings.TrimSuffix(path.Clean(dir), "/original"), "checkpointer.checkpoint_dir", at)
		}
	}
	if _, ok := r.out.Settings[FieldModel]; !ok && plain != "" {
		r.put(FieldModel, tuneModel(plain), "model._component_", m.get("_component_"))
	}
	if m == nil {
		return
	}
	quantised = quantised || func() bool { b, _ := m.get("quantize_base").truth(); return b }()
	dora, _ := m.get("use_dora").truth()
	if adapted || quantised {
		method := LoRA
		switch {
		case dora && quantised:
			method = QDoRA
		case dora:
			method = DoRA
		case quantised:
			method = QLoRA
		}
		r.put(FieldMethod, string(method), "model._component_", m.get("_component_"))
		if quantised {
			r.put(FieldBase, string(NF4Double), "model._component_", m.get("_component_"))
		}
		r.number(FieldRank, m, "lora_rank")
		r.text(FieldDropout, m, "lora_dropout")
		var targets []string
		for _, t := range m.get("lora_attn_modules").texts() {
			targets = append(targets, strings.Replace(t, "output_proj", "o_proj", 1))
		}
		if mlp, _ := m.get("apply_lora_to_mlp").truth(); mlp {
			targets = append(targets, "gate_proj", "up_proj", "down_proj")
		}
		if len(targets) > 0 {
			r.put(FieldTargets, strings.Join(targets, ","), "lora_attn_modules", m.get("lora_attn_modules"))
		}
		if head, _ := m.get("apply_lora_to_output").truth(); head {
			r.warn(WarnNotModelled, m.get("apply_lora_to_output"), "apply_lora_to_output", "true")
		}
	}
	markAll(m)
}
