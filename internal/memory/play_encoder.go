package memory

import (
	"unoom/internal/model"
)

// encoderForward is the forward pass of BERT and its relatives in transformers,
// with labels, up to the loss.
// Source: transformers models/bert/modeling_bert.py (v4.20.1).
func (p *player) encoderForward(ids, labels tensor, checkpointed bool) (loss tensor, outputs []tensor) {
	x := p.x
	h := p.encoderEmbeddings(ids)
	mask := x.tensor(p.tokens(), f32)
	h = p.encoderStack(p.net.stacks[0], h, mask, checkpointed)
	x.drop(mask)
	x.begin(Loss, "loss", p.iteration)
	defer x.as("", "logits and loss")()
	if p.net.m.HeadKind == model.HeadMaskedLM || p.net.m.HeadKind == model.HeadLM {
		logits := p.maskedHead(h)
		x.drop(h)
		loss = x.crossEntropy(logits, labels, p.tokens(), p.net.head.out)
		return loss, []tensor{logits}
	}
	logits := p.classify(h)
	loss = x.crossEntropy(logits, labels, p.batch, max(1, logits.n/p.batch))
	return loss, []tensor{logits, h}
}

// encoderEmbeddings is words, types and positions, a norm and a dropout.
func (p *player) encoderEmbeddings(ids tensor) tensor {
	x := p.x
	defer x.as("", "embedding")()
	h := x.embedding(ids, p.net.embed.weight(), p.net.embed.out)
	if s := p.net.seg; s != nil {
		t := x.embedding(ids, s.weight(), s.out)
		sum := x.add(h, t)
		x.drop(h, t)
		h = sum
	}
	if s := p.net.pos; s != nil {
		at := x.tensor(p.seq, i64)
		t := x.embedding(at, s.weight(), s.out) // one row of positions for all
		x.drop(at)
		sum := x.addRowsInPlace(h, t)
		x.drop(h, t)
		h = sum
	}
	if p.net.embLN != nil {
		n := p.layerNorm(h, p.net.embLN)
		x.drop(h)
		h = n
	}
	d := x.dropout(h, p.net.m.EmbedDropout)
	x.drop(h)
	if p.net.projIn != nil {
		out := x.project(d, p.net.projIn)
		x.drop(d)
		d = out
	}
	return d
}

// encoderStack runs the layers of a post-norm stack. It takes over h.
func (p *player) encoderStack(st stack, h, mask tensor, checkpointed bool) tensor {
	x := p.x
	for _, b := range st.blocks {
		layer := func(in tensor) tensor { return p.postNormLayer(b, in, mask) }
		var out tensor
		switch {
		case !checkpointed:
			out = layer(h)
		case p.lib.reentrant:
			out = x.checkpointReentrant(h, []tensor{mask}, layer)
		default:
			out = x.checkpoint(h, []tensor{mask}, nil, layer)
		}
		x.drop(h)
		h = out
	}
	return h
}

// postNormLayer is one block whose norms follow the residual sums.
func (p *player) postNormLayer(b *block, in, mask tensor) tensor {
	x := p.x
	undo := x.as("", "attention")
	a := b.l.Attention
	h := heads{batch: p.batch, seq: p.seq, keySeq: p.seq, heads: a.Heads, kv: a.KVHeads, dim: a.HeadDim, vdim: a.VHeadDim, dropout: a.Dropout}
	q, k, v := x.project(in, b.q), x.project(in, b.k), x.project(in, b.v)
	var ctx tensor
	switch p.lib.attn {
	case attnFlash:
		ctx = x.flash(q, k, v, h)
	case attnEfficient:
		ctx = x.efficient(q, k, v, none(), h)
	default:
		ctx = p.maskedAttention(q, k, v, mask, h)
	}
	x.drop(q, k, v)
	att := x.project(ctx, b.o)
	x.drop(ctx)
	mid := p.addAndNorm(att, in, b, b.norm1)
	undo()
	defer x.as("", "MLP")()
	up := x.project(mid, b.up)
	act := p.activate(up, b.l.MLP.Act)
	x.drop(up)
	out := x.project(act, b.down)
	x.drop(act)
	res := p.addAndNorm(out, mid, b, b.norm2)
	x.drop(mid)
	return res
}

// addAndNorm is LayerNorm(dropout(t) + residual). It takes over t.
func (p *player) addAndNorm(t, residual tensor, b *block, v *vector) tensor {
	x := p.x
	t = p.residualDropout(b, t)
	sum := x.add(t, residual)
	out := p.layerNorm(sum, v)
	x.drop(t, sum)
	return out
}

// maskedAttention is attention with stored scores as BERT writes it: matmul
// copies queries, keys and values into the layout of bmm; the masked scores and
// the probabilities are variables until the function returns.
func (p *player) maskedAttention(q, k, v, mask tensor, h heads) tensor {
	x := p.x
	n := h.scores()
	q2, k2 := x.contiguous(q), x.contiguous(k)
	s := x.batched(q2, k2, n)
	x.drop(q2, k2)
	c := x.scale(s)
	x.drop(s)
	m := x.addBroadcast(c, mask)
	x.drop(c)
	in := m
	if x.amp != f32 && in.dt.low() {
		in = x.cast(m, f32)
	} else {
		in = x.keep(m)
	}
	w := x.softmax(in, in.dt)
	x.drop(in)
	d := x.dropout(w, h.dropout)
	x.drop(w)
	w2 := x.castInput(d)
	v2 := x.contiguous(v)
	o := x.batched(w2, v2, h.out())
	x.drop(w2, v2)
	out := x.contiguous(o)
	x.drop(o, d, m)
	return out
}

// classify is the head for a few classes on the first token.
func (p *player) classify(h tensor) tensor {
	x := p.x
	width := p.net.m.Hidden
	first := x.slice(h, p.batch*width)
	if p.net.pooler != nil {
		d := x.project(first, p.net.pooler)
		x.drop(first)
		first = x.unaryOut(d)
		x.drop(d)
	}
	d := x.dropout(first, p.net.m.EmbedDropout)
	x.drop(first)
	if p.net.classifier == nil {
		return d
	}
	out := x.project(d, p.net.classifier)
	x.drop(d)
	return out
}

// maskedHead is a transform with a norm, and the tied matrix.
func (p *player) maskedHead(h tensor) tensor {
	x := p.x
	t := x.keep(h)
	if p.net.transform != nil {
		d := x.project(t, p.net.transform)
		x.drop(t)
		a := p.activate(d, model.GELU)
		x.drop(d)
		t = p.layerNorm(a, p.net.headNorm)
		x.drop(a)
	}
	out := x.project(t, p.net.head)
	x.drop(t)
	return out
}

// addRowsInPlace is a += b, where b may be smaller.
func (x *machine) addRowsInPlace(a, b tensor) tensor {
	n, bd := b.n, b.dt
	out := x.keep(a)
	if x.recording(a, b) {
		out.fn = x.push(1, []tensor{a, b}, nil, func(f *frame) {
			f.pass(0)
			if f.want(1) {
				f.send(1, f.x.make(n, bd))
			}
		})
		out.leaf, out.slot = 0, 0
	}
	return out
}

// addRows is a + b, where b is one row of positions for every sample.
func (x *machine) addRows(a, b tensor) tensor {
	n, bd := b.n, b.dt
	return x.op(a.n, a.dt, []tensor{a, b}, nil, false, func(f *frame) {
		f.pass(0)
		if f.want(1) {
			f.send(1, f.x.make(n, bd))
		}
	})
}
