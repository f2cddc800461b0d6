package memory

import "unoom/internal/workload"

// crossEntropy is F.cross_entropy on logits of n rows: log_softmax keeps its
// output, the logits themselves are not saved.
// Source: derivatives.yaml, _log_softmax and nll_loss_forward.
func (x *machine) crossEntropy(logits, labels tensor, rows, vocab int64) tensor {
	n, d := rows*vocab, logits.dt
	if x.amp != f32 && d.low() {
		// cross_entropy is on autocast's float32 list.
		up := x.cast(logits, f32)
		loss := x.crossEntropy(up, labels, rows, vocab)
		x.drop(up)
		return loss
	}
	var saved []tensor
	if x.saveInputs {
		saved = []tensor{logits}
	}
	logp := x.op(n, d, []tensor{logits}, saved, true, func(f *frame) { f.send(0, f.x.make(n, d)) })
	loss := x.op(1, d, []tensor{logp}, []tensor{logp, labels}, false, func(f *frame) { f.send(0, f.x.make(n, d)) })
	x.drop(logp)
	return loss
}

// lossPieces is into how many pieces the logits are cut: 8 where nobody said.
// Source: torchtitan components/loss.py; torchtune modules/loss/ce_chunked_output_loss.py.
func lossPieces(w *workload.Workload) int64 {
	if n := w.Kernels.ChunkedLoss; n > 0 {
		return n
	}
	return 8
}

// chunkedCrossEntropy is cross_entropy on pieces of the logits, each cast to
// float32 when its turn comes; their gradients are joined at the end.
func (x *machine) chunkedCrossEntropy(logits, labels tensor, rows, vocab, chunks int64) tensor {
	each := ceilDiv(rows, chunks)
	var sizes []int64
	for left := rows; left > 0; left -= each {
		sizes = append(sizes, min(each, left)*vocab)
	}
	parts := x.split(logits, sizes...)
	total := x.tensor(1, f32)
	for _, part := range parts {
		up := x.cast(part, f32)
		l := x.crossEntropy(up, labels, part.n/vocab, vocab)
		x.drop(up, part)
		sum := x.add(total, l)
		x.drop(total, l)
		total = sum
	}
	return total
}

// crossEntropyInPlace is unsloth's kernel: the logits are saved and backward
// writes their gradient into them.
// Source: unsloth kernels/cross_entropy_loss.py.
func (x *machine) crossEntropyInPlace(logits, labels tensor, rows, vocab int64) tensor {
	rec := x.recording(logits)
	var fn int32
	n, d := rows*vocab, logits.dt
	if rec {
		fn = x.push(1, []tensor{logits}, []tensor{logits, labels}, func(f *frame) {
			st := f.kept[0]
			f.x.hold(st)
			f.send(0, gradient{st: st, n: n, dt: d, ok: true})
		})
	}
	losses := x.tensor(rows, f32)
	lse := x.tensor(rows, f32)
	if rec {
		x.saveOutput(lse)
		losses.fn = fn
	}
	x.drop(lse)
	return losses
}

// crossEntropyKernel is flash-attention's cross entropy: the logits and one number
// for each row are saved, backward makes the gradient in their dtype.
// Source: flash-attention flash_attn/ops/triton/cross_entropy.py.
func (x *machine) crossEntropyKernel(logits, labels tensor, rows, vocab int64) tensor {
	rec := x.recording(logits)
	var fn int32
	n, d := rows*vocab, logits.dt
	if rec {
		fn = x.push(1, []tensor{logits}, []tensor{logits, labels}, func(f *frame) { f.send(0, f.x.make(n, d)) })
	}
	losses := x.tensor(rows, f32)
	lse := x.tensor(rows, f32)
	if rec {
		x.saveOutput(lse)
		losses.fn = fn
	}
	x.drop(lse)
	return losses
}

// reduced is the mean of t, which it takes over.
func (x *machine) reduced(t tensor) tensor {
	r := x.reduce(t)
	x.drop(t)
	return r
}

// fusedLinearCE is Liger's fused linear cross entropy: gradients of the hidden
// states and of the head are made in the forward pass, chunk by chunk.
// Source: Liger-Kernel ops/fused_linear_cross_entropy.py.
func (x *machine) fusedLinearCE(hidden tensor, head *matrix, labels tensor, upcast bool) tensor {
	rows, h, v := hidden.n/head.in, head.in, head.out
	w := head.weight()
	rec := x.recording(hidden, w)
	var fn int32
	d := hidden.dt
	if rec {
		wd, hn := w.dt, hidden.n
		fn = x.push(1, []tensor{hidden, w}, nil, func(f *frame) {
			f.x.hold(f.kept[0])
			f.send(0, gradient{st: f.kept[0], n: hn, dt: d, ok: true})
			if len(f.kept) > 1 {
				f.x.hold(f.kept[1])
				f.send(1, gradient{st: f.kept[1], n: h * v, dt: wd, ok: true})
			}
		})
	}
	gw := none()
	if w.needsGrad() {
		gw = x.tensor(h*v, w.dt)
	}
	gi := x.tensor(hidden.n, d)
	loss1 := x.tensor(rows, f32)
	chunk := nextPowerOfTwo(ceilDiv(rows, ceilDiv(v, h)))
	if chunk > rows {
		chunk = rows
	}
	cd := d
	if x.amp != f32 {
		cd = x.amp
	}
	// One chunk stands for all: they are equal but for the last.
	logits := x.tensor(chunk*v, cd)
	if upcast {
		up := x.tensor(chunk*v, f32)
		x.drop(logits)
		logits = x.tensor(chunk*v, cd) // back to the compute dtype
		x.drop(up)
		scaled := x.tensor(chunk*v, cd)
		x.scratch(cd.size(chunk * h))
		x.drop(scaled)
	} else {
		x.scratch(cd.size(chunk * h))
	}
	x.drop(logits)
	loss := x.tensor(1, f32)
	if rec {
		x.saveOutput(gi)
		if gw.st >= 0 {
			x.saveOutput(gw)
		}
		loss.fn = fn
	}
	x.drop(gi, gw, loss1)
	return loss
}

// reduce is a sum or a mean to one number: backward expands it.
func (x *machine) reduce(t tensor) tensor {
	n, d := t.n, t.dt
	return x.op(1, d, []tensor{t}, nil, false, func(f *frame) { f.send(0, f.x.make(n, d)) })
}

func ceilDiv(a, b int64) int64 { return (a + b - 1) / b }

func nextPowerOfTwo(n int64) int64 {
	p := int64(1)
	for p < n {
		p *= 2
	}
	return p
}
