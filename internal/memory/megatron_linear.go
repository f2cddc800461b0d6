package memory

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
	fuse, sp, te, eight := m.fuseWgrad, m.sp, m.te, m.eight.on
	m.eightBitWeight(w)
	if rec {
		fn = x.push(1, ins, []tensor{in, v.w, w.w}, func(f *frame) {
			x := f.x
			gathered := gradient{st: noStorage}
			quantised := m.quantiseGradient(tokens * w.out)
			if sp {
				if eight {
					gathered = gradient{st: x.alloc(m.eight.size(full))}
				} else if te {
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
			m.releaseAll(quantised)
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
	gathered, now := none(), none()
	if eight {
		now, ln = m.eightBitInput(ln)
	}
	if sp {
		if eight {
			gathered = tensor{st: x.alloc(m.eight.size(full))}
		} else if te {
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
	x.drop(mu, rs, ln, gathered, now)
	return out
}

// columnLinear is a column parallel linear without a norm: its input is saved.
func (m *megatron) columnLinear(in tensor, w *matrix) tensor {
	x := m.x
	m.teWorkspace()
	d := in.dt
	full := in.n
	if m.sp {
		full *= m.t
	}
	tokens := full / w.in
	ins := []tensor{in, w.w, w.bias}
	n, fuse, sp, te, eight := in.n, m.fuseWgrad, m.sp, m.te, m.eight.on
	m.eightBitWeight(w)
	rec := x.recording(ins...)
	var fn int32
	gather := func(x *machine) int32 {
		if sp && eight {
			return x.alloc(m.eight.size(full))
		}
		if sp && te {
			return x.alloc(d.size(full))
		}
		if sp {
			m.memoryBuffer("mpu", d.size(full))
		}
		return noStorage
	}
	saved := []tensor{in, w.w}
	if eight {
		saved = saved[1:]
	}
	if rec {
		fn = x.push(1, ins, saved, func(f *frame) {
			x := f.x
			quantised := m.quantiseGradient(tokens * w.out)
			defer m.releaseAll(quantised)
			gathered := gather(x)
			g := x.make(full, d)
			if f.want(1) {
				m.weightGradient(f, 1, w.in*w.out, d, fuse)
			}
			if f.want(2) {
				f.send(2, x.make(w.out, d))
			}
			x.release(gathered)
			if sp {
				l := x.make(n, d)
				x.release(g.st)
				g = l
			}
			f.send(0, g)
		})
	}
	now, kept := none(), none()
	if eight {
		now, kept = m.quantised(n)
	}
	gathered := gather(x)
	out := x.tensor(tokens*w.out, d)
	x.release(gathered)
	if rec && eight {
		x.saveOutput(kept)
	}
	x.drop(now, kept)
	out.fn = fn
	return out
}

// eightBitInput turns what a norm gives into eight bits, and lets go of it.
func (m *megatron) eightBitInput(t tensor) (now, kept tensor) {
	now, kept = m.quantised(t.n)
	m.x.drop(t)
	return now, kept
}

// overlapStreams is how many streams products run on that overlap with
// communication; they share one workspace.
// Source: TransformerEngine pytorch/cpp_extensions/gemm.py, get_cublas_workspace.
const overlapStreams = 3

// groupedStreams is how many streams a grouped product runs on, each with a
// workspace. Source: TransformerEngine common/util/multi_stream.cpp.
const groupedStreams = 4

// groupedWorkspace is made at the first grouped product.
func (m *megatron) groupedWorkspace() {
	if m.groupedMade {
		return
	}
	m.groupedMade = true
	defer m.x.as(Workspace, "Transformer Engine workspace")()
	for range groupedStreams {
		m.x.alloc(m.teWork)
	}
}

// plainLinear is a linear that no tensor parallel rank shares: of experts, and of
// the compressions of latent attention.
func (m *megatron) plainLinear(in tensor, w *matrix) tensor {
	x := m.x
	m.teWorkspace()
	d, n := in.dt, in.n
	ins := []tensor{in, w.w, w.bias}
	fuse, eight := m.fuseWgrad, m.eight.on
	m.eightBitWeight(w)
	rec := x.recording(ins...)
	var fn int32
	saved := []tensor{in, w.w}
	if eight {
		saved = saved[1:]
	}
	if rec {
		fn = x.push(1, ins, saved, func(f *frame) {
			x := f.x
			quantised := m.quantiseGradient(n / w.in * w.out)
			defer m.releaseAll(quantised)
			f.send(0, x.make(n, d))
			if f.want(1) {
				m.weightGradient(f, 1, f.x.params[f.in[1].leaf-1].t.n, d, fuse)
			}
			if f.want(2) {
				f.send(2, x.make(w.bias.n, d))
			}
		})
	}
	now, kept := none(), none()
	if eight {
		now, kept = m.quantised(n)
	}
	out := x.tensor(n/w.in*w.out, d)
	if rec && eight {
		x.saveOutput(kept)
	}
	x.drop(now, kept)
	out.fn = fn
	return out
}

// rowLinear is a row parallel linear; its bias is added later. With original it
// keeps its input in 16 bits even where it multiplies in eight, since attention
// keeps the same tensor (set_save_original_input).
func (m *megatron) rowLinear(in tensor, w *matrix, original bool) tensor {
	x := m.x
	m.teWorkspace()
	d := in.dt
	tokens := in.n / w.in
	outN := tokens * w.out
	fuse, sp, eight := m.fuseWgrad, m.sp, m.eight.on
	original = original && !m.eight.delayed
	m.eightBitWeight(w)
	rec := x.recording(in, w.w)
	var fn int32
	saved := []tensor{in, w.w}
	if eight && !original {
		saved = saved[1:]
	}
	if rec {
		n := in.n
		fn = x.push(1, []tensor{in, w.w}, saved, func(f *frame) {
			x := f.x
			quantised := m.quantiseGradient(outN)
			defer m.releaseAll(quantised)
			gathered := gradient{st: noStorage}
			if sp {
				gathered = x.make(outN, d)
			}
			f.send(0, x.make(n, d))
			m.weightGradient(f, 1, w.in*w.out, d, fuse)
			x.release(gathered.st)
		})
	}
	now, kept := none(), none()
	if eight {
		now, kept = m.quantised(in.n)
	}
	out := x.tensor(outN, d)
	if rec && eight && !original {
		x.saveOutput(kept)
	}
	x.drop(now, kept)
	if sp {
		local := x.tensor(outN/m.t, d)
		x.drop(out)
		out = local
	}
	out.fn = fn
	return out
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

// memoryBuffer is get_global_memory_buffer: a buffer that grows and stays.
func (m *megatron) memoryBuffer(name string, bytes int64) {
	if st, ok := m.mpu[name]; ok {
		if m.x.sts[st].bytes >= bytes {
			return
		}
		m.x.release(st)
	}
	undo := m.x.as(Buffers, "global memory buffer")
	m.mpu[name] = m.x.alloc(bytes)
	undo()
}

// teWorkspace is Transformer Engine's cuBLAS workspace, made once.
func (m *megatron) teWorkspace() {
	if m.te && !m.teMade {
		m.teMade = true
		defer m.x.as(Workspace, "Transformer Engine workspace")()
		m.x.alloc(m.teWork)
		if m.sp && m.w.Has("tp-comm-overlap") {
			m.x.alloc(overlapStreams * m.teWork)
		}
	}
}
