package memory

import "slices"

// A compiled layer keeps what its backward cannot make cheaply, or would have to
// store anyway: its input, the inputs of matrix products whose weights are
// trained, the operands of the attention kernel, and the outputs of products
// that a pointwise derivative reads. Pointwise results in between are made
// again inside the kernels that use them.
// Source: torch/_functorch/partitioners.py, min_cut_rematerialization_partition
// and MinCutOptions (ban_if_materialized_backward, ban_if_reduction).

// compiledLayer is a pre-norm block under torch.compile.
func (p *player) compiledLayer(b *block, in tensor) tensor {
	x := p.x
	a := b.l.Attention
	h := heads{batch: p.batch, seq: p.seq, keySeq: p.seq, heads: a.Heads, kv: a.KVHeads, dim: a.HeadDim, vdim: a.VHeadDim, causal: a.Causal}
	undo := x.as("", "attention")
	rep := h
	if p.lib.repeatKV {
		rep = h.repeated()
	}
	q, k, v := p.compiledProjections(b, in, h, rep)
	var ctx tensor
	switch p.lib.attn {
	case attnEfficient:
		ctx = x.efficient(q, k, v, none(), rep)
	default:
		ctx = x.flash(q, k, v, rep)
	}
	x.drop(q, k, v)
	undo()
	defer x.as("", "MLP")()
	out := p.compiledRest(b, ctx, in)
	x.drop(ctx)
	return out
}

// uncompilable names what of a layer compiledLayer does not play.
func uncompilable(b *block) string {
	l := b.l
	switch {
	case l.Attention == nil || l.MLP == nil || l.MoE != nil:
		return "a layer that is not attention and an MLP"
	case b.q == nil:
		return "a fused projection"
	case slices.ContainsFunc([]*matrix{b.q, b.k, b.v, b.o, b.gate, b.up, b.down}, func(m *matrix) bool { return m != nil && m.lora != nil && m.lora.dora }):
		return "DoRA"
	case l.Parallel || b.post1 != nil || b.post2 != nil || b.normQ != nil:
		return "a layer with further norms"
	case l.ResidualDropout > 0 || l.Attention.Dropout > 0:
		return "dropout"
	}
	return ""
}

// trainedWeights are the tensors of matrices that a compiled region reads.
func trainedWeights(list []tensor, ms ...*matrix) []tensor {
	for _, m := range ms {
		if m == nil {
			continue
		}
		list = append(list, m.weight())
		if m.biased {
			list = append(list, m.bias)
		}
		if m.lora != nil {
			list = append(list, m.lora.a, m.lora.b)
		}
	}
	return list
}

// readsInput reports whether the gradient of a weight needs the input of one of
// the products.
func readsInput(ms ...*matrix) bool {
	return slices.ContainsFunc(ms, func(m *matrix) bool {
		return m != nil && (m.weight().needsGrad() || m.lora != nil)
	})
}

// compiledProduct is a product in a compiled region: the output of n elements,
// and what a pair keeps of it. The pair's own output is added in place.
func (x *machine) compiledProduct(m *matrix, n int64, d dtype) (out, low tensor) {
	w := none()
	if m.quant != nil {
		w = x.expand(m.quant, m.in*m.out)
	}
	out, low = x.tensor(n, d), none()
	x.drop(w)
	if m.lora != nil {
		low = x.tensor(n/m.out*m.lora.rank, d)
		x.scratch(d.size(n))
	}
	return out, low
}

// compiledInputs makes what products send to their common input of n elements: it
// is summed in one kernel when all of it is there.
func (x *machine) compiledInputs(n int64, d dtype, ms ...*matrix) []gradient {
	var parts []gradient
	for _, m := range ms {
		if m == nil {
			continue
		}
		w := none()
		if m.quant != nil {
			w = x.expand(m.quant, m.in*m.out)
		}
		parts = append(parts, x.make(n, d))
		x.drop(w)
		if m.lora != nil {
			parts = append(parts, x.make(n, d))
		}
	}
	return parts
}

func (x *machine) dropAll(gs []gradient) {
	for _, g := range gs {
		x.release(g.st)
	}
}

// weightGradients makes the gradients of inputs from on, as one kernel after the
// other does.
func weightGradients(f *frame, ws []tensor, from int) {
	for i, w := range ws {
		if f.want(from + i) {
			f.send(from+i, f.x.make(w.n, w.dt))
		}
	}
}

