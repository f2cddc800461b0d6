package memory

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
	var further []tensor
	if m.predicting() {
		views := m.predictFurther(normed)
		normed, further = views[0], views[1:]
	}
	sum := none()
	for i, view := range further {
		loss := m.tokenLoss(view)
		if i == 0 {
			sum = loss
			continue
		}
		total := x.add(sum, loss)
		x.drop(sum, loss)
		sum = total
	}
	last := m.tokenLoss(normed)
	if len(further) > 0 {
		total := x.add(sum, last)
		x.drop(sum, last)
		last = total
	}
	sum = last
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
	if m.deepspeed {
		// The loss is given float32 logits, and copies them again.
		up := x.cast(logits, f32)
		x.drop(logits)
		logits = up
	}
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
