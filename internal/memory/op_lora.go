package memory

// quantized describes how a frozen base matrix is stored in few bits, and what
// using it costs.
type quantized struct {
	kind quantKind
	// compute is the dtype that the matrix is expanded to.
	compute dtype
	// compiled: it is expanded within a compiled region.
	compiled bool
}

// quantKind is a way to store a base matrix.
type quantKind uint8

const (
	quantNF4       quantKind = iota + 1 // bitsandbytes, 4 bits, one float32 for 64
	quantNF4Double                      // the scales in 8 bits too
	quantGPTQ                           // 4 bits, groups of 128
	quantInt8                           // LLM.int8
	quantAO                             // torchao's NF4Tensor, scales in 8 bits
)

// storedBytes returns the allocations that hold a matrix of in×out: the packed
// values first, then scales and tables.
// Source: bitsandbytes functional.py, quantize_4bit (block size 64, nested
// blocks of 256, code tables of 16 and 256 float32); GPTQ checkpoints: int32
// qweight, qzeros and g_idx, float16 scales; torchao quantization/quantize_/
// workflows/nf4/nf4_tensor.py, NF4Tensor.from_tensor.
func (k quantKind) storedBytes(in, out int64) []int64 {
	n := in * out
	switch k {
	case quantNF4:
		return []int64{n / 2, n / 64 * 4, 16 * 4}
	case quantNF4Double:
		blocks := n / 64
		return []int64{n / 2, blocks, (blocks + 255) / 256 * 4, 16 * 4, 256 * 4, 4}
	case quantGPTQ:
		groups := (in + 127) / 128
		return []int64{n / 2, groups * out / 2, groups * out * 2, in * 4}
	case quantInt8:
		return []int64{n, out * 4}
	case quantAO:
		blocks := n / 64
		return []int64{n / 2, blocks, (blocks + 255) / 256 * 2, 2}
	}
	return []int64{2 * n}
}

// adapter is a LoRA pair on a matrix.
type adapter struct {
	a, b    tensor // in→rank, rank→out
	rank    int64
	dropout float64
	style   adapterStyle
	// dora: the sum of base and pair is scaled to magnitude, one number for each
	// output.
	dora      bool
	magnitude tensor
}

// adapterStyle is the code that runs an adapter.
type adapterStyle uint8

const (
	adapterPlain adapterStyle = iota // peft on nn.Linear
	adapterBnb4                      // peft on bitsandbytes' Linear4bit
	adapterGPTQ                      // peft on a GPTQ QuantLinear
	adapterInt8                      // peft on Linear8bitLt
	adapterTune                      // torchtune's LoRALinear
)

// expand makes the 16-bit copy of a quantised matrix that a product reads.
// Source: bitsandbytes functional.py, dequantize_4bit: with nested scales a
// float32 copy of them lives until the function returns.
func (x *machine) expand(q *quantized, n int64) tensor {
	switch q.kind {
	case quantNF4Double:
		scales := x.tensor(n/64, f32)
		x.scratch(4 * (n / 64)) // absmax + offset
		w := x.tensor(n, q.compute)
		x.drop(scales)
		return w
	case quantAO:
		if !q.compiled {
			return x.expandAO(q, n)
		}
	}
	return x.tensor(n, q.compute)
}

// expandAO is NF4Tensor.get_original_weight, operation by operation: the two
// halves of each byte become 64-bit indices, and all of it lives until the
// function returns.
func (x *machine) expandAO(q *quantized, n int64) tensor {
	half, d := n/2, q.compute
	indices := []tensor{x.tensor(half, i64), x.tensor(half, i64)}
	values := []tensor{x.tensor(half, d), x.tensor(half, d)}
	scales := x.tensor(n/64, d)
	var scaled []tensor
	for range 2 {
		repeated := x.tensor(half, d)
		scaled = append(scaled, x.tensor(half, d))
		x.drop(repeated)
	}
	w := x.tensor(n, d)
	x.drop(indices...)
	x.drop(values...)
	x.drop(scaled...)
	x.drop(scales)
	return w
}

