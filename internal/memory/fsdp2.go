package memory

import (
	"unoom/internal/model"
	"unoom/internal/workload"
)

// group is one FSDP2 parameter group: parameters keep their own storages, which
// exist only while the group is unsharded, and communicate through flat buffers.
// Source: torch/distributed/_composable/fsdp/_fsdp_param_group.py (since
// torch 2.6 torch/distributed/fsdp/_fully_shard) and
// _fsdp_collectives.py (torch 2.4 to 2.6).
type group struct {
	params  []int32 // indices of parameters
	full    []int32 // their unsharded storages, objects without memory while sharded
	n       int64   // elements of those that are trained, padded to the ranks
	gathers int64   // bytes of an all-gather of all
	casts   int64   // bytes of this rank's part that are made for it first
	open    bool
	keep    bool // not resharded after forward
	root    bool
	gather  gradient // buffer of an all-gather that was not copied out yet
	index   int      // in the order of forward
	grad    int32    // reduced gradients, one storage
	done    bool     // post-backward has run
}

// fsdp2 is fully_shard over the groups of a model.
type fsdp2 struct {
	x       *machine
	ranks   int64
	param   dtype // of computation
	reduce  dtype
	local   dtype // of shards
	host    bool  // shards in host memory
	groups  []*group
	order   []*group
	pending int32 // all-gather buffer that the next copy-out frees
	// keepInput: the input of a reduce-scatter is made on the computing stream
	// and lives until the next one (since torch 2.6); before, it was made and
	// freed on the stream of the reduce-scatter.
	keepInput   bool
	reduceInput int32
}

// newFSDP2 is fully_shard of the workload's torch over some ranks.
func newFSDP2(x *machine, w *workload.Workload, ranks int64, param, reduce, local dtype) *fsdp2 {
	s := &fsdp2{x: x, ranks: ranks, param: param, reduce: reduce, local: local, pending: noStorage, reduceInput: noStorage}
	s.keepInput = w.Version("torch") == "" || !before(w.Version("torch"), "2.6")
	return s
}

// The streams of FSDP2.
const (
	streamGather uint32 = 4 // all-gather copy-in
	streamRS     uint32 = 5
)

// unshard starts the all-gather of a group.
func (s *fsdp2) unshard(g *group) {
	if g.open || g.gather.ok {
		return
	}
	x := s.x
	defer x.as(Buffers, "all-gather buffers")()
	old := x.stream
	x.stream = streamGather
	// Shards are cast (and copied from the host) before the buffer is filled.
	var casts []int32
	if g.casts > 0 {
		casts = append(casts, x.alloc(g.casts))
	}
	g.gather = gradient{st: x.alloc(g.gathers), n: g.gathers, dt: u8, ok: true}
	for _, c := range casts {
		x.release(c)
	}
	x.stream = old
}

// copyOut fills the unsharded parameters from the buffer. In forward the buffer
// lives until the next copy-out, so that that all-gather can overlap.
func (s *fsdp2) copyOut(g *group, forward bool) {
	x := s.x
	if !g.gather.ok {
		return
	}
	if forward {
		x.release(s.pending)
		s.pending = noStorage
	}
	for _, st := range g.full {
		x.fill(st)
	}
	g.open = true
	if forward {
		s.pending = g.gather.st
	} else {
		x.release(g.gather.st)
	}
	g.gather = gradient{}
}

func (s *fsdp2) reshard(g *group) {
	if !g.open {
		return
	}
	for _, st := range g.full {
		s.x.vacate(st)
	}
	g.open = false
}

// around is forward for a module that may have no group of its own.
func (s *fsdp2) around(g *group, in tensor, body func(tensor) tensor) tensor {
	if g == nil {
		return body(in)
	}
	return s.forward(g, in, body)
}

// forward runs a group's module.
func (s *fsdp2) forward(g *group, in tensor, body func(tensor) tensor) tensor {
	x := s.x
	s.unshard(g)
	s.copyOut(g, true)
	if x.recording(in) {
		in = x.alias(in, func(f *frame) { s.postBackward(g); f.pass(0) })
		defer x.drop(in)
	}
	out := body(in)
	if !g.keep {
		s.reshard(g)
	}
	g.index = len(s.order)
	s.order = append(s.order, g)
	if x.recording(out) {
		t := out
		t.fn = x.push(1, []tensor{out}, nil, func(f *frame) { s.preBackward(g); f.pass(0) })
		t.slot, t.leaf = 0, 0
		out = t
	}
	return out
}

