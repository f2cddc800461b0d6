package memory

import "unoom/internal/model"

// selfAttention returns the output of the projection, without its bias.
func (m *megatron) selfAttention(b *block, in tensor) tensor {
	x := m.x
	defer x.as("", "attention")()
	a := b.l.Attention
	if a.MLA != nil {
		return m.latentAttention(b, in)
	}
	mixed := m.normLinear(in, b.norm1, b.qkv)
	h := heads{batch: m.batch, seq: m.seq, keySeq: m.seq, heads: a.Heads / m.t, kv: max(a.KVHeads/m.t, 1), dim: a.HeadDim, vdim: a.VHeadDim, causal: a.Causal}
	parts := x.split(mixed, h.q(), h.k(), h.v())
	x.drop(mixed)
	q, k, v := parts[0], parts[1], parts[2]
	if b.normQ != nil {
		n := x.fusedNorm(q, b.normQ.w, b.normQ.b, a.HeadDim, 2)
		x.drop(q)
		q = n
		n = x.fusedNorm(k, b.normK.w, b.normK.b, a.HeadDim, 2)
		x.drop(k)
		k = n
	}
	if a.Position == model.Rope {
		q, k = m.rotateMegatron(q, k)
		// get_qkv_layout copies what is not laid out like the rest.
		c := x.contiguous(v)
		x.drop(v)
		v = c
	}
	ctx := m.coreAttention(q, k, v, h)
	out := m.rowLinear(ctx, b.o, true)
	x.drop(ctx)
	return out
}

// coreAttention is the kernel, recomputed where that is asked for; it takes over
// q, k and v.
func (m *megatron) coreAttention(q, k, v tensor, h heads) tensor {
	if !m.again.modules["core_attn"] {
		return m.attend(q, k, v, h)
	}
	defer m.x.drop(q, k, v)
	return m.checkpointed([]tensor{q, k, v}, func(ins []tensor) tensor { return m.attend(ins[0], ins[1], ins[2], h) })
}

// attend runs the attention kernel; it takes over q, k and v.
func (m *megatron) attend(q, k, v tensor, h heads) tensor {
	x := m.x
	defer x.drop(q, k, v)
	switch {
	case m.unfused:
		return m.storedScores(q, k, v, h)
	case m.te && m.flashPackage && m.c == 1:
		return m.flashAttention(q, k, v, h)
	}
	return x.flash(q, k, v, h)
}

func (m *megatron) rotateMegatron(q, k tensor) (tensor, tensor) {
	x := m.x
	table := none()
	if m.w.Has("no-rope-fusion") {
		a := x.ropeEager(q, table, table)
		x.drop(q)
		b := x.ropeEager(k, table, table)
		x.drop(k)
		return a, b
	}
	a := x.ropeFused(q, table)
	x.drop(q)
	b := x.ropeFused(k, table)
	x.drop(k)
	return a, b
}

// flashAttention is Transformer Engine's FlashAttention: queries, keys and values
// are brought into the package's layout, and the output back.
func (m *megatron) flashAttention(q, k, v tensor, h heads) tensor {
	x := m.x
	q2, k2, v2 := x.contiguous(q), x.contiguous(k), x.contiguous(v)
	o := x.flash(q2, k2, v2, h)
	x.drop(q2, k2, v2)
	out := x.contiguous(o)
	x.drop(o)
	return out
}

// storedScores is UnfusedDotProductAttention: the fused softmax and the dropped
// probabilities are kept in 16 bits, and the dropout mask in one byte.
func (m *megatron) storedScores(q, k, v tensor, h heads) tensor {
	x := m.x
	n, d := h.scores(), q.dt
	buffer := none()
	if m.te || m.deepspeed {
		buffer = x.tensor(n, d)
	} else {
		m.memoryBuffer("mpu", d.size(n))
	}
	s := x.batched(q, k, n)
	x.drop(buffer)
	var probs tensor
	if m.torchSoftmax {
		up := x.cast(s, f32)
		x.drop(s)
		p := x.softmax(up, f32)
		x.drop(up)
		probs = x.cast(p, d)
		x.drop(p)
	} else {
		probs = m.fusedSoftmax(s)
		x.drop(s)
	}
	if m.dropAttn {
		p := x.dropout(probs, 0.1)
		x.drop(probs)
		probs = p
	}
	c := x.batched(probs, v, h.out())
	x.drop(probs)
	out := x.contiguous(c)
	x.drop(c)
	return out
}

// fusedSoftmax saves its output; its gradient is written into the incoming one.
func (m *megatron) fusedSoftmax(t tensor) tensor {
	return m.x.op(t.n, t.dt, []tensor{t}, nil, true, func(f *frame) { f.pass(0) })
}
