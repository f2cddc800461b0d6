package emit

import (
	"math"
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
	if w.Sharding == workload.FSDP {
		s.omit("sharding", "emit_note_fully_shard")
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
	family, size := titanModel(w)
	if family == "" {
		return nil, &Unsupported{Target: s.target.Name, Setting: "--model " + w.Name}
	}
	mod.set("name", family)
	mod.set("flavor", size)
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
	if w.Attention == workload.SDPA {
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

// A flavor is a size of a model that torchtitan has.
type flavor struct {
	name   string
	params float64 // in thousand millions
}

// titanModel maps config.json's model_type to torchtitan's model and the nearest
// of its sizes; "" where torchtitan has no such network.
//
// Source: torchtitan v0.2.2 torchtitan/models/*/__init__.py.
func titanModel(w *workload.Workload) (family, name string) {
	var sizes []flavor
	kind := ""
	if w.Model != nil {
		kind = w.Model.Type
	}
	switch {
	case kind == "llama":
		family, sizes = "llama3", []flavor{{"8B", 8}, {"70B", 70}, {"405B", 405}}
	case strings.HasPrefix(kind, "llama4"):
		family, sizes = "llama4", []flavor{{"17bx16e", 109}, {"17bx128e", 400}}
	case kind == "qwen3":
		family, sizes = "qwen3", []flavor{{"0.6B", 0.6}, {"1.7B", 1.7}, {"4B", 4}, {"8B", 8}, {"14B", 14}, {"32B", 32}}
	case strings.HasPrefix(kind, "qwen3_moe"):
		family, sizes = "qwen3", []flavor{{"30B-A3B", 30}, {"235B-A22B", 235}}
	case kind == "deepseek_v3", kind == "deepseek_v2":
		family, sizes = "deepseek_v3", []flavor{{"16B", 16}, {"236B", 236}, {"671B", 671}}
	case kind == "gpt_oss":
		family, sizes = "gpt_oss", []flavor{{"20b", 21}, {"120b", 117}}
	default:
		return "", ""
	}
	best, nearest := "", math.Inf(1)
	for _, f := range sizes {
		if d := math.Abs(math.Log(float64(w.Model.Params()) / 1e9 / f.params)); d < nearest {
			best, nearest = f.name, d
		}
	}
	return family, best
}
