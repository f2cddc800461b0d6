package snapshottest

import (
	"unoom/internal/alloc"
	"unoom/internal/snapshot"
)

// Training is a small training run: weights, then steps of forward, loss, backward
// and AdamW, with stacks as `stacks="python"` records them.
type Training struct {
	Layers, Steps int
	// Activation is what a layer keeps for its backward, Weight what it learns.
	Activation, Weight int64
	// Leak is kept after each step, by a list of the program's own.
	Leak int64
	// Capacity is what the card has for the allocator; the run ends where a
	// request fails. 0 is without bound.
	Capacity int64
	// Forget drops what was recorded before this step: a ring that was full.
	Forget int
	// Native adds C++ frames, as stacks="all" does.
	Native bool
}

const (
	script = "/proj/train.py"
	model  = "/proj/model.py"
	torch  = "/opt/venv/lib/python3.12/site-packages/torch/"
)

// frames of a training script and of torch, innermost first where they are used.
type frames struct {
	main, step, optim, zero, leak, loss, back *snapshot.Frame
	apply, to                                 *snapshot.Frame
	call, block, attention, mlp, root         *snapshot.Frame
	adam, adamInit, adamStep                  *snapshot.Frame
	cross                                     *snapshot.Frame
	mm, mmBackward, accumulate                *snapshot.Frame
}

func newFrames() *frames {
	f := func(name, file string, line int) *snapshot.Frame {
		return &snapshot.Frame{Name: name, File: file, Line: line}
	}
	return &frames{
		main: f("<module>", script, 12), step: f("train", script, 31), optim: f("train", script, 40), zero: f("train", script, 41),
		leak: f("train", script, 44), loss: f("train", script, 36), back: f("train", script, 38),
		apply: f("_apply", torch+"nn/modules/module.py", 930), to: f("to", torch+"nn/modules/module.py", 1371),
		call: f("_call_impl", torch+"nn/modules/module.py", 1784), block: f("forward", model, 58),
		attention: f("forward", model, 27), mlp: f("forward", model, 44), root: f("forward", model, 80),
		adam: f("_multi_tensor_adam", torch+"optim/adam.py", 660), adamInit: f("_init_group", torch+"optim/adam.py", 180),
		adamStep: f("step", torch+"optim/adam.py", 240), cross: f("cross_entropy", torch+"nn/functional.py", 3458),
		mm:         f("at::_ops::mm::call(at::Tensor const&, at::Tensor const&)", "??", 0),
		mmBackward: f("torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)", "??", 0),
		accumulate: f("torch::autograd::AccumulateGrad::apply(std::vector<at::Tensor>&&)", "??", 0),
	}
}

// Run plays the training and returns its recording.
func (t Training) Run() *Run {
	r := NewRun(t.Capacity, alloc.Defaults())
	f := newFrames()
	var weights, states []alloc.Block
	ok := true
	need := func(size int64) (b alloc.Block) {
		if ok {
			b, ok = r.Alloc(size)
		}
		return b
	}
	drop := func(blocks ...alloc.Block) {
		for _, b := range blocks {
			if b != 0 && ok {
				r.Free(b)
			}
		}
	}
	native := func(top *snapshot.Frame, rest ...*snapshot.Frame) {
		if t.Native {
			rest = append([]*snapshot.Frame{top}, rest...)
		}
		r.At(rest...)
	}
	r.At(f.apply, f.to, f.main)
	for range t.Layers {
		weights = append(weights, need(t.Weight), need(t.Weight/4))
	}
	for step := range t.Steps {
		if step == t.Forget && step > 0 {
			r.Forget()
		}
		var kept [][]alloc.Block
		for range t.Layers {
			native(f.mm, f.attention, f.call, f.block, f.call, f.root, f.call, f.step, f.main)
			scores := need(t.Activation / 2)
			probs := need(t.Activation / 2)
			drop(scores)
			native(f.mm, f.mlp, f.call, f.block, f.call, f.root, f.call, f.step, f.main)
			kept = append(kept, []alloc.Block{probs, need(t.Activation), need(t.Activation / 4)})
		}
		native(f.mm, f.cross, f.loss, f.main)
		logits := need(t.Activation)
		loss := need(4)
		var leaked alloc.Block
		if t.Leak > 0 {
			r.At(f.leak, f.main)
			leaked = need(t.Leak)
		}
		var gradients []alloc.Block
		for i := len(kept) - 1; i >= 0; i-- {
			backward := func(node *snapshot.Frame) {
				r.At()
				if t.Native {
					r.At(node)
				}
			}
			backward(f.mmBackward)
			flow := need(t.Activation)
			backward(f.accumulate)
			gradients = append(gradients, need(t.Weight), need(t.Weight/4))
			backward(f.mmBackward)
			drop(kept[i]...)
			drop(flow)
		}
		drop(logits)
		r.Range("Optimizer.step#AdamW.step", true)
		if states == nil {
			r.At(f.adamInit, f.adamStep, f.optim, f.main)
			for range t.Layers {
				states = append(states, need(t.Weight), need(t.Weight), need(t.Weight/4), need(t.Weight/4))
			}
		}
		r.At(f.adam, f.adamStep, f.optim, f.main)
		drop(need(t.Weight), need(t.Weight))
		r.Range("Optimizer.step#AdamW.step", false)
		r.At(f.zero, f.main)
		drop(gradients...)
		drop(loss)
		_ = leaked // kept by the program
		if !ok {
			break
		}
	}
	_ = weights
	return r
}

// Pieces is a run that fails although enough is free: the shapes changed, and what
// is reserved lies in pieces behind the new ones.
func Pieces() *Run {
	const mib = 1 << 20
	r := NewRun(512*mib, alloc.Defaults())
	f := newFrames()
	var blocks []alloc.Block
	r.At(f.attention, f.call, f.root, f.call, f.step, f.main)
	for range 16 {
		b, _ := r.Alloc(30 * mib)
		blocks = append(blocks, b)
	}
	r.At(f.zero, f.main)
	r.Free(blocks...)
	r.At(f.mlp, f.call, f.root, f.call, f.step, f.main)
	for range 16 {
		_, _ = r.Alloc(20 * mib)
	}
	r.At(f.block, f.call, f.root, f.call, f.step, f.main)
	_, _ = r.Alloc(150 * mib)
	return r
}
