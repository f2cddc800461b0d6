package memory

import (
	"unoom/internal/model"
)

// unit is one FSDP1 module: its parameters are views of one flat parameter, of
// which each rank keeps a shard.
// Source: torch/distributed/fsdp/_flat_param.py, _runtime_utils.py (torch 2.4).
type unit struct {
	parts []part
	n     int64 // elements of the flat parameter, padded to the ranks
	dt    dtype // of the unsharded parameter
	local dtype // of the shard
	leaf  int32 // the flat parameter as a trained one: index+1, 0: frozen
	full  int32 // storage of the unsharded parameter, empty while resharded
	shard int32
	whole int32 // unsharded gradient that waits for the last micro-batch
	open  bool
	root  bool
	// wanted says that a forward of this iteration registered a pre-backward
	// hook, so that a prefetch takes it.
	wanted bool
	before *unit // the unit that ran before in forward
	held   []int32
}

// part is one parameter within a unit.
type part struct {
	w *tensor // the module's view
	n int64
}

// fsdp1 is the set of units of a model.
type fsdp1 struct {
	x      *machine
	ranks  int64
	units  []*unit
	reduce dtype
	// hostParams: shards live in host memory and are copied when needed.
	hostParams bool
	reshard    bool // after forward: FULL_SHARD
	prefetch   bool // BACKWARD_PRE
	last       *unit
	mixed      bool // a 16-bit shard is made before the all-gather
	hooked     []hookedInput
	// defers: gradients stay whole until the last micro-batch of a step (no_sync),
	// as accelerate does; wait says that this one is not the last.
	// Source: accelerate/accelerator.py, accumulate and no_sync.
	defers, wait bool
}

// hookedInput is a detached input that a frozen unit's hook refers to.
type hookedInput struct {
	u    *unit
	leaf int
}

// The streams of FSDP.
const (
	streamDefault uint32 = 0
	streamUnshard uint32 = 1
	streamReduce  uint32 = 2
	streamPre     uint32 = 3
)

// add makes the unit's storages from its parts.
func (s *fsdp1) seal(u *unit, train bool) {
	x := s.x
	for _, p := range u.parts {
		u.n += p.n
	}
	u.n = roundUp(u.n, s.ranks)
	u.whole = noStorage
	undo := x.as(Weights, "weight shards")
	u.shard = s.load(u)
	undo()
	// The unsharded parameter is a storage object whose memory comes and goes.
	u.full = x.emptyStorage(u.dt.size(u.n), "unsharded weights")
	if train {
		id := int32(len(x.params))
		x.params = append(x.params, parameter{name: "flat", t: tensor{st: u.shard, n: u.n / s.ranks, dt: u.local}, grad: noStorage, gdt: u.local, rows: 1, cols: u.n / s.ranks})
		u.leaf = id + 1
		x.params[id].sink = func(x *machine, p *parameter, g gradient) { s.reduceGrad(u, g) }
	}
	for i := range u.parts {
		u.parts[i].w.st = u.full
	}
	s.units = append(s.units, u)
}

// load brings a unit's parameters to the card, joins them and takes the shard,
// while the originals live.
// Source: torch/distributed/fsdp/_init_utils.py, _init_param_handle_from_module;
// torch/csrc/distributed/c10d/comm.cpp, broadcast_coalesced: buckets of 250 MiB,
// two in flight.
func (s *fsdp1) load(u *unit) int32 {
	x := s.x
	const bucket = 250 << 20
	var originals, flight []int32
	var filled int64
	for _, p := range u.parts {
		originals = append(originals, x.alloc(u.local.size(p.n)))
	}
	for i, p := range u.parts {
		filled += u.local.size(p.n)
		if filled < bucket && i < len(u.parts)-1 {
			continue
		}
		flight = append(flight, x.alloc(filled))
		filled = 0
		if len(flight) > 2 {
			x.release(flight[0])
			flight = flight[1:]
		}
	}
	for _, st := range flight {
		x.release(st)
	}
	whole := x.alloc(u.local.size(u.n))
	shard := x.alloc(u.local.size(u.n / s.ranks))
	x.release(whole)
	for _, st := range originals {
		x.release(st)
	}
	if s.hostParams {
		x.release(shard)
		return noStorage
	}
	return shard
}

