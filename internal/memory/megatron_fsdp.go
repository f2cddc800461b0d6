package memory

// Megatron-FSDP divides parameters, gradients and optimizer states over the
// replicas. Each layer is a unit whose whole weights exist while it runs; what
// belongs to none is gathered once and stays. Communication runs far ahead: half
// a thousand million elements are gathered before they are needed, and twice
// that of gradients wait for their reduction.
// Source: megatron/core/distributed/fsdp/src/megatron_fsdp: megatron_fsdp.py
// (suggested_communication_unit_size), param_and_grad_buffer.py
// (AllGatherPipeline, GradReducePipeline), distributed_data_parallel_config.py.

// fsdpAhead is how many elements are gathered ahead; twice as many gradients may
// wait for their reduction.
const fsdpAhead = 500_000_000

// fsdpUnit is a part of the model that is gathered and reduced at once.
type fsdpUnit struct {
	ids     []int32
	n       int64
	weights int32 // storage of the whole weights, without memory while away
	grads   int32 // bucket of float32 gradients
}

// megatronFSDP is the state of a rank.
type megatronFSDP struct {
	m       *megatron
	whole   bool // weights are not divided (optim_grads)
	units   []*fsdpUnit
	rest    *fsdpUnit
	of      map[*block]int
	waiting []*fsdpUnit // gradients that are not reduced yet
	queued  int64
}

// readFSDP reads the sharding strategy.
func (m *megatron) readFSDP() error {
	if !m.w.Has("megatron-fsdp") && !m.w.Has("use-megatron-fsdp") {
		return nil
	}
	f := &megatronFSDP{m: m, of: map[*block]int{}}
	switch s := m.option("data-parallel-sharding-strategy"); s {
	case "optim_grads_params":
	case "optim_grads":
		f.whole = true
	default:
		return &NotModelled{"the sharding strategy " + s + " of Megatron-FSDP"}
	}
	if m.p > 1 || m.eight.on {
		return &NotModelled{"Megatron-FSDP with pipeline parallelism or fp8"}
	}
	m.fsdp = f
	return nil
}

// divide makes the shards of a rank, and the units of its layers.
func (f *megatronFSDP) divide(ld *megatronLoader) {
	m := f.m
	x := m.x
	where := map[int32]*tensor{}
	for i, id := range ld.ids {
		where[id] = ld.ws[i]
	}
	taken := map[int32]bool{}
	unit := func(ids []int32) *fsdpUnit {
		u := &fsdpUnit{ids: ids, grads: noStorage}
		for _, id := range ids {
			u.n += x.params[id].t.n
			taken[id] = true
			x.release(x.params[id].t.st)
		}
		u.weights = x.emptyStorage(m.residual.size(u.n), "unsharded weights")
		for _, id := range ids {
			x.params[id].t.st, where[id].st = u.weights, u.weights
			x.params[id].sink = func(x *machine, _ *parameter, g gradient) {
				f.collect(u)
				x.release(g.st)
			}
		}
		return u
	}
	for _, st := range m.net.stacks {
		for _, b := range st.blocks {
			f.of[b] = len(f.units)
			f.units = append(f.units, unit(b.params))
		}
	}
	var rest []int32
	for _, id := range ld.ids {
		if !taken[id] {
			rest = append(rest, id)
		}
	}
	f.rest = unit(rest)
	for _, b := range m.buffers() {
		share := ceilDiv(b.n, b.shards)
		undo := x.as(Weights, "weight shards")
		if !f.whole {
			x.alloc(m.residual.size(share))
		}
		undo()
		undo = x.as(Gradients, "gradient shards")
		x.alloc(f32.size(share))
		undo()
		undo = x.as(OptimizerState, "float32 parameters")
		x.alloc(f32.size(share))
		undo()
	}
	x.fill(f.rest.weights)
	if f.whole {
		for _, u := range f.units {
			x.fill(u.weights)
		}
	}
}

// gather brings a unit's weights, and those that are next in a direction.
func (f *megatronFSDP) gather(i, step int) {
	if f.whole {
		return
	}
	x := f.m.x
	ahead := int64(0)
	for k := i; k >= 0 && k < len(f.units) && ahead < fsdpAhead; k += step {
		u := f.units[k]
		if x.sts[u.weights].empty {
			x.fill(u.weights)
		}
		if k != i {
			ahead += u.n
		}
	}
}

// leave frees a unit's whole weights.
func (f *megatronFSDP) leave(i int) {
	u := f.units[i]
	if !f.whole && !f.m.x.sts[u.weights].empty {
		f.m.x.vacate(u.weights)
	}
}

// collect makes the bucket of a unit's gradients at the first of them.
func (f *megatronFSDP) collect(u *fsdpUnit) {
	if u.grads >= 0 {
		return
	}
	defer f.m.x.as(Gradients, "unsharded gradients")()
	u.grads = f.m.x.alloc(f32.size(u.n))
}

// reduce queues a unit's gradients; the oldest are done when too many wait.
func (f *megatronFSDP) reduce(u *fsdpUnit) {
	if u.grads < 0 {
		return
	}
	f.waiting = append(f.waiting, u)
	f.queued += u.n
	for f.queued > 2*fsdpAhead {
		f.reduced()
	}
}

func (f *megatronFSDP) reduced() {
	u := f.waiting[0]
	f.waiting = f.waiting[1:]
	f.queued -= u.n
	f.m.x.release(u.grads)
	u.grads = noStorage
}

// around runs a layer with its weights.
func (f *megatronFSDP) around(b *block, in tensor, body func(in tensor) tensor) tensor {
	x := f.m.x
	i := f.of[b]
	f.gather(i, 1)
	if x.recording(in) {
		in = x.alias(in, func(fr *frame) {
			f.leave(i)
			f.reduce(f.units[i])
			fr.pass(0)
		})
		defer x.drop(in)
	}
	out := body(in)
	f.leave(i)
	if x.recording(out) {
		hooked := x.alias(out, func(fr *frame) {
			f.gather(i, -1)
			fr.pass(0)
		})
		x.drop(out)
		out = hooked
	}
	return out
}

// finish waits for all gradients of a micro-batch.
func (f *megatronFSDP) finish() {
	f.reduce(f.rest)
	for len(f.waiting) > 0 {
		f.reduced()
	}
	for i := range f.units {
		f.leave(i)
	}
}
