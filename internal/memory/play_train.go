package memory

import (
	"fmt"

	"unoom/internal/model"
	"unoom/internal/workload"
)

// batchTensors are the integer tensors of one micro-batch; the loop refers to
// them until the next one comes.
func (p *player) newBatch(perToken int) []tensor {
	x := p.x
	defer x.as("", "input batch")()
	var ts []tensor
	for range perToken {
		ts = append(ts, x.tensor(p.tokens(), i64))
	}
	return ts
}

// workspace makes a cuBLAS workspace, once for each thread that computes.
// Source: aten/src/ATen/cuda/CublasHandlePool.cpp.
func (p *player) workspace(thread int) {
	if p.workspaces&(1<<thread) != 0 {
		return
	}
	p.workspaces |= 1 << thread
	undo := p.x.as(Workspace, "cuBLAS workspaces")
	p.x.alloc(p.cublas)
	undo()
}

// The threads that compute: Python's, and autograd's.
const (
	mainThread = iota
	autogradThread
)

// train plays iterations of the training loop of transformers' Trainer.
func (p *player) train(iterations int) {
	var batch []tensor
	if p.forwardOnly {
		p.forward(nil, "forward pass")
		p.ends = append(p.ends, p.x.cur)
		return
	}
	for it := range iterations {
		p.iteration = it
		p.x.microBatches(p.accumulation, p.carried, func(micro int) {
			p.lastMicro = micro == p.accumulation-1
			if p.fsdp != nil {
				p.fsdp.wait = p.fsdp.defers && !p.lastMicro
			}
			batch = p.microBatch(batch, fmt.Sprintf("micro-batch %d", micro))
		})
		p.optimize(it == 0)
		p.ends = append(p.ends, p.x.cur)
	}
	p.x.drop(batch...)
}

// carried is what one micro-batch hands to the next beside storages: how far
// DeepSpeed's bucket is filled.
func (p *player) carried() int64 {
	if p.zero3 != nil {
		return p.zero3.filled
	}
	return 0
}

// microBatch plays forward and backward of one micro-batch.
func (p *player) microBatch(previous []tensor, label string) []tensor {
	x := p.x
	params := len(x.params)
	batch, loss, outputs, outer := p.forward(previous, label)
	if !p.lib.keepLogits {
		x.drop(outputs...)
	}
	x.begin(Backward, label, p.iteration)
	p.workspace(autogradThread)
	root := x.make(1, f32)
	if p.zero != nil {
		p.zero.beginBackward(p.lastMicro)
	}
	x.backward(loss, root)
	if p.zero != nil {
		p.zero.endBackward(p.lastMicro)
	}
	p.endPass()
	x.drop(loss)
	if p.lib.keepLogits {
		x.drop(outputs...)
	}
	x.grad = false
	x.endTape(outer)
	for i := params; i < len(x.params); i++ {
		x.dropGrad(&x.params[i])
	}
	x.params = x.params[:params]
	return batch
}

// forward plays the forward pass on a tape of its own; outer is the one before.
func (p *player) forward(previous []tensor, label string) (batch []tensor, loss tensor, outputs []tensor, outer *tape) {
	x := p.x
	x.begin(Forward, label, p.iteration)
	batch = p.newBatch(p.inputsPerToken)
	x.drop(previous...)
	p.workspace(mainThread)
	outer = x.newTape()
	x.grad = !p.noGrad
	run := func() {
		if p.net.m.Family == model.Encoder {
			loss, outputs = p.encoderForward(batch[0], batch[1], p.checkpointed)
			return
		}
		loss, outputs = p.causalForward(batch[0], batch[1], p.checkpointed)
	}
	if p.objective != workload.NextToken {
		loss = p.preferences(batch[0])
		return batch, loss, nil, outer
	}
	if p.amp != f32 {
		x.autocast(p.amp, run)
		switch {
		case !p.lib.outputsFloat:
		case p.noGrad: // they may be kept
			outputs = p.floatOutputs(outputs)
		default:
			outputs = p.outputsToFloat(outputs)
		}
	} else {
		run()
	}
	return batch, loss, outputs, outer
}

// outputsToFloat is accelerate's ConvertOutputsToFp32: what a model returns
// under mixed precision is copied to float32 while the originals live.
// Source: accelerate/accelerator.py, prepare_model; utils/operations.py.
func (p *player) outputsToFloat(outputs []tensor) []tensor {
	x := p.x
	old := x.grad
	x.grad = false
	for _, o := range outputs {
		if o.dt.low() {
			x.drop(x.cast(o, f32))
			break
		}
	}
	x.grad = old
	return outputs
}

// floatOutputs is the same where somebody goes on to use what is returned.
func (p *player) floatOutputs(outputs []tensor) []tensor {
	defer p.x.as("", "logits and loss")()
	for i, o := range outputs {
		outputs[i] = p.x.cast(o, f32)
		p.x.drop(o)
	}
	return outputs
}

// optimize plays clipping, the step, and zero_grad.
func (p *player) optimize(first bool) {
	x := p.x
	x.begin(Step, "optimizer step", p.iteration)
	if p.zero != nil {
		p.zero.step()
		return
	}
	if p.shards != nil {
		p.shards.step(&p.opt, first)
		p.shards.dropGrads()
		return
	}
	var ps []*parameter
	for i := range x.params {
		if x.params[i].grad >= 0 {
			ps = append(ps, &x.params[i])
		}
	}
	x.step(&p.opt, ps, first)
	if p.lib.keepGrads {
		return // zero_grad fills zeros
	}
	for _, q := range ps {
		x.dropGrad(q)
	}
}
