package memory

// matrix is the weight of a linear layer as the layer sees it: the tensor may
// be a parameter, a view of an unsharded flat one, or a quantised base.
type matrix struct {
	w       tensor
	bias    tensor
	biased  bool
	in, out int64
	quant   *quantized // nil: w is a plain matrix
	lora    *adapter   // nil: none
	same    *matrix    // the matrix whose weight this one shares, nil: its own
}

// weight is the tensor of the weight.
func (m *matrix) weight() tensor {
	if m.same != nil {
		return m.same.w
	}
	return m.w
}

// castCopy is a weight that autocast has cast in the running region.
type castCopy struct {
	leaf int32
	t    tensor
}

// cast is Tensor.to(dtype): a copy, or the tensor itself.
func (x *machine) cast(t tensor, d dtype) tensor {
	if t.dt == d {
		return x.keep(t)
	}
	from := t.dt
	return x.op(t.n, d, []tensor{t}, nil, false, func(f *frame) {
		f.send(0, f.x.make(f.g[0].n, from))
	})
}

// castWeight is autocast's cast of a weight. Leaves in float32 that need a
// gradient are cast once in a region and kept until it ends.
// Source: aten/src/ATen/autocast_mode.cpp, cached_cast.
func (x *machine) castWeight(w tensor) tensor {
	if w.dt == x.amp || x.amp == f32 || w.dt != f32 && !w.dt.low() {
		return x.keep(w)
	}
	cacheable := w.dt == f32 && w.leaf != 0
	if cacheable {
		for i := range x.cache {
			if x.cache[i].leaf == w.leaf {
				return x.keep(x.cache[i].t)
			}
		}
	}
	undo := x.as(Weights, "autocast copies of weights")
	c := x.cast(w, x.amp)
	undo()
	if cacheable {
		x.cache = append(x.cache, castCopy{w.leaf, x.keep(c)})
	}
	return c
}

// autocast runs f in an autocast region.
func (x *machine) autocast(d dtype, f func()) {
	old := x.amp
	x.amp = d
	f()
	x.amp = old
	if old == f32 {
		for i := range x.cache {
			x.release(x.cache[i].t.st)
		}
		x.cache = x.cache[:0]
	}
}

// castInput is autocast's cast of an activation to the region's dtype.
func (x *machine) castInput(t tensor) tensor {
	if x.amp == f32 || t.dt == x.amp {
		return x.keep(t)
	}
	return x.cast(t, x.amp)
}

// linear is F.linear: x·Wᵀ + b. The input is saved if the weight needs a
// gradient, the weight if the input does.
// Source: tools/autograd/derivatives.yaml, mm and addmm.
func (x *machine) linear(t tensor, m *matrix) tensor {
	in, w := x.castInput(t), x.castWeight(m.weight())
	rows := in.n / m.in
	bias := tensor{st: noStorage}
	if m.biased {
		bias = x.castWeight(m.bias)
	}
	out := x.matmul(in, w, bias, m.biased, rows, m.in, m.out)
	x.drop(in, w, bias)
	return out
}

// matmul is the dense product under linear, in the dtype of its operands.
func (x *machine) matmul(in, w, bias tensor, biased bool, rows, k, m int64) tensor {
	d := in.dt
	if !x.recording(in, w, bias) {
		return x.product(rows*m, d)
	}
	var saved [2]tensor
	s := saved[:0]
	if w.needsGrad() {
		s = append(s, in)
	}
	if in.needsGrad() {
		s = append(s, w)
	}
	wn, wd, ind := k*m, w.dt, in.dt
	fn := x.push(1, []tensor{in, w, bias}, s, func(f *frame) {
		if f.want(0) {
			f.send(0, f.x.make(rows*k, ind))
		}
		if f.want(1) {
			f.send(1, f.x.make(wn, wd))
		}
		if biased && f.want(2) {
			f.send(2, f.x.make(m, wd))
		}
	})
	out := x.product(rows*m, d)
	out.fn = fn
	return out
}

// product is the output of a matrix product, which selective checkpointing may
// have kept from the forward pass.
func (x *machine) product(n int64, d dtype) tensor {
	if x.sac != nil {
		return x.sac.output(x, opMatmul, n, d)
	}
	return x.tensor(n, d)
}

// add is a + b; nothing is saved, the gradient is passed on.
func (x *machine) add(a, b tensor) tensor {
	d := a.dt
	if b.dt == f32 {
		d = f32
	}
	ad, bd := a.dt, b.dt
	return x.op(max(a.n, b.n), d, []tensor{a, b}, nil, false, func(f *frame) {
		f.passAs(0, ad)
		f.passAs(1, bd)
	})
}

// passAs sends the gradient of the output on to input i, cast to its dtype.
func (f *frame) passAs(i int, d dtype) {
	if f.want(i) && f.g[0].ok && f.g[0].dt != d {
		f.send(i, f.x.make(f.g[0].n, d))
		return
	}
	f.pass(i)
}

// addBroadcast is a + b where b is small and repeated.
func (x *machine) addBroadcast(a, b tensor) tensor {
	n, bd := b.n, b.dt
	return x.op(a.n, a.dt, []tensor{a, b}, nil, false, func(f *frame) {
		f.pass(0)
		if f.want(1) {
			f.send(1, f.x.make(n, bd))
		}
	})
}

// scale is t·c for a Python number.
func (x *machine) scale(t tensor) tensor {
	return x.op(t.n, t.dt, []tensor{t}, nil, false, func(f *frame) {
		f.send(0, f.x.make(f.g[0].n, f.g[0].dt))
	})
}

