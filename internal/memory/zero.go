package memory

import (
	"strconv"
	"strings"

	"unoom/internal/workload"
)

// stateSharder divides the states of training over data-parallel ranks in the way
// of DeepSpeed's engine, which runs backward and the step itself.
type stateSharder interface {
	// beginBackward and endBackward stand around the backward pass of a
	// micro-batch; last says that a step follows.
	beginBackward(last bool)
	endBackward(last bool)
	step()
}

// zeroSettings are what DeepSpeed's zero_optimization section sets, in elements.
type zeroSettings struct {
	bucket, prefetch, persist, reuse int64
	overlap, contiguous              bool
}

// The defaults of DeepSpeed.
// Source: DeepSpeed 0.14.4 runtime/zero/config.py.
const (
	zeroBucket   = 500_000_000
	zeroPrefetch = 50_000_000
	zeroPersist  = 100_000
	zeroReuse    = 1_000_000_000
)

// zeroSettingsOf reads the section's own names among the workload's options. What
// is left to transformers ("auto", and what its Trainer was not told) follows
// from the hidden size in stage 3.
// Source: transformers integrations/deepspeed.py, trainer_config_finalize.
func zeroSettingsOf(w *workload.Workload, lib library) zeroSettings {
	s := zeroSettings{bucket: zeroBucket, prefetch: zeroPrefetch, persist: zeroPersist, reuse: zeroReuse, overlap: lib.zeroOverlap, contiguous: true}
	if w.Framework == workload.HFTrainer && w.Sharding == workload.ZeRO3 {
		h := w.Model.Hidden
		s.bucket, s.prefetch, s.persist = h*h, h*h*9/10, 10*h
	}
	if lib.reduceBucket > 0 {
		s.bucket = lib.reduceBucket
	}
	for name, to := range map[string]*int64{"reduce_bucket_size": &s.bucket, "stage3_prefetch_bucket_size": &s.prefetch,
		"stage3_param_persistence_threshold": &s.persist, "stage3_max_reuse_distance": &s.reuse} {
		if f, err := strconv.ParseFloat(w.Options[name], 64); err == nil && f >= 0 && f < 1e15 {
			*to = int64(f)
		}
	}
	for name, to := range map[string]*bool{"overlap_comm": &s.overlap, "contiguous_gradients": &s.contiguous} {
		switch strings.ToLower(w.Options[name]) {
		case "true":
			*to = true
		case "false":
			*to = false
		}
	}
	return s
}

// zeroStates are what a rank holds for its share of the trained parameters: the
// float32 masters and the optimizer's states.
type zeroStates struct {
	x    *machine
	opt  *optimizer
	part int64 // elements of the share
	host bool  // all of it is in host memory
}

// make allocates the states when the optimizer is built; DeepSpeed steps once
// with a gradient of zeros to have them.
// Source: DeepSpeed runtime/zero/stage_1_and_2.py, initialize_optimizer_states.
func (z *zeroStates) make(group int64) {
	if z.host || z.part == 0 {
		return
	}
	x := z.x
	defer x.as(OptimizerState, "optimizer state")()
	x.item = x.items.id(OptimizerState, "float32 masters")
	x.alloc(f32.size(z.part))
	zeros := x.alloc(f32.size(min(z.part, group)))
	x.item = x.items.id(OptimizerState, "optimizer state")
	if !z.opt.paged {
		for _, b := range z.opt.states(z.part, 1, z.part, f32) {
			x.alloc(b)
		}
	}
	x.release(zeros)
}

// update plays the step on groups of at most some elements, whose gradients are
// cast to float32 one after the other.
func (z *zeroStates) update(group int64) {
	x := z.x
	for left := z.part; left > 0; left -= group {
		n := min(left, group)
		g := x.tensor(n, f32)
		z.temporaries(n)
		x.drop(g)
	}
}

// temporaries are those of the update rule on one flat float32 tensor.
func (z *zeroStates) temporaries(n int64) {
	if z.opt.kind == optAdam {
		z.x.adamStep(z.opt, []*parameter{{t: tensor{n: n, dt: f32}, gdt: f32}})
	}
}

