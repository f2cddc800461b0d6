package memory

import "unoom/internal/model"

// rowsOf is t[index]: some rows of t, copied. The indices are saved; backward
// adds into zeros of the whole.
func (x *machine) rowsOf(t, index tensor, rows, width int64) tensor {
	n, d := t.n, t.dt
	return x.op(rows*width, d, []tensor{t}, []tensor{index}, false, func(f *frame) { f.send(0, f.x.make(n, d)) })
}

// addRowsAt is acc.index_add_(0, index, rows): the storage of acc, the history of
// both.
func (x *machine) addRowsAt(acc, rows, index tensor) tensor {
	if x.recording(acc, rows) {
		n, d := rows.n, rows.dt
		acc.fn = x.push(1, []tensor{acc, rows}, []tensor{index}, func(f *frame) {
			f.pass(0)
			f.send(1, f.x.make(n, d))
		})
		acc.slot, acc.leaf = 0, 0
	}
	return acc
}

// join is cat: backward hands out views of the gradient.
func (x *machine) join(d dtype, parts ...tensor) tensor {
	var n int64
	for i := range parts {
		n += parts[i].n
	}
	sizes := make([]int64, len(parts))
	for i := range parts {
		sizes[i] = parts[i].n
	}
	return x.op(n, d, parts, nil, false, func(f *frame) {
		for i, size := range sizes {
			if f.want(i) {
				f.x.hold(f.g[0].st)
				f.send(i, gradient{st: f.g[0].st, n: size, dt: d, ok: true})
			}
		}
	})
}

// nth is the j-th of the copies that a matrix stands for: each is a parameter.
func (x *machine) nth(m *matrix, j, copies int64) *matrix {
	if m == nil || m.w.leaf == 0 || copies <= 1 {
		return m
	}
	one := *m
	one.w = x.params[m.w.leaf-1-int32(copies-1-j)].t
	return &one
}

// routedExperts is the sparse MLP of Mixtral and its relatives in transformers:
// each expert takes its tokens out, and adds its weighted result into the sum.
// Tokens are taken to be spread evenly.
// Source: transformers v4.48 models/mixtral/modeling_mixtral.py,
// MixtralSparseMoeBlock; Qwen2MoeSparseMoeBlock is written alike. DeepseekV3MoE
// (v4.51) is played alike, although its router, which takes a sigmoid, its weights
// and its sum are in float32.
func (p *player) routedExperts(b *block, in tensor) tensor {
	x, e := p.x, b.l.MoE
	defer x.as("", "experts")()
	h := p.net.m.Hidden
	n := in.n / h
	scores := x.project(in, b.router)
	probs := x.softmax(scores, f32)
	x.drop(scores)
	chosen := x.tensor(n*e.TopK, i64)
	best := x.op(n*e.TopK, f32, []tensor{probs}, []tensor{chosen}, false, func(f *frame) { f.send(0, f.x.make(n*e.Experts, f32)) })
	x.drop(probs)
	weights := x.cast(best, in.dt)
	x.drop(best)
	mask := x.tensor(n*e.TopK*e.Experts, i64)
	sum := x.tensor(in.n, in.dt)
	each := ceilDiv(n*e.TopK, e.Experts)
	x.drop(chosen)
	ex := &b.experts[0]
	for j := range e.Experts {
		at := x.tensor(2*each, i64) // where(mask[e]): slots and tokens
		rows := x.rowsOf(in, at, each, h)
		out := p.expertMLP(x.nth(ex.gate, j, ex.copies), x.nth(ex.up, j, ex.copies), x.nth(ex.down, j, ex.copies), e.Act, rows)
		x.drop(rows)
		w := x.rowsOf(weights, at, each, 1)
		scaled := x.mulColumn(out, w, each)
		x.drop(out, w)
		sum = x.addRowsAt(sum, scaled, at)
		x.drop(scaled, at)
	}
	x.drop(weights, mask)
	if b.shUp == nil {
		return sum
	}
	shared := p.expertMLP(b.shGate, b.shUp, b.shDown, e.Act, in)
	if b.shSwitch != nil {
		g := x.project(in, b.shSwitch)
		s := x.unaryOut(g)
		x.drop(g)
		out := x.mulColumn(shared, s, n)
		x.drop(shared, s)
		shared = out
	}
	out := x.add(sum, shared)
	x.drop(sum, shared)
	return out
}

