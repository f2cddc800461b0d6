package memory

// heads has the shape of one attention call on this rank.
type heads struct {
	batch, seq int64
	keySeq     int64 // length of keys, seq for self-attention
	heads, kv  int64
	dim, vdim  int64
	causal     bool
	dropout    float64
	softcap    bool // tanh bounds the scores, where they are written out
}

func (h heads) q() int64   { return h.batch * h.seq * h.heads * h.dim }
func (h heads) k() int64   { return h.batch * h.keySeq * h.kv * h.dim }
func (h heads) v() int64   { return h.batch * h.keySeq * h.kv * h.vdim }
func (h heads) out() int64 { return h.batch * h.seq * h.heads * h.vdim }
func (h heads) scores() int64 {
	return h.batch * h.heads * h.seq * h.keySeq
}

// repeated is h with one key and value head for each query head.
func (h heads) repeated() heads { h.kv = h.heads; return h }

// ropeEager is apply_rotary_pos_emb of transformers on one tensor:
// (q·cos) + (rotate_half(q)·sin). cos and sin are saved, q is not.
func (x *machine) ropeEager(q tensor, cos, sin tensor) tensor {
	n, d := q.n, q.dt
	rec := x.recording(q)
	var fn int32
	if rec {
		fn = x.push(1, []tensor{q}, []tensor{cos, sin}, func(f *frame) {
			x := f.x
			gc := x.make(n, d)    // through ·sin
			neg := x.make(n/2, d) // through −x2
			sum := x.make(n, d)   // slice backward of x2
			x.release(neg.st)
			s2 := x.make(n, d) // slice backward of x1
			x.release(gc.st)
			x.release(s2.st) // added in place
			qc := x.make(n, d)
			x.release(qc.st) // through ·cos, added in place
			f.send(0, sum)
		})
	}
	a := x.tensor(n, d)
	neg := x.tensor(n/2, d)
	rot := x.tensor(n, d)
	x.drop(neg)
	b := x.tensor(n, d)
	x.drop(rot)
	out := x.tensor(n, d)
	x.drop(b, a)
	out.fn = fn
	return out
}

// ropeInPlace rotates in the storage of q, forward and backward (unsloth,
// Liger).
func (x *machine) ropeInPlace(q tensor, cos, sin tensor) tensor {
	out := x.keep(q)
	if x.recording(q) {
		out.fn = x.push(1, []tensor{q}, []tensor{cos, sin}, func(f *frame) { f.pass(0) })
		out.leaf, out.slot = 0, 0
	}
	return out
}

// ropeFused makes a new tensor in one kernel and saves only the table
// (Transformer Engine, apex, flash-attn).
func (x *machine) ropeFused(q tensor, table tensor) tensor {
	n, d := q.n, q.dt
	return x.op(n, d, []tensor{q}, []tensor{table}, false, func(f *frame) { f.send(0, f.x.make(n, d)) })
}

// ropeComplex is Meta's apply_rotary_emb: q in float32 viewed as complex,
// multiplied, viewed back and cast. Only the table is saved.
func (x *machine) ropeComplex(q tensor, table tensor) tensor {
	n, d := q.n, q.dt
	rec := x.recording(q)
	var fn int32
	if rec {
		fn = x.push(1, []tensor{q}, []tensor{table}, func(f *frame) {
			x := f.x
			up := x.make(n, f32)
			prod := x.make(n, f32)
			x.release(up.st)
			g := prod
			if d != f32 {
				g = x.make(n, d)
				x.release(prod.st)
			}
			f.send(0, g)
		})
	}
	up := x.tensor(n, f32)
	prod := x.tensor(n, f32)
	x.drop(up)
	out := prod
	if d != f32 {
		out = x.tensor(n, d)
		x.drop(prod)
	}
	out.fn = fn
	return out
}

// ropePacked is torchtune's Llama3ScaledRoPE: on packed samples the table is
// gathered by position for each call (and saved), else it is a view of the cache,
// and takes nothing; the rotation is in float32.
// Source: torchtune models/llama3_1/_position_embeddings.py.
func (x *machine) ropePacked(q tensor, table int64) tensor {
	n, d := q.n, q.dt
	cache := x.tensor(table, f32)
	out := x.op(n, d, []tensor{q}, []tensor{cache}, false, func(f *frame) {
		x := f.x
		g := x.make(n, f32)
		parts := x.make(2*n, f32) // four halves
		x.release(g.st)
		sum := x.make(n, f32)
		x.release(parts.st)
		low := x.make(n, d)
		x.release(sum.st)
		f.send(0, low)
	})
	x.drop(cache)
	up := x.tensor(n, f32)
	products := x.tensor(n, f32) // two halves at a time
	halves := x.tensor(n, f32)
	x.drop(products)
	stacked := x.tensor(n, f32)
	x.drop(halves, up, stacked)
	return out
}

