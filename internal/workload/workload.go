// Package workload says what is trained, how, and on what: the one question
// that every command asks. A Workload is made from flags, from unoom.yaml, or
// from the files the user already has; each value knows where it came from, and
// what nobody stated is an assumption that is listed.
//
// Invariants: a Workload that passed Check describes a run that can start: its
// numbers are positive, its heads divide, its sharding does not contradict
// itself. The package knows nothing of bytes; package memory does.
package workload

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"unoom/internal/gpu"
	"unoom/internal/model"
	"unoom/internal/units"
)

// Method is what of the model is trained.
type Method string

// The methods.
const (
	Full       Method = "full"
	LoRA       Method = "lora"
	QLoRA      Method = "qlora" // LoRA over a quantised base
	DoRA       Method = "dora"
	QDoRA      Method = "qdora"
	FrozenPart Method = "frozen" // the first layers are not trained
	Inference  Method = "inference"
)

// Adapted reports whether adapters are trained instead of the base.
func (m Method) Adapted() bool {
	switch m {
	case LoRA, QLoRA, DoRA, QDoRA:
		return true
	}
	return false
}

// Quantization is how a frozen base is stored.
type Quantization string

// The ways to store a frozen base.
const (
	NotQuantised Quantization = ""
	NF4          Quantization = "nf4"
	NF4Double    Quantization = "nf4-double"
	GPTQ4        Quantization = "gptq-4bit"
	Int8         Quantization = "int8"
)

// Precision is how numbers are kept and computed with.
type Precision string

// The precisions. The names are those of the field: "amp" keeps float32
// weights and casts for each operation, "pure" keeps 16-bit weights.
const (
	FP32    Precision = "fp32"
	AMPBF16 Precision = "amp-bf16"
	AMPFP16 Precision = "amp-fp16"
	BF16    Precision = "bf16"
	FP16    Precision = "fp16"
)

// FP8 is a recipe for eight-bit matrix products on top of a precision.
type FP8 string

// The recipes.
const (
	NoFP8         FP8 = ""
	FP8Tensorwise FP8 = "tensorwise"
	FP8Rowwise    FP8 = "rowwise"
	FP8Delayed    FP8 = "delayed"   // Transformer Engine's
	FP8Blockwise  FP8 = "blockwise" // one scale for each 128 elements, or block of 128²
	MXFP8         FP8 = "mxfp8"
)

// Checkpointing is how much of the forward pass is computed again.
type Checkpointing string

// The kinds of activation checkpointing.
const (
	NoCheckpointing Checkpointing = "none"
	Selective       Checkpointing = "selective"
	FullCheckpoint  Checkpointing = "full"
)

// Sharding is how data parallel ranks divide the model's states.
type Sharding string

// The shardings.
const (
	NoSharding   Sharding = "none"
	DDP          Sharding = "ddp"
	DataParallel Sharding = "dp" // nn.DataParallel: one process
	ZeRO1        Sharding = "zero1"
	ZeRO2        Sharding = "zero2"
	ZeRO3        Sharding = "zero3"
	FSDP         Sharding = "fsdp"  // FSDP1, flat parameters
	FSDP2        Sharding = "fsdp2" // fully_shard
)

// Sharded reports whether ranks divide the weights.
func (s Sharding) Sharded() bool {
	switch s {
	case ZeRO3, FSDP, FSDP2:
		return true
	}
	return false
}

// Offload is what is kept in host memory.
type Offload string

// What can be kept in host memory.
const (
	NoOffload           Offload = "none"
	OffloadOptimizer    Offload = "optimizer"
	OffloadParams       Offload = "params" // and with them the optimizer
	OffloadActivations  Offload = "activations"
	OffloadOptimizerAct Offload = "optimizer+activations"
)

// Attention is the implementation of attention.
type Attention string

