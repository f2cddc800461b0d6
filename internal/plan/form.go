package plan

import "unoom/internal/speed"

// A form is the closed form of memory that the search prunes with: the peak of
// the most loaded accelerator in one pass over a few runs of layers, without
// playing the operations. The engine of package memory corrects it for each kind
// of setting (measured.go) and decides; the form only has to order settings of
// one kind as the engine does (TestFormAgreesWithTheEngine).
//
// Sources of the coefficients: the rules of autograd's derivatives.yaml applied
// to the blocks of transformers, Megatron and torchtitan; Korthikanti et al.,
// arXiv 2205.05198; the ZeRO paper and DeepSpeed's stage_1_and_2.py, stage3.py;
// torch.distributed.fsdp's _fsdp_collectives.py.
type form struct {
	s *shape
	// outside is what the process takes outside of the caching allocator before
	// any communicator: context, libraries.
	outside float64
	link    bool // accelerators of a node are joined by NVLink or the like
	// packed is the bytes of a quantised weight, kbit says that what is not
	// quantised is made float32 (peft's prepare_model_for_kbit_training).
	packed float64
	kbit   bool
	// fused says that norms and transformations are hand-written kernels that keep
	// less than PyTorch's own (Liger).
	fused bool
}

// An instant is a moment at which memory may peak.
type instant int

// The instants the form knows.
const (
	atLoss instant = iota
	atBackward
	atEnd
	atStep
)

// A need is what the form predicts.
type need struct {
	total   float64 // of the card: allocator, communicators, context
	static  float64 // weights, gradients, optimizer state, buffers
	active  float64 // activations and temporaries at the peak
	outside float64
	at      instant
	host    float64 // bytes in host memory for each rank
}

// formats are the bytes for each parameter that a precision stores.
type formats struct {
	weight, grad, master, state float64 // state: one moment of the optimizer
	compute                     float64 // activations
	residual                    float64 // the stream between layers
	cache                       float64 // autocast's copies of matrices
}

func (c *Choice) formats(f *form) formats {
	packed, kbit := 0.516, false
	if f != nil {
		packed, kbit = f.packed, f.kbit
	}
	if c.Method != FullTune {
		fm := formats{weight: 2, grad: 4, state: 4, compute: 2, residual: 2}
		if c.Precision == Float32 {
			fm.weight, fm.compute, fm.residual = 4, 4, 4
		}
		if c.Method == QLoRA {
			fm.weight = packed
			if kbit {
				fm.residual = 4
			}
		}
		return fm
	}
	switch c.Precision {
	case Float32:
		return formats{weight: 4, grad: 4, state: 4, compute: 4, residual: 4}
	case Pure16:
		return formats{weight: 2, grad: 2, state: 2, compute: 2, residual: 2}
	}
	switch {
	case c.Kernels == speed.Megatron:
		return formats{weight: 2, grad: 4, master: 4, state: 4, compute: 2, residual: 2}
	case c.Sharding == speed.FSDP:
		return formats{weight: 4, grad: 4, state: 4, compute: 2, residual: 2}
	case c.Sharding == speed.ZeRO1, c.Sharding == speed.ZeRO2, c.Sharding == speed.ZeRO3:
		return formats{weight: 2, grad: 2, master: 4, state: 4, compute: 2, residual: 2}
	}
	return formats{weight: 4, grad: 4, state: 4, compute: 2, residual: 4, cache: 2}
}

// moments is how many values of state an optimizer keeps for each parameter, in
// units of the state's format, and what its step adds for a moment.
func (o Optimizer) moments(f formats) (state, temporary float64) {
	switch o {
	case AdamW8bit:
		return 2.03, 0
	case Adafactor:
		return 0.02, 0
	case SGD:
		return 0, 0
	case Momentum, Lion:
		return f.state, 0
	case AdamWFused:
		return 2 * f.state, 0
	case PagedAdamW:
		return 0, 0.5
	}
	return 2 * f.state, f.state
}

// layer is what one token of one layer keeps for the backward pass, in bytes,
// with the scores of eager attention apart because they go with the square of
// the length.
type layer struct {
	all       float64 // without recomputation
	selective float64
	boundary  float64 // full recomputation
	transient float64 // of the layer's backward pass, beside what it kept
	scores    float64 // bytes for each score kept; 0: none kept
}

