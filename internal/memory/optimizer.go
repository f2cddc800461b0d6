package memory

// optimizerKind is a family of update rules, as far as the step's own tensors and
// the shape of the state are concerned.
type optimizerKind uint8

// The kinds. Sources are in docs/how-it-estimates.md.
const (
	optPlain     optimizerKind = iota // whole moments, and nothing that outlives a kernel
	optAdam                           // whole moments, a square root of one of them
	optAdamHF                         // transformers' own AdamW: for-loop
	optSGD                            // foreach copies the gradients for weight decay
	optLion                           // one tensor for the update's sign
	optAdafactor                      // row and column sums
	optMuon                           // one moment on hidden matrices, two on the rest
	optAdamMini                       // one moment, and one number for each block
	optShampoo                        // two moments and two factors with their eigenbases (SOAP)
	optLowRank                        // moments of rank r, and a projector (GaLore, APOLLO)
)

// stateFormat is how a moment is kept.
type stateFormat uint8

const (
	asParameter stateFormat = iota // in the parameter's dtype
	inFloat32
	inEightBits // 1 byte, one float32 for each 256
	inFourBits  // half a byte, one float32 for each 128
)

// optimizerImpl is how the update is computed.
type optimizerImpl uint8

const (
	implOpen    optimizerImpl = iota // as the framework computes Adam
	implForeach                      // all tensors of a group at once
	implLoop                         // one tensor after the other
	implFused                        // in one kernel
)

// optimizer is an update rule with its implementation.
type optimizer struct {
	kind    optimizerKind
	impl    optimizerImpl
	moments int // of the parameter's size
	format  stateFormat

	amsgrad     bool
	weightDecay bool
	paged       bool // states in managed memory, outside torch's allocator
	inBackward  bool // stepped from a hook as each gradient comes
	cpu         bool // states and update on the host
	rank        int64
	gpuSteps    bool // the step counters are tensors on the GPU
	master      bool // a float32 copy of low-precision parameters
}

// smallestQuantisedState: below so many elements bitsandbytes and torchao keep
// states in float32. Source: bitsandbytes optim/optimizer.py, min_8bit_size;
// torchao optim/adam.py, _new_buffer.
const smallestQuantisedState = 4096

// states returns the allocations that the state of a parameter of n elements
// (rows×cols where it is a matrix) needs.
func (o *optimizer) states(n, rows, cols int64, d dtype) []int64 {
	var out []int64
	if o.master && d.low() {
		out = append(out, f32.size(n))
	}
	matrix := rows > 1 && cols > 1
	switch o.kind {
	case optMuon:
		out = o.whole(out, 1, n, d)
		if !matrix {
			out = o.whole(out, 1, n, d)
		}
	case optAdamMini:
		out = append(o.whole(out, 1, n, d), 4*max(rows, 1))
	case optShampoo:
		out = o.whole(out, 2, n, d)
		for _, side := range []int64{rows, cols} {
			if side > 1 && side <= shampooSideMost {
				out = append(out, 4*side*side, 4*side*side)
			}
		}
	case optLowRank:
		if !matrix || o.rank <= 0 || min(rows, cols) <= o.rank {
			out = o.whole(out, o.moments, n, d)
			break
		}
		out = o.whole(out, o.moments, o.rank*max(rows, cols), d)
		out = append(out, d.size(o.rank*min(rows, cols)))
	case optAdafactor:
		if matrix {
			out = append(out, f32.size(rows), f32.size(cols))
		} else {
			out = append(out, f32.size(n))
		}
	default:
		k := o.moments
		if o.amsgrad && o.kind == optAdam {
			k++
		}
		out = o.whole(out, k, n, d)
	}
	if o.gpuSteps {
		out = append(out, 4)
	}
	return out
}

// whole appends k moments of n values of a parameter of dtype d.
func (o *optimizer) whole(out []int64, k int, n int64, d dtype) []int64 {
	format := o.format
	if (format == inEightBits || format == inFourBits) && n < smallestQuantisedState {
		format = inFloat32
	}
	var scales []int64
	for range k {
		switch format {
		case asParameter:
			out = append(out, d.size(n))
		case inFloat32:
			out = append(out, f32.size(n))
		case inEightBits:
			out, scales = append(out, n), append(scales, 4*ceilDiv(n, 256))
		case inFourBits:
			out, scales = append(out, n/2), append(scales, 4*ceilDiv(n, 128))
		}
	}
	return append(out, scales...)
}