// zero12 is DeepSpeed's optimizer of stages 1 and 2: weights are whole in 16 bits
// on every rank, masters and states are shared out; in stage 2 gradients are too.
// Source: DeepSpeed 0.14.4 runtime/zero/stage_1_and_2.py.
type zero12 struct {
	zeroSettings
	zeroStates
	stage int
	ranks int64
	dt    dtype
	// apart: masters are tensors of their own, so that gradients are not joined, and
	// stay on the card until the step even where the masters are on the host.
	// Source: ColossalAI zero/low_level/low_level_optim.py, _update_partitoned_grad
	// and step.
	apart bool
	// copyBack: after a step on the host the new masters come back in float32.
	copyBack bool

	buffers []int32 // in which gradients are reduced
	filled  int64   // elements in the current one
	large   *parameter
	own     int32   // this rank's share of the running micro-batch's gradients
	pieces  []int32 // the same where it is kept apart
	sum     bool    // there are pieces of an earlier micro-batch
	summed  int32   // the same over micro-batches
}

// shardStates makes a zero12 of the parameters that exist.
func (x *machine) shardStates(z *zero12, ranks int64) {
	z.x, z.own, z.summed, z.ranks = x, noStorage, noStorage, ranks
	var trained int64
	for i := range x.params {
		if p := &x.params[i]; p.t.needsGrad() {
			trained += p.t.n
			p.after = z.arrived
		}
	}
	z.part = ceilDiv(trained, ranks)
	z.make(z.part)
}

func (z *zero12) beginBackward(bool) {
	if !z.contiguous {
		return
	}
	x := z.x
	defer x.as(Buffers, "buckets of gradients")()
	z.buffers = append(z.buffers, x.alloc(z.dt.size(z.bucket)))
	if z.overlap {
		z.buffers = append(z.buffers, x.alloc(z.dt.size(z.bucket)))
	}
}

// arrived is the hook on a gradient: it is copied into the bucket, which is
// reduced when it is full. In stage 1 gradients stay until the step.
func (z *zero12) arrived(x *machine, p *parameter) {
	if z.stage == 1 {
		return
	}
	z.take(p)
}

func (z *zero12) take(p *parameter) {
	if z.filled+p.t.n > z.bucket {
		z.reduce()
	}
	z.filled += p.t.n
	if p.t.n > z.bucket || !z.contiguous {
		z.large = p // reduced where it is
		if z.contiguous {
			return
		}
	}
	z.x.dropGrad(p)
}

// reduce averages a bucket over the ranks and keeps this rank's share.
func (z *zero12) reduce() {
	if z.filled == 0 {
		return
	}
	x := z.x
	switch undo := x.as(Gradients, "gradient shards"); {
	case z.apart: // bucket by bucket
		own := x.alloc(z.dt.size(ceilDiv(z.filled, z.ranks)))
		if z.sum {
			x.release(own)
		} else {
			z.pieces = append(z.pieces, own)
		}
		undo()
	case z.own < 0 && !z.host:
		z.own = x.alloc(z.dt.size(z.part))
		undo()
	default:
		undo()
	}
	if z.large != nil {
		x.dropGrad(z.large)
		z.large = nil
	}
	z.filled = 0
}

func (z *zero12) endBackward(last bool) {
	x := z.x
	if z.stage == 1 && last {
		for i := range x.params {
			if p := &x.params[i]; p.grad >= 0 {
				z.take(p)
			}
		}
	}
	z.reduce()
	for _, st := range z.buffers {
		x.release(st)
	}
	z.buffers = z.buffers[:0]
	z.sum = z.apart && !last
	if z.own >= 0 {
		if z.summed >= 0 {
			x.release(z.own) // added to the sum
		} else {
			z.summed = z.own
		}
		z.own = noStorage
	}
}

func (z *zero12) dropPieces() {
	for _, st := range z.pieces {
		z.x.release(st)
	}
	z.pieces = z.pieces[:0]
}

func (z *zero12) step() {
	x := z.x
	defer x.as(Temporaries, "optimizer step")()
	if z.host {
		z.dropPieces() // to the host, one after the other
		if z.copyBack {
			x.scratch(f32.size(z.part))
		}
		return
	}
	flat := int32(noStorage)
	if !z.apart {
		flat = x.alloc(z.dt.size(z.part)) // gradients joined, then cast
	}
	g := x.alloc(f32.size(z.part))
	x.release(flat)
	x.release(z.summed)
	z.summed = noStorage
	z.dropPieces()
	z.temporaries(z.part)
	x.release(g)
}
