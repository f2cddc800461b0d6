package memory

// checkpointReentrant is torch.utils.checkpoint with use_reentrant=True: the
// forward runs without gradients and only the input is kept; backward runs it
// again, with a graph of its own, while the Python frame still refers to the
// incoming gradient. held are further arguments, which the context refers to.
// Source: torch/utils/checkpoint.py, CheckpointFunction.
func (x *machine) checkpointReentrant(in tensor, held []tensor, body func(in tensor) tensor) tensor {
	if !x.recording(in) {
		return body(in)
	}
	fn := x.push(1, []tensor{in}, append([]tensor{in}, held...), nil)
	x.grad = false
	out := body(in)
	x.grad = true
	out.fn, out.leaf, out.slot = fn, 0, 0
	amp := x.amp
	x.tape.nodes[fn-1].run = func(f *frame) {
		x := f.x
		g := f.g[0]
		outer := x.newTape()
		leaf := x.pseudoLeaf(in)
		x.grad = true
		oldAmp, oldCache := x.amp, x.cache
		x.amp, x.cache = amp, nil
		res := body(x.params[leaf].t)
		x.clearCache()
		x.amp, x.cache = oldAmp, oldCache
		x.grad = false
		x.hold(g.st)
		x.deliver(target{res.fn, res.leaf, res.slot}, g)
		x.drain()
		x.drop(res)
		x.endTape(outer)
		x.sendLeaf(leaf)
	}
	return out
}

// pseudoLeaf makes a parameter that stands for a detached input; it collects in
// .grad what the inner graph sends.
func (x *machine) pseudoLeaf(t tensor) int {
	id := len(x.params)
	x.params = append(x.params, parameter{t: t, grad: noStorage, gdt: t.dt})
	p := &x.params[id]
	p.t.fn, p.t.slot, p.t.leaf = 0, 0, int32(id+1)
	return id
}

// sendLeaf sends what a pseudo leaf collected as the gradient of the running
// node's input, and forgets the leaf.
func (x *machine) sendLeaf(leaf int) {
	p := &x.params[leaf]
	g := gradient{st: p.grad, n: p.t.n, dt: p.gdt, ok: p.grad >= 0}
	if x.detached != nil && g.ok {
		x.detached(leaf, p.t, p.grad)
	}
	x.params = x.params[:leaf]
	x.frames[x.depth-1].send(0, g)
}

func (x *machine) clearCache() {
	for i := range x.cache {
		x.release(x.cache[i].t.st)
	}
	x.cache = x.cache[:0]
}

// checkpoint is torch.utils.checkpoint with use_reentrant=False: the forward
// builds its graph but packs what it saves; backward recomputes until all that
// was saved is there again (early stop), and then the nodes run. keep is the
// policy of selective checkpointing, nil: nothing is kept.
// Source: torch/utils/checkpoint.py, _checkpoint_without_reentrant_generator.
func (x *machine) checkpoint(in tensor, held []tensor, keep policy, body func(in tensor) tensor) tensor {
	if !x.grad {
		return body(in)
	}
	// The closure that recomputes refers to the arguments.
	fn := x.push(1, []tensor{in}, append([]tensor{in}, held...), nil)
	var sel *selection
	if keep != nil {
		sel = &selection{keep: keep}
	}
	outer := x.newTape()
	leaf := x.checkpointInput(in)
	saves, packed, sac := x.saves, x.packed, x.sac
	x.saves, x.packed, x.sac = 0, true, sel
	out := body(x.inputOf(leaf, in))
	until := x.saves
	x.saves, x.packed, x.sac = saves, packed, sac
	x.discardTape(outer)
	x.forgetInput(leaf)
	if !out.needsGrad() { // nothing in it is trained
		x.unrecord(fn)
		return out
	}
	out.fn, out.leaf, out.slot = fn, 0, 0
	amp := x.amp
	x.tape.nodes[fn-1].run = func(f *frame) {
		x := f.x
		outer := x.newTape()
		leaf := x.checkpointInput(in)
		x.grad = true
		oldAmp, oldCache, oldSac := x.amp, x.cache, x.sac
		oldSaves, oldUntil, oldMuted := x.saves, x.until, x.muted
		x.amp, x.cache, x.sac = amp, nil, sel
		x.saves, x.until, x.muted = 0, until, until == 0
		if sel != nil {
			sel.replay, sel.count = true, [opKinds]int{}
		}
		res := body(x.inputOf(leaf, in))
		x.clearCache()
		x.amp, x.cache, x.sac = oldAmp, oldCache, oldSac
		x.saves, x.until, x.muted = oldSaves, oldUntil, oldMuted
		x.drop(res)
		x.grad = false
		// The nodes belong to the outer graph: nothing but their input buffer
		// holds the incoming gradient.
		top := &x.frames[x.depth-1]
		g := top.g[0]
		top.g[0] = gradient{}
		x.deliver(target{res.fn, res.leaf, res.slot}, g)
		x.drain()
		x.endTape(outer)
		sel.releaseRest(x)
		if leaf >= 0 {
			x.sendLeaf(leaf)
		}
	}
	return out
}

