package memory

import "unoom/internal/model/graph"

// how says what backward does with the gradient of one operand.
type how uint8

const (
	fresh  how = iota // a new tensor of the operand's shape
	pass              // the gradient itself, or a view of it
	zeros             // a new tensor, as fresh
	absent            // none
)

// autocastTo32 are the operations that autocast runs in float32.
// Source: aten/src/ATen/autocast_mode.cpp, the fp32 list.
func autocastTo32(op graph.Op) bool {
	switch op {
	case graph.Softmax, graph.LogSoftmax, graph.NLL, graph.Pow, graph.Exp, graph.Log, graph.Sum, graph.LayerNorm, graph.GroupNorm, graph.BCELogits, graph.MSE,
		graph.SoftPlus:
		return true
	}
	return false
}

// autocastLow are those that it runs in the low precision.
func autocastLow(op graph.Op) bool {
	switch op {
	case graph.Conv, graph.Linear, graph.MatMul, graph.Attention, graph.PReLU:
		return true
	}
	return false
}

// node runs one operation.
func (p *imagePlayer) node(i int) {
	x, n := p.x, &p.g.Nodes[i]
	recorded := p.g.Tensors[n.Out[0]].Grad
	if !recorded {
		old := x.grad
		x.grad = false
		defer func() { x.grad = old }()
	}
	in := make([]tensor, 0, 4)
	for _, v := range n.In {
		t := none()
		if v != graph.None {
			t = p.vals[v]
			switch {
			case p.amp == f32 || t.dt == i64 || t.dt == u8:
				t = x.keep(t)
			case autocastLow(n.Op):
				t = x.castInput(t)
			case autocastTo32(n.Op):
				t = x.cast(t, f32)
			default:
				t = x.keep(t)
			}
		}
		in = append(in, t)
	}
	out := p.run(i, n, in)
	x.drop(in...)
	for k, v := range n.Out {
		p.vals[v] = out[k]
	}
}

// dtypeOf is the dtype of an operation's result.
func (p *imagePlayer) dtypeOf(n *graph.Node, in []tensor) dtype {
	t := &p.g.Tensors[n.Out[0]]
	switch t.Class {
	case graph.Int64:
		return i64
	case graph.Byte:
		return u8
	case graph.Float32:
		return f32
	}
	if len(in) == 0 {
		return f32
	}
	d := in[0].dt
	for _, t := range in[1:] {
		if t.st >= 0 && t.dt == f32 && d.low() {
			d = f32
		}
	}
	return d
}

// run records and computes one operation.
func (p *imagePlayer) run(i int, n *graph.Node, in []tensor) []tensor {
	x, g := p.x, p.g
	t := &g.Tensors[n.Out[0]]
	size, d := t.Elements(), p.dtypeOf(n, in)

	// Operands of the recorded step: the operation's, then the trained
	// parameters.
	operands := append([]tensor(nil), in...)
	var params []tensor
	for k := range n.Params {
		if n.Params[k].Buffer {
			continue
		}
		w := p.weights[i][k]
		if p.amp != f32 && autocastLow(n.Op) {
			w = x.castWeight(w)
		} else {
			w = x.keep(w)
		}
		params = append(params, w)
	}
	operands = append(operands, params...)
	defer x.drop(params...)

	keeps := g.Keeps(n, p.old)
	var saved []tensor
	for _, k := range keeps.Operands {
		if k < len(in) {
			saved = append(saved, in[k])
		}
	}
	if (n.Op == graph.Conv || n.Op == graph.Linear) && len(params) > 0 && len(in) > 0 && in[0].needsGrad() {
		saved = append(saved, params[0])
	}
	if (n.Op == graph.Mul || n.Op == graph.PReLU) && len(params) > 0 {
		saved = append(saved, params[0])
	}

	var fn int32
	if x.recording(operands...) {
		fn = x.push(len(n.Out), operands, saved, p.backward(n, in, params, d))
	}
	p.scratch(n, in, d)
	var out tensor
	switch {
	case n.Op == graph.View && len(in) == 0: // a parameter, repeated
		out = x.keep(params[0])
	case n.InPlace, n.Op == graph.View, n.Op == graph.Slice, n.Op == graph.Cast && in[0].dt == d:
		out = x.keep(in[0])
	default:
		out = x.tensor(size, d)
	}
	out.n, out.dt, out.leaf, out.slot, out.fn = size, d, 0, 0, fn
	if fn != 0 && keeps.Result {
		x.saveOutput(out)
	}
	for k := range keeps.Extra {
		e := &keeps.Extra[k]
		ed := d
		if e.Class != graph.Float {
			ed = p.class(e.Class)
		}
		s := x.tensor(e.Elements(), ed)
		if fn != 0 {
			x.saveOutput(s)
		}
		x.drop(s)
	}
	if n.Op == graph.TopK {
		x.scratch(i64.size(size))
	}
	return []tensor{out}
}

// backward returns what runs when the gradient of n's result has come.
func (p *imagePlayer) backward(n *graph.Node, in, params []tensor, d dtype) func(f *frame) {
	type operand struct {
		n   int64
		dt  dtype
		how how
	}
	size := p.g.Tensors[n.Out[0]].Elements()
	var ops []operand
	for k := range in {
		o := operand{n: in[k].n, dt: in[k].dt, how: fresh}
		switch n.Op {
		case graph.Add, graph.Sub:
			if in[k].n == size && (n.Op == graph.Add || k == 0) {
				o.how = pass
			}
		case graph.View, graph.Contiguous, graph.Cat, graph.Sum, graph.Repeat:
			o.how = pass
		case graph.Cast:
			if in[k].dt == d {
				o.how = pass
			}
		case graph.NLL, graph.BCELogits, graph.MSE:
			if k > 0 {
				o.how = absent
			}
		}
		ops = append(ops, o)
	}
	for k := range params {
		ops = append(ops, operand{n: params[k].n, dt: params[k].dt})
	}
	op, operands := n.Op, len(in)
	conv := n.Op == graph.Conv
	extra := p.cudnn.backward(p.g, n)
	return func(f *frame) {
		x := f.x
		g := f.g[0]
		switch op {
		case graph.Pow: // exponent · x^(exponent-1), twice in full
			a := x.make(size, d)
			b := x.make(size, d)
			x.release(a.st)
			defer x.release(b.st)
		case graph.Softmax: // grad · output, whole, before the kernel runs
			// Source: aten/src/ATen/native/cuda/SoftMax.cu, softmax_backward_cuda_out.
			c := x.make(size, d)
			defer x.release(c.st)
		case graph.PReLU: // a slope's gradient for each element, then summed
			c := x.make(size, d)
			defer x.release(c.st)
		}
		for k := range ops {
			o := &ops[k]
			if !f.want(k) || o.how == absent {
				continue
			}
			if conv && k < operands+1 {
				x.scratch(extra)
			}
			switch o.how {
			case pass:
				if g.dt != o.dt {
					f.send(k, x.make(o.n, o.dt))
					continue
				}
				x.hold(g.st)
				f.send(k, gradient{st: g.st, n: o.n, dt: o.dt, ok: true})
			default:
				if op == graph.Mul && o.n < size { // the product in full, then its sum
					x.scratch(o.dt.size(size))
				}
				f.send(k, x.make(o.n, o.dt))
			}
		}
	}
}

// scratch allocates what an operation needs only while it runs.
func (p *imagePlayer) scratch(n *graph.Node, in []tensor, d dtype) {
	switch n.Op {
	case graph.Conv:
		p.x.scratch(p.cudnn.forward(p.g, n))
	}
}

// convWorkspace says what cuDNN allocates for a convolution.
type convWorkspace struct {
	d    dtype // of the products
	none bool  // the algorithms chosen take none
}

// winograd is the workspace of cuDNN's non-fused Winograd algorithm, which its
// heuristics choose for 3×3 convolutions of stride 1 in float32: the input and
// the output in tiles of 6×6 for each 4×4 of the result, and the transformed
// kernel. Dilated, strided and grouped convolutions have no such algorithm.
//
// Source: Lavin, Gray: Fast algorithms for convolutional neural networks,
// F(4×4, 3×3); cuDNN's list of algorithms and what they support.
func (c convWorkspace) winograd(g *graph.Graph, n *graph.Node) int64 {
	w := &n.Conv
	if c.none || c.d != f32 || w.Transposed || w.Groups != 1 || w.Kernel != [2]int64{3, 3} || w.Stride != [2]int64{1, 1} || w.Dilation != [2]int64{1, 1} {
		return 0
	}
	in, out := g.Tensors[n.In[0]].Shape, g.Tensors[n.Out[0]].Shape
	tiles := out[0] * ceilDiv(out[2], 4) * ceilDiv(out[3], 4)
	return f32.size(36 * (tiles*(in[1]+out[1]) + in[1]*out[1]))
}

func (c convWorkspace) forward(g *graph.Graph, n *graph.Node) int64 { return c.winograd(g, n) }
func (c convWorkspace) backward(g *graph.Graph, n *graph.Node) int64 {
	if n.Op != graph.Conv {
		return 0
	}
	return c.winograd(g, n)
}
