package plan

import (
	"unoom/internal/speed"
)

// A Precision is the class of number formats a run trains in. Within a class
// the mathematics are the same up to rounding; what is stored where depends on
// the stack (autocast over float32 weights, FSDP's mixed precision, DeepSpeed's
// and Megatron's float32 master copies).
type Precision string

// The classes, most exact first.
const (
	Float32 Precision = "fp32"  // weights, gradients, state and products in float32 (TF32 products)
	Mixed16 Precision = "mixed" // 16-bit products, float32 weights or a float32 copy of them
	Pure16  Precision = "pure"  // everything in 16 bits
	Mixed8  Precision = "fp8"   // FP8 products, float32 copy
)

// A Method is what is trained.
type Method string

// The methods.
const (
	FullTune Method = "full"
	LoRA     Method = "lora"
	QLoRA    Method = "qlora"
)

// An Optimizer is a family with its step's form, as far as memory and time
// differ.
type Optimizer string

// The optimizers a plan chooses among. Any other is kept as it is: its state is
// taken from the workload.
const (
	AdamW      Optimizer = "adamw"       // one kernel for each group, with temporaries
	AdamWFused Optimizer = "adamw_fused" // the same mathematics in one kernel
	AdamW8bit  Optimizer = "adamw_8bit"  // block-wise 8-bit state
	PagedAdamW Optimizer = "adamw_paged" // state in managed memory
	Adafactor  Optimizer = "adafactor"   // factored state
	SGD        Optimizer = "sgd"
	Momentum   Optimizer = "momentum"
	Lion       Optimizer = "lion"
)

// A Loss is how the head and the loss are computed.
type Loss string

// The losses.
const (
	PlainLoss   Loss = "plain"   // all logits at once, float32 copy
	ChunkedLoss Loss = "chunked" // the sequence in pieces
	FusedLoss   Loss = "fused"   // head and loss in one kernel, logits never whole
)

// An Attention is an implementation of the scores.
type Attention string

// The implementations.
const (
	EagerAttention Attention = "eager"
	SDPAAttention  Attention = "sdpa"
	FlashAttention Attention = "flash"
)

// A Recompute is what the backward pass computes again.
type Recompute string

// The kinds of recomputation.
const (
	RecomputeNone      Recompute = "none"
	RecomputeSelective Recompute = "selective"
	RecomputeFull      Recompute = "full"
)

// A Choice is one setting of everything a plan may change. Two equal choices
// train in the same way.
type Choice struct {
	GPUs int // how many are used

	Micro, Accumulation int // samples in a forward pass, passes in a step, of one data-parallel rank
	Seq                 int

	Data     int // data-parallel ranks
	Sharding speed.Sharding
	Shard    int // data-parallel ranks that one copy of the state is divided over
	Tensor   int
	Pipeline int
	Chunks   int // virtual stages on a rank
	Context  int
	Expert   int

	Recompute Recompute
	Layers    int // that are recomputed, of the layers of a rank; all: the layers of a rank

	OffloadOptimizer, OffloadWeights, OffloadActivations bool

	Precision Precision
	Method    Method
	Rank      int // of LoRA's matrices
	Optimizer Optimizer
	Loss      Loss
	Attention Attention
	// Expandable says that the allocator maps its segments in pages, so that
	// pieces of different sizes do not strand each other.
	Expandable bool
	Kernels    speed.Kernels
}

// Batch returns the samples of an optimizer step.
func (c *Choice) Batch() int { return c.Micro * c.Accumulation * c.Data }
