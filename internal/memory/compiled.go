package memory

// A compiled layer keeps what its backward cannot make cheaply, or would have to
// store anyway: its input, the inputs of matrix products whose weights are
// trained, the operands of the attention kernel, and the outputs of products
// that a pointwise derivative reads. Pointwise results in between are made
// again inside the kernels that use them.
// Source: torch/_functorch/partitioners.py, min_cut_rematerialization_partition
// and MinCutOptions (ban_if_materialized_backward, ban_if_reduction).

// compiledLayer is a pre-norm block with full training under torch.compile.
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
	case b.q == nil || b.q.lora != nil || b.o.lora != nil || b.down.lora != nil || b.q.quant != nil:
		return "adapters"
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
	}
	return list
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
	raw := [3]tensor{x.tensor(h.q(), d), x.tensor(h.k(), d), x.tensor(h.v(), d)}
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
		fn := x.push(3, inputs, append([]tensor{in, normed, rstd}, ws...), func(f *frame) {
			x := f.x
			gq, gk, gv := x.make(h.q(), d), x.make(h.k(), d), x.make(h.v(), d)
			weightGradients(f, ws, 3)
			a, b, c := x.make(n, d), x.make(n, d), x.make(n, d)
			x.release(gq.st)
			x.release(gk.st)
			x.release(gv.st)
			dx := x.make(n, d)
			x.release(a.st)
			x.release(b.st)
			x.release(c.st)
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
	mid := x.tensor(in.n, d)
	rstd := x.tensor(rows, f32)
	normed := x.tensor(in.n, d)
	width := rows * b.down.in
	var wide []tensor
	parts := 1
	if m.Gated {
		parts = 2
	}
	for range parts {
		wide = append(wide, x.tensor(width, d))
	}
	prod := x.tensor(width, d)
	out := x.tensor(in.n, d) // the product; the residual is added in the same buffer
	if x.recording(inputs...) {
		n := in.n
		saved := append([]tensor{ctx, mid, rstd, normed, prod}, wide...)
		saved = append(saved, ws...)
		out.fn = x.push(1, inputs, saved, func(f *frame) {
			x := f.x
			gp := x.make(width, d)
			var gw []gradient
			for range parts {
				gw = append(gw, x.make(width, d))
			}
			x.release(gp.st)
			weightGradients(f, ws, 4)
			a := x.make(n, d)
			dm := x.make(n, d)
			if parts == 2 {
				c := x.make(n, d)
				x.release(c.st)
			}
			x.release(a.st)
			for _, g := range gw {
				x.release(g.st)
			}
			for i, w := range norm {
				if f.want(2 + i) {
					f.send(2+i, x.make(w.n, w.dt))
				}
			}
			f.send(0, x.make(ctx.n, d))
			f.send(1, dm)
		})
	}
	x.drop(mid, rstd, normed, prod)
	x.drop(wide...)
	return out
}

// compiledCrossEntropy is cross_entropy under torch.compile on logits that were
// made outside: they are saved with two numbers for each row. Backward writes
// the sparse gradient before it is joined with the softmax.
// Source: torch/_inductor lowerings of nll_loss_backward (scatter) and
// _log_softmax_backward_data.
func (x *machine) compiledCrossEntropy(logits, labels tensor, rows int64) tensor {
	n, d := logits.n, logits.dt
	stats := x.tensor(2*rows, f32)
	loss := x.op(1, f32, []tensor{logits}, []tensor{logits, labels, stats}, false, func(f *frame) {
		sparse := f.x.make(n, f32)
		g := f.x.make(n, d)
		f.x.release(sparse.st)
		f.send(0, g)
	})
	x.drop(stats)
	return loss
}