// shampooSideMost is SOAP's max_precond_dim. Source: SOAP's reference code.
const shampooSideMost = 10000

// step plays optimizer.step over the parameters in order of their groups.
// first says that the states do not exist yet.
func (x *machine) step(o *optimizer, ps []*parameter, first bool) {
	if o.cpu {
		return
	}
	if first && !o.paged {
		undo := x.as(OptimizerState, "optimizer state")
		for _, p := range ps {
			x.makeState(o, p)
		}
		undo()
	}
	undo := x.as(Temporaries, "optimizer step")
	defer undo()
	switch o.kind {
	case optAdam:
		x.adamStep(o, ps)
	case optAdamHF:
		for _, p := range ps {
			d := stateDType(o, p)
			denom := x.tensor(p.t.n, d) // exp_avg_sq.sqrt().add_(eps)
			x.drop(denom)
		}
	case optAdafactor:
		for _, p := range ps {
			x.adafactorStep(p)
		}
	case optSGD:
		if o.impl == implForeach && o.weightDecay {
			var copies []tensor
			for _, p := range ps {
				copies = append(copies, x.tensor(p.t.n, p.gdt))
			}
			x.drop(copies...)
		}
	case optLion:
		for _, p := range ps {
			x.scratch(stateDType(o, p).size(p.t.n))
		}
	case optMuon:
		for _, p := range ps {
			// Newton–Schulz in bfloat16: the matrix, its Gram matrix, two products.
			a, b := x.tensor(p.t.n, bf16), x.tensor(p.t.n, bf16)
			x.scratch(bf16.size(2 * p.t.n))
			x.drop(a, b)
		}
	case optLowRank:
		for _, p := range ps {
			full := x.tensor(p.t.n, f32)
			x.scratch(p.gdt.size(p.t.n))
			x.drop(full)
		}
	}
}

// makeState makes the optimizer state of one parameter.
func (x *machine) makeState(o *optimizer, p *parameter) {
	rows, cols := p.rows, p.cols
	for _, b := range o.states(p.t.n, rows, cols, p.t.dt) {
		p.state = append(p.state, x.alloc(b))
	}
}

// stateDType is the dtype in which the step computes with the moments.
func stateDType(o *optimizer, p *parameter) dtype {
	if o.format == asParameter {
		return p.t.dt
	}
	return f32
}

// adamStep has the temporaries of torch's Adam: none when fused; the square
// root of the second moment of the whole group with foreach; of one tensor, and
// its quotient, in the loop.
// Source: torch/optim/adamw.py, _multi_tensor_adamw and _single_tensor_adamw.
func (x *machine) adamStep(o *optimizer, ps []*parameter) {
	switch o.impl {
	case implForeach:
		roots := make([]tensor, 0, len(ps))
		for _, p := range ps {
			roots = append(roots, x.tensor(p.t.n, stateDType(o, p)))
		}
		x.drop(roots...)
	case implLoop:
		for _, p := range ps {
			d := stateDType(o, p)
			root := x.tensor(p.t.n, d)
			quotient := x.tensor(p.t.n, d)
			x.drop(root, quotient)
		}
	}
}

// adafactorStep is transformers' Adafactor on one parameter.
// Source: transformers/optimization.py, Adafactor.step: grad**2 + eps, its row
// and column means, the approximated root, and the update.
func (x *machine) adafactorStep(p *parameter) {
	n := p.t.n
	g := tensor{st: noStorage}
	if p.gdt.low() {
		g = x.tensor(n, f32)
	}
	w := tensor{st: noStorage}
	if p.t.dt.low() {
		w = x.tensor(n, f32)
	}
	sq := x.tensor(n, f32)
	update := x.tensor(n, f32)
	x.drop(update)
	update = x.tensor(n, f32)
	x.scratch(f32.size(n))
	x.drop(sq, update, w, g)
}
