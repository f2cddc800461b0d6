package memory

// rmsEager is the RMS norm that transformers writes in Python (LlamaRMSNorm):
// cast to float32, square, mean, rsqrt, multiply, cast back, multiply by the
// weight. Saved are the float32 input (pow, and the multiplication), the
// inverse root, and the normalised tensor if the weight is trained.
// Source: transformers models/llama/modeling_llama.py.
func (x *machine) rmsEager(t, w tensor, width int64) tensor {
	rows, d := t.n/width, t.dt
	h := x.cast(t, f32)
	r := x.rootMeanSquare(h, rows)
	y := x.mulRows(h, r, rows)
	x.drop(h)
	z := x.cast(y, d)
	out := x.mulWeight(z, w, width)
	x.drop(z, y, r)
	return out
}

// rmsGemma multiplies by (1 + weight) in float32 before it casts back.
// Source: transformers models/gemma/modeling_gemma.py.
func (x *machine) rmsGemma(t, w tensor, width int64) tensor {
	rows, d := t.n/width, t.dt
	h := x.cast(t, f32)
	r := x.rootMeanSquare(h, rows)
	y := x.mulRows(h, r, rows)
	x.drop(h)
	w32 := x.cast(w, f32)
	z := x.mulWeight(y, w32, width)
	x.drop(y, w32)
	out := x.cast(z, d)
	x.drop(z, r)
	return out
}

// rootMeanSquare is rsqrt(h.pow(2).mean(-1) + eps): one number for each row.
func (x *machine) rootMeanSquare(h tensor, rows int64) tensor {
	n := h.n
	// One node stands for pow, mean, add and rsqrt. Backward of mean divides an
	// expanded gradient, that of pow multiplies three times.
	rec := x.recording(h)
	var fn int32
	if rec {
		fn = x.push(1, []tensor{h}, []tensor{h}, func(f *frame) {
			x := f.x
			small := x.make(rows, f32)
			mean := x.make(n, f32)
			x.release(small.st)
			one := x.make(n, f32) // self.pow(1)
			two := x.make(n, f32) // 2·self
			g := x.make(n, f32)
			x.release(two.st)
			x.release(one.st)
			x.release(mean.st)
			f.send(0, g)
		})
	}
	sq := x.tensor(n, f32)
	mean := x.tensor(rows, f32)
	x.drop(sq)
	plus := x.tensor(rows, f32)
	x.drop(mean)
	r := x.tensor(rows, f32)
	x.drop(plus)
	if rec {
		x.saveOutput(r)
		r.fn = fn
	}
	return r
}

// mulRows is t·r with one factor for each row.
func (x *machine) mulRows(t, r tensor, rows int64) tensor {
	var saved [2]tensor
	s := saved[:0]
	if r.needsGrad() {
		s = append(s, t)
	}
	if t.needsGrad() {
		s = append(s, r)
	}
	d := t.dt
	return x.op(t.n, d, []tensor{t, r}, s, false, func(f *frame) {
		n := f.g[0].n
		if f.want(0) {
			f.send(0, f.x.make(n, d))
		}
		if f.want(1) {
			full := f.x.make(n, d)
			g := f.x.make(rows, d)
			f.x.release(full.st)
			f.send(1, g)
		}
	})
}

// mulWeight is t·w with one factor for each column. The gradient of the weight
// is made in full before it is summed.
func (x *machine) mulWeight(t, w tensor, width int64) tensor {
	var saved [2]tensor
	s := saved[:0]
	if w.needsGrad() {
		s = append(s, t)
	}
	if t.needsGrad() {
		s = append(s, w)
	}
	d, wd := t.dt, w.dt
	if wd == f32 {
		d = f32
	}
	td := t.dt
	return x.op(t.n, d, []tensor{w, t}, s, false, func(f *frame) {
		n := f.g[0].n
		var full gradient
		if f.want(0) {
			full = f.x.make(n, d)
		}
		if f.want(1) {
			f.send(1, f.x.make(n, d))
			if td != d {
				c := f.x.make(n, td)
				f.x.release(f.out[1].st)
				f.out[1] = c
			}
		}
		if f.want(0) {
			g := f.x.make(width, wd)
			f.x.release(full.st)
			f.send(0, g)
		}
	})
}

// rmsInPlace is a Triton RMS norm whose backward writes into the incoming
// gradient and gives no gradient to the weight (unsloth's).
// Source: unsloth kernels/rms_layernorm.py, Fast_RMS_Layernorm.
func (x *machine) rmsInPlace(t, w tensor, width int64) tensor {
	rows := t.n / width
	rec := x.recording(t)
	var fn int32
	if rec {
		fn = x.push(1, []tensor{t}, []tensor{t, w}, func(f *frame) { f.pass(0) })
	}
	out := x.tensor(t.n, t.dt)
	r := x.tensor(rows, f32)
	if rec {
		x.saveOutput(r)
		out.fn = fn
	}
	x.drop(r)
	return out
}

// rmsLiger is Liger's RMS norm: backward in place, the weight's gradient summed
// from one partial row for each multiprocessor.
// Source: Liger-Kernel ops/rms_norm.py.
func (x *machine) rmsLiger(t, w tensor, width int64) tensor {
	rows := t.n / width
	rec := x.recording(t, w)
	var fn int32
	if rec {
		wd := w.dt
		fn = x.push(1, []tensor{t, w}, []tensor{t, w}, func(f *frame) {
			part := f.x.make(multiprocessors*width, f32)
			if f.want(1) {
				f.send(1, f.x.make(width, wd))
			}
			f.x.release(part.st)
			f.pass(0)
		})
	}
	out := x.tensor(t.n, t.dt)
	r := x.tensor(rows, f32)
	if rec {
		x.saveOutput(r)
		out.fn = fn
	}
	x.drop(r)
	return out
}

// layerNormPython is a LayerNorm of means, powers and a quotient: the centred
// input is made twice, and both are kept with the normalised tensor.
func (x *machine) layerNormPython(t, w, b tensor, width int64) tensor {
	rows, d := t.n/width, t.dt
	mean := x.meanRows(t, rows)
	centred := x.subRows(t, mean, rows)
	sq := x.unaryIn(centred)
	x.drop(centred)
	variance := x.meanRows(sq, rows)
	x.drop(sq)
	again := x.subRows(t, mean, rows)
	x.drop(mean)
	root := x.unaryOut(variance)
	x.drop(variance)
	y := x.op(t.n, d, []tensor{again, root}, []tensor{again, root}, false, func(f *frame) {
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
	x.drop(again, root)
	z := x.mulWeight(y, w, width)
	x.drop(y)
	if b == none() {
		return z
	}
	out := x.addBroadcast(z, b)
	x.drop(z)
	return out
}

// meanRows is a mean over the last dimension.
func (x *machine) meanRows(t tensor, rows int64) tensor {
	n, d := t.n, t.dt
	return x.op(rows, d, []tensor{t}, nil, false, func(f *frame) { f.send(0, f.x.make(n, d)) })
}

// subRows is t − r with one number for each row.
func (x *machine) subRows(t, r tensor, rows int64) tensor {
	d := t.dt
	return x.op(t.n, d, []tensor{t, r}, nil, false, func(f *frame) {
		f.pass(0)
		if f.want(1) {
			f.send(1, f.x.make(rows, d))
		}
	})
}
