package workload

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"unoom/internal/model"
	"unoom/internal/units"
)

// A Row is one line of a table of measured runs, by the names of its columns
// (see docs/accuracy.md).
type Row map[string]string

// Number returns an integer column, 0 if it is empty.
func (r Row) Number(column string) int64 {
	n, _ := strconv.ParseInt(strings.TrimSpace(r[column]), 10, 64)
	return n
}

// An Unanswerable row needs something that no workload can express; Why says
// what.
type Unanswerable struct{ Why string }

func (e *Unanswerable) Error() string { return e.Why }

func cannot(format string, args ...any) error { return &Unanswerable{fmt.Sprintf(format, args...)} }

// unread is the answer where a column that decides memory is empty, or has a word
// that nothing is known of.
func unread(column, text string) error {
	if strings.TrimSpace(text) == "" {
		return cannot("%s is not stated", column)
	}
	return cannot("%s %q is not modelled", column, text)
}

// FromRow reads a measured run. find looks a model up by name; what a row does
// not say is assumed and listed.
func FromRow(r Row, find func(w *Workload, r Row) (*model.Model, error)) (*Workload, error) {
	w := &Workload{Name: r["model"], Versions: map[string]string{}, Options: map[string]string{}}
	w.readFramework(r["framework"], r["framework_version"])
	w.GPU = GPU{Name: r["gpu"]}
	if gib, err := strconv.ParseFloat(r["gpu_capacity_gib"], 64); err == nil {
		w.GPU.Capacity = units.FromGiB(gib)
	}
	w.readOther(r["other"])
	if err := w.readMethod(r); err != nil {
		return nil, err
	}
	if err := w.readSizes(r); err != nil {
		return nil, err
	}
	if err := w.readCheckpointing(r["checkpointing"]); err != nil {
		return nil, err
	}
	w.readAttention(r["attention"])
	if err := w.readOptimizer(r["optimizer"]); err != nil {
		return nil, err
	}
	if err := w.readSharding(r["sharding"], r.Number("world_size")); err != nil {
		return nil, err
	}
	if err := w.readOffload(r["offload"]); err != nil {
		return nil, err
	}
	w.settleMaster()
	if w.Framework == Torchtune && w.Loss == LossDefault {
		// Which one is the recipe's setting; its configurations changed theirs.
		w.Suppose("loss", string(LossPlain), "not stated; torchtune's configurations have had the chunked one since November 2024", string(LossChunked))
	}
	m, err := find(w, r)
	if err != nil {
		return nil, err
	}
	w.Model = m
	return w, nil
}

// frameworks maps the words of the framework column.
var frameworkWords = []struct {
	word string
	f    Framework
}{
	{"megatron-deepspeed", MegatronDeepSpeed}, {"megatron", Megatron}, {"torchtitan", Torchtitan}, {"torchtune", Torchtune},
	{"fsdp_qlora", FSDPQLoRA}, {"composer", Composer}, {"llm-foundry", Composer},
	{"mmseg", OpenMMLab}, {"mmdet", OpenMMLab}, {"mmyolo", OpenMMLab}, {"mmcv", OpenMMLab}, {"mmengine", OpenMMLab},
	{"colossal", ColossalAI}, {"hf trainer", HFTrainer}, {"trl", HFTrainer}, {"litgpt", LitGPT}, {"deepspeed", DeepSpeed},
}

var versionPattern = regexp.MustCompile(`(?i)\b(?:py)?(torch|transformers|trl|peft|bnb|accelerate|bitsandbytes|deepspeed|megatron|timm|torchtune|torchtitan)[ =]+v?(\d+\.\d+[\w.+]*|\d+\.x)`)

func (w *Workload) readFramework(name, version string) {
	low := strings.ToLower(name)
	w.Framework = PyTorch
	for _, f := range frameworkWords {
		if strings.Contains(low, f.word) {
			w.Framework = f.f
			break
		}
	}
	w.Options["framework"] = name
	if _, flavour, ok := strings.Cut(name, "("); ok && w.Framework == HFTrainer {
		w.Options["flavour"] = strings.TrimSuffix(flavour, ")")
	}
	// SFTTrainer prepares a quantised base itself; distributions bring their own.
	// Source: trl v0.4 trainer/sft_trainer.py, prepare_model_for_kbit_training.
	w.Adapter.KBit = strings.HasPrefix(low, "trl")
	for _, m := range versionPattern.FindAllStringSubmatch(version, -1) {
		lib := strings.ToLower(m[1])
		if lib == "bnb" {
			lib = "bitsandbytes"
		}
		w.Versions[lib] = m[2]
	}
	w.readDate(version)
}