func (f *form) layer(r *run, c *Choice, fm formats) layer {
	var l layer
	tp := float64(c.Tensor)
	w := fm.compute
	// torchtitan without torch.compile runs PyTorch's own operations.
	titan := c.Kernels == speed.Fused && !f.fused
	fused := c.Kernels != speed.Eager && !titan
	amp := fm.residual == 4 && fm.compute == 2
	norm := 0.0 // bytes for each unit of width that one norm and its consumer keep
	switch {
	case r.layerNorm && amp:
		norm = 8
	case r.layerNorm, fused:
		norm = 2 * w
	case amp:
		norm = 13 // float32 input and normalised copy, one 16-bit copy for each consumer
	case w == 4:
		norm = 12
	default:
		norm = 8
	}
	if c.Method != FullTune { // the inputs of frozen matrices are not kept by them
		norm = min(norm, 6)
	}
	l.all = r.norms * norm * r.h
	if c.Kernels == speed.Megatron || c.Kernels == speed.Compiled {
		l.all = r.norms * 2 * w * r.h
	}
	attn := w*(2*r.q+2*r.k) + w*(r.v-r.q)/2
	if r.q > 0 && r.k < r.q && !fused && c.Attention != FlashAttention {
		attn = w * 4 * r.q // keys and values repeated for every head
	}
	switch {
	case c.Kernels == speed.Megatron: // the queries before and after rotation
		attn += w * r.q
	case r.fusedQKV:
		attn += w * (r.q + r.k)
	}
	if r.qkNorm {
		if fused {
			attn += w * (r.q + r.k)
		} else {
			attn += 6 * (r.q + r.k)
		}
	}
	attn += 4 * r.heads
	if r.q == 0 {
		attn = 0
	}
	if c.Attention == EagerAttention {
		l.scores = r.heads * (4 + w) / tp
	}
	mlp := 0.0
	if r.ffn > 0 {
		mlp = mlpKept(r.ffn, r.gated, r.actTensors, w, fused)
	}
	if r.nExperts > 0 {
		imbalance := 1.2
		mlp += 8*r.nExperts + 32*r.topK + imbalance*r.topK*(2*w*r.h+mlpKept(r.expFF, r.expGated, 2, w, fused))
		if r.sharedFF > 0 {
			mlp += mlpKept(r.sharedFF, r.expGated, 2, w, fused)
		}
	}
	l.all += attn + mlp + w*r.state
	switch {
	case c.Method == QLoRA, c.Method == LoRA && fm.residual == 4: // each adapted matrix keeps its input in its own copy
		l.all += 2 * r.linears
	case c.Method == LoRA: // the inputs themselves, of which only the inner one is not kept anyway
		l.all += w * (r.ffn + r.topK*r.expFF + r.sharedFF)
	}
	ff := r.ffn + r.topK*r.expFF + r.sharedFF
	l.selective = w*(r.q+r.k+ff+r.h) + w*r.q + 4*r.heads + w*r.h
	l.boundary = fm.residual * r.h
	l.transient = w * (r.h + 2*ff)
	if c.Attention != EagerAttention && r.q > 0 {
		l.transient = max(l.transient, 4*r.q+4*r.heads+w*(r.q+2*r.k)) // float32 accumulator of flash's backward
	}
	l.selective = min(l.selective, l.all)
	// Tensor parallelism divides everything where the sequence between the
	// products is divided too (Megatron, torchtitan); the products alone
	// elsewhere.
	if c.Tensor > 1 {
		if fused || titan {
			l.all, l.selective, l.boundary, l.transient = l.all/tp, l.selective/tp, l.boundary/tp, l.transient/tp+w*r.h
		} else {
			whole := r.norms * norm * r.h
			l.all = whole + (l.all-whole)/tp
			l.selective = 2*w*r.h + (l.selective-2*w*r.h)/tp
			l.transient = l.transient/tp + w*r.h
		}
	}
	return l
}

// mlpKept is what a transformation keeps for a token.
func mlpKept(ffn float64, gated bool, act, w float64, fused bool) float64 {
	switch {
	case gated && fused:
		return 3 * w * ffn // silu is computed again
	case gated:
		return 4 * w * ffn
	}
	return act * w * ffn
}

// communicators is what NCCL allocates for the groups of a choice.
//
// Source: NCCL allocates about 9.2 MiB for each connection of a channel; 24
// channels on A100 make 662 MiB of a ring and two trees, 688 measured.
func (f *form) communicators(c *Choice) float64 {
	one := 80.0 * (1 << 20) // PCIe: 2 to 4 channels
	if f.link {
		one = 600 * (1 << 20)
	}
	var n float64
	for _, size := range []int{c.Data, c.Tensor, c.Pipeline, c.Context, c.Expert} {
		if size > 1 {
			n++
		}
	}
	if c.Sharding != speed.NoSharding && c.Shard > 1 && c.Shard < c.Data {
		n++
	}
	return one * n
}