// baseLinear is the product with a quantised base. The input is not saved: the
// base is frozen. Backward expands the matrix again.
// Source: bitsandbytes autograd/_functions.py, MatMul4Bit; auto-gptq
// qlinear_tritonv2.py, QuantLinearFunction.
func (x *machine) baseLinear(t tensor, m *matrix) tensor {
	q := m.quant
	n, rows := m.in*m.out, t.n/m.in
	in := x.cast(t, q.compute) // Linear4bit: x.to(compute_dtype); GPTQ: custom_fwd casts
	d := q.compute
	rec := x.recording(in)
	var fn int32
	if rec {
		k := m.in
		fn = x.push(1, []tensor{in}, []tensor{m.w}, func(f *frame) {
			w := f.x.expand(q, n)
			g := f.x.make(rows*k, d)
			f.x.drop(w)
			f.send(0, g)
		})
	}
	w := x.expand(q, n)
	out := x.tensor(rows*m.out, d)
	x.drop(w)
	out.fn = fn
	x.drop(in)
	if q.kind != quantGPTQ && t.dt != d {
		// Linear4bit returns in the dtype of its input.
		up := x.cast(out, t.dt)
		x.drop(out)
		return up
	}
	return out
}

// project is the forward of a linear module, with its adapter if it has one.
func (x *machine) project(t tensor, m *matrix) tensor {
	base := x.linear
	if m.quant != nil {
		base = x.baseLinear
	}
	if m.lora == nil {
		return base(t, m)
	}
	return x.adapted(t, m, base(t, m))
}

// adapted adds an adapter's output to that of the base. The order of
// allocations is that of peft's forward methods.
// Source: peft 0.13 tuners/lora/layer.py, bnb.py, gptq.py.
func (x *machine) adapted(t tensor, m *matrix, result tensor) tensor {
	l := m.lora
	out := result.dt
	if l.style == adapterBnb4 {
		// a defensive clone of the base's result
		c := x.contiguous(result)
		x.drop(result)
		result = c
	}
	in := x.keep(t)
	if l.style == adapterPlain || x.amp == f32 {
		c := x.cast(in, l.a.dt)
		x.drop(in)
		in = c
	}
	d := x.dropout(in, l.dropout)
	low := x.linear(d, &matrix{w: l.a, in: m.in, out: l.rank})
	x.drop(d)
	high := x.linear(low, &matrix{w: l.b, in: l.rank, out: m.out})
	x.drop(low)
	if l.dora {
		return x.decomposed(result, high, in, m)
	}
	if l.style == adapterBnb4 || l.style == adapterInt8 {
		s := x.scale(high)
		x.drop(high)
		c := x.cast(s, out)
		x.drop(s)
		sum := x.add(result, c)
		x.drop(result, c, in)
		return sum
	}
	if l.style == adapterGPTQ {
		c := x.cast(high, out)
		x.drop(high)
		s := x.scale(c)
		x.drop(c)
		sum := x.addInPlace(result, s)
		x.drop(s, in)
		return sum
	}
	s := x.scale(high)
	x.drop(high)
	sum := x.add(result, s)
	x.drop(result, s)
	c := x.cast(sum, out)
	x.drop(sum, in)
	return c
}

// decomposed is what DoRA makes of the results of base and pair: both are scaled
// by the magnitude over the norm of the weight that they amount to, for which
// that weight is written out, with an identity as the pair's input. It takes its
// tensors over.
// Source: peft tuners/lora/dora.py, DoraLinearLayer.forward and get_weight_norm;
// torchtune modules/peft/dora.py, DoRALinear.forward.
func (x *machine) decomposed(result, high, in tensor, m *matrix) tensor {
	l, to, n := m.lora, result.dt, m.in*m.out
	old := x.grad
	x.grad = false
	eye := x.tensor(m.in*m.in, in.dt)
	low, product := x.tensor(m.in*l.rank, in.dt), x.tensor(n, in.dt)
	w := none()
	switch {
	case m.quant != nil:
		w = x.expand(m.quant, n)
	case m.w.dt != in.dt:
		w = x.tensor(n, in.dt)
	}
	scaled := x.tensor(n, in.dt)
	sum := x.tensor(n, in.dt)
	x.drop(scaled)
	x.scratch(in.dt.size(m.out))
	x.drop(sum, w, product, low, eye)
	x.grad = old
	factor := x.scale(l.magnitude)
	base := x.mulWeight(result, factor, m.out)
	part := x.mulWeight(high, factor, m.out)
	x.drop(high, factor)
	s := x.scale(part)
	x.drop(part)
	extra := x.add(base, s)
	x.drop(base, s)
	out := x.add(result, extra)
	x.drop(result, extra, in)
	c := x.cast(out, to)
	x.drop(out)
	return c
}