// compiledProjections is norm, projections and rotation in one region.
func (p *player) compiledProjections(b *block, in tensor, h, rep heads) (q, k, v tensor) {
	x := p.x
	d := in.dt
	norm := []tensor{b.norm1.w, b.norm1.b}
	ws := trainedWeights(nil, b.q, b.k, b.v)
	inputs := append(append([]tensor{in}, norm...), ws...)
	rows := in.n / b.norm1.width
	normed := x.tensor(in.n, d)
	rstd := x.tensor(rows, f32)
	var raw, low [3]tensor
	for i, m := range []*matrix{b.q, b.k, b.v} {
		raw[i], low[i] = x.compiledProduct(m, [3]int64{h.q(), h.k(), h.v()}[i], d)
	}
	kept := append([]tensor{in, rstd}, low[:]...)
	if readsInput(b.q, b.k, b.v) {
		kept = append(kept, normed)
	}
	q = x.tensor(h.q(), d)
	x.drop(raw[0])
	k = x.tensor(rep.k(), d)
	x.drop(raw[1])
	v = raw[2]
	if rep.kv != h.kv {
		v = x.tensor(rep.v(), d)
		x.drop(raw[2])
	}
	if x.recording(inputs...) {
		n := in.n
		fn := x.push(3, inputs, append(kept, ws...), func(f *frame) {
			x := f.x
			gq, gk, gv := x.make(h.q(), d), x.make(h.k(), d), x.make(h.v(), d)
			weightGradients(f, ws, 3)
			parts := x.compiledInputs(n, d, b.q, b.k, b.v)
			x.release(gq.st)
			x.release(gk.st)
			x.release(gv.st)
			dx := x.make(n, d)
			x.dropAll(parts)
			f.send(0, dx)
			for i, w := range norm {
				if f.want(1 + i) {
					f.send(1+i, x.make(w.n, w.dt))
				}
			}
		})
		for i, t := range []*tensor{&q, &k, &v} {
			t.fn, t.slot = fn, uint16(i)
		}
	}
	x.drop(normed, rstd)
	x.drop(low[:]...)
	return q, k, v
}

// compiledRest is the output projection, the residual, norm and MLP in one
// region.
func (p *player) compiledRest(b *block, ctx, in tensor) tensor {
	x := p.x
	d := in.dt
	m := b.l.MLP
	norm := []tensor{b.norm2.w, b.norm2.b}
	first := trainedWeights(nil, b.o)
	ws := trainedWeights(first, b.gate, b.up, b.gateUp, b.down)
	inputs := append(append([]tensor{ctx, in}, norm...), ws...)
	rows := in.n / b.norm2.width
	mid, lowO := x.compiledProduct(b.o, in.n, d)
	rstd := x.tensor(rows, f32)
	normed := x.tensor(in.n, d)
	width := rows * b.down.in
	widening := []*matrix{b.up}
	switch {
	case b.gateUp != nil:
		widening = []*matrix{b.gateUp}
	case m.Gated:
		widening = []*matrix{b.gate, b.up}
	}
	lows := []tensor{lowO}
	var wide []tensor
	for _, m := range widening {
		out, low := x.compiledProduct(m, rows*m.out, d)
		wide, lows = append(wide, out), append(lows, low)
	}
	prod := x.tensor(width, d)
	out, low := x.compiledProduct(b.down, in.n, d) // the residual is added in the same buffer
	lows = append(lows, low)
	if x.recording(inputs...) {
		n := in.n
		saved := append(append([]tensor{mid, rstd}, wide...), lows...)
		if readsInput(b.o) {
			saved = append(saved, ctx)
		}
		if readsInput(widening...) {
			saved = append(saved, normed)
		}
		if readsInput(b.down) {
			saved = append(saved, prod)
		}
		saved = append(saved, ws...)
		out.fn = x.push(1, inputs, saved, func(f *frame) {
			x := f.x
			gp := x.compiledInputs(width, d, b.down)
			var gw []gradient
			for _, m := range widening {
				gw = append(gw, x.make(rows*m.out, d))
			}
			x.dropAll(gp)
			weightGradients(f, ws, 4)
			a := x.compiledInputs(n, d, widening...)
			dm := x.make(n, d)
			x.dropAll(a)
			x.dropAll(gw)
			for i, w := range norm {
				if f.want(2 + i) {
					f.send(2+i, x.make(w.n, w.dt))
				}
			}
			parts := x.compiledInputs(ctx.n, d, b.o)
			f.send(0, parts[0])
			x.dropAll(parts[1:])
			f.send(1, dm)
		})
	}
	x.drop(mid, rstd, normed, prod)
	x.drop(wide...)
	x.drop(lows...)
	return out
}

// compiledCrossEntropy is cross_entropy under torch.compile on logits that were
// made outside: they are saved with two numbers for each row. Backward writes
// their gradient in one kernel, since torch 2.5 without the sparse gradient of
// the losses; with float32 logits published peaks (torchtune 0.4) still have room
// for that one, with 16-bit ones (torchtitan of November 2024) they have none.
// Source: pytorch pull request 129043, scatter_upon_const_tensor;
// torch/_inductor lowerings of _log_softmax_backward_data.
func (x *machine) compiledCrossEntropy(logits, labels tensor, rows int64) tensor {
	n, d := logits.n, logits.dt
	stats := x.tensor(2*rows, f32)
	loss := x.op(1, f32, []tensor{logits}, []tensor{logits, labels, stats}, false, func(f *frame) {
		sparse := int32(noStorage)
		if d == f32 {
			sparse = f.x.alloc(d.size(n))
		}
		g := f.x.make(n, d)
		f.x.release(sparse)
		f.send(0, g)
	})
	x.drop(stats)
	return loss
}
