package memory

// zero3 is DeepSpeed's optimizer of stage 3: weights are shared out as well and
// gathered parameter by parameter before a module runs.
// Source: DeepSpeed 0.14.4 runtime/zero/stage3.py and
// partitioned_param_coordinator.py.
type zero3 struct {
	zeroSettings
	zeroStates
	dt dtype
	// hostWeights: the shares of the weights are in host memory.
	hostWeights bool
	// uses is how often a layer's weights are read on the way back.
	uses int64

	units     []*gathered
	ends      *gathered // embeddings and head
	behind    int64     // elements of units that come later in forward
	filled    int64
	returning bool // backward runs
}

// groupMost is DeepSpeed's sub_group_size: the step takes so many elements at a
// time. Source: DeepSpeed runtime/zero/config.py.
const groupMost = 1_000_000_000

// gathered is a group of parameters that are brought together at once: one layer,
// or the embeddings and the head.
type gathered struct {
	parts  []int32 // storages, empty while nobody needs them
	n      int64
	behind int64 // elements of the units after it
	open   bool
	wanted bool
}

// settle allocates what lives for the whole run, when the parameters are known.
func (z *zero3) settle(ranks int64) {
	x := z.x
	var all, trained int64
	for i := range x.params {
		p := &x.params[i]
		all += p.t.n
		if p.t.needsGrad() {
			trained += p.t.n
			p.after = z.arrived
		}
	}
	var behind int64
	if z.ends != nil {
		behind = z.ends.n
	}
	for i := len(z.units) - 1; i >= 0; i-- {
		z.units[i].behind = behind
		behind += z.units[i].n
	}
	z.part = ceilDiv(trained, ranks)
	if !z.hostWeights {
		undo := x.as(Weights, "weight shards")
		x.alloc(z.dt.size(ceilDiv(all, ranks)))
		undo()
	}
	undo := x.as(Buffers, "buckets of gradients")
	if z.contiguous {
		x.alloc(z.dt.size(z.bucket))
	}
	undo()
	z.make(groupMost)
	if !z.host {
		undo = x.as(Gradients, "gradient shards")
		x.alloc(z.dt.size(z.part))
		undo()
	}
}

func (z *zero3) gather(u *gathered) {
	if u == nil || u.open {
		return
	}
	for _, st := range u.parts {
		z.x.fill(st)
	}
	u.open = true
}

func (z *zero3) release(u *gathered) {
	if u == nil || !u.open {
		return
	}
	for _, st := range u.parts {
		z.x.vacate(st)
	}
	u.open = false
}

// forward runs a unit's module. Its parameters stay where backward reads them
// again within the reuse distance.
func (z *zero3) forward(u *gathered, in tensor, body func(tensor) tensor) tensor {
	x := z.x
	z.gather(u)
	recording := x.recording(in) || x.grad
	if recording && in.needsGrad() {
		// When the input's gradient is there, the module is done with.
		in = x.alias(in, func(f *frame) { z.release(u); f.pass(0) })
		defer x.drop(in)
	}
	out := body(in)
	if !z.returning && u.behind*z.uses > z.reuse {
		z.release(u)
	}
	if x.recording(out) {
		t := out
		t.fn = x.push(1, []tensor{out}, nil, func(f *frame) { z.gather(u); f.pass(0) })
		t.slot, t.leaf = 0, 0
		out = t
	}
	return out
}

// arrived is the hook on a gradient: it goes into the bucket, and from there this
// rank's share into the buffer of gradients.
func (z *zero3) arrived(x *machine, p *parameter) {
	z.filled += p.t.n
	if z.filled >= z.bucket {
		undo := x.as(Buffers, "buckets of gradients")
		x.scratch(z.dt.size(min(z.bucket, z.filled))) // what reduce_scatter writes
		undo()
		z.filled = 0
	}
	x.dropGrad(p)
}

func (z *zero3) beginBackward(bool) { z.returning = true }

func (z *zero3) endBackward(bool) {
	z.returning = false
	for _, u := range z.units {
		z.release(u)
	}
	z.release(z.ends)
}

func (z *zero3) step() {
	defer z.x.as(Temporaries, "optimizer step")()
	if !z.host {
		z.update(groupMost)
	}
}

// zero3Loader leaves the storages of parameters empty until they are gathered.
// Small ones stay whole on every rank.
type zero3Loader struct {
	plainLoader
	z     *zero3
	index map[[2]int]*gathered
}

func (ld *zero3Loader) unitOf(p place) *gathered {
	if p.layer < 0 {
		if ld.z.ends == nil {
			ld.z.ends = &gathered{}
		}
		return ld.z.ends
	}
	k := [2]int{p.stack, p.layer}
	u, ok := ld.index[k]
	if !ok {
		u = &gathered{}
		ld.index[k] = u
		ld.z.units = append(ld.z.units, u)
	}
	return u
}

// param makes a parameter of the unit.
func (ld *zero3Loader) param(x *machine, p place, name string, n, rows, cols int64, d dtype, train bool) tensor {
	t := tensor{n: n, dt: d}
	if n <= ld.z.persist {
		t.st = x.alloc(d.size(n))
	} else {
		t.st = x.emptyStorage(d.size(n), "gathered weights")
		u := ld.unitOf(p)
		u.parts = append(u.parts, t.st)
		u.n += n
	}
	return x.register(name, t, rows, cols, train)
}

func (ld *zero3Loader) matrix(x *machine, p place, copies int64) *matrix {
	mod := p.mod
	defer x.as(Weights, "small weights")()
	m := &matrix{in: mod.In, out: mod.Out}
	for range copies {
		m.w = ld.param(x, p, mod.Name, mod.In*mod.Out, mod.Out, mod.In, ld.dt, ld.train(p))
	}
	if mod.Bias() {
		m.bias = ld.param(x, p, mod.Name+".bias", mod.Out, 1, mod.Out, ld.dt, ld.train(p))
		m.biased = true
	}
	if ld.adapts(p) {
		m.lora = ld.pair(mod, mod.In, mod.Out, func(name string, n, rows, cols int64) tensor {
			return ld.param(x, p, name, n, rows, cols, ld.adt, true)
		})
	}
	return m
}

func (ld *zero3Loader) vector(x *machine, p place) *vector {
	v := &vector{w: none(), b: none(), width: p.mod.Out}
	defer x.as(Weights, "small weights")()
	for i := range p.mod.Params {
		q := &p.mod.Params[i]
		if q.Tied {
			continue
		}
		t := ld.param(x, p, p.mod.Name, q.Elements(), 1, q.Elements(), ld.dt, ld.train(p) && !q.Buffer && !q.Frozen)
		if i == 0 {
			v.w = t
		} else {
			v.b = t
		}
	}
	return v
}