var contextPattern = regexp.MustCompile(`CUDA context (\d+) MiB`)

// readOther reads the free column: options of a launcher (name or name=value,
// separated by spaces) or remarks separated by semicolons.
func (w *Workload) readOther(text string) {
	for _, part := range strings.Split(text, ";") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		low := strings.ToLower(part)
		switch {
		case strings.Contains(low, "torch.compile"):
			w.Compile = true
		case strings.Contains(low, "graph_trainer"), strings.Contains(low, "graph sac"):
			w.Options["graph-trainer"] = ""
		case strings.Contains(low, "chunked ce"), strings.Contains(low, "chunked cross entropy"):
			w.Loss, w.Kernels.ChunkedLoss = LossChunked, 8
		case strings.Contains(low, "optimizer-in-backward"), strings.Contains(low, "opt-in-bwd"):
			w.Optimizer.InBackward = true
		case strings.HasPrefix(low, "ema"), strings.Contains(low, " ema "):
			w.EMA = true
		case strings.Contains(low, "fused linear cross entropy"), strings.Contains(low, "fused linear ce"):
			w.Loss = LossLiger
		case strings.HasPrefix(low, "float8"):
			w.FP8 = FP8Tensorwise
			if strings.Contains(low, "rowwise") {
				w.FP8 = FP8Rowwise
			}
			if strings.Contains(low, "delayed") {
				w.FP8 = FP8Delayed
			}
			if strings.Contains(low, "all-gather") {
				w.Options["fp8-all-gather"] = ""
			}
		case contextPattern.MatchString(part):
			mib, _ := strconv.ParseInt(contextPattern.FindStringSubmatch(part)[1], 10, 64)
			w.GPU.Context, w.GPU.ContextMeasured = units.Bytes(mib)*units.MiB, true
		case strings.Contains(low, "variable length"), strings.Contains(low, "not packed"):
			w.Options["variable-length"] = ""
		case strings.Contains(low, "padding-free"):
			w.Options["padding-free"] = ""
		case strings.Contains(low, "prepare_model_for_kbit_training"):
			w.Adapter.KBit = true
		case strings.Contains(low, "eval mode"):
			w.EvalMode = true
		case strings.Contains(low, "modules_to_save"):
			w.Options["modules-to-save"] = strings.TrimPrefix(low[strings.Index(low, "modules_to_save"):], "modules_to_save=")
		}
		if strings.Contains(low, "fused lora/rmsnorm/rope/crossentropy kernels") {
			w.Kernels.FusedNorm, w.Kernels.FusedRope, w.Kernels.FusedLoRA = "unsloth", "unsloth", "unsloth"
			if w.Loss == LossDefault {
				w.Loss = LossInPlace
			}
		}
		if k, v, ok := strings.Cut(part, "="); ok && !strings.Contains(k, " ") {
			w.Options[k] = v
		}
	}
	switch name, _, _ := strings.Cut(strings.ToLower(w.Options["algorithm"]), " "); name {
	case "", "sft":
	default:
		w.Objective = Objective(name)
	}
	if w.Framework == Megatron || strings.Contains(text, "micro-batch-size=") {
		for _, f := range strings.Fields(strings.ReplaceAll(text, ";", " ")) {
			k, v, _ := strings.Cut(f, "=")
			w.Options[k] = v
		}
	}
}

func (w *Workload) readMethod(r Row) error {
	param, compute := strings.ToLower(r["param_dtype"]), strings.ToLower(r["compute_dtype"])
	switch r["method"] {
	case "full":
		w.Method = Full
	case "lora", "qlora", "dora", "qdora":
		w.Method = Method(r["method"])
	case "forward-only":
		w.Method, w.ForwardOnly = Full, true
	default:
		return unread("method", r["method"])
	}
	half := func() (pure, amp Precision) {
		if strings.Contains(compute, "bf16") {
			return BF16, AMPBF16
		}
		return FP16, AMPFP16
	}
	pure, amp := half()
	low := strings.Contains(compute, "bf16") || strings.Contains(compute, "fp16")
	switch {
	case strings.HasPrefix(param, "nf4"), strings.HasPrefix(param, "fp4"):
		w.Base, w.Precision = NF4, pure
		if strings.Contains(param, "double") {
			w.Base = NF4Double
		}
		if strings.Contains(param, "quant_storage") {
			w.Options["quant-storage"] = "16-bit"
		}
	case strings.HasPrefix(param, "gptq"):
		w.Base, w.Precision = GPTQ4, pure
	case strings.HasPrefix(param, "int8"):
		w.Base, w.Precision = Int8, pure
	case strings.Contains(param, "upcast"):
		w.Precision = pure
		w.Options["upcast"] = "fp32"
	case strings.Contains(param, "master"), strings.Contains(param, "main params"):
		w.Precision = pure
		w.Options["master"] = "fp32"
	case strings.HasPrefix(param, "fp32") && !low:
		w.Precision = FP32
	case strings.HasPrefix(param, "fp32"):
		w.Precision = amp
	case strings.HasPrefix(param, "bf16"):
		w.Precision = BF16
	case strings.HasPrefix(param, "fp16"):
		w.Precision = FP16
	default:
		return cannot("parameters in %q are not modelled", r["param_dtype"])
	}
	switch {
	case strings.Contains(compute, "blockwise") && w.Framework == Megatron:
		w.FP8 = FP8Blockwise
	case strings.Contains(compute, "blockwise"), strings.Contains(compute, "nvfp4"):
		return cannot("compute in %q is not modelled", r["compute_dtype"])
	case strings.Contains(compute, "mxfp8"):
		w.FP8 = MXFP8
	case strings.Contains(compute, "fp8") && w.FP8 == NoFP8:
		w.FP8 = FP8Tensorwise
	}
	if w.Method.Adapted() {
		w.readAdapter(r)
	}
	return nil
}

// readAdapter reads LoRA's rank and targets. Where they are not stated they are
// the defaults of the library: peft's LoraConfig has rank 8, and for most models
// the projections of queries and values; torchtune's recipes adapt all linear
// modules but the keys'. The widest use, rank 64 on every linear module (QLoRA's),
// is where the interval ends.
func (w *Workload) readAdapter(r Row) {
	rank, targets := r.Number("lora_rank"), strings.TrimSpace(r["lora_targets"])
	if strings.HasPrefix(targets, "default") {
		targets = ""
	}
	wideRank, wide := rank, targets
	unstated := rank == 0 || targets == ""
	if rank == 0 {
		rank, wideRank = 8, 64
	}
	if targets == "" {
		targets, wide = "q_proj+v_proj", "all-linear"
		if w.Framework == Torchtune {
			targets = "q_proj+v_proj+o_proj+mlp"
		}
	}
	w.Adapter.Rank, w.Adapter.Targets = rank, targetsOf(targets)
	if unstated {
		w.Suppose("lora", fmt.Sprintf("%d %s", rank, targets), "not stated; the library's defaults", fmt.Sprintf("%d %s", wideRank, wide))
	}
}

var imagePattern = regexp.MustCompile(`^(\d+)x(\d+)$`)

func (w *Workload) readSizes(r Row) error {
	w.MicroBatch = r.Number("micro_batch")
	if w.MicroBatch < 1 {
		return cannot("the micro-batch is not stated")
	}
	w.Accumulation = max(r.Number("grad_accum"), 1)
	size := strings.TrimSpace(r["seq_len_or_image"])
	if m := imagePattern.FindStringSubmatch(size); m != nil {
		w.Image[0], _ = strconv.ParseInt(m[1], 10, 64)
		w.Image[1], _ = strconv.ParseInt(m[2], 10, 64)
		return nil
	}
	if w.readImages(size) {
		return nil
	}
	return w.readLength(size)
}

func (w *Workload) readCheckpointing(text string) error {
	low := strings.ToLower(text)
	w.Checkpointing = NoCheckpointing
	switch {
	case strings.Contains(low, "selective"):
		w.Checkpointing = Selective
		if i := strings.IndexByte(low, '['); i >= 0 {
			w.Options["recompute-modules"] = strings.Trim(low[i:], "[] ")
		}
	case strings.HasPrefix(low, "unst"):
		// Either way is usual, and the answers differ by a multiple.
		return cannot("whether activations are checkpointed is not stated")
	case strings.HasPrefix(low, "on"), strings.Contains(low, "full"):
		w.Checkpointing = FullCheckpoint
		if strings.Contains(low, "reentrant") {
			yes := true
			w.Reentrant = &yes
		}
	}
	return nil
}