// unshard brings the flat parameter together.
func (s *fsdp1) unshard(u *unit) {
	if u.open {
		return
	}
	x := s.x
	undo := x.as(Buffers, "unsharded weights")
	low := int32(noStorage)
	if s.mixed || s.hostParams {
		x.stream = streamPre
		low = x.alloc(u.dt.size(u.n / s.ranks))
	}
	x.stream = streamUnshard
	x.fill(u.full)
	x.stream = streamDefault
	x.release(low)
	undo()
	u.open = true
}

// free gives the unsharded parameter's memory back.
func (s *fsdp1) free(u *unit) {
	if u.open {
		s.x.vacate(u.full)
		u.open = false
	}
}

// forward runs a unit's module in forward, or in a recomputation.
func (s *fsdp1) forward(u *unit, in tensor, body func(tensor) tensor) tensor {
	x := s.x
	if u.leaf == 0 && x.grad && in.leaf != 0 {
		s.hooked = append(s.hooked, hookedInput{u, int(in.leaf) - 1})
	}
	s.unshard(u)
	s.views(u)
	if u.leaf == 0 && !u.root && x.recording(in) {
		// Nothing to train: the unit is resharded when its input's gradient is
		// there (_post_backward_reshard_only_hook).
		in = x.alias(in, func(f *frame) { s.free(u); f.pass(0) })
		defer x.drop(in)
	}
	out := body(in)
	if !u.root && s.reshard {
		s.free(u)
	}
	u.before = s.last
	if !u.root {
		s.last = u
	}
	if x.recording(out) {
		u.wanted = true
		out = s.preBackwardHook(u, out)
	}
	return out
}

// views makes the module's parameters views of the flat one. Where gradients
// are recorded, their gradients are joined by split's backward.
func (s *fsdp1) views(u *unit) {
	x := s.x
	var fn int32
	if u.leaf != 0 && x.grad && x.tape != nil {
		n, d := u.n, u.dt
		flat := tensor{st: u.full, n: u.n, dt: u.dt, leaf: u.leaf}
		fn = x.push(len(u.parts), []tensor{flat}, nil, func(f *frame) {
			undo := f.x.as(Gradients, "unsharded gradients")
			f.send(0, f.x.make(n, d))
			undo()
		})
	}
	for i := range u.parts {
		w := u.parts[i].w
		w.fn, w.slot, w.leaf = fn, uint16(i), 0
	}
}

// preBackwardHook unshards the unit when the gradient of its output comes, and
// prefetches the unit that ran before.
func (s *fsdp1) preBackwardHook(u *unit, out tensor) tensor {
	x := s.x
	t := out
	t.fn = x.push(1, []tensor{out}, nil, func(f *frame) {
		if u.wanted {
			u.wanted = false
			s.unshard(u)
			if s.prefetch && u.before != nil && u.before.wanted {
				s.unshard(u.before)
			}
		}
		f.pass(0)
	})
	t.slot, t.leaf = 0, 0
	return t
}

