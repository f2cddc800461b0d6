package memory

// causalForward is the forward pass of a causal language model of transformers
// with labels, up to the loss. It returns the loss and what the model's output
// object refers to.
func (p *player) causalForward(ids, labels tensor, checkpointed bool) (loss tensor, outputs []tensor) {
	loss = p.rooted(ids, func(ids tensor) tensor {
		var l tensor
		l, outputs = p.causalModel(ids, labels, checkpointed)
		return l
	})
	return loss, outputs
}

func (p *player) causalModel(ids, labels tensor, checkpointed bool) (loss tensor, outputs []tensor) {
	h := p.causalHidden(ids, checkpointed)
	loss = p.grouped(func(ld *groupLoader) *group { return ld.head }, h, func(h tensor) tensor {
		var l tensor
		l, outputs = p.causalLoss(h, labels)
		return l
	})
	p.x.drop(h)
	return loss, outputs
}

// causalHidden is the model up to its head.
func (p *player) causalHidden(ids tensor, checkpointed bool) tensor {
	x := p.x
	st := p.net.text()
	h, deep := p.lookAt(p.grouped(func(ld *groupLoader) *group { return ld.embed }, ids, p.causalEmbeddings), checkpointed)
	before := 0 // layers of towers, which have units too
	for i := range len(p.net.stacks) - 1 {
		before += len(p.net.stacks[i].s.Layers)
	}
	rotary := p.lib.sharedRope && p.headDim() > 0
	var held []tensor
	if rotary {
		p.cos, p.sin = p.ropeTables(1, h.dt)
		held = []tensor{p.cos, p.sin}
	}
	for i, b := range st.blocks {
		layer := func(in tensor) tensor { return p.decoderLayer(b, in) }
		if p.compiled && p.cache == nil {
			layer = func(in tensor) tensor { return p.compiledLayer(b, in) }
		}
		sharded := func(body func(tensor) tensor) func(tensor) tensor {
			if p.zero3 != nil {
				return func(in tensor) tensor { return p.zero3.forward(p.zero3.units[before+i], in, body) }
			}
			if p.shards != nil {
				return func(in tensor) tensor { return p.shards.forward(p.groups.layers[before+i], in, body) }
			}
			if p.fsdp == nil {
				return body
			}
			u := p.units[before+i]
			return func(in tensor) tensor { return p.fsdp.forward(u, in, body) }
		}
		recomputed := func(body func(tensor) tensor) func(tensor) tensor {
			switch {
			case !checkpointed:
				return body
			case p.lib.reentrant && p.shards == nil:
				return func(in tensor) tensor { return x.checkpointReentrant(in, held, body) }
			}
			return func(in tensor) tensor { return x.checkpoint(in, held, nil, body) }
		}
		body := recomputed(sharded(layer))
		if p.lib.shardOutside || p.shards != nil {
			body = sharded(recomputed(layer))
		}
		out := body(h)
		x.drop(h)
		h = out
		if i < len(deep) {
			h = p.deepen(h, deep[i])
		}
	}
	if st.final != nil {
		n := p.norm(h, st.final)
		x.drop(h)
		h = n
	}
	if p.net.projOut != nil {
		out := x.project(h, p.net.projOut)
		x.drop(h)
		h = out
	}
	if rotary {
		x.drop(p.cos, p.sin)
	}
	return h
}

// causalEmbeddings is the tokens, learned positions where there are any, a norm
// (BLOOM) and a dropout (GPT-2).
func (p *player) causalEmbeddings(ids tensor) tensor {
	x := p.x
	defer x.as("", "embedding")()
	p.gatherEnds()
	h := p.requireInputs(x.embedding(ids, p.net.embed.w, p.net.embed.out))
	if s := p.net.projIn; s != nil {
		out := x.project(h, s)
		x.drop(h)
		h = out
	}
	if s := p.net.pos; s != nil {
		at := x.tensor(p.seq, i64)
		t := x.embedding(at, s.weight(), s.out) // one row of positions for all
		x.drop(at)
		sum := x.addRows(h, t)
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
	return d
}

// gatherEnds brings the embeddings and the head together under ZeRO-3.
func (p *player) gatherEnds() {
	if p.zero3 != nil {
		p.zero3.gather(p.zero3.ends)
	}
}

// requireInputs is model.enable_input_require_grads: with frozen embeddings and
// reentrant checkpoints, their output is made to need a gradient.
func (p *player) requireInputs(h tensor) tensor {
	if h.needsGrad() || !p.inputsNeedGrad {
		return h
	}
	id := int32(len(p.x.params))
	p.x.params = append(p.x.params, parameter{name: "inputs", t: h, grad: noStorage, gdt: h.dt})
	h.leaf = id + 1
	p.x.params[id].t = h
	p.inputLeaf = id + 1
	return h
}

// causalLoss is the head and the loss.
func (p *player) causalLoss(h, labels tensor) (tensor, []tensor) {
	x := p.x
	x.begin(Loss, "loss", p.iteration)
	defer x.as("", "logits and loss")()
	head := p.net.head
	n := h.n / head.in
	p.gatherEnds()
	style := p.lib.loss
	if style == lossFusedLinear && p.noGrad && !(p.lib.skipLogits && p.lossAlone) {
		style = lossShiftLabels // Liger's forward skips logits in training mode only
	}
	if style == lossFusedLinear {
		return x.fusedLinearCE(h, head, labels, true), nil
	}
	logits := p.scaledLogits(x.project(h, head))
	if p.compiled {
		return x.compiledCrossEntropy(logits, labels, n), []tensor{logits}
	}
	switch style {
	case lossForwardCopy:
		up := x.cast(logits, f32)
		x.drop(logits)
		logits = up
		shifted := p.shift(logits)
		loss := p.crossEntropy(shifted, labels, n, head.out)
		x.drop(shifted)
		return loss, []tensor{logits}
	case lossKernel:
		return x.reduced(x.crossEntropyKernel(logits, labels, n, head.out)), []tensor{logits}
	case lossShiftLabels:
		up := x.cast(logits, f32)
		loss := p.crossEntropy(up, labels, n, head.out)
		x.drop(up)
		return loss, []tensor{logits}
	}
	up := x.cast(logits, f32)
	shifted := p.shift(up)
	loss := p.crossEntropy(shifted, labels, n, head.out)
	x.drop(up, shifted)
	return loss, []tensor{logits}
}

// scaledLogits is what some models do to their logits: bound them by a tanh, or
// multiply them by a number. It takes logits over.
func (p *player) scaledLogits(logits tensor) tensor {
	out := logits
	switch m := p.net.m; {
	case m.LogitSoftcap > 0:
		out = p.x.softcap(logits)
	case m.LogitScaled:
		out = p.x.scale(logits)
	default:
		return logits
	}
	p.x.drop(logits)
	return out
}

// shift is logits[..., :-1, :].contiguous(): a copy, unless the batch is one
// sequence, whose slice is contiguous.
func (p *player) shift(logits tensor) tensor {
	x := p.x
	n := logits.n / p.seq * (p.seq - 1)
	s := x.slice(logits, n)
	if p.batch == 1 {
		return s
	}
	c := x.contiguous(s)
	x.drop(s)
	return c
}

func (p *player) crossEntropy(logits, labels tensor, rows, vocab int64) tensor {
	if p.inPlaceCE {
		l := p.x.crossEntropyInPlace(logits, labels, rows, vocab)
		r := p.x.reduce(l)
		p.x.drop(l)
		return r
	}
	return p.x.crossEntropy(logits, labels, rows, vocab)
}
