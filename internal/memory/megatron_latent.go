package memory

import "unoom/internal/model"

// Latent attention of Megatron-Core with Transformer Engine: the compressions
// are whole on every rank, the expansions are divided by heads and carry the
// norms where there are any.
// Source: megatron/core/transformer/multi_latent_attention.py,
// core/models/gpt/gpt_layer_specs.py.

// latentAttention returns the output of the projection, without its bias.
func (m *megatron) latentAttention(b *block, in tensor) tensor {
	x := m.x
	a, mla := b.l.Attention, b.l.Attention.MLA
	normed, renormed := m.separateNorm(in, b.norm1)
	defer x.drop(normed)
	h := heads{batch: m.batch, seq: m.seq, keySeq: m.seq, heads: a.Heads / m.t, kv: a.Heads / m.t, dim: a.HeadDim, vdim: a.VHeadDim, causal: a.Causal}
	tokens := m.tokens()
	var low tensor
	if b.qa != nil {
		low = m.plainLinear(normed, b.qa)
	}
	both := m.plainLinear(normed, b.kva)
	own := m.localTokens()
	parts := x.split(both, own*mla.KVRank, own*mla.RopeDim)
	x.drop(both)
	kvLow, kPos := parts[0], parts[1]
	if m.sp {
		g := m.moved(kPos, tokens*mla.RopeDim)
		x.drop(kPos)
		kPos = g
	}
	sources := []tensor{low, kvLow, kPos}
	if b.qa == nil {
		sources[0] = normed
	}
	expand := func(ins []tensor) []tensor {
		q := none()
		if b.qa != nil {
			q = m.expand(ins[0], b.normQA, b.qb)
		} else {
			q = m.columnLinear(ins[0], b.q)
		}
		kv := m.expand(ins[1], b.normKVA, b.kvb)
		query, key, value := m.latentHeads(q, kv, ins[2], h, mla)
		x.drop(q, kv)
		x.drop(ins...)
		return []tensor{query, key, value}
	}
	var parted []tensor
	var expanded *outputless
	if m.again.modules["mla_up_proj"] {
		parted, expanded = m.withoutOutput(sources, 3, expand)
	} else {
		for i := range sources {
			x.hold(sources[i].st)
		}
		parted = expand(sources)
	}
	ctx := expanded.discard(x, m.coreAttention(parted[0], parted[1], parted[2], h))
	// The caller refers to the compressed tensors until attention is done.
	x.drop(low, kvLow, kPos)
	out := m.rowLinear(ctx, b.o, true)
	x.drop(ctx)
	return renormed.discard(x, out)
}

// separateNorm is a norm that is a module of its own, whose output may be made
// again.
func (m *megatron) separateNorm(in tensor, v *vector) (tensor, *outputless) {
	x := m.x
	norm := func(in tensor) tensor { return x.fusedNorm(in, v.w, v.b, v.width, 2) }
	if !m.again.modules["layernorm"] {
		return norm(in), nil
	}
	outs, c := m.withoutOutput([]tensor{in}, 1, func(ins []tensor) []tensor {
		defer x.drop(ins...)
		return []tensor{norm(ins[0])}
	})
	return outs[0], c
}

// expand is an up-projection, with its norm where there is one.
func (m *megatron) expand(t tensor, norm *vector, w *matrix) tensor {
	if norm != nil {
		return m.normLinear(t, norm, w)
	}
	return m.columnLinear(t, w)
}

// latentHeads puts queries, keys and values together from what is rotated and
// what is not. The fused kernel rotates queries where they are and writes keys
// and values at once.
func (m *megatron) latentHeads(q, kv, kPos tensor, h heads, mla *model.MLA) (query, key, value tensor) {
	x := m.x
	d := q.dt
	if m.fusedLatentRope() {
		query = x.alias(q, func(f *frame) { f.pass(0) })
		kvn, pn := kv.n, kPos.n
		rec := x.recording(kv, kPos)
		var fn int32
		if rec {
			fn = x.push(2, []tensor{kv, kPos}, nil, func(f *frame) {
				f.send(0, f.x.make(kvn, d))
				f.send(1, f.x.make(pn, d))
			})
		}
		key, value = x.tensor(h.k(), d), x.tensor(h.v(), d)
		if rec {
			key.fn, value.fn, value.slot = fn, fn, 1
		}
		return query, key, value
	}
	rows := h.batch * h.seq * h.heads
	qs := x.split(q, rows*mla.NopeDim, rows*mla.RopeDim)
	kvs := x.split(kv, rows*mla.NopeDim, rows*h.vdim)
	qr := m.rotateInterleaved(qs[1])
	kr := m.rotateInterleaved(kPos)
	query = m.joined(h.q(), qs[0], qr)
	spread := x.alias(kr, func(f *frame) { f.send(0, f.x.make(kr.n, d)) })
	spread.n = rows * mla.RopeDim
	key = m.joined(h.k(), kvs[0], spread)
	value = m.moved(kvs[1], h.v())
	x.drop(qs...)
	x.drop(kvs...)
	x.drop(qr, kr, spread)
	return query, key, value
}

// fusedLatentRope reports whether the fused kernels rotate: with the rotary
// embedding of YaRN, which latent attention takes unless told otherwise, and
// where rotary embeddings are asked for.
// Source: megatron/training/arguments.py, apply_rope_fusion.
func (m *megatron) fusedLatentRope() bool {
	return m.option("position-embedding-type") == "rope" && !m.w.Has("no-rope-fusion") && m.option("rope-type") != "rope"
}

// rotateInterleaved separates even and odd dimensions into a copy first.
func (m *megatron) rotateInterleaved(t tensor) tensor {
	x := m.x
	c := m.moved(t, t.n)
	r := x.ropeEager(c, none(), none())
	x.drop(c)
	out := m.moved(r, r.n) // joined with the part that is not rotated: nothing
	x.drop(r)
	return out
}

// joined is torch.cat of two parts; backward hands out views of one gradient.
func (m *megatron) joined(n int64, a, b tensor) tensor {
	x := m.x
	return x.op(n, a.dt, []tensor{a, b}, nil, false, func(f *frame) {
		f.pass(0)
		f.pass(1)
	})
}
