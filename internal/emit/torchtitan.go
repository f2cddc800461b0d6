package emit

import (
	"strconv"
	"strings"

	"unoom/internal/workload"
)

// writeTorchtitan writes the TOML of torchtitan 0.2. Later versions configure by
// Python modules and read no TOML.
//
// Source: torchtitan v0.2.2 torchtitan/config/job_config.py,
// distributed/parallel_dims.py, distributed/pipeline_parallel.py.
func writeTorchtitan(s *sheet) ([]File, error) {
	w := s.w
	p := &w.Parallel
	if w.Method != workload.Full {
		return nil, s.cannot("method")
	}
	if err := s.refuse("optimizer-in-backward", "image", "target-seq"); err != nil {
		return nil, err
	}
	s.say("method")
	var train, par, ac, opt, comp, quant, mod object
	train.set("local_batch_size", w.MicroBatch*microBatches(w))
	train.set("global_batch_size", w.GlobalBatch())
	train.set("seq_len", w.Seq)
	s.say("micro-batch", "accum", "seq")
	switch w.Precision {
	case workload.FP32:
		train.set("dtype", "float32")
		train.set("mixed_precision_param", "float32")
	case workload.AMPBF16:
		train.set("dtype", "float32")
		train.set("mixed_precision_param", "bfloat16")
	case workload.BF16:
		train.set("dtype", "bfloat16")
		train.set("mixed_precision_param", "bfloat16")
	default:
		return nil, s.cannot("dtype")
	}
	s.say("dtype")
	replicate, shard := p.Data, int64(1)
	switch w.Sharding {
	case workload.NoSharding, workload.DDP, "":
	case workload.FSDP, workload.FSDP2:
		replicate, shard = 1, p.Data
		if s.has("shard") {
			shard = p.Shard / max(p.Context, 1)
			if shard < 1 || p.Data%shard != 0 {
				return nil, s.cannot("shard")
			}
			replicate = p.Data / shard
			s.say("shard")
		}
	default:
		return nil, s.cannot("sharding")
	}
	if max(p.Tensor, 1) > 1 && replicate > 1 && shard == 1 {
		return nil, s.cannot("sharding") // plain DDP goes with no other dimension there
	}
	switch w.Offload {
	case workload.NoOffload, "":
	case workload.OffloadParams:
		if !w.Sharding.Sharded() {
			return nil, s.cannot("offload")
		}
		train.set("enable_cpu_offload", true)
		s.say("offload")
	default:
		return nil, s.cannot("offload")
	}
	par.set("data_parallel_replicate_degree", max(replicate, 1))
	par.set("data_parallel_shard_degree", max(shard, 1))
	if w.ReshardAfterForward != "" {
		par.set("fsdp_reshard_after_forward", w.ReshardAfterForward)
		s.say("reshard-after-forward")
	}
	s.say("sharding", "gpus")
	par.set("tensor_parallel_degree", max(p.Tensor, 1))
	if p.Tensor > 1 {
		// Its plan always shards the sequence between the parallel regions.
		s.say("tp", "sequence-parallel")
	}
	par.set("pipeline_parallel_degree", max(p.Pipeline, 1))
	if p.Pipeline > 1 {
		schedule := "1F1B"
		if p.Virtual > 1 {
			schedule = "Interleaved1F1B"
			if w.Model != nil {
				stages := int64(w.Model.Layers()) / (p.Pipeline * p.Virtual)
				par.put(stages > 0, "pipeline_parallel_layers_per_stage", stages)
			}
		}
		par.set("pipeline_parallel_schedule", schedule)
		par.set("pipeline_parallel_microbatch_size", w.MicroBatch)
	}
	par.set("context_parallel_degree", max(p.Context, 1))
	par.set("expert_parallel_degree", max(p.Expert, 1))
	s.say("pp", "vpp", "cp", "ep")
	switch w.Checkpointing {
	case workload.Selective:
		ac.set("mode", "selective")
		ac.set("selective_ac_option", "op")
	case workload.FullCheckpoint:
		ac.set("mode", "full")
		s.omit("checkpointed-layers", "emit_note_layers")
	default:
		ac.set("mode", "none")
	}
	if w.Reentrant == nil || !*w.Reentrant {
		s.say("reentrant")
	}
	s.say("checkpointing")
	name, impl, err := titanOptimizer(s)
	if err != nil {
		return nil, err
	}
	opt.set("name", name)
	opt.set("implementation", impl)
	if w.Optimizer.NoDecay {
		opt.set("weight_decay", 0.0)
		s.say("no-decay")
	}
	if w.Compile {
		comp.set("enable", true)
		comp.set("components", []string{"model", "loss"})
		s.say("compile")
	}
	mod.set("name", titanFamily(w))
	mod.set("flavor", titanFlavour(w))
	mod.set("hf_assets_path", s.repository())
	section := ""
	switch w.FP8 {
	case workload.NoFP8:
	case workload.FP8Tensorwise, workload.FP8Rowwise:
		mod.set("converters", []string{"quantize.linear.float8"})
		section = "quantize.linear.float8"
		quant.set("recipe_name", string(w.FP8))
		quant.put(w.FP8 == workload.FP8Tensorwise && w.Sharding.Sharded(), "enable_fsdp_float8_all_gather", true)
		quant.set("filter_fqns", []string{"output"})
		s.say("fp8")
	case workload.MXFP8:
		mod.set("converters", []string{"quantize.linear.mx"})
		section = "quantize.linear.mx"
		quant.set("recipe_name", "mxfp8_cublas")
		quant.set("filter_fqns", []string{"output"})
		s.say("fp8")
	default:
		return nil, s.cannot("fp8")
	}
	switch w.Attention {
	case workload.SDPA, workload.Flash: // scaled_dot_product_attention with the flash kernel first
		s.say("attention")
	}
	s.omit("attention", "emit_note_titan_attention")
	if w.Loss == workload.LossPlain {
		s.say("loss")
	}
	s.omit("loss", "emit_note_titan_loss")
	s.omit("loss-chunks", "emit_note_titan_loss")
	s.omit("alloc-conf", "emit_note_export", "PYTORCH_CUDA_ALLOC_CONF="+w.AllocConf)
	body := tomlOf([]pair{{"model", mod}, {"optimizer", opt}, {"training", train}, {"parallelism", par}, {"activation_checkpoint", ac}, {"compile", comp}, {section, quant}})
	head := s.comment("#") + "# " + s.text("emit_titan_flavor") + "\n"
	return []File{{Name: "torchtitan.toml", Data: []byte(head + body)}}, nil
}

// microBatches is how many micro-batches a pipeline takes at once: there the
// local batch is that of the pipeline.
func microBatches(w *workload.Workload) int64 {
	if w.Parallel.Pipeline > 1 {
		return max(w.Accumulation, 1)
	}
	return 1
}

func titanOptimizer(s *sheet) (name, impl string, err error) {
	o := &s.w.Optimizer
	switch strings.ReplaceAll(strings.ToLower(o.Name), "-", "_") {
	case "", "adamw", "adamw_torch", "adamw_torch_fused", "adamw_hf", "torch_adamw":
		name = "AdamW"
	case "adam":
		name = "Adam"
	default:
		return "", "", s.cannot("optimizer")
	}
	impl = "foreach"
	switch {
	case o.Impl == "loop":
		impl = "for-loop"
	case o.Impl == "fused" || o.Impl == "" && strings.HasSuffix(o.Name, "fused"):
		impl = "fused"
	}
	if o.Paged {
		return "", "", s.cannot("paged")
	}
	s.say("optimizer", "optimizer-impl", "distributed-optimizer")
	return name, impl, nil
}

// titanFamily maps config.json's model_type to torchtitan's models.
// Source: torchtitan v0.2.2 torchtitan/models/__init__.py.
func titanFamily(w *workload.Workload) string {
	if w.Model == nil {
		return "llama3"
	}
	switch t := w.Model.Type; {
	case t == "llama4" || t == "llama4_text":
		return "llama4"
	case strings.HasPrefix(t, "qwen3"):
		return "qwen3"
	case strings.HasPrefix(t, "deepseek"):
		return "deepseek_v3"
	case strings.HasPrefix(t, "gpt_oss"):
		return "gpt_oss"
	}
	return "llama3"
}

// titanFlavour is the size, as torchtitan writes it: 8B.
func titanFlavour(w *workload.Workload) string {
	if w.Model == nil {
		return "8B"
	}
	b := float64(w.Model.Params()) / 1e9
	if b < 10 && b-float64(int64(b)) >= 0.05 && b < 3 {
		return strconv.FormatFloat(b, 'f', 1, 64) + "B"
	}
	return strconv.FormatFloat(b, 'f', 0, 64) + "B"
}