// softcap is cap·tanh(t/cap): what tanh gives is saved.
func (x *machine) softcap(t tensor) tensor {
	part := x.scale(t)
	bound := x.unaryOut(part)
	x.drop(part)
	out := x.scale(bound)
	x.drop(bound)
	return out
}

// mul is a·b of equal shapes.
func (x *machine) mul(a, b tensor) tensor {
	var saved [2]tensor
	s := saved[:0]
	if b.needsGrad() {
		s = append(s, a)
	}
	if a.needsGrad() {
		s = append(s, b)
	}
	ad, bd := a.dt, b.dt
	d := a.dt
	if bd == f32 {
		d = f32
	}
	return x.op(a.n, d, []tensor{a, b}, s, false, func(f *frame) {
		n := f.g[0].n
		if f.want(0) {
			f.send(0, f.x.make(n, ad))
		}
		if f.want(1) {
			f.send(1, f.x.make(n, bd))
		}
	})
}

// unaryIn is an elementwise function whose derivative needs its input (silu,
// gelu, pow).
func (x *machine) unaryIn(t tensor) tensor {
	return x.op(t.n, t.dt, []tensor{t}, []tensor{t}, false, func(f *frame) {
		f.send(0, f.x.make(f.g[0].n, f.g[0].dt))
	})
}

// unaryOut is an elementwise function whose derivative needs its output (tanh,
// sigmoid, relu).
func (x *machine) unaryOut(t tensor) tensor {
	return x.op(t.n, t.dt, []tensor{t}, nil, true, func(f *frame) {
		f.send(0, f.x.make(f.g[0].n, f.g[0].dt))
	})
}

// contiguous copies a tensor whose layout is not that of its shape.
func (x *machine) contiguous(t tensor) tensor {
	return x.op(t.n, t.dt, []tensor{t}, nil, false, func(f *frame) { f.pass(0) })
}

// dropout is F.dropout in training: a mask of one byte for each element is
// saved. Source: derivatives.yaml, native_dropout.
func (x *machine) dropout(t tensor, p float64) tensor {
	if p == 0 || !x.training {
		return x.keep(t)
	}
	rec := x.recording(t)
	var fn int32
	if rec {
		fn = x.push(1, []tensor{t}, nil, func(f *frame) {
			f.send(0, f.x.make(f.g[0].n, f.g[0].dt))
		})
	}
	out := x.tensor(t.n, t.dt)
	mask := x.tensor(t.n, u8)
	if rec {
		x.saveOutput(mask)
		out.fn = fn
	}
	x.drop(mask)
	return out
}

// embedding looks rows up. Backward always makes a dense gradient of the table.
// Source: derivatives.yaml, embedding; aten/src/ATen/native/cuda/Embedding.cu:
// above 3072 indices they are sorted with their positions.
func (x *machine) embedding(indices tensor, table tensor, width int64) tensor {
	n := indices.n * width
	rows, wd, idx := table.n, table.dt, indices.n
	return x.op(n, table.dt, []tensor{table}, []tensor{indices}, false, func(f *frame) {
		g := f.x.make(rows, wd)
		if idx > embeddingSortFrom {
			// sorted indices, their original positions, and cub's double buffers
			a := f.x.alloc(8 * idx)
			b := f.x.alloc(8 * idx)
			c := f.x.alloc(8 * idx)
			f.x.release(c)
			f.x.release(b)
			f.x.release(a)
		}
		f.send(0, g)
	})
}

// layerNorm is native_layer_norm: the input, mean and rstd are saved.
func (x *machine) layerNorm(t tensor, w, b tensor, width int64) tensor {
	return x.fusedNorm(t, w, b, width, 2)
}

// fusedNorm is a norm in one kernel that saves its input and stats float32
// numbers for each row.
func (x *machine) fusedNorm(t tensor, w, b tensor, width, stats int64) tensor {
	rows := t.n / width
	rec := x.recording(t, w, b)
	var fn int32
	if rec {
		wn, bn := w.n, b.n
		wd, bd, td := w.dt, b.dt, t.dt
		fn = x.push(1, []tensor{t, w, b}, []tensor{t, w}, func(f *frame) {
			if f.want(0) {
				f.send(0, f.x.make(f.g[0].n, td))
			}
			if f.want(1) {
				f.send(1, f.x.make(wn, wd))
			}
			if f.want(2) {
				f.send(2, f.x.make(bn, bd))
			}
		})
	}
	out := x.tensor(t.n, t.dt)
	for range stats {
		s := x.tensor(rows, f32)
		if rec {
			x.saveOutput(s)
		}
		x.drop(s)
	}
	out.fn = fn
	return out
}

// none stands for an absent weight or bias.
func none() tensor { return tensor{st: noStorage} }

// split hands out parts of t as views that share its storage; backward joins
// their gradients in a new one (cat). Parts are in elements.
func (x *machine) split(t tensor, parts ...int64) []tensor {
	out := make([]tensor, len(parts))
	rec := x.recording(t)
	var fn int32
	if rec {
		n, d := t.n, t.dt
		fn = x.push(len(parts), []tensor{t}, nil, func(f *frame) { f.send(0, f.x.make(n, d)) })
	}
	for i, n := range parts {
		out[i] = x.keep(t)
		out[i].n, out[i].leaf = n, 0
		out[i].fn, out[i].slot = fn, uint16(i)
	}
	return out
}

// slice is a view of a part of t; backward makes zeros of the whole.
func (x *machine) slice(t tensor, n int64) tensor {
	full, d := t.n, t.dt
	out := x.alias(t, func(f *frame) { f.send(0, f.x.make(full, d)) })
	out.n = n
	return out
}