// reduceGrad is the post-backward hook: the unsharded parameter is freed, the
// gradient is cast to the reduce dtype, and its shard is kept.
func (s *fsdp1) reduceGrad(u *unit, g gradient) {
	x := s.x
	s.free(u)
	if u.whole >= 0 {
		x.release(g.st) // added in place
		g.st, u.whole = u.whole, noStorage
	}
	if s.wait {
		u.whole = g.st
		x.sts[g.st].marks |= markGradient
		return
	}
	x.stream = streamReduce
	undo := x.as(Gradients, "gradient shards")
	if g.dt != s.reduce {
		c := x.make(g.n, s.reduce)
		x.release(g.st)
		g = c
	}
	part := x.make(u.n/s.ranks, s.reduce)
	x.release(g.st)
	if part.dt != u.local {
		c := x.make(part.n, u.local)
		x.release(part.st)
		part = c
	}
	x.stream = streamDefault
	undo()
	p := &x.params[u.leaf-1]
	if s.hostParams {
		x.release(part.st)
		return
	}
	if p.grad >= 0 {
		x.release(part.st)
		return
	}
	p.grad = part.st
	x.sts[part.st].marks |= markGradient
}

// finish is the callback at the end of backward: everything is resharded, and
// what frozen units' hooks refer to goes.
func (s *fsdp1) finish() {
	for _, u := range s.units {
		s.free(u)
		u.wanted = false
		for _, st := range u.held {
			s.x.release(st)
		}
		u.held = u.held[:0]
	}
	s.last = nil
}

// holdInput is what register_multi_grad_hook does for a unit that has nothing
// to train: its closure refers to the accumulators of the module's inputs until
// backward ends, so a detached input and its gradient stay.
// Source: torch/autograd/graph.py, register_multi_grad_hook.
func (s *fsdp1) holdInput(leaf int, in tensor, grad int32) {
	n := len(s.hooked)
	if n == 0 || s.hooked[n-1].leaf != leaf {
		return
	}
	u := s.hooked[n-1].u
	s.hooked = s.hooked[:n-1]
	s.x.hold(in.st)
	s.x.hold(grad)
	u.held = append(u.held, in.st, grad)
}

// emptyStorage makes a storage object without memory.
func (x *machine) emptyStorage(bytes int64, name string) int32 {
	id := int32(len(x.sts))
	x.sts = append(x.sts, storage{bytes: bytes, refs: 1, handle: noStorage, empty: true, item: x.items.id(Buffers, name)})
	return id
}

// fill gives a storage object its memory, on the current stream.
func (x *machine) fill(st int32) {
	s := &x.sts[st]
	h, block := x.malloc(s.bytes)
	s.handle, s.block, s.empty = h, block, false
	x.refills = append(x.refills, refill{len(x.log), block})
	x.log = append(x.log, st+1)
	x.grow(block)
}

// vacate takes the memory of a storage object away.
func (x *machine) vacate(st int32) {
	s := &x.sts[st]
	x.dev.free(s.handle)
	x.log = append(x.log, -(st + 1))
	x.cur -= s.block
	s.handle, s.empty = noStorage, true
}

// flatLoader puts parameters into units: one for each layer, and the root.
type flatLoader struct {
	plainLoader
	s       *fsdp1
	local   dtype // of shards
	root    *unit
	layers  []*unit
	index   map[[2]int]int
	trained bool // units have gradients
	// replicate keeps adapters whole on every rank, outside of units.
	replicate bool
}

func newFlatLoader(s *fsdp1, plain plainLoader, local dtype) *flatLoader {
	return &flatLoader{plainLoader: plain, s: s, local: local, root: &unit{dt: plain.dt, local: local, root: true}, index: map[[2]int]int{}}
}

func (ld *flatLoader) unitOf(p place) *unit {
	if p.layer < 0 {
		return ld.root
	}
	k := [2]int{p.stack, p.layer}
	i, ok := ld.index[k]
	if !ok {
		i = len(ld.layers)
		if i > 0 { // the layer before is complete
			ld.s.seal(ld.layers[i-1], ld.trained)
		}
		ld.index[k] = i
		ld.layers = append(ld.layers, &unit{dt: ld.dt, local: ld.local})
	}
	return ld.layers[i]
}

