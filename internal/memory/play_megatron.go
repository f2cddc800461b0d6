package memory

import (
	"strconv"

	"unoom/internal/model"
)

// flight is a micro-batch on its way through a chunk.
type flight struct {
	tape  *tape
	out   tensor
	leaf  int // pseudo parameter of the received input, −1: none
	input tensor
}

// train plays iterations of Megatron's training loop.
func (m *megatron) train(iterations int) {
	x := m.x
	params := len(x.params)
	group := int(m.p)
	if n, err := strconv.Atoi(m.option("microbatch-group-size-per-virtual-pipeline-stage")); err == nil && n > 0 {
		group = n
	}
	turns := pipeline(int(m.p), int(m.v), int(m.rnk), m.accumulation, group)
	for it := range iterations {
		m.iteration = it
		fl := map[[2]int]*flight{}
		for _, s := range turns {
			k := [2]int{s.chunk, s.micro}
			label := "micro-batch " + strconv.Itoa(s.micro)
			if s.forward {
				fl[k] = m.forward(s, label)
			} else {
				m.backward(fl[k], s, label)
				delete(fl, k)
			}
		}
		for _, st := range m.waiting {
			x.release(st)
		}
		m.waiting, m.deferred = nil, 0
		x.release(m.inputGrad)
		m.inputGrad = noStorage
		x.params = x.params[:params]
		x.begin(Step, "optimizer step", it)
		if it == 0 {
			m.makeState(params)
		}
		m.ends = append(m.ends, x.cur)
	}
}

// forward plays one micro-batch through a chunk.
func (m *megatron) forward(s slot, label string) *flight {
	if m.net.m.Family == model.EncoderDecoder {
		return m.forwardT5(s, label)
	}
	x := m.x
	x.begin(Forward, label, m.iteration)
	f := &flight{leaf: -1}
	outer := x.newTape()
	f.tape = x.tape
	firstChunk, lastChunk := m.first && s.chunk == 0, m.last && s.chunk == int(m.v)-1
	batch := m.batchTensors(firstChunk, lastChunk)
	x.grad = true
	var h tensor
	if firstChunk {
		h = m.embed()
	} else {
		undo := x.as(Activations, "received activations")
		h = x.tensor(m.localTokens()*m.net.m.Hidden, m.residual)
		undo()
		f.leaf = x.pseudoLeaf(h)
		h = x.params[f.leaf].t
		f.input = h
		x.hold(h.st)
	}
	for _, b := range m.chunks[s.chunk] {
		body := func(in tensor) tensor { return m.layer(b, in) }
		if m.hybrid {
			body = func(in tensor) tensor { return m.hybridLayer(b, in) }
		}
		var out tensor
		if m.recompute {
			out = x.checkpointReentrant(h, nil, body)
		} else {
			out = body(h)
		}
		x.drop(h)
		h = out
	}
	if lastChunk {
		x.begin(Loss, label, m.iteration)
		h = m.head(h, batch)
	} else {
		// deallocate_output_tensor: only the graph node of a sent output stays.
		x.release(h.st)
		h.st = noStorage
	}
	f.out = h
	x.drop(batch...)
	x.grad = false
	x.tape = outer
	return f
}

// backward plays the backward of one micro-batch through a chunk.
func (m *megatron) backward(f *flight, s slot, label string) {
	x := m.x
	x.begin(Backward, label, m.iteration)
	m.workspace(autogradThread)
	outer := x.tape
	x.tape = f.tape
	var g gradient
	if m.last && s.chunk == int(m.v)-1 {
		g = x.make(1, f32)
	} else {
		undo := x.as(Buffers, "received gradients")
		g = x.make(m.localTokens()*m.net.m.Hidden, m.residual)
		undo()
	}
	x.backward(f.out, g)
	x.drop(f.out)
	x.endTape(outer)
	if f.leaf >= 0 {
		// The loop's variable refers to what is sent until the next backward.
		x.release(m.inputGrad)
		m.inputGrad = x.params[f.leaf].grad
		x.params[f.leaf].grad = noStorage
		x.drop(f.input)
	}
}

// batchTensors are what get_batch brings to the GPU on this stage.
// Source: pretrain_gpt.py, get_batch; megatron/core/utils.py,
// get_batch_on_this_tp_rank.
func (m *megatron) batchTensors(first, last bool) []tensor {
	x := m.x
	defer x.as("", "input batch")()
	var ts []tensor
	n := m.batch * m.w.Seq
	if m.net.m.Family == model.Encoder {
		// tokens, types, labels, two masks, and what marks the pair; on every
		// stage. Source: pretrain_bert.py, get_batch.
		for range 6 {
			ts = append(ts, x.tensor(n, i64))
		}
		return ts
	}
	if !first && !last {
		return nil
	}
	if first {
		ts = append(ts, x.tensor(n, i64), x.tensor(n, i64)) // tokens, positions
	}
	if last {
		ts = append(ts, x.tensor(n, i64), x.tensor(n, f32)) // labels, loss mask
	}
	if m.mask {
		ts = append(ts, x.tensor(m.batch*m.w.Seq*m.w.Seq, u8))
	}
	return ts
}

// embed is LanguageModelEmbedding.
func (m *megatron) embed() tensor {
	x := m.x
	defer x.as("", "embedding")()
	h := m.net.m.Hidden
	ids := tensor{st: noStorage, n: m.tokens(), dt: i64}
	words := x.embedding(ids, m.net.embed.weight(), h)
	e := x.keep(words)
	if m.net.pos != nil {
		pos := x.embedding(ids, m.net.pos.w, h)
		sum := x.add(words, pos)
		x.drop(e)
		e = sum
		defer x.drop(pos)
	}
	if m.net.seg != nil {
		types := x.embedding(ids, m.net.seg.w, h)
		sum := x.add(e, types)
		x.drop(e)
		e = sum
		defer x.drop(types)
	}
	defer x.drop(words)
	t := x.contiguous(e)
	x.drop(e)
	if m.sp {
		full := t.n
		l := x.op(m.localTokens()*h, t.dt, []tensor{t}, nil, false, func(f *frame) { f.send(0, f.x.make(full, f.g[0].dt)) })
		x.drop(t)
		t = l
	}
	if m.dropHidden {
		d := x.dropout(t, 0.1)
		x.drop(t)
		t = d
	}
	return t
}

// layer is one TransformerLayer.
func (m *megatron) layer(b *block, in tensor) tensor {
	x := m.x
	att := m.selfAttention(b, in)
	mid := m.biasDropoutAdd(att, b.o, in)
	x.drop(att)
	ff := m.mlp(b, mid)
	out := m.biasDropoutAdd(ff, b.down, mid)
	x.drop(ff, mid)
	return out
}

// normLinear is TELayerNormColumnParallelLinear, or a fused norm and a column
// parallel linear. Saved are the input, its statistics and the normalised
// input.
func (m *megatron) normLinear(in tensor, v *vector, w *matrix) tensor {
	x := m.x
	m.teWorkspace()
	rows, h, d := in.n/v.width, v.width, in.dt
	full := rows * h
	if m.sp {
		full *= m.t
	}
	tokens := full / h
	ins := []tensor{in, v.w, v.b, w.w, w.bias}
	rec := x.recording(ins...)
	var fn int32
	fuse, sp, te := m.fuseWgrad, m.sp, m.te
	if rec {
		fn = x.push(1, ins, []tensor{in, v.w, w.w}, func(f *frame) {
			x := f.x
			gathered := gradient{st: noStorage}
			if sp {
				if te {
					gathered = x.make(full, d)
				} else {
					m.memoryBuffer("mpu", d.size(full))
				}
			}
			dgrad := x.make(full, d)
			local := dgrad
			if sp {
				local = x.make(rows*h, d)
			}
			if f.want(3) {
				m.weightGradient(f, 3, w.in*w.out, d, fuse)
			}
			if f.want(4) {
				f.send(4, x.make(w.out, d))
			}
			x.release(gathered.st)
			if sp {
				x.release(dgrad.st)
			}
			f.send(0, x.make(rows*h, d))
			x.release(local.st)
			f.send(1, x.make(h, d))
			if f.want(2) {
				f.send(2, x.make(h, d))
			}
		})
	}
	mu, rs := x.tensor(rows, f32), x.tensor(rows, f32)
	ln := x.tensor(rows*h, d)
	gathered := none()
	if sp {
		if te {
			gathered = x.tensor(full, d)
		} else {
			m.memoryBuffer("mpu", d.size(full))
		}
	}
	out := x.tensor(tokens*w.out, d)
	if rec {
		x.saveOutput(mu)
		x.saveOutput(rs)
		x.saveOutput(ln)
		out.fn = fn
	}
	x.drop(mu, rs, ln, gathered)
	return out
}

