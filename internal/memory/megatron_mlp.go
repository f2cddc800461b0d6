package memory

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
	out := m.rowLinear(act, b.down, false)
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
