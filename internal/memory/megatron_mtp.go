package memory

// Multi-token prediction of Megatron-Core: after the decoder, further layers
// read its output together with the embedding of the next token; each has the
// head and a loss of its own.
// Source: megatron/core/transformer/multi_token_prediction.py.

// mtpParts are the modules of a prediction layer beside those of its block, in
// the order of the model: norms of the embedding and of the hidden states, the
// projection of both, the last norm.
const mtpParts = 4

// predicting reports whether this rank has the layers of multi-token prediction.
func (m *megatron) predicting() bool {
	return m.last && len(m.net.stacks) > 1 && m.net.stacks[1].s.Name == "mtp"
}

// predictFurther returns the hidden states of the decoder and of each
// prediction, as views of what they are joined in. It takes over normed.
func (m *megatron) predictFurther(normed tensor) []tensor {
	x := m.x
	defer x.as("", "multi-token prediction")()
	all := []tensor{normed}
	h := x.keep(normed)
	for _, b := range m.net.stacks[1].blocks {
		out := m.predict(b, h)
		x.drop(h)
		h = out
		all = append(all, x.keep(out))
	}
	x.drop(h)
	n, d := normed.n, normed.dt
	fn := int32(0)
	if x.recording(all...) {
		fn = x.push(1, all, nil, func(f *frame) {
			for i := range all {
				f.pass(i) // views of one gradient
			}
		})
	}
	joined := x.tensor(n*int64(len(all)), d)
	joined.fn = fn
	sizes := make([]int64, len(all))
	for i := range sizes {
		sizes[i] = n
	}
	x.drop(all...)
	views := x.split(joined, sizes...)
	x.drop(joined)
	return views
}

// predict is one MultiTokenPredictionLayer.
func (m *megatron) predict(b *block, h tensor) tensor {
	x := m.x
	w := m.net.m.Hidden
	var parts [mtpParts]tensor
	for i, t := range b.extra[len(b.extra)-mtpParts:] {
		parts[i] = x.params[t.leaf-1].t // where the optimizer's buffer has it
	}
	word := m.embed()
	e := x.fusedNorm(word, parts[0], none(), w, 2)
	x.drop(word)
	g := x.fusedNorm(h, parts[1], none(), w, 2)
	both := m.joined(e.n+g.n, e, g)
	x.drop(e, g)
	out := m.columnLinear(both, &matrix{w: parts[2], bias: none(), in: 2 * w, out: w / m.t})
	x.drop(both)
	if m.t > 1 {
		whole := m.moved(out, m.tokens()*w)
		x.drop(out)
		out = whole
		if m.sp {
			own := m.moved(whole, m.localTokens()*w)
			x.drop(whole)
			out = own
		}
	}
	res := m.throughLayers(out, []*block{b}, m.layer)
	n := x.fusedNorm(res, parts[3], none(), w, 2)
	x.drop(res)
	return n
}