func (s *fsdp2) preBackward(g *group) {
	s.unshard(g)
	s.copyOut(g, false)
	if g.index > 0 {
		s.unshard(s.order[g.index-1])
	}
}

// postBackward reshards the group and reduces its gradients.
func (s *fsdp2) postBackward(g *group) {
	if g.done {
		return
	}
	g.done = true
	x := s.x
	var grads []int32
	for _, id := range g.params {
		if p := &x.params[id]; p.grad >= 0 {
			grads = append(grads, p.grad)
			p.grad = noStorage
		}
	}
	s.reshard(g)
	if len(grads) == 0 {
		return
	}
	old := x.stream
	if !s.keepInput {
		x.stream = streamRS
	}
	defer x.as(Gradients, "gradient shards")()
	if s.keepInput {
		x.release(s.reduceInput)
		s.reduceInput = noStorage
	}
	undo := x.as(Buffers, "reduce-scatter buffers")
	input := x.alloc(s.reduce.size(g.n))
	undo()
	for _, st := range grads {
		x.release(st)
	}
	x.stream = streamRS
	out := x.make(g.n/s.ranks, s.reduce)
	if s.keepInput {
		s.reduceInput = input
	} else {
		x.release(input)
	}
	if s.reduce != s.local {
		c := x.make(g.n/s.ranks, s.local)
		x.release(out.st)
		out = c
	}
	x.stream = old
	if s.host || g.grad >= 0 {
		x.release(out.st)
		return
	}
	g.grad = out.st
	x.sts[out.st].marks |= markGradient
}

// finish is the callback at the end of backward.
func (s *fsdp2) finish() {
	for _, g := range s.groups {
		s.postBackward(g)
		s.reshard(g)
		if g.gather.ok { // a prefetch that nobody waited for
			s.x.release(g.gather.st)
			g.gather = gradient{}
		}
		g.done = false
	}
	s.x.release(s.pending)
	s.x.release(s.reduceInput)
	s.pending, s.reduceInput = noStorage, noStorage
	s.order = s.order[:0]
}

// dropGrads is zero_grad.
func (s *fsdp2) dropGrads() {
	for _, g := range s.groups {
		s.x.release(g.grad)
		g.grad = noStorage
	}
}

// groupLoader makes a group of each layer, and one of the rest.
type groupLoader struct {
	plainLoader // adapters and quantised bases
	s           *fsdp2
	root        *group
	embed       *group // nil: in root
	head        *group // with the last norm; nil: in root
	layers      []*group
	index       map[[2]int]int
	ends        bool  // embed and head are groups
	eight       bool  // matrices of layers are gathered, and kept, in 8 bits
	frozen      dtype // of shards of what is not trained
	whole       bool  // every rank has the quantised base
}

func newGroupLoader(s *fsdp2) *groupLoader {
	return &groupLoader{frozen: s.local, plainLoader: plainLoader{train: func(place) bool { return true }}, s: s, root: &group{root: true, keep: true, grad: noStorage}, index: map[[2]int]int{}}
}

func (ld *groupLoader) groupOf(p place) *group {
	if p.layer < 0 {
		if !ld.ends {
			return ld.root
		}
		end := &ld.head
		if p.part == "embed" {
			end = &ld.embed
		}
		if *end == nil {
			*end = &group{grad: noStorage}
		}
		return *end
	}
	k := [2]int{p.stack, p.layer}
	i, ok := ld.index[k]
	if !ok {
		i = len(ld.layers)
		ld.index[k] = i
		ld.layers = append(ld.layers, &group{grad: noStorage})
	}
	return ld.layers[i]
}

// param makes a sharded parameter.
func (ld *groupLoader) param(to *tensor, p place, n, rows, cols int64) {
	*to = ld.shared(p, p.mod.Name, n, rows, cols, ld.train(p))
}

func (ld *groupLoader) shared(p place, name string, n, rows, cols int64, train bool) tensor {
	s, g := ld.s, ld.groupOf(p)
	x := s.x
	undo := x.as(Weights, "weight shards")
	own := ceilDiv(rows, s.ranks) * cols
	if rows == 1 {
		own = ceilDiv(n, s.ranks)
	}
	local := s.local
	if !train {
		local = ld.frozen
	}
	if !s.host {
		x.alloc(local.size(own))
	}
	undo()
	d := s.param
	if ld.eight && p.layer >= 0 && p.mod.Kind == model.Linear {
		d = f8
	}
	full := x.emptyStorage(d.size(own*s.ranks), "unsharded weights")
	g.gathers += d.size(own * s.ranks)
	if local != s.param || s.host {
		g.casts += d.size(own)
	}
	t := x.register(name, tensor{st: full, n: n, dt: s.param}, rows, cols, train)
	g.params = append(g.params, int32(len(x.params)-1))
	g.full = append(g.full, full)
	if train {
		g.n += own * s.ranks
	}
	return t
}

