package speed

// Kernels says how the operations around the matrix products are implemented.
type Kernels string

// The implementations, slowest first.
const (
	Eager    Kernels = "eager"    // one kernel for each PyTorch operation (transformers)
	Fused    Kernels = "fused"    // hand-written norm, rotary, loss kernels (Liger, Unsloth, torchtitan eager)
	Compiled Kernels = "compiled" // torch.compile
	Megatron Kernels = "megatron" // Transformer Engine, fused and graphed
)

// A Compute is the type in which matrix products are computed.
type Compute string

// The types.
const (
	FP32 Compute = "fp32" // TF32 where the hardware has it
	BF16 Compute = "bf16"
	FP16 Compute = "fp16"
	FP8  Compute = "fp8"
)

// A Sharding is how data-parallel ranks divide the training state.
type Sharding string

// The shardings.
const (
	NoSharding Sharding = "none" // one rank, or ranks that share nothing
	DDP        Sharding = "ddp"
	ZeRO1      Sharding = "zero1"
	ZeRO2      Sharding = "zero2"
	ZeRO3      Sharding = "zero3"
	FSDP       Sharding = "fsdp"
)

// gathers reports whether weights are sharded and gathered for use.
func (s Sharding) gathers() bool { return s == ZeRO3 || s == FSDP }

// A Setting is how a network is trained, as far as time depends on it. Zero
// degrees of parallelism count as one.
type Setting struct {
	MicroBatch   int // samples in one forward pass of one data-parallel rank
	Accumulation int // forward passes in one optimizer step of one such rank
	Seq          int // tokens of a sample, before context parallelism

	Compute Compute
	Kernels Kernels
	// ChannelsLast says that an image network keeps its maps in the order that
	// tensor cores want.
	ChannelsLast bool
	// WeightBytes is the size of a weight as it is stored and sent when it is
	// gathered (0.5 for 4-bit, 1 where FP8 is gathered), GradBytes that of a
	// gradient as it is reduced.
	WeightBytes, GradBytes float64
	// Full and Selective are the shares of the layers that recompute all, or
	// only the cheap operations, in the backward pass.
	Full, Selective float64

	// Frozen says that the base weights get no gradient. Adapter is then the
	// rank of the matrices beside them and Targets the share of the projections
	// that has them. Quantised weights are dequantised at each use.
	Frozen    bool
	Quantised bool
	Adapter   int
	Targets   float64
	// Trainable is the number of parameters that are updated; 0: all.
	Trainable int64

	Data     int // data-parallel ranks
	Shard    int // ranks over which the state is divided, 0: all of Data
	Sharding Sharding
	Tensor   int
	Pipeline int
	Chunks   int // virtual pipeline stages on a rank
	Context  int
	Expert   int

	// StepBytes is the memory traffic of the optimizer for each updated
	// parameter that a rank holds; 0: AdamW on float32 state.
	StepBytes float64
	// The parts that live in host memory.
	OffloadOptimizer, OffloadWeights, OffloadActivations bool
	// ActivationBytes is what OffloadActivations moves for one token of one
	// layer; 0: the layer's input.
	ActivationBytes float64
}

func (s *Setting) normalised() Setting {
	t := *s
	for _, p := range []*int{&t.MicroBatch, &t.Accumulation, &t.Seq, &t.Data, &t.Tensor, &t.Pipeline, &t.Chunks, &t.Context, &t.Expert} {
		*p = max(*p, 1)
	}
	if t.Shard <= 0 || t.Shard > t.Data {
		t.Shard = t.Data
	}
	if t.WeightBytes == 0 {
		t.WeightBytes = 2
	}
	if t.GradBytes == 0 {
		t.GradBytes = 4
	}
	if t.StepBytes == 0 {
		t.StepBytes = 28
	}
	return t
}

// World returns the number of accelerators that the setting takes.
func (s *Setting) World() int {
	return max(s.Data, 1) * max(s.Tensor, 1) * max(s.Pipeline, 1) * max(s.Context, 1)
}

// Tokens returns the tokens of one optimizer step over all ranks.
func (s *Setting) Tokens() int64 {
	return int64(max(s.MicroBatch, 1)) * int64(max(s.Accumulation, 1)) * int64(max(s.Seq, 1)) * int64(max(s.Data, 1))
}
