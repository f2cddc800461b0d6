package memory

// optimizerKind is a family of update rules, as far as memory is concerned.
type optimizerKind uint8

// The optimizers. Sources are in docs/how-it-estimates.md.
const (
	optAdam         optimizerKind = iota // Adam, AdamW: two states
	optSGD                               // none
	optMomentum                          // one state
	optAdafactor                         // row and column sums
	optLion                              // one state
	optAdam8bit                          // two states of 1 byte, one float32 for each 256
	optAdam4bit                          // two states of half a byte, one float32 for each 128
	optAdamFP8                           // two states of 1 byte, one float32 for each 256
	optAdamHF                            // transformers' own AdamW: for-loop
	optMuon                              // one state on hidden matrices, Adam on the rest
	optAdamMini                          // one state, and one number for each block
	optShampoo                           // two states and two factors with their eigenbases (SOAP)
	optGaLore                            // two states of rank r, and a projector
	optLOMO                              // none, gradients die as they come
	optAdaLomo                           // row and column sums, gradients die as they come
	optProdigy                           // four states
	optSophia                            // two states
	optScheduleFree                      // two states
	optAdagrad                           // one state
	optRMSprop                           // one state
)

// optimizerImpl is how the update is computed.
type optimizerImpl uint8

const (
	implForeach optimizerImpl = iota // all tensors of a group at once
	implLoop                         // one tensor after the other
	implFused                        // in one kernel
)

// optimizer is an update rule with its implementation.
type optimizer struct {
	kind optimizerKind
	impl optimizerImpl
	// state is the dtype of the states; stateAsParam says that they follow the
	// parameter instead.
	state        dtype
	stateAsParam bool
	amsgrad      bool
	weightDecay  bool
	paged        bool // states in managed memory, outside torch's allocator
	inBackward   bool // stepped from a hook as each gradient comes
	cpu          bool // states and update on the host
	rank         int64
	gpuSteps     bool // the step counters are tensors on the GPU
	master       bool // a float32 copy of low-precision parameters
}

// below these many elements bitsandbytes keeps states in float32.
// Source: bitsandbytes optim/optimizer.py, min_8bit_size.
const smallestQuantisedState = 4096

// states returns the allocations that the state of a parameter of n elements
// (rows×cols where it is a matrix) needs.
func (o *optimizer) states(n, rows, cols int64, d dtype) []int64 {
	s := o.state
	if o.stateAsParam {
		s = d
	}
	var out []int64
	if o.master && d.low() {
		out = append(out, f32.size(n))
	}
	whole := func(k int) {
		for range k {
			out = append(out, s.size(n))
		}
	}
	switch o.kind {
	case optAdam, optAdamHF, optSophia, optScheduleFree:
		whole(2)
		if o.amsgrad {
			whole(1)
		}
	case optMomentum, optLion, optAdagrad, optRMSprop:
		whole(1)
	case optProdigy:
		whole(4)
	case optAdam8bit, optAdamFP8:
		if n < smallestQuantisedState {
			out = append(out, f32.size(n), f32.size(n))
			break
		}
		out = append(out, n, n, ceilDiv(n, 256)*4, ceilDiv(n, 256)*4)
	case optAdam4bit:
		if n < smallestQuantisedState {
			out = append(out, f32.size(n), f32.size(n))
			break
		}
		out = append(out, n/2, n/2, ceilDiv(n, 128)*4, ceilDiv(n, 128)*4)
	case optAdafactor, optAdaLomo:
		if cols > 1 && rows > 1 {
			out = append(out, f32.size(rows), f32.size(cols))
		} else {
			out = append(out, f32.size(n))
		}
	case optMuon:
		whole(1)
		if rows <= 1 || cols <= 1 {
			whole(1)
		}
	case optAdamMini:
		whole(1)
		out = append(out, 4*max(rows, 1))
	case optShampoo:
		whole(2)
		for _, side := range []int64{rows, cols} {
			if side > 1 && side <= shampooSideMost {
				out = append(out, 4*side*side, 4*side*side)
			}
		}
	case optGaLore:
		if rows > 1 && cols > 1 && o.rank > 0 && min(rows, cols) > o.rank {
			out = append(out, s.size(o.rank*max(rows, cols)), s.size(o.rank*max(rows, cols)), d.size(o.rank*min(rows, cols)))
		} else {
			whole(2)
		}
	}
	if o.gpuSteps {
		out = append(out, 4)
	}
	return out
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
	case optAdam, optSophia, optScheduleFree, optAdagrad, optRMSprop:
		x.adamStep(o, ps)
	case optAdamHF:
		for _, p := range ps {
			d := stateDType(o, p)
			denom := x.tensor(p.t.n, d) // exp_avg_sq.sqrt().add_(eps)
			x.drop(denom)
		}
	case optAdafactor, optAdaLomo:
		for _, p := range ps {
			x.adafactorStep(p)
		}
	case optSGD, optMomentum:
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
	case optGaLore:
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

func stateDType(o *optimizer, p *parameter) dtype {
	if o.stateAsParam {
		return p.t.dt
	}
	return o.state
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
