package emit

import (
	"math"
	"slices"
	"strings"

	"unoom/internal/workload"
)

// titan is what a plan decides of torchtitan's configuration, by section; the
// keys of training and parallelism are the same in all its versions.
type titan struct {
	modern           bool // 0.3 and later: Python modules instead of TOML
	family, flavor   string
	training, layout object
	checkpointing    workload.Checkpointing
	optimizer, impl  string
}

// writeTorchtitan writes a configuration for the workload's version of
// torchtitan: the module of 0.3, or the TOML that 0.2 reads and later versions
// do not.
//
// Sources: torchtitan v0.3.0 torchtitan/config/{configs,manager}.py, trainer.py,
// distributed/{activation_checkpoint,parallel_dims}.py, models/common/
// config_utils.py; v0.2.2 torchtitan/config/job_config.py, distributed/
// {parallel_dims,pipeline_parallel}.py.
func writeTorchtitan(s *sheet) ([]File, error) {
	w := s.w
	if w.Method != workload.Full {
		return nil, s.cannot("method")
	}
	if err := s.refuse("optimizer-in-backward", "image", "target-seq"); err != nil {
		return nil, err
	}
	s.say("method")
	t := titan{modern: version(w, "torchtitan", "0.3", 0, 3)}
	if err := t.train(s); err != nil {
		return nil, err
	}
	if err := t.parallelism(s); err != nil {
		return nil, err
	}
	t.checkpointing = w.Checkpointing
	if w.Checkpointing == workload.FullCheckpoint {
		s.omit("checkpointed-layers", "emit_note_layers")
	}
	if w.Reentrant == nil || !*w.Reentrant {
		s.say("reentrant")
	}
	s.say("checkpointing")
	var err error
	if t.optimizer, t.impl, err = titanOptimizer(s); err != nil {
		return nil, err
	}
	if t.family, t.flavor = titanModel(w, t.modern); t.family == "" {
		return nil, &Unsupported{Target: s.target.Name, Setting: "--model " + w.Name}
	}
	if w.Optimizer.NoDecay {
		s.say("no-decay")
	}
	if t.modern {
		s.about = "torchtitan 0.3"
		return t.module(s)
	}
	s.about = "torchtitan 0.2"
	return t.toml(s)
}

// assets is the folder where torchtitan's download script puts a model.
func (s *sheet) assets() string {
	name := s.repository()
	if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "/") {
		return name
	}
	return "./assets/hf/" + name[strings.LastIndex(name, "/")+1:]
}

// train sets the batch and the precision.
func (t *titan) train(s *sheet) error {
	w := s.w
	o := &t.training
	o.set("local_batch_size", w.MicroBatch*microBatches(w))
	o.set("global_batch_size", w.GlobalBatch())
	o.set("seq_len", w.Seq)
	s.say("micro-batch", "accum", "seq")
	dtype := map[workload.Precision][2]string{
		workload.FP32: {"float32", "float32"}, workload.AMPBF16: {"float32", "bfloat16"}, workload.BF16: {"bfloat16", "bfloat16"},
	}[w.Precision]
	if dtype[0] == "" {
		return s.cannot("dtype")
	}
	o.set("dtype", dtype[0])
	o.set("mixed_precision_param", dtype[1])
	s.say("dtype")
	switch w.Offload {
	case workload.NoOffload, "":
	case workload.OffloadParams:
		if !w.Sharding.Sharded() {
			return s.cannot("offload")
		}
		o.set("enable_cpu_offload", true)
		s.say("offload")
	default:
		return s.cannot("offload")
	}
	// Graphs keep a memory pool of their own, which no plan counts.
	o.put(t.modern, "disable_cuda_graphs", true)
	return nil
}

// parallelism sets the degrees.
func (t *titan) parallelism(s *sheet) error {
	w := s.w
	p := &w.Parallel
	replicate, shard := p.Data, int64(1)
	switch w.Sharding {
	case workload.NoSharding, workload.DDP, "":
	case workload.FSDP, workload.FSDP2:
		replicate, shard = 1, p.Data
		if s.has("shard") {
			shard = p.Shard / max(p.Context, 1)
			if shard < 1 || p.Data%shard != 0 {
				return s.cannot("shard")
			}
			replicate = p.Data / shard
			s.say("shard")
		}
	default:
		return s.cannot("sharding")
	}
	if max(p.Tensor, 1) > 1 && replicate > 1 && shard == 1 {
		return s.cannot("sharding") // plain DDP goes with no other dimension there
	}
	o := &t.layout
	o.set("data_parallel_replicate_degree", max(replicate, 1))
	o.set("data_parallel_shard_degree", max(shard, 1))
	if w.ReshardAfterForward != "" {
		o.set("fsdp_reshard_after_forward", w.ReshardAfterForward)
		s.say("reshard-after-forward")
	}
	if w.Sharding == workload.FSDP {
		s.omit("sharding", "emit_note_fully_shard")
	}
	s.say("sharding", "gpus")
	o.set("tensor_parallel_degree", max(p.Tensor, 1))
	if p.Tensor > 1 {
		s.say("tp", "sequence-parallel")
		// 0.2 always shards the sequence between the parallel regions.
		o.put(t.modern, "enable_sequence_parallel", p.Sequence)
	}
	// Each rank holds a slice of the sequence, in two pieces under context
	// parallelism so that causal attention is shared evenly.
	if pieces := max(p.Tensor, 1) * max(2*p.Context*boolInt(p.Context > 1), 1); w.Seq%pieces != 0 {
		return s.cannot("seq")
	}
	o.set("pipeline_parallel_degree", max(p.Pipeline, 1))
	if p.Pipeline > 1 {
		schedule := "1F1B"
		if p.Virtual > 1 {
			schedule = "Interleaved1F1B"
			if w.Model != nil {
				stages := int64(w.Model.Layers()) / (p.Pipeline * p.Virtual)
				o.put(stages > 0, "pipeline_parallel_layers_per_stage", stages)
			}
		}
		o.set("pipeline_parallel_schedule", schedule)
		o.set("pipeline_parallel_microbatch_size", w.MicroBatch)
	}
	o.set("context_parallel_degree", max(p.Context, 1))
	o.set("expert_parallel_degree", max(p.Expert, 1))
	s.say("pp", "vpp", "cp", "ep")
	return nil
}

// toml writes the file of 0.2.
func (t *titan) toml(s *sheet) ([]File, error) {
	w := s.w
	var ac, opt, comp, quant, mod object
	switch t.checkpointing {
	case workload.Selective:
		ac.set("mode", "selective")
		ac.set("selective_ac_option", "op")
	case workload.FullCheckpoint:
		ac.set("mode", "full")
	default:
		ac.set("mode", "none")
	}
	opt.set("name", t.optimizer)
	opt.set("implementation", t.impl)
	opt.put(w.Optimizer.NoDecay, "weight_decay", 0.0)
	if w.Compile {
		comp.set("enable", true)
		comp.set("components", []string{"model", "loss"})
		s.say("compile")
	}
	mod.set("name", t.family)
	mod.set("flavor", t.flavor)
	mod.set("hf_assets_path", s.assets())
	section := ""
	switch w.FP8 {
	case workload.NoFP8:
	case workload.FP8Tensorwise, workload.FP8Rowwise:
		mod.set("converters", []string{"quantize.linear.float8"})
		section = "quantize.linear.float8"
		quant.set("recipe_name", string(w.FP8))
		quant.put(w.FP8 == workload.FP8Tensorwise && w.Sharding.Sharded(), "enable_fsdp_float8_all_gather", true)
		quant.set("filter_fqns", []string{"output"})
	case workload.MXFP8:
		mod.set("converters", []string{"quantize.linear.mx"})
		section = "quantize.linear.mx"
		quant.set("recipe_name", "mxfp8_cublas")
		quant.set("filter_fqns", []string{"output"})
	default:
		return nil, s.cannot("fp8")
	}
	s.say("fp8")
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
	body := tomlOf([]pair{{"model", mod}, {"optimizer", opt}, {"training", t.training}, {"parallelism", t.layout}, {"activation_checkpoint", ac}, {"compile", comp}, {section, quant}})
	head := s.comment("#") + "# " + s.text("emit_titan_flavor") + "\n"
	return []File{{Name: "torchtitan.toml", Data: []byte(head + body)}}, nil
}

