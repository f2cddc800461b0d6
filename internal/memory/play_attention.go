package memory

import "unoom/internal/model"

// attention is self-attention with separate or fused projections.
func (p *player) attention(b *block, in tensor) tensor {
	x := p.x
	defer x.as("", "attention")()
	a := b.l.Attention
	if a.MLA != nil {
		return p.latentAttention(b, in)
	}
	h := heads{batch: p.batch, seq: p.seq, keySeq: p.seq, heads: a.Heads, kv: a.KVHeads, dim: a.HeadDim, vdim: a.VHeadDim, causal: a.Causal, dropout: a.Dropout, softcap: a.Softcap > 0}
	var q, k, v tensor
	switch {
	case b.qkv != nil:
		f := x.project(in, b.qkv)
		parts := x.split(f, h.q(), h.k(), h.v())
		x.drop(f)
		q, k, v = parts[0], parts[1], parts[2]
	case p.lib.fusedLoRA && b.q.lora != nil && b.k.lora != nil && b.v.lora != nil && b.q.quant != nil:
		out := x.fusedAdapted(in, b.q, b.k, b.v)
		q, k, v = out[0], out[1], out[2]
	default:
		q = x.project(in, b.q)
		k = x.project(in, b.k)
		v = x.project(in, b.v)
	}
	if b.normQ != nil {
		n := p.norm(q, b.normQ)
		x.drop(q)
		q = n
		n = p.norm(k, b.normK)
		x.drop(k)
		k = n
	}
	if a.Position == model.Rope {
		q, k = p.rotated(a, q, k)
	}
	if p.cache != nil {
		k, v, h = p.cache.update(x, h, a.Window, k, v)
	}
	ctx := p.attend(q, k, v, h)
	out := p.output(ctx, b)
	x.drop(ctx)
	return out
}

func (p *player) output(ctx tensor, b *block) tensor {
	if p.lib.fusedLoRA && b.o.lora != nil && b.o.quant != nil {
		return p.x.fusedAdapted(ctx, b.o)[0]
	}
	return p.x.project(ctx, b.o)
}

// rotated is rotate, in float32 where the attention wants it.
func (p *player) rotated(a *model.Attention, q, k tensor) (tensor, tensor) {
	if !a.FloatRope {
		return p.rotate(q, k)
	}
	x, d := p.x, q.dt
	q2, k2 := x.cast(q, f32), x.cast(k, f32)
	x.drop(q, k)
	q2, k2 = p.rotate(q2, k2)
	q, k = x.cast(q2, d), x.cast(k2, d)
	x.drop(q2, k2)
	return q, k
}

// rotate applies the rotary embedding to queries and keys.
func (p *player) rotate(q, k tensor) (tensor, tensor) {
	x := p.x
	cos, sin := p.cos, p.sin
	if !p.lib.sharedRope {
		cos, sin = p.ropeTables(p.tableBatch(), q.dt)
		defer x.drop(cos, sin)
	}
	switch p.lib.rope {
	case ropeUnsloth:
		a, b := x.ropeInPlace(q, cos, sin), x.ropeInPlace(k, cos, sin)
		x.drop(q, k)
		return a, b
	case ropeKernel:
		a := x.ropeFused(q, cos)
		x.drop(q)
		b := x.ropeFused(k, cos)
		x.drop(k)
		return a, b
	case ropeTune:
		table := int64(0)
		if p.gathersRope {
			table = p.tokens() * p.headDim()
		}
		a := x.ropePacked(q, table)
		x.drop(q)
		b := x.ropePacked(k, table)
		x.drop(k)
		return a, b
	case ropeMeta:
		a := x.ropeComplex(q, cos)
		x.drop(q)
		b := x.ropeComplex(k, cos)
		x.drop(k)
		return a, b
	}
	a := x.ropeEager(q, cos, sin)
	b := x.ropeEager(k, cos, sin)
	x.drop(q, k)
	return a, b
}

func (p *player) tableBatch() int64 { return 1 }

// ropeTables makes cos and sin of every position, as transformers'
// RotaryEmbedding.forward does.
func (p *player) ropeTables(rows int64, d dtype) (tensor, tensor) {
	x := p.x
	old := x.grad
	x.grad = false
	n := rows * p.seq * p.headDim()
	freqs := x.tensor(n/2, f32)
	emb := x.tensor(n, f32)
	cos := x.tensor(n, f32)
	sin := x.tensor(n, f32)
	c, s := x.cast(cos, d), x.cast(sin, d)
	x.drop(freqs, emb, cos, sin)
	x.grad = old
	return c, s
}

func (p *player) headDim() int64 {
	for _, b := range p.net.text().blocks {
		if b.l.Attention != nil {
			return b.l.Attention.RopeDim
		}
	}
	return 0
}

// attend runs the attention kernel; it takes over q, k and v.
func (p *player) attend(q, k, v tensor, h heads) tensor {
	x := p.x
	rep := h
	if p.lib.repeatKV && h.kv != h.heads {
		times := h.heads / h.kv
		k2 := x.repeatHeads(k, times)
		x.drop(k)
		v2 := x.repeatHeads(v, times)
		x.drop(v)
		k, v, rep = k2, v2, h.repeated()
	}
	if x.amp != f32 && q.dt != x.amp {
		// transformers casts what peft left in float32 before the kernel
		cast := func(t *tensor) { c := x.cast(*t, x.amp); x.drop(*t); *t = c }
		cast(&q)
		cast(&k)
		cast(&v)
	}
	if p.lib.contiguous {
		c := x.contiguous(q)
		x.drop(q)
		q = c
		c = x.contiguous(k)
		x.drop(k)
		k = c
		c = x.contiguous(v)
		x.drop(v)
		v = c
	}
	var out tensor
	switch p.lib.attn {
	case attnFlash:
		out = x.flash(q, k, v, rep)
	case attnEfficient:
		out = x.efficient(q, k, v, none(), rep)
	default:
		out = p.eagerAttention(q, k, v, h)
	}
	x.drop(q, k, v)
	if p.lib.contiguous || p.lib.copyOutput {
		c := x.contiguous(out)
		x.drop(out)
		out = c
	}
	return out
}

// eagerAttention is attention with stored scores, softmax in float32, as
// transformers' eager_attention_forward.
func (p *player) eagerAttention(q, k, v tensor, h heads) tensor {
	x := p.x
	repeated := func(t tensor) tensor {
		if h.kv != h.heads {
			return x.repeatHeads(t, h.heads/h.kv)
		}
		return p.batchable(t)
	}
	n, d := h.scores(), q.dt
	q, k = p.batchable(q), repeated(k)
	s := x.batched(q, k, n)
	x.drop(q, k)
	c := x.scale(s)
	x.drop(s)
	if h.softcap {
		s := x.softcap(c)
		x.drop(c)
		c = s
	}
	if h.causal {
		m := x.add(c, none())
		x.drop(c)
		c = m
	}
	w := x.softmax(c, f32)
	x.drop(c)
	w2 := x.cast(w, d)
	x.drop(w)
	w3 := x.dropout(w2, h.dropout)
	x.drop(w2)
	v = repeated(v)
	o := x.batched(w3, v, h.out())
	x.drop(w3, v)
	out := x.contiguous(o)
	x.drop(o)
	return out
}

// batchable is t as a batched product takes it: a copy, where t is a part of the
// fused projection and the batch has more than one sample, whose rows then are
// not one after the other.
func (p *player) batchable(t tensor) tensor {
	if p.batch > 1 && t.dt.size(t.n) < p.x.sts[t.st].bytes {
		return p.x.contiguous(t)
	}
	return p.x.keep(t)
}