// The implementations.
const (
	Eager        Attention = "eager"
	SDPA         Attention = "sdpa"  // torch chooses: flash, memory-efficient or math
	Flash        Attention = "flash" // the flash-attention package
	MemEfficient Attention = "mem-efficient"
	MathSDPA     Attention = "math"
	Flex         Attention = "flex"
)

// Loss is the implementation of the loss over the vocabulary.
type Loss string

// The implementations. LossDefault is what the framework and its version do.
const (
	LossDefault  Loss = ""
	LossPlain    Loss = "plain"   // logits in float32, torch's cross_entropy
	LossChunked  Loss = "chunked" // the same, a few positions at a time
	LossLiger    Loss = "liger"   // fused with the last matrix, gradients in forward
	LossCCE      Loss = "cce"     // cut cross entropy: logits are never stored
	LossInPlace  Loss = "inplace" // unsloth's kernel on stored logits
	LossMegatron Loss = "megatron"
)

// Objective is what the loss asks for, as far as it decides what is run.
type Objective string

// The objectives. Preference objectives run two answers to each sample.
const (
	NextToken Objective = ""
	DPO       Objective = "dpo"    // pairs, against a frozen reference
	KTO       Objective = "kto"    // single answers, against a frozen reference
	SimPO     Objective = "simpo"  // pairs alone
	ORPO      Objective = "orpo"   // pairs alone, and the next token of the chosen ones
	CPO       Objective = "cpo"    // the same
	Reward    Objective = "reward" // pairs, each with one number in place of logits
	PPO       Objective = "ppo"
	GRPO      Objective = "grpo"
)

// Pairs reports whether a sample has two answers.
func (o Objective) Pairs() bool {
	switch o {
	case DPO, SimPO, ORPO, CPO, Reward:
		return true
	}
	return false
}

// Reference reports whether a frozen copy of the model is run beside it.
func (o Objective) Reference() bool { return o == DPO || o == KTO }

// Framework is the code that runs the training loop.
type Framework string

// The frameworks.
const (
	PyTorch    Framework = "pytorch" // a plain loop
	HFTrainer  Framework = "hf"      // transformers' Trainer, TRL
	Torchtune  Framework = "torchtune"
	Torchtitan Framework = "torchtitan"
	Megatron   Framework = "megatron"
	DeepSpeed  Framework = "deepspeed"
	// MegatronDeepSpeed is Megatron's layers under DeepSpeed's pipeline engine.
	MegatronDeepSpeed Framework = "megatron-deepspeed"
	ColossalAI        Framework = "colossalai"
	OpenMMLab         Framework = "openmmlab"
	LitGPT            Framework = "litgpt"
	Composer          Framework = "composer"
	FSDPQLoRA         Framework = "fsdp_qlora"
)

// Kernels are hand-written replacements for a framework's own operations.
type Kernels struct {
	FusedNorm   string `json:"norm,omitempty"`   // "unsloth", "liger", "apex"
	FusedRope   string `json:"rope,omitempty"`   // "unsloth", "liger"
	FusedMLP    string `json:"mlp,omitempty"`    // "liger"
	FusedLoRA   string `json:"lora,omitempty"`   // "unsloth"
	ChunkedLoss int64  `json:"chunks,omitempty"` // chunks of LossChunked
}

// Adapter is the LoRA part of a workload.
type Adapter struct {
	Rank    int64    `json:"rank,omitempty"`
	Targets []string `json:"targets,omitempty"` // leaf names of modules, or "all-linear"
	Dropout float64  `json:"dropout,omitempty"`
	// DType is the dtype of the adapters, "" what the library does.
	DType model.DType `json:"dtype,omitempty"`
	// KBit says that peft's prepare_model_for_kbit_training has turned what is
	// left in 16 bits into float32.
	KBit bool `json:"kbit,omitempty"`
}

// Parallel says over how many ranks each dimension of the work is spread.
type Parallel struct {
	World    int64 `json:"world"`
	Data     int64 `json:"data"` // replicas, sharded or not: World/(TP·PP·CP)
	Tensor   int64 `json:"tensor"`
	Sequence bool  `json:"sequence,omitempty"` // sequence parallelism beside Tensor
	Pipeline int64 `json:"pipeline"`
	Virtual  int64 `json:"virtual"` // model chunks on each pipeline rank
	Context  int64 `json:"context"`
	Expert   int64 `json:"expert"`
	// Shard is how many ranks share one copy under FSDP, 0: all of Data·Context.
	Shard int64 `json:"shard,omitempty"`
	// Rank chooses whose memory is asked for: "max" (the fullest, the default),
	// "first" or "last" pipeline stage.
	Rank string `json:"rank,omitempty"`
}

// Optimizer is the update rule.
type Optimizer struct {
	Name string `json:"name"` // as the field writes it: "adamw_torch", "adamw_8bit", …
	// Impl is "foreach", "loop" or "fused"; "" is the framework's default.
	Impl        string `json:"impl,omitempty"`
	InBackward  bool   `json:"in_backward,omitempty"`
	Paged       bool   `json:"paged,omitempty"`
	NoDecay     bool   `json:"no_decay,omitempty"`
	Rank        int64  `json:"rank,omitempty"` // GaLore's
	Distributed bool   `json:"distributed,omitempty"`
}

// GPU is the card, as far as a run's memory depends on it.
type GPU struct {
	Name string `json:"name,omitempty"`
	// Capacity is what the driver reports as the total, 0: not known.
	Capacity units.Bytes `json:"capacity_bytes,omitempty"`
	// Compute is the compute capability, 80 for sm_80; 0: not known.
	Compute int `json:"compute,omitempty"`
	// Context is the CUDA context of one process, 0: not known.
	Context units.Bytes `json:"context_bytes,omitempty"`
	// ContextMeasured says that Context was read on the machine, with the kernels
	// in it.
	ContextMeasured bool   `json:"context_measured,omitempty"`
	Vendor          string `json:"vendor,omitempty"`
	Link            string `json:"link,omitempty"` // what joins several cards
}

// FromCard returns what a run's memory depends on of a card of the catalogue.
func FromCard(c *gpu.Card) GPU {
	g := GPU{Name: c.Name, Capacity: c.Total(), Context: c.Context(), Vendor: c.Vendor, Link: c.Link}
	if major, minor, ok := strings.Cut(c.SM, "."); ok {
		a, _ := strconv.Atoi(major)
		b, _ := strconv.Atoi(minor)
		g.Compute = 10*a + b
	}
	return g
}

// A Workload is one training run.
type Workload struct {
	Model *model.Model `json:"-"`
	Name  string       `json:"model"` // of the model, as it was asked for

	Framework Framework         `json:"framework"`
	Versions  map[string]string `json:"versions,omitempty"` // library → version

	Method    Method       `json:"method"`
	Adapter   Adapter      `json:"adapter,omitzero"`
	Base      Quantization `json:"base,omitempty"`
	Precision Precision    `json:"precision"`
	FP8       FP8          `json:"fp8,omitempty"`

	MicroBatch   int64 `json:"micro_batch"`
	Accumulation int64 `json:"accumulation"`
	Seq          int64 `json:"seq"`
	// TargetSeq is the decoder's length of an encoder-decoder, 0: Seq.
	TargetSeq int64    `json:"target_seq,omitempty"`
	Image     [2]int64 `json:"image,omitzero"`
	// ImagesPerSample is how many images of that size a vision-language model is
	// shown with each sample; the text's length has their tokens in it.
	ImagesPerSample int64 `json:"images_per_sample,omitempty"`
	// Padded says that batches have padding: attention gets a mask.
	Padded bool `json:"padded,omitempty"`

	Checkpointing Checkpointing `json:"checkpointing"`
	// CheckpointLayers is how many layers of a pipeline rank full checkpointing
	// recomputes, the first ones; 0: all.
	CheckpointLayers int64 `json:"checkpoint_layers,omitempty"`
	// Reentrant is torch.utils.checkpoint's use_reentrant, nil: the default of
	// the framework.
	Reentrant *bool     `json:"reentrant,omitempty"`
	Attention Attention `json:"attention"`
	Loss      Loss      `json:"loss,omitempty"`
	Objective Objective `json:"objective,omitempty"`
	Kernels   Kernels   `json:"kernels,omitzero"`
	Compile   bool      `json:"compile,omitempty"`
	EMA       bool      `json:"ema,omitempty"`

	Optimizer Optimizer `json:"optimizer"`
	Sharding  Sharding  `json:"sharding"`
	// ReshardAfterForward is FSDP's; "" is the default, else "always" or "never".
	ReshardAfterForward string   `json:"reshard_after_forward,omitempty"`
	BucketView          bool     `json:"gradient_as_bucket_view,omitempty"`
	Parallel            Parallel `json:"parallel"`
	Offload             Offload  `json:"offload"`

	// FrozenLayers are not trained under FrozenPart.
	FrozenLayers int64 `json:"frozen_layers,omitempty"`
	// ForwardOnly says that a forward pass with gradients recorded is all that is
	// run; EvalMode that dropout is inactive in it.
	ForwardOnly bool `json:"forward_only,omitempty"`
	EvalMode    bool `json:"eval_mode,omitempty"`
	// Eval says that the run evaluates, as Evaluation has it.
	Eval       bool       `json:"eval,omitempty"`
	Evaluation Evaluation `json:"evaluation,omitzero"`
	// Save and Resume say how checkpoints are written and read, "": not at all, or
	// nobody said so.
	Save   Saving   `json:"save,omitempty"`
	Resume Resuming `json:"resume,omitempty"`
	// Options are settings that only one framework has, by its own names.
	Options map[string]string `json:"options,omitempty"`

	GPU       GPU    `json:"gpu"`
	AllocConf string `json:"alloc_conf,omitempty"`

	// Origins says where values came from, by the JSON name of the field.
	Origins map[string]Origin `json:"origins,omitempty"`
	// Assumptions lists what nobody stated.
	Assumptions []Assumption `json:"assumptions,omitempty"`
}

// An Origin is where a value came from: "flag --seq", "train.yaml: line 4".
type Origin string

// An Assumption is a value that nobody stated.
type Assumption struct {
	Field string `json:"field"`
	Value string `json:"value"`
	Why   string `json:"why"`
	// Others are further values that it may have; the interval spans them.
	Others []string `json:"others,omitempty"`
}

// Tokens returns the tokens of one micro-batch on one data-parallel rank.
func (w *Workload) Tokens() int64 { return w.MicroBatch * w.Seq }

// GlobalBatch returns the samples of one optimizer step over all ranks.
func (w *Workload) GlobalBatch() int64 {
	return w.MicroBatch * max(w.Accumulation, 1) * max(w.Parallel.Data, 1)
}

// Option returns a framework's own setting.
func (w *Workload) Option(name string) (string, bool) { v, ok := w.Options[name]; return v, ok }

// Has reports whether a framework's own setting is there.
func (w *Workload) Has(name string) bool { _, ok := w.Options[name]; return ok }

// Version returns the version of a library, "" if it is not known.
func (w *Workload) Version(library string) string { return w.Versions[library] }

// Assume records a value that nobody stated.
func (w *Workload) Assume(field, value, why string) {
	w.Suppose(field, value, why)
}

// Clone returns a copy that can be changed without changing w. The model is
// shared: it is never changed.
func (w *Workload) Clone() *Workload {
	c := *w
	c.Versions = maps.Clone(w.Versions)
	c.Options = maps.Clone(w.Options)
	c.Origins = maps.Clone(w.Origins)
	c.Assumptions = slices.Clone(w.Assumptions)
	c.Adapter.Targets = slices.Clone(w.Adapter.Targets)
	return &c
}