func (ld *flatLoader) matrix(x *machine, p place, copies int64) *matrix {
	mod := p.mod
	m := &matrix{in: mod.In, out: mod.Out}
	u := ld.unitOf(p)
	if ld.quant != 0 && p.layer >= 0 && mod.Kind == model.Linear {
		// The packed values are a parameter of the 16-bit storage dtype; bnb's
		// scales are no parameters and stay whole on each rank, GPTQ's tensors
		// are all made parameters.
		m.quant = &quantized{kind: ld.quant, compute: ld.compute}
		var flat int64
		undo := x.as(Weights, "scales of quantised weights")
		defer x.quantise(ld.quant, mod.In*mod.Out)()
		for i, b := range ld.quant.storedBytes(mod.In, mod.Out) {
			if i == 0 || ld.quant == quantGPTQ {
				flat += b
			} else {
				for range copies {
					x.alloc(b)
				}
			}
		}
		undo()
		m.w = tensor{n: flat / 2 * copies, dt: ld.dt}
		u.parts = append(u.parts, part{&m.w, m.w.n})
	} else {
		m.w = tensor{n: mod.In * mod.Out, dt: ld.dt}
		u.parts = append(u.parts, part{&m.w, m.w.n * copies})
		if mod.Bias() {
			m.bias, m.biased = tensor{n: mod.Out, dt: ld.dt}, true
			u.parts = append(u.parts, part{&m.bias, mod.Out * copies})
		}
	}
	if ld.adapts(p) {
		m.lora = ld.adapter(x, mod)
	}
	return m
}

// quantise plays the quantisation of a 16-bit matrix on the card: what it needs
// lives until the returned function is called, when the scales are made.
// Source: bitsandbytes functional.py, quantize_4bit.
func (x *machine) quantise(k quantKind, n int64) func() {
	if k != quantNF4 && k != quantNF4Double {
		return func() {}
	}
	whole := x.alloc(2 * n)
	absmax := int32(noStorage)
	if k == quantNF4Double {
		absmax = x.alloc(n / 64 * 4)
	}
	packed := x.alloc(n / 2)
	return func() {
		x.release(absmax)
		x.release(whole)
		x.release(packed) // moved to the host, until the unit is wrapped
	}
}

// adapter makes the pair of a matrix: whole where it is replicated, else each a
// small unit of its own, of which only the shard matters.
func (ld *flatLoader) adapter(x *machine, mod *model.Module) *adapter {
	defer x.as(Weights, "adapters")()
	return ld.pair(mod, mod.In, mod.Out, func(name string, n, rows, cols int64) tensor {
		if ld.replicate {
			return x.newParam(name, n, rows, cols, ld.adt, true)
		}
		own := ceilDiv(n, ld.s.ranks)
		var t tensor
		if ld.s.hostParams {
			t = x.register(name, tensor{st: noStorage, n: own, dt: ld.adt}, 1, own, true)
		} else {
			t = x.newParam(name, own, 1, own, ld.adt, true)
		}
		p := &x.params[t.leaf-1]
		p.sink = func(x *machine, p *parameter, g gradient) {
			part := x.make(p.t.n, p.gdt)
			x.release(g.st)
			if p.grad >= 0 || ld.s.hostParams {
				x.release(part.st)
				return
			}
			p.grad = part.st
		}
		t.n = n
		return t
	})
}

func (ld *flatLoader) vector(x *machine, p place) *vector {
	v := &vector{w: none(), b: none(), width: p.mod.Out}
	u := ld.unitOf(p)
	for i := range p.mod.Params {
		q := &p.mod.Params[i]
		if q.Tied {
			continue
		}
		w := &v.w
		if i > 0 {
			w = &v.b
		}
		*w = tensor{n: q.Elements(), dt: ld.dt}
		u.parts = append(u.parts, part{w, w.n})
	}
	return v
}

// seal completes the last layer and the root, which comes last.
func (ld *flatLoader) seal() {
	if n := len(ld.layers); n > 0 {
		ld.s.seal(ld.layers[n-1], ld.trained)
	}
	ld.s.seal(ld.root, ld.trained)
}