// addInPlace is a += b: the storage of a, the history of both.
func (x *machine) addInPlace(a, b tensor) tensor {
	if x.recording(a, b) {
		bd := b.dt
		fn := x.push(1, []tensor{a, b}, nil, func(f *frame) {
			f.pass(0)
			f.passAs(1, bd)
		})
		a.fn, a.slot, a.leaf = fn, 0, 0
	}
	return a
}

// fusedAdapted is a group of adapted matrices that read the same input in one
// autograd function (unsloth's LoRA_QKV and LoRA_W): saved are the input and,
// with dropout, one dropped copy for each matrix; backward writes the gradient
// of the input into the saved input.
// Source: fms-acceleration fused_ops/unsloth_lora/{bnb,gptq}/fast_lora.py.
func (x *machine) fusedAdapted(t tensor, ms ...*matrix) []tensor {
	outs := make([]tensor, len(ms))
	d := t.dt
	rows := t.n / ms[0].in
	in := []tensor{t}
	for _, m := range ms {
		in = append(in, m.lora.a, m.lora.b)
	}
	rec := x.recording(in...)
	var fn int32
	if rec {
		fn = x.push(len(ms), in, []tensor{t}, func(f *frame) { f.x.fusedAdaptedBackward(f, rows, d, ms) })
	}
	dropped := make([]tensor, len(ms))
	for i, m := range ms {
		w := x.expand(m.quant, m.in*m.out)
		outs[i] = x.tensor(rows*m.out, d)
		x.drop(w)
		dropped[i] = t
		if m.lora.dropout > 0 && x.training {
			dropped[i] = x.tensor(t.n, d)
			x.scratch(t.n) // the mask, without gradients
		} else {
			x.hold(t.st)
		}
		low := x.tensor(rows*m.lora.rank, d)
		s := x.tensor(m.lora.rank*m.out, m.lora.b.dt)
		add := x.tensor(rows*m.out, d)
		x.drop(add, s, low)
	}
	for i := range ms {
		if rec {
			x.saveOutput(dropped[i])
			outs[i].fn, outs[i].slot = fn, uint16(i)
		}
		x.drop(dropped[i])
	}
	return outs
}

func (x *machine) fusedAdaptedBackward(f *frame, rows int64, d dtype, ms []*matrix) {
	// The gradients of the adapters first, all kept until the function returns.
	for i, m := range ms {
		low := x.make(rows*m.lora.rank, d)
		ga := x.make(m.in*m.lora.rank, m.lora.a.dt)
		x.release(low.st)
		low = x.make(rows*m.lora.rank, d)
		gb := x.make(m.lora.rank*m.out, m.lora.b.dt)
		x.release(low.st)
		f.send(1+2*i, ga)
		f.send(2+2*i, gb)
	}
	for i, m := range ms {
		w := x.expand(m.quant, m.in*m.out)
		if i > 0 { // dX += dY·Wᵀ; the first product is written into X
			x.scratch(d.size(rows * m.in))
		}
		x.drop(w)
		mask := x.tensor(rows*m.in, u8) // (X != 0)
		low := x.tensor(rows*m.lora.rank, d)
		full := x.tensor(rows*m.in, d)
		x.drop(low)
		prod := x.tensor(rows*m.in, d)
		x.drop(full, mask, prod)
	}
	// The gradient of the input is the saved input's storage.
	saved := f.kept[0]
	x.hold(saved)
	f.send(0, gradient{st: saved, n: rows * ms[0].in, dt: d, ok: true})
}