// checkpointInput makes the input of a checkpointed region a leaf of its graph;
// -1 where it needs no gradient, as behind frozen embeddings. AccumulateGrad has
// no part there: the gradient goes on to the node before.
func (x *machine) checkpointInput(in tensor) int {
	if !in.needsGrad() {
		return -1
	}
	leaf := x.pseudoLeaf(in)
	x.params[leaf].sink = func(_ *machine, p *parameter, g gradient) { p.grad = g.st }
	return leaf
}

// inputOf is the tensor that the region reads.
func (x *machine) inputOf(leaf int, in tensor) tensor {
	if leaf < 0 {
		return in.detach()
	}
	return x.params[leaf].t
}

func (x *machine) forgetInput(leaf int) {
	if leaf >= 0 {
		x.params = x.params[:leaf]
	}
}

// unrecord takes back the node that was recorded last, with what it saved.
func (x *machine) unrecord(fn int32) {
	nd := x.tape.nodes[fn-1]
	for _, st := range x.tape.saved[nd.saved.from:nd.saved.to] {
		x.release(st)
	}
	x.tape.nodes, x.tape.in, x.tape.saved, x.tape.grads = x.tape.nodes[:fn-1], x.tape.in[:nd.in.from], x.tape.saved[:nd.saved.from], x.tape.grads[:nd.grad.from]
}

// offloaded is a checkpoint whose input waits in host memory: it is copied back
// before the layer is computed again.
// Source: torchtune training/_activation_offloading.py, OffloadActivations.
func (x *machine) offloaded(in tensor, body func(in tensor) tensor) tensor {
	if !x.grad {
		return body(in)
	}
	fn := x.push(1, []tensor{in}, nil, nil)
	outer := x.newTape()
	leaf := x.checkpointInput(in)
	saves, packed := x.saves, x.packed
	x.saves, x.packed = 0, true
	out := body(x.inputOf(leaf, in))
	x.saves, x.packed = saves, packed
	x.discardTape(outer)
	x.forgetInput(leaf)
	if !out.needsGrad() {
		x.unrecord(fn)
		return out
	}
	out.fn, out.leaf, out.slot = fn, 0, 0
	n, d, needs := in.n, in.dt, in
	x.tape.nodes[fn-1].run = func(f *frame) {
		x := f.x
		back := x.tensor(n, d)
		back.fn, back.leaf, back.slot = needs.fn, needs.leaf, needs.slot
		outer := x.newTape()
		leaf := x.checkpointInput(back)
		x.grad = true
		res := body(x.inputOf(leaf, back))
		x.drop(res)
		x.grad = false
		top := &x.frames[x.depth-1]
		g := top.g[0]
		top.g[0] = gradient{}
		x.deliver(target{res.fn, res.leaf, res.slot}, g)
		x.drain()
		x.endTape(outer)
		if leaf >= 0 {
			x.sendLeaf(leaf)
		}
		x.drop(back)
	}
	return out
}

// discardTape drops a graph that was only built to be counted.
func (x *machine) discardTape(outer *tape) {
	for _, t := range x.tape.in {
		if t.leaf != 0 {
			x.params[t.leaf-1].pending--
		}
	}
	x.endTape(outer)
}

// The operations whose output a policy may keep.
const (
	opMatmul = iota
	opAttention
	opCollective
	opKinds
)

// policy says whether the output of the k-th operation of a kind in a
// checkpointed region is kept.
type policy func(op, k int) bool

// selection holds the outputs that selective checkpointing keeps.
// Source: torch/utils/checkpoint.py, create_selective_checkpoint_contexts.
type selection struct {
	keep   policy
	count  [opKinds]int
	kept   []int32
	next   int
	replay bool
}

// output is the output of an operation: new, or the one that was kept. In the
// replay the reference of the cache moves to the caller.
func (s *selection) output(x *machine, op int, n int64, d dtype) tensor {
	k := s.count[op]
	s.count[op]++
	if !s.keep(op, k) {
		return x.tensor(n, d)
	}
	if s.replay {
		if x.muted || s.next == len(s.kept) {
			return tensor{st: noStorage, n: n, dt: d}
		}
		st := s.kept[s.next]
		s.next++
		return tensor{st: st, n: n, dt: d}
	}
	t := x.tensor(n, d)
	x.hold(t.st)
	if t.st >= 0 {
		x.sts[t.st].marks |= markSaved
	}
	s.kept = append(s.kept, t.st)
	return t
}

// releaseRest drops what the replay did not need again.
func (s *selection) releaseRest(x *machine) {
	if s == nil {
		return
	}
	for ; s.next < len(s.kept); s.next++ {
		x.release(s.kept[s.next])
	}
}