// rowLinear is a row parallel linear; its bias is added later.
func (m *megatron) rowLinear(in tensor, w *matrix) tensor {
	x := m.x
	m.teWorkspace()
	d := in.dt
	tokens := in.n / w.in
	outN := tokens * w.out
	fuse, sp := m.fuseWgrad, m.sp
	rec := x.recording(in, w.w)
	var fn int32
	if rec {
		n := in.n
		fn = x.push(1, []tensor{in, w.w}, []tensor{in, w.w}, func(f *frame) {
			x := f.x
			gathered := gradient{st: noStorage}
			if sp {
				gathered = x.make(outN, d)
			}
			f.send(0, x.make(n, d))
			m.weightGradient(f, 1, w.in*w.out, d, fuse)
			x.release(gathered.st)
		})
	}
	out := x.tensor(outN, d)
	if sp {
		local := x.tensor(outN/m.t, d)
		x.drop(out)
		out = local
	}
	out.fn = fn
	return out
}

// biasDropoutAdd is bias_dropout_add, compiled: the mask is saved in one byte
// for each element.
func (m *megatron) biasDropoutAdd(t tensor, w *matrix, residual tensor) tensor {
	x := m.x
	defer x.as("", "residual stream")()
	ins := []tensor{t, w.bias, residual}
	rec := x.recording(ins...)
	var fn int32
	if rec {
		n, d, bn := t.n, t.dt, w.bias.n
		drop := m.dropHidden
		fn = x.push(1, ins, nil, func(f *frame) {
			f.pass(2)
			if drop {
				f.send(0, f.x.make(n, d))
			} else {
				f.pass(0)
			}
			if f.want(1) {
				f.send(1, f.x.make(bn, d))
			}
		})
	}
	out := x.tensor(t.n, t.dt)
	if m.dropHidden {
		mask := x.tensor(t.n, u8)
		if rec {
			x.saveOutput(mask)
		}
		x.drop(mask)
	}
	out.fn = fn
	return out
}