// mulColumn is t·c with one factor for each row: both are saved.
func (x *machine) mulColumn(t, c tensor, rows int64) tensor {
	d := t.dt
	return x.op(t.n, d, []tensor{t, c}, []tensor{t, c}, false, func(f *frame) {
		n := f.g[0].n
		if f.want(0) {
			f.send(0, f.x.make(n, d))
		}
		if f.want(1) {
			full := f.x.make(n, d)
			f.send(1, f.x.make(rows, d))
			f.x.release(full.st)
		}
	})
}

// expertMLP is down(act(gate)·up), or down(act(up)) where there is no gate.
func (p *player) expertMLP(gate, up, down *matrix, act model.Act, in tensor) tensor {
	x := p.x
	var mid tensor
	if gate == nil {
		u := x.project(in, up)
		mid = p.activate(u, act)
		x.drop(u)
	} else {
		g := x.project(in, gate)
		a := p.activate(g, act)
		x.drop(g)
		u := x.project(in, up)
		mid = x.mul(a, u)
		x.drop(a, u)
	}
	out := x.project(mid, down)
	x.drop(mid)
	return out
}

// latentAttention is DeepSeek's: queries, keys and values come out of low ranks,
// and the part with rotary positions is joined to the part without.
// Source: transformers v4.51 models/deepseek_v3/modeling_deepseek_v3.py,
// DeepseekV3Attention.
func (p *player) latentAttention(b *block, in tensor) tensor {
	x, a := p.x, b.l.Attention
	defer x.as("", "attention")()
	mla, n := a.MLA, p.tokens()
	dim := mla.NopeDim + mla.RopeDim
	low := func(in tensor, down *matrix, v *vector, keep int64, up *matrix) (out, rest tensor) {
		t := x.project(in, down)
		rest = none()
		if t.n > keep {
			parts := x.split(t, keep, t.n-keep)
			x.drop(t)
			t, rest = parts[0], parts[1]
		}
		if v != nil {
			normed := p.norm(t, v)
			x.drop(t)
			t = normed
		}
		out = x.project(t, up)
		x.drop(t)
		return out, rest
	}
	var q tensor
	if b.qa != nil {
		q, _ = low(in, b.qa, b.normQA, n*mla.QRank, b.qb)
	} else {
		q = x.project(in, b.q)
	}
	kv, ropeK := low(in, b.kva, b.normKVA, n*mla.KVRank, b.kvb)
	qs := x.split(q, n*a.Heads*mla.NopeDim, n*a.Heads*mla.RopeDim)
	ks := x.split(kv, n*a.Heads*mla.NopeDim, n*a.Heads*a.VHeadDim)
	x.drop(q, kv)
	rq, rk := p.rotate(qs[1], ropeK)
	query := x.join(rq.dt, qs[0], rq)
	x.drop(qs[0], rq)
	wide := rk // one rotary key for all heads: expanded as it is joined
	wide.n = n * a.Heads * mla.RopeDim
	key := x.join(rk.dt, ks[0], wide)
	x.drop(ks[0], rk)
	value := ks[1]
	h := heads{batch: p.batch, seq: p.seq, keySeq: p.seq, heads: a.Heads, kv: a.Heads, dim: dim, vdim: a.VHeadDim, causal: a.Causal, dropout: a.Dropout}
	padded := p.lib.attn == attnFlash && a.VHeadDim != dim
	if padded {
		// the kernel wants heads of one width: values are padded, and cut after it
		v := x.op(n*a.Heads*dim, value.dt, []tensor{value}, nil, false, func(f *frame) { f.pass(0) })
		x.drop(value)
		value, h.vdim = v, dim
	}
	ctx := p.attend(query, key, value, h)
	if padded {
		cut := x.op(n*a.Heads*a.VHeadDim, ctx.dt, []tensor{ctx}, nil, false, func(f *frame) { f.send(0, f.x.make(n*a.Heads*dim, f.g[0].dt)) })
		x.drop(ctx)
		ctx = cut
	}
	out := x.project(ctx, b.o)
	x.drop(ctx)
	return out
}