func (w *Workload) readAttention(text string) {
	low := strings.ToLower(text)
	switch {
	case strings.Contains(low, "flash_attention_2"):
		w.Attention = Flash
	case strings.HasPrefix(low, "flash"), strings.HasPrefix(low, "fused"), strings.HasPrefix(low, "auto"):
		w.Attention = Flash
	case strings.HasPrefix(low, "sdpa"):
		w.Attention = SDPA
	case strings.HasPrefix(low, "flex"):
		w.Attention = Flex
	case strings.HasPrefix(low, "eager"), strings.HasPrefix(low, "unfused"), strings.HasPrefix(low, "local"), strings.Contains(low, "softmax"):
		w.Attention = Eager
	}
	w.Options["attention"] = text
}

func (w *Workload) readOptimizer(text string) error {
	low := strings.ToLower(text)
	o := &w.Optimizer
	o.Name = text
	switch {
	case slices.Contains(Optimizers(), OptimizerName(text)) && !strings.HasPrefix(low, "sgd"):
		o.Name = OptimizerName(text)
	case strings.HasPrefix(low, "sgd"): // whatever a remark says of others
		o.Name = "sgd-momentum"
	case strings.HasPrefix(low, "none"):
		if !w.ForwardOnly {
			return cannot("training without an optimizer")
		}
	case strings.Contains(low, "cpuoffloadoptimizer"), strings.Contains(low, "cpu/parameter"):
		o.Name, w.Offload = "adamw", OffloadOptimizer
	case strings.Contains(low, "cpuadam"):
		o.Name, w.Offload = "adamw", OffloadOptimizer
	case strings.Contains(low, "adafactor"):
		o.Name = "adafactor"
	case strings.Contains(low, "8bit"), strings.Contains(low, "8-bit"):
		o.Name = "adamw_8bit"
	case strings.Contains(low, "adamw_hf"):
		o.Name = "adamw_hf"
	case strings.Contains(low, "hybridadam"):
		o.Name = "adamw"
		o.Impl = "fused"
	case strings.Contains(low, "muon"):
		o.Name = "muon"
	case strings.Contains(low, "adam"):
		o.Name = "adamw"
	case strings.Contains(low, "sgd"):
		o.Name = "sgd-momentum"
	default:
		return unread("optimizer", text)
	}
	switch {
	case strings.Contains(low, "foreach"):
		o.Impl = "foreach"
	case strings.Contains(low, "fused"):
		o.Impl = "fused"
	}
	if strings.Contains(low, "paged") && !strings.Contains(low, "paged off") {
		o.Paged = true
	}
	if strings.Contains(low, "opt-in-bwd") || strings.Contains(low, "in-backward") {
		o.InBackward = true
	}
	return nil
}

// settleMaster decides what float32 masters are: copies that an engine keeps of
// 16-bit weights, or, where nothing keeps copies, float32 weights that autocast
// casts.
func (w *Workload) settleMaster() {
	if _, ok := w.Options["master"]; !ok {
		return
	}
	switch w.Framework {
	case HFTrainer, PyTorch:
	default:
		return
	}
	switch w.Sharding {
	case ZeRO1, ZeRO2, ZeRO3:
		return
	}
	if w.Precision == BF16 {
		w.Precision = AMPBF16
	} else {
		w.Precision = AMPFP16
	}
}

// zeroPattern is the first stage that is named: "DDP/ZeRO-2 (no ZeRO-3)" is 2.
var zeroPattern = regexp.MustCompile(`zero-?([123])`)

var dimensionPattern = regexp.MustCompile(`\b(TP|PP|VP|CP|EP|ETP|DP)\(?(\d+)\)?`)

func (w *Workload) readSharding(text string, world int64) error {
	low := strings.ToLower(text)
	p := &w.Parallel
	*p = Parallel{World: max(world, 1), Tensor: 1, Pipeline: 1, Virtual: 1, Context: 1, Expert: 1}
	w.Sharding = NoSharding
	for _, m := range dimensionPattern.FindAllStringSubmatch(text, -1) {
		n, _ := strconv.ParseInt(m[2], 10, 64)
		switch m[1] {
		case "TP":
			p.Tensor = n
		case "PP":
			p.Pipeline = n
		case "VP":
			w.Options["vp"] = m[2]
		case "CP":
			p.Context = n
		case "EP":
			p.Expert = n
		case "ETP":
			w.Options["etp"] = m[2]
		}
	}
	p.Sequence = strings.Contains(low, "sequence parallel")
	switch {
	case strings.Contains(low, "megatron-fsdp"):
		w.Sharding = FSDP
		w.Options["megatron-fsdp"] = ""
	case strings.Contains(low, "simplefsdp"):
		return cannot("SimpleFSDP is not modelled")
	case strings.Contains(low, "no_shard"):
		w.Sharding = DDP
		w.Options["fsdp-no-shard"] = ""
	case strings.Contains(low, "shard_grad_op"):
		w.Sharding, w.ReshardAfterForward = FSDP, "never"
	case strings.Contains(low, "fsdp2"):
		w.Sharding = FSDP2
		switch {
		case strings.Contains(low, "=always"):
			w.ReshardAfterForward = "always"
		case strings.Contains(low, "=never"):
			w.ReshardAfterForward = "never"
		}
	case strings.Contains(low, "fsdp"):
		w.Sharding = FSDP
	case zeroPattern.MatchString(low):
		w.Sharding = Sharding("zero" + zeroPattern.FindStringSubmatch(low)[1])
	case strings.Contains(low, "distributed optimizer"):
		w.Sharding = ZeRO1
	case strings.Contains(low, "ddp"):
		w.Sharding = DDP
	}
	model := p.Tensor * p.Pipeline * p.Context
	if world < 1 && model*p.Expert > 1 {
		p.World = p.least(w.experts())
		if p.World == model && w.Sharding != NoSharding && w.Sharding != DDP {
			p.World *= 2 // what replicas divide has more than one of them
		}
		w.guessAccumulation()
		w.Suppose("world_size", strconv.FormatInt(p.World, 10), "not stated; the least that the parallel dimensions allow", strconv.FormatInt(p.World*w.replicasMost(), 10))
	}
	if p.World%model != 0 {
		return cannot("%d GPUs cannot be divided into TP%d·PP%d·CP%d", p.World, p.Tensor, p.Pipeline, p.Context)
	}
	p.Data = p.World / model
	if w.Framework == Megatron {
		p.Rank = "last"
	}
	return nil
}

// experts is how many ranks share one expert's matrices: Megatron divides them
// like the rest unless told otherwise.
func (w *Workload) experts() int64 {
	for _, name := range []string{"expert-tensor-parallel-size", "etp"} {
		if n, err := strconv.ParseInt(w.Options[name], 10, 64); err == nil && n > 0 {
			return n
		}
	}
	return w.Parallel.Tensor
}

// least is the smallest world in which each dimension has its ranks: experts are
// divided over the ranks of a stage.
func (p *Parallel) least(split int64) int64 {
	dense := p.Tensor * p.Context
	stage := dense
	if p.Expert > 1 {
		for stage%(p.Expert*split) != 0 {
			stage += dense
		}
	}
	return stage * p.Pipeline
}

// guessAccumulation divides a stated global batch over the assumed ranks; where
// none is stated, a pipeline has at least as many micro-batches as stages.
func (w *Workload) guessAccumulation() {
	p := &w.Parallel
	if w.Accumulation > 1 {
		return
	}
	global := w.statedBatch()
	if global < 1 {
		w.Accumulation = max(w.Accumulation, 2*p.Pipeline)
		return
	}
	replicas := p.World / (p.Tensor * p.Pipeline * p.Context)
	w.Accumulation = max(global/(w.MicroBatch*max(replicas, 1)), 1)
}

// statedBatch is the global batch that Megatron's arguments state, the first of a
// schedule ("0:384 200B:768"); 0: none.
func (w *Workload) statedBatch() int64 {
	text := w.Options["global-batch-size"]
	if _, first, ok := strings.Cut(w.Options["step-batch-size-schedule"], ":"); ok && text == "" {
		text = first
	}
	n, _ := strconv.ParseInt(text, 10, 64)
	return n
}

// replicasMost is how many times the assumed world a run may have had: as many
// as leave each replica one micro-batch of the stated batch, 64 at most.
func (w *Workload) replicasMost() int64 {
	if w.statedBatch() < 1 {
		return 8
	}
	return min(max(w.Accumulation, 2), 64)
}

func (w *Workload) readOffload(text string) error {
	low := strings.ToLower(text)
	switch {
	case low == "", low == "none":
		if w.Offload == "" {
			w.Offload = NoOffload
		}
	case strings.Contains(low, "activations"):
		w.Offload = OffloadActivations
	case strings.Contains(low, "param"):
		w.Offload = OffloadParams
	case strings.Contains(low, "optimizer"):
		w.Offload = OffloadOptimizer
	case strings.Contains(low, "cpu"):
		w.Offload = OffloadParams
	default:
		return cannot("offload %q is not modelled", text)
	}
	return nil
}