// module writes the module of 0.3, whose one function makes the configuration.
func (t *titan) module(s *sheet) ([]File, error) {
	w := s.w
	imports := []string{
		"from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig",
		"from torchtitan.config import ParallelismConfig, TrainingConfig",
		"from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader",
		"from torchtitan.models.common.config_utils import decoder_vocab_size",
		"from torchtitan.models." + t.family + " import model_registry",
		"from torchtitan.trainer import Trainer",
	}
	spec, err := t.spec(s, &imports)
	if err != nil {
		return nil, err
	}
	var config object
	config.set("model_spec", raw("model_spec"))
	config.set("hf_assets_path", s.assets())
	config.set("dataloader", call{"HuggingFaceTextDataLoader.Config", object{{"dataset", "c4"}}})
	config.set("training", call{"TrainingConfig", t.training})
	config.set("parallelism", call{"ParallelismConfig", t.layout})
	switch t.checkpointing {
	case workload.Selective:
		imports = append(imports, "from torchtitan.distributed.activation_checkpoint import SelectiveAC")
		config.set("activation_checkpoint", call{"SelectiveAC.Config", nil})
	case workload.FullCheckpoint:
		imports = append(imports, "from torchtitan.distributed.activation_checkpoint import FullAC")
		config.set("activation_checkpoint", call{"FullAC.Config", nil})
	default:
		config.set("activation_checkpoint", nil)
	}
	decay := 0.1
	if w.Optimizer.NoDecay {
		decay = 0
	}
	group := object{{"pattern", ".*"}, {"optimizer_name", t.optimizer}, {"optimizer_kwargs", object{{"lr", learningRate}, {"weight_decay", decay}}}}
	config.set("optimizer", call{"OptimizersContainer.Config", object{
		{"param_groups", raw("[" + callOf("ParamGroupConfig", group, 3) + "]")}, {"implementation", t.impl},
	}})
	if w.Compile {
		imports[1] = strings.Replace(imports[1], "import ", "import CompileConfig, ", 1)
		config.set("compile", call{"CompileConfig", object{{"enable", true}, {"components", []string{"model", "loss"}}}})
		s.say("compile")
	}
	plain := call{"CrossEntropyLoss.Config", object{{"global_vocab_size", raw("decoder_vocab_size(model_spec)")}}}
	if w.Loss == workload.LossChunked {
		chunks := w.Kernels.ChunkedLoss
		if chunks < 1 {
			chunks = 8 // torchtitan's own number
		}
		imports = append(imports, "from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss")
		config.set("loss", call{"ChunkedLossWrapper.Config", object{{"num_chunks", chunks}, {"loss_fn", plain}}})
		s.say("loss", "loss-chunks")
	} else {
		imports = append(imports, "from torchtitan.components.loss import CrossEntropyLoss")
		config.set("loss", plain)
		if w.Loss == workload.LossPlain {
			s.say("loss")
		}
		s.omit("loss", "emit_note_titan_loss")
	}
	s.omit("alloc-conf", "emit_note_export", "PYTORCH_CUDA_ALLOC_CONF="+w.AllocConf)
	slices.Sort(imports)
	nodes, per, err := s.layout()
	if err != nil {
		return nil, err
	}
	start := torchrunWords(nodes, per, `"$MASTER_ADDR:29500"`, "-m torchtitan.train --module torchtitan_config --config unoom")
	text := s.comment("#") + "# " + s.text("emit_titan_flavor") + "\n" + s.yours() + "# " + s.text("emit_titan_start") + "\n#   " + strings.Join(start, " ") + "\n" +
		strings.Join(imports, "\n") + "\n\n\ndef unoom() -> Trainer.Config:\n    model_spec = " + spec +
		"\n    return " + callOf("Trainer.Config", config, 1) + "\n"
	return []File{{Name: "torchtitan_config.py", Data: []byte(text)}}, nil
}

// spec is the expression that makes the network, with its attention and its
// eight-bit matrices.
func (t *titan) spec(s *sheet, imports *[]string) (string, error) {
	w := s.w
	o := object{{"flavor", t.flavor}}
	switch w.Attention {
	case workload.Flex:
		o.set("attn_backend", "flex")
		s.say("attention")
	case workload.Flash:
		o.set("attn_backend", "varlen") // torch's own flash attention
		s.say("attention")
	default:
		o.set("attn_backend", "varlen")
		s.omit("attention", "emit_note_titan_varlen")
	}
	name := ""
	fp8 := object{{"model_compile_enabled", w.Compile}}
	switch w.FP8 {
	case workload.NoFP8:
	case workload.FP8Rowwise:
		name = "Float8LinearConverter"
		fp8 = append(object{{"recipe_name", "rowwise"}, {"filter_fqns", []string{"lm_head"}}}, fp8...)
	case workload.MXFP8:
		name = "MXFP8LinearConverter"
		fp8 = append(object{{"fqns", []string{"layers"}}}, fp8...)
	default:
		return "", s.cannot("fp8")
	}
	s.say("fp8")
	if name != "" {
		*imports = append(*imports, "from torchtitan.components.quantization import "+name)
		o.set("converters", raw("["+callOf(name+".Config", fp8, 2)+"]"))
	}
	return callOf("model_registry", o, 1), nil
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
// Sources: torchtitan v0.3.0 and v0.2.2 torchtitan/models/*/__init__.py.
func titanModel(w *workload.Workload, modern bool) (family, name string) {
	var sizes []flavor
	kind := ""
	if w.Model != nil {
		kind = w.Model.Type
	}
	switch {
	case kind == "llama":
		family, sizes = "llama3", []flavor{{"8B", 8}, {"70B", 70}, {"405B", 405}}
		if modern {
			sizes = append(sizes, flavor{"1B", 1.24}, flavor{"3B", 3.2})
		}
	case strings.HasPrefix(kind, "llama4") && !modern:
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