// packed makes the shards of a quantised matrix: what holds it is gathered as
// it is.
// Source: torchao quantization/quantize_/workflows/nf4/nf4_tensor.py,
// NF4Tensor.fsdp_pre_all_gather.
func (ld *groupLoader) packed(p place, in, out, copies int64) tensor {
	s, g := ld.s, ld.groupOf(p)
	defer s.x.as(Weights, "weight shards")()
	var first tensor
	for range copies {
		for i, b := range ld.quant.storedBytes(in, out) {
			var st int32
			if ld.whole || i > 0 && ld.quant != quantAO { // bitsandbytes' scales are no parameters
				st = s.x.alloc(b)
			} else {
				own := ceilDiv(b, s.ranks)
				if s.host {
					g.casts += own
				} else {
					s.x.alloc(own)
				}
				st = s.x.emptyStorage(own*s.ranks, "unsharded weights")
				g.gathers += own * s.ranks
				g.full = append(g.full, st)
			}
			if i == 0 {
				first = tensor{st: st, n: b, dt: u8}
			}
		}
	}
	return first
}

func (ld *groupLoader) matrix(_ *machine, p place, copies int64) *matrix {
	mod := p.mod
	in, out := mod.In, mod.Out
	switch mod.Split {
	case model.SplitOutputs:
		out /= p.split
	case model.SplitInputs:
		in /= p.split
	case model.SplitVocab:
		in = ceilDiv(in, p.split)
	}
	m := &matrix{in: in, out: out, w: none(), bias: none()}
	rows, cols := out, in
	if mod.Kind == model.Embedding {
		rows, cols = in, out
	}
	if ld.adapts(p) {
		defer func() {
			m.lora = ld.pair(mod, in, out, func(name string, n, rows, cols int64) tensor {
				return ld.shared(p, name, n, rows, cols, true)
			})
		}()
	}
	if ld.quant != 0 && p.layer >= 0 && mod.Kind == model.Linear {
		m.quant = &quantized{kind: ld.quant, compute: ld.compute, compiled: ld.compiled}
		m.w = ld.packed(p, in, out, copies)
		return m
	}
	ld.param(&m.w, p, in*out*copies, rows*copies, cols)
	m.w.n = in * out
	if mod.Bias() {
		m.biased = true
		ld.param(&m.bias, p, out*copies, 1, out*copies)
	}
	return m
}

func (ld *groupLoader) vector(_ *machine, p place) *vector {
	v := &vector{w: none(), b: none(), width: p.mod.Out}
	for i := range p.mod.Params {
		q := &p.mod.Params[i]
		if q.Tied {
			continue
		}
		w := &v.w
		if i > 0 {
			w = &v.b
		}
		ld.param(w, p, q.Elements(), 1, q.Elements())
	}
	return v
}

// finish lists the groups; the last layer is not resharded after forward, since
// backward needs it at once, unless that is asked for.
func (ld *groupLoader) finish(after string) {
	s := ld.s
	for i, g := range ld.layers {
		switch after {
		case "never":
			g.keep = true
		case "always":
		default:
			g.keep = i == len(ld.layers)-1 && !ld.ends
		}
	}
	if ld.embed != nil {
		ld.embed.keep = after == "never"
		s.groups = append(s.groups, ld.embed)
	}
	s.groups = append(s.groups, ld.layers...)
	if ld.head != nil {
		ld.head.keep = after != "always"
		s.groups = append(s.groups, ld.head)
	}
	s.groups = append(s.groups, ld.root)
}

// shards are the trained parameters as the optimizer sees them.
func (s *fsdp2) shards() []*parameter {
	var ps []*parameter
	for _, g := range s.groups {
		for _, id := range g.params {
			p := &s.x.params[id]
			if p.t.leaf == 0 {
				continue
			}
			rows := ceilDiv(p.rows, s.ranks)
			n := rows * p.cols
			if p.rows == 1 {
				n = ceilDiv(p.t.n, s.ranks)
				rows = 1
			}
			ps = append(ps, &parameter{t: tensor{n: n, dt: s.local}, gdt: s.local, rows: rows, cols: p.cols})
		}
	}
	return ps
}

// step plays the optimizer's step on the shards.
func (s *fsdp2) step(o *optimizer, first bool) {
	if !s.host {
		s.x.step(o, s.shards(), first)
	}
}