// selfAttention returns the output of the projection, without its bias.
func (m *megatron) selfAttention(b *block, in tensor) tensor {
	x := m.x
	defer x.as("", "attention")()
	a := b.l.Attention
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
	ctx := m.attend(q, k, v, h)
	out := m.rowLinear(ctx, b.o)
	x.drop(ctx)
	return out
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
	if m.te {
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

// mlp is fc1 with its norm, the activation with the bias, and fc2.
func (m *megatron) mlp(b *block, in tensor) tensor {
	x := m.x
	defer x.as("", "MLP")()
	w := b.up
	if b.gateUp != nil {
		w = b.gateUp
	}
	up := m.normLinear(in, b.norm2, w)
	act := m.activation(up, b)
	x.drop(up)
	out := m.rowLinear(act, b.down)
	x.drop(act)
	return out
}

// activation is bias_gelu_impl or bias_swiglu_impl: the input is saved.
func (m *megatron) activation(t tensor, b *block) tensor {
	n := t.n
	if b.l.MLP.Gated {
		n /= 2
	}
	in, d := t.n, t.dt
	return m.x.op(n, d, []tensor{t}, []tensor{t}, false, func(f *frame) { f.send(0, f.x.make(in, d)) })
}

// weightGradient sends the gradient of a weight: a tensor that DDP's hook adds
// to the buffer, or with fusion one dummy for each shape, which stays.
// Source: TransformerEngine module/base.py, get_dummy_wgrad.
func (m *megatron) weightGradient(f *frame, i int, n int64, d dtype, fused bool) {
	x := f.x
	if !fused {
		f.send(i, x.make(n, d))
		return
	}
	if _, ok := m.dummies[n]; !ok {
		undo := x.as(Buffers, "dummy weight gradients")
		m.dummies[n] = x.alloc(d.size(n))
		undo()
	}
	x.hold(m.dummies[n])
	f.send(i, gradient{st: m.dummies[n], n: n, dt: d, ok: true})
}

// head is the final norm, the vocabulary matrix and the loss of every token.
func (m *megatron) head(h tensor, batch []tensor) tensor {
	x := m.x
	v := m.net.stacks[0].final
	normed := x.fusedNorm(h, v.w, v.b, v.width, 2)
	x.drop(h)
	defer x.as("", "logits and loss")()
	pair := none() // next-sentence loss
	if m.net.pooler != nil {
		pair = m.sentencePair(normed)
	}
	if m.net.transform != nil {
		n := m.transformHead(normed)
		x.drop(normed)
		normed = n
	}
	sum := m.tokenLoss(normed)
	if pair.st >= 0 {
		total := x.add(sum, pair)
		x.drop(sum, pair)
		sum = total
	}
	return sum
}

// tokenLoss is the masked sum of the losses of all tokens. It takes over normed.
func (m *megatron) tokenLoss(normed tensor) tensor {
	x := m.x
	defer x.as("", "logits and loss")()
	loss := m.vocabulary(normed)
	x.drop(normed)
	masked := x.mul(loss, tensor{st: noStorage, n: loss.n, dt: f32})
	x.drop(loss)
	sum := x.reduce(masked)
	x.drop(masked)
	return sum
}

// sentencePair is BERT's pooler, binary head and their loss.
func (m *megatron) sentencePair(h tensor) tensor {
	x := m.x
	first := x.slice(h, m.batch*m.net.m.Hidden)
	d := x.linear(first, m.net.pooler)
	t := x.unaryOut(d)
	logits := x.linear(t, m.net.classifier)
	up := x.cast(logits, f32)
	loss := x.crossEntropy(up, none(), m.batch, up.n/m.batch)
	x.drop(first, d, t, logits, up)
	return loss
}

// transformHead is BertLMHead: dense, GELU and a norm.
func (m *megatron) transformHead(h tensor) tensor {
	x := m.x
	d := x.linear(h, m.net.transform)
	a := x.unaryIn(d)
	x.drop(d)
	n := x.fusedNorm(a, m.net.headNorm.w, m.net.headNorm.b, m.net.headNorm.width, 2)
	x.drop(a)
	return n
}

// vocabulary is the matrix over the vocabulary and the loss of each token.
func (m *megatron) vocabulary(normed tensor) tensor {
	x := m.x
	w := m.net.head
	wt := w.weight()
	d := normed.dt
	full := normed.n
	if m.sp {
		full *= m.t
	}
	vocab := w.out
	rows := full / w.in
	m.workspace(mainThread)
	if m.sp {
		m.memoryBuffer("mpu", d.size(full))
	}
	fuse, sp, local := m.fuseWgrad, m.sp, normed.n
	var fn int32
	rec := x.recording(normed, wt)
	if rec {
		fn = x.push(1, []tensor{normed, wt, w.bias}, []tensor{normed, wt}, func(f *frame) {
			x := f.x
			if sp {
				m.memoryBuffer("mpu", d.size(full))
			}
			g := x.make(full, d)
			if sp {
				l := x.make(local, d)
				x.release(g.st)
				g = l
			}
			f.send(0, g)
			if f.want(2) {
				f.send(2, x.make(vocab, d))
			}
			if m.deferred < m.deferLimit {
				// The gradient of the logits and the input wait for the flush.
				m.deferred++
				x.hold(f.g[0].st)
				x.hold(f.kept[0])
				m.waiting = append(m.waiting, f.g[0].st, f.kept[0])
				return
			}
			if f.want(1) {
				m.weightGradient(f, 1, w.in*vocab, d, fuse)
			}
		})
	}
	logits := x.tensor(rows*vocab, d)
	if w.biased {
		sum := x.tensor(rows*vocab, d)
		x.drop(logits)
		logits = sum
	}
	logits.fn = fn
	loss := m.vocabLoss(logits, vocab)
	x.drop(logits)
	return loss
}

// vocabLoss is vocab_parallel_cross_entropy: the softmax in float32 is kept and
// becomes the gradient.
func (m *megatron) vocabLoss(logits tensor, vocab int64) tensor {
	x := m.x
	n, d := logits.n, logits.dt
	rows := n / vocab
	rec := x.recording(logits)
	var fn int32
	fused := m.fusedCE
	if rec {
		fn = x.push(1, []tensor{logits}, nil, func(f *frame) {
			x := f.x
			if fused || d == f32 {
				// The gradient is written in 16 bits by the fused function.
				f.send(0, x.make(n, d))
				return
			}
			// The engine casts the float32 gradient to the logits' dtype.
			f.send(0, x.make(n, d))
		})
	}
	soft := x.tensor(n, f32)
	if fused {
		// The compiled pieces are functional: the exponentials are a new tensor.
		e := x.tensor(n, f32)
		x.drop(soft)
		soft = e
	}
	top := x.tensor(rows, f32)
	topIndex := x.tensor(rows, i64)
	mask := x.tensor(rows, u8)
	target := x.tensor(rows, i64)
	loss := x.tensor(rows, f32)
	if rec {
		x.saveOutput(soft)
		x.saveOutput(mask)
		x.saveOutput(target)
		loss.fn = fn
	}
	x.drop(soft, top, topIndex, mask, target)
	return loss
}
