package memory

import "strconv"

// An encoder-decoder of Megatron-Core: both stacks on one pipeline stage, the
// decoder's layers read the encoder's output.
// Source: megatron/core/models/T5/t5_model.py, pretrain_t5.py.

// t5Lengths are the lengths of the encoder's and the decoder's sequences.
func (m *megatron) t5Lengths() (encoder, decoder int64) {
	read := func(name string, def int64) int64 {
		if n, err := strconv.ParseInt(m.option(name), 10, 64); err == nil && n > 0 {
			return n
		}
		return def
	}
	encoder = read("encoder-seq-length", m.w.Seq)
	def := m.w.TargetSeq
	if def == 0 {
		def = encoder
	}
	return encoder, read("decoder-seq-length", def)
}

// forwardT5 plays one micro-batch up to the loss.
func (m *megatron) forwardT5(s slot, label string) *flight {
	x := m.x
	x.begin(Forward, label, m.iteration)
	f := &flight{leaf: -1}
	outer := x.newTape()
	f.tape = x.tape
	encSeq, decSeq := m.t5Lengths()
	undo := x.as("", "input batch")
	var batch []tensor
	for _, n := range []int64{encSeq, decSeq, decSeq, decSeq, encSeq, decSeq} {
		batch = append(batch, x.tensor(m.batch*n, i64))
	}
	undo()
	x.grad = true
	m.seq = encSeq
	h := m.stackOf(0, m.embed(), none())
	enc := m.finalNorm(0, h)
	x.drop(h)
	m.seq = decSeq
	h = m.stackOf(1, m.embed(), enc)
	x.begin(Loss, label, m.iteration)
	n := m.finalNorm(1, h)
	x.drop(h, enc)
	f.out = m.tokenLoss(n)
	x.drop(batch...)
	x.grad = false
	x.tape = outer
	return f
}

// stackOf runs a stack's layers; memory is the encoder's output.
func (m *megatron) stackOf(stack int, h, memory tensor) tensor {
	var held []tensor
	if memory.st >= 0 {
		held = []tensor{memory}
	}
	return m.throughLayers(h, m.net.stacks[stack].blocks, func(b *block, in tensor) tensor { return m.crossLayer(b, in, memory) }, held...)
}

func (m *megatron) finalNorm(stack int, h tensor) tensor {
	v := m.net.stacks[stack].final
	return m.x.fusedNorm(h, v.w, v.b, v.width, 2)
}

// crossLayer is a layer that may attend to the encoder between its attention and
// its MLP.
func (m *megatron) crossLayer(b *block, in, memory tensor) tensor {
	x := m.x
	att := m.selfAttention(b, in)
	mid := m.biasDropoutAdd(att, b.o, in)
	x.drop(att)
	if b.cq != nil {
		n := x.fusedNorm(mid, b.normCross.w, b.normCross.b, b.normCross.width, 2)
		c := m.crossAttention(b, n, memory)
		x.drop(n)
		next := m.biasDropoutAdd(c, b.co, mid)
		x.drop(c, mid)
		mid = next
	}
	ff := m.mlp(b, mid)
	out := m.biasDropoutAdd(ff, b.down, mid)
	x.drop(ff, mid)
	return out
}

// crossAttention has queries of the decoder, keys and values of the encoder.
func (m *megatron) crossAttention(b *block, in, memory tensor) tensor {
	x := m.x
	defer x.as("", "cross-attention")()
	a := b.l.Cross
	keySeq := memory.n / m.net.m.Hidden / m.batch
	if m.sp {
		keySeq *= m.t
	}
	h := heads{batch: m.batch, seq: m.seq, keySeq: keySeq, heads: a.Heads / m.t, kv: max(a.KVHeads/m.t, 1), dim: a.HeadDim, vdim: a.VHeadDim}
	q := m.columnLinear(in, b.cq)
	mixed := m.columnLinear(memory, b.ckv)
	parts := x.split(mixed, h.k(), h.v())
	x.drop(mixed)
	ctx := m.attend(q, parts[0], parts[1], h)
	out := m.rowLinear(ctx, b.co, true)
	x.drop(ctx)
	return out
}