// repeatHeads is repeat_kv: a copy of keys or values for every query head.
func (x *machine) repeatHeads(t tensor, times int64) tensor {
	if times == 1 {
		return x.keep(t)
	}
	n, d := t.n, t.dt
	return x.op(n*times, d, []tensor{t}, nil, false, func(f *frame) { f.send(0, f.x.make(n, d)) })
}

// flash is a flash attention kernel: queries, keys, values, the output and the
// log-sum-exp are saved. Backward makes dq in float32 first and one number for
// each row, and gradients of keys and values for every query head where heads
// are shared.
// Source: flash-attention csrc/flash_attn/flash_api.cpp, mha_fwd and mha_bwd;
// the kernels in torch are the same.
func (x *machine) flash(q, k, v tensor, h heads) tensor {
	d := q.dt
	rec := x.recording(q, k, v)
	var fn int32
	if rec {
		fn = x.push(1, []tensor{q, k, v}, []tensor{q, k, v}, func(f *frame) { f.x.flashBackward(f, h, d) })
	}
	out := x.attentionOutput(h.out(), d)
	lse := x.tensor(h.batch*h.heads*h.seq, f32)
	seed := x.tensor(2, i64)
	if rec {
		x.saveOutput(out)
		x.saveOutput(lse)
		x.saveOutput(seed)
		out.fn = fn
	}
	x.drop(lse, seed)
	return out
}

func (x *machine) flashBackward(f *frame, h heads, d dtype) {
	rows := h.batch * h.heads * roundUp(h.seq, 128)
	dq := x.make(h.q(), d)
	dk := x.make(h.k(), d)
	dv := x.make(h.v(), d)
	sums := x.make(rows, f32)
	acc := x.make(rows*roundUp(h.dim, 32), f32)
	if h.kv != h.heads {
		r := h.repeated()
		dk2 := x.make(r.k(), d)
		dv2 := x.make(r.v(), d)
		s1 := x.make(h.k(), d) // sum over the group, then copied into dk
		x.release(s1.st)
		x.release(dk2.st)
		x.release(dv2.st)
	}
	x.release(acc.st)
	x.release(sums.st)
	f.send(0, dq)
	f.send(1, dk)
	f.send(2, dv)
}

// attentionOutput is the output of an attention kernel, which selective
// checkpointing may have kept.
func (x *machine) attentionOutput(n int64, d dtype) tensor {
	if x.sac != nil {
		return x.sac.output(x, opAttention, n, d)
	}
	return x.tensor(n, d)
}

// efficient is torch's memory-efficient attention. A bias (mask) is saved; the
// log-sum-exp is padded to 32. Backward makes one number for each row and, for
// some shapes, float32 accumulators.
// Source: aten/src/ATen/native/transformers/cuda/attention.cu and
// attention_backward.cu (torch 2.4).
func (x *machine) efficient(q, k, v, bias tensor, h heads) tensor {
	d := q.dt
	rec := x.recording(q, k, v)
	var fn int32
	if rec {
		fn = x.push(1, []tensor{q, k, v}, []tensor{q, k, v, bias}, func(f *frame) {
			x := f.x
			dq := x.make(h.q(), d)
			dk := x.make(h.k(), d)
			dv := x.make(h.v(), d)
			delta := x.make(h.batch*h.heads*roundUp(h.seq, 32), f32)
			x.release(delta.st)
			f.send(0, dq)
			f.send(1, dk)
			f.send(2, dv)
		})
	}
	out := x.attentionOutput(h.out(), d)
	lse := x.tensor(h.batch*h.heads*roundUp(h.seq, 32), f32)
	if rec {
		x.saveOutput(out)
		x.saveOutput(lse)
		out.fn = fn
	}
	x.drop(lse)
	return out
}

// batched is a batched product of two activations; both are saved.
func (x *machine) batched(a, b tensor, n int64) tensor {
	var saved [2]tensor
	s := saved[:0]
	if b.needsGrad() {
		s = append(s, a)
	}
	if a.needsGrad() {
		s = append(s, b)
	}
	an, bn, d := a.n, b.n, a.dt
	return x.op(n, d, []tensor{a, b}, s, false, func(f *frame) {
		if f.want(0) {
			f.send(0, f.x.make(an, d))
		}
		if f.want(1) {
			f.send(1, f.x.make(bn, d))
		}
	})
}

// softmax saves its output, in to, and before torch 1.11 its input. Backward
// gives the gradient in the dtype of the input.
func (x *machine) softmax(t tensor, to dtype) tensor {
	n, d := t.n, t.dt
	var saved []tensor
	if x.saveInputs {
		saved = []tensor{t}
	}
	return x.op(n, to, []tensor{t}, saved, true, func(f *frame) { f.send(0, f.x.make(n, d)) })
}

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }
