package memory

import "slices"

// parameter is a leaf: a weight with its gradient.
type parameter struct {
	name       string
	t          tensor // the weight; its leaf is this parameter where it is trained
	grad       int32  // storage of .grad, noStorage: None
	gdt        dtype
	state      []int32 // optimizer state
	rows, cols int64   // of a matrix; a vector has one row

	// pending counts the uses in the graph whose gradient has not come yet, buf
	// is the sum so far. PyTorch's AccumulateGrad runs when the last has come.
	pending int32
	buf     gradient

	// sink takes the summed gradient instead of .grad, nil: none. It owns the
	// reference.
	sink func(x *machine, p *parameter, g gradient)
	// after runs when .grad has been accumulated, as a hook does.
	after func(x *machine, p *parameter)
}

// gradient is a gradient on its way; it owns one reference to its storage.
type gradient struct {
	st int32
	n  int64
	dt dtype
	ok bool
}

// target is where a gradient goes: an output of a node, or a parameter.
type target struct {
	fn   int32
	leaf int32
	slot uint16
}

func (t target) wanted() bool { return t.fn != 0 || t.leaf != 0 }

// span is a piece of one of the tape's arenas.
type span struct{ from, to int32 }

// node is one step of backward. run sends a gradient for each input.
type node struct {
	run   func(f *frame)
	in    span // in tape.in
	saved span // in tape.saved
	grad  span // in tape.grads, one for each output
	// item is what the operation is counted under: what its backward makes
	// belongs to it too.
	item itemID
}

// tape is a graph under construction.
type tape struct {
	nodes []node
	in    []target
	saved []int32
	grads []gradient
}

// frame is what a running node works with.
type frame struct {
	x    *machine
	g    []gradient // gradients of the node's outputs, borrowed
	in   []target
	kept []int32 // what the node saved
	out  []gradient
}

// want reports whether input i needs a gradient.
func (f *frame) want(i int) bool { return f.in[i].wanted() }

// send hands the gradient of input i over, with its reference.
func (f *frame) send(i int, g gradient) {
	if f.in[i].wanted() {
		f.out[i] = g
	} else if g.ok {
		f.x.release(g.st)
	}
}

// pass sends the gradient of the first output on to input i as it is.
func (f *frame) pass(i int) {
	if f.want(i) && f.g[0].ok {
		f.x.hold(f.g[0].st)
		f.out[i] = f.g[0]
	}
}

// make allocates a gradient of n elements.
func (x *machine) make(n int64, d dtype) gradient {
	return gradient{st: x.alloc(d.size(n)), n: n, dt: d, ok: true}
}

// newTape starts an empty graph and returns the one before.
func (x *machine) newTape() *tape {
	old := x.tape
	if n := len(x.tapes); n > 0 {
		x.tape, x.tapes = x.tapes[n-1], x.tapes[:n-1]
	} else {
		x.tape = &tape{}
	}
	return old
}

// endTape goes back to an earlier graph; the current one is done with.
func (x *machine) endTape(old *tape) {
	t := x.tape
	t.nodes, t.in, t.saved, t.grads = t.nodes[:0], t.in[:0], t.saved[:0], t.grads[:0]
	x.tapes = append(x.tapes, t)
	x.tape = old
}

// recording reports whether an operation on these inputs is recorded.
func (x *machine) recording(in ...tensor) bool {
	return x.grad && slices.ContainsFunc(in, tensor.needsGrad)
}

// push records a node with some outputs and returns its index + 1.
func (x *machine) push(outputs int, in, saved []tensor, run func(f *frame)) int32 {
	t := x.tape
	nd := node{run: run, item: x.item}
	nd.in.from = int32(len(t.in))
	for i := range in {
		t.in = append(t.in, target{in[i].fn, in[i].leaf, in[i].slot})
		if in[i].leaf != 0 {
			x.params[in[i].leaf-1].pending++
		}
	}
	nd.in.to = int32(len(t.in))
	nd.saved.from = int32(len(t.saved))
	for i := range saved {
		x.save(saved[i])
	}
	nd.saved.to = int32(len(t.saved))
	nd.grad.from = int32(len(t.grads))
	for range outputs {
		t.grads = append(t.grads, gradient{})
	}
	nd.grad.to = int32(len(t.grads))
	t.nodes = append(t.nodes, nd)
	return int32(len(t.nodes))
}

// save keeps a tensor for backward. In a recomputation the last one that the
// forward saved ends it.
func (x *machine) save(t tensor) {
	if x.muted {
		return
	}
	x.saves++
	if !x.packed && t.st >= 0 {
		x.hold(t.st)
		x.sts[t.st].marks |= markSaved
		x.tape.saved = append(x.tape.saved, t.st)
	}
	if x.until > 0 && x.saves >= x.until {
		x.muted = true
	}
}

// saveOutput keeps an output of the node recorded last.
func (x *machine) saveOutput(t tensor) {
	x.save(t)
	x.tape.nodes[len(x.tape.nodes)-1].saved.to = int32(len(x.tape.saved))
}

// op makes the output of an operation of n elements. Where an input needs a
// gradient it records a node first, with what is saved of the inputs, as
// autograd's wrappers do; keepOut says that the output is saved too.
func (x *machine) op(n int64, d dtype, in, saved []tensor, keepOut bool, run func(f *frame)) tensor {
	if !x.recording(in...) {
		return x.tensor(n, d)
	}
	fn := x.push(1, in, saved, run)
	out := x.tensor(n, d)
	if keepOut {
		x.saveOutput(out)
	}
	out.fn = fn
	return out
}

// alias is a view of t whose backward runs a node of its own.
func (x *machine) alias(t tensor, run func(f *frame)) tensor {
	out := x.keep(t)
	if x.recording(t) {
		out.fn, out.slot, out.leaf = x.push(1, []tensor{t}, nil, run), 0, 0
	}
	return out
}

// backward runs the current graph from t, whose gradient is g. The order is
// that of PyTorch's engine: of the nodes that are ready, the one recorded last.
func (x *machine) backward(t tensor, g gradient) {
	old := x.grad
	x.grad = false
	x.deliver(target{t.fn, t.leaf, t.slot}, g)
	x.drain()
	x.grad = old
}

// drain runs every node of the current graph, last first.
func (x *machine) drain() {
	tp := x.tape
	before := x.item
	for i := len(tp.nodes) - 1; i >= 0; i-- {
		nd := tp.nodes[i]
		x.item = nd.item
		g := tp.grads[nd.grad.from:nd.grad.to]
		in := tp.in[nd.in.from:nd.in.to]
		reached := slices.ContainsFunc(g, func(g gradient) bool { return g.ok })
		var f *frame
		if reached {
			if x.depth == len(x.frames) {
				x.frames = append(x.frames, frame{x: x})
			}
			f = &x.frames[x.depth]
			x.depth++
			f.g, f.in, f.kept = g, in, tp.saved[nd.saved.from:nd.saved.to]
			f.out = f.out[:0]
			for range in {
				f.out = append(f.out, gradient{})
			}
			level := x.depth - 1
			nd.run(f)
			x.depth--
			f = &x.frames[level] // nested runs may have moved it
		}
		for _, s := range tp.saved[nd.saved.from:nd.saved.to] {
			x.release(s)
		}
		for k := range g {
			if g[k].ok {
				x.release(g[k].st)
				g[k] = gradient{}
			}
		}
		for k := range in {
			if reached {
				x.deliver(in[k], f.out[k])
			} else {
				x.deliver(in[k], gradient{})
			}
		}
	}
	x.item = before
}

// deliver brings a gradient to where it is summed. A missing one counts as
// arrived for a parameter.
func (x *machine) deliver(t target, g gradient) {
	switch {
	case t.leaf != 0:
		p := &x.params[t.leaf-1]
		if g.ok {
			p.buf = x.sum(p.buf, g)
		}
		p.pending--
		if p.pending <= 0 && p.buf.ok {
			g = p.buf
			p.buf = gradient{}
			x.accumulate(p, g)
		}
	case t.fn != 0:
		if !g.ok {
			return
		}
		nd := &x.tape.nodes[t.fn-1]
		slot := &x.tape.grads[nd.grad.from:nd.grad.to][t.slot]
		*slot = x.sum(*slot, g)
	default:
		if g.ok {
			x.release(g.st)
		}
	}
}

// sum adds two gradients as the engine's input buffer does: in place where
// nothing else holds the first, else in a new storage.
// Source: torch/csrc/autograd/input_buffer.cpp, accumulate.
func (x *machine) sum(a, b gradient) gradient {
	if !a.ok {
		return b
	}
	if a.st < 0 || x.unique(a.st) {
		x.release(b.st)
		return a
	}
	c := x.make(a.n, a.dt)
	x.release(a.st)
	x.release(b.st)
	return c
}

// accumulate is AccumulateGrad: the gradient becomes .grad if there is none and
// nothing else holds it, and is added in place if there is one.
// Source: torch/csrc/autograd/functions/accumulate_grad.h.
func (x *machine) accumulate(p *parameter, g gradient) {
	if p.sink != nil {
		p.sink(x, p, g)
		return
	}
	if g.dt != p.gdt {
		// The engine casts a gradient to the dtype of what it belongs to.
		c := x.make(g.n, p.gdt)
		x.release(g.st)
		g = c
	}
	switch {
	case p.grad >= 0:
		x.release(g.st)
	case x.unique(g.st):
		p.grad = g.st
		x.sts[g.st].marks |= markGradient
	default:
		c := x.make(g.n, p.gdt)
		x.release(g.st)
		p.grad = c.st
		if c.st >= 0 {
			x.sts[c.st].marks |= markGradient
		}
	}
	if p.after != nil {
		p.after(x, p)
	}
}

// dropGrad is p.grad = None.
func (x *machine) dropGrad(p *parameter) {
	x.release(p.grad)
	p.grad = noStorage
}
