package memory

import (
	"unoom/internal/model"
	"unoom/internal/workload"
)

// tune plays torchtune's full_finetune_single_device recipe: weights, gradients
// and states in one 16-bit type, packed sequences, layers that may be compiled
// and recomputed one by one.
// Source: pytorch/torchtune 1814feb17 (November 2024) recipes/
// full_finetune_single_device.py and torchtune/modules.
type tune struct {
	player
	w       *workload.Workload
	offload bool // inputs of recomputed layers wait in host memory
}

func prepareTune(x *machine, w *workload.Workload, lib library) (*tune, error) {
	t := &tune{w: w, offload: w.Offload == workload.OffloadActivations || w.Offload == workload.OffloadOptimizerAct}
	t.player = player{x: x, lib: lib, batch: w.MicroBatch, seq: w.Seq, accumulation: int(w.Accumulation)}
	switch {
	case w.Model.Family != model.Decoder:
		return nil, &NotModelled{"the family " + string(w.Model.Family) + " in torchtune"}
	case w.Parallel.World > 1:
		return nil, &NotModelled{"several GPUs in torchtune"}
	case w.Method != workload.Full:
		return nil, &NotModelled{"the method " + string(w.Method) + " in torchtune"}
	}
	// With packed samples the mask is a block mask, and the kernel FlexAttention's:
	// like the memory-efficient one it accumulates nothing in float32.
	t.lib.attn = attnEfficient
	t.lib.norm, t.lib.rope, t.lib.repeatKV, t.lib.sharedRope = normEager, ropeTune, true, true
	t.cublas = cublasWorkspace(w.GPU)
	t.checkpointed = w.Checkpointing == workload.FullCheckpoint
	ld := &plainLoader{train: func(place) bool { return true }}
	t.choosePrecision(w, ld)
	t.amp = f32
	o, err := optimizerOf(w, t.lib.adam)
	if err != nil {
		return nil, err
	}
	t.opt = o
	one := func(*model.Module) int64 { return 1 }
	t.net = x.load(w.Model, ld, func(int, int) bool { return true }, func(string) bool { return true }, one)
	if w.Compile {
		for _, b := range t.net.stacks[0].blocks {
			if why := uncompilable(b); why != "" {
				return nil, &NotModelled{"torch.compile with " + why}
			}
		}
	}
	undo := x.as(Weights, "buffers")
	x.alloc(f32.size(w.Seq * t.headDim())) // the rotary cache
	undo()
	t.cos, t.sin = none(), none()
	if o.inBackward {
		for i := range x.params {
			x.params[i].after = t.stepOne
		}
	}
	return t, nil
}

// stepOne is the hook of an optimizer in backward.
func (t *tune) stepOne(x *machine, p *parameter) {
	x.step(&t.opt, []*parameter{p}, p.state == nil)
	if p.state == nil {
		p.state = []int32{}
	}
	x.dropGrad(p)
}

func (t *tune) train(iterations int) {
	x := t.x
	for it := range iterations {
		t.iteration = it
		for range t.accumulation {
			t.microBatch(it)
		}
		x.begin(Step, "optimizer step", it)
		if !t.opt.inBackward {
			var ps []*parameter
			for i := range x.params {
				if x.params[i].grad >= 0 {
					ps = append(ps, &x.params[i])
				}
			}
			x.step(&t.opt, ps, it == 0)
			for _, p := range ps {
				x.dropGrad(p)
			}
		}
		t.ends = append(t.ends, x.cur)
	}
}

func (t *tune) microBatch(it int) {
	x := t.x
	x.begin(Forward, "forward", it)
	undo := x.as("", "input batch")
	ids, labels, positions := x.tensor(t.tokens(), i64), x.tensor(t.tokens(), i64), x.tensor(t.tokens(), i64)
	undo()
	t.workspace(mainThread)
	outer := x.newTape()
	x.grad = true
	loss := t.forward(ids, labels)
	x.begin(Backward, "backward", it)
	t.workspace(autogradThread)
	x.backward(loss, x.make(1, f32))
	x.drop(loss, ids, labels, positions)
	x.grad = false
	x.endTape(outer)
}

// forward is TransformerDecoder.forward and the recipe's loss.
func (t *tune) forward(ids, labels tensor) tensor {
	x := t.x
	undo := x.as("", "embedding")
	h := x.embedding(ids, t.net.embed.weight(), t.net.embed.out)
	undo()
	for _, b := range t.net.stacks[0].blocks {
		layer := func(in tensor) tensor { return t.decoderLayer(b, in) }
		if t.w.Compile {
			layer = func(in tensor) tensor { return t.compiledLayer(b, in) }
		}
		out := none()
		switch {
		case t.checkpointed && t.offload:
			out = x.offloaded(h, layer)
		case t.checkpointed:
			out = x.checkpoint(h, nil, nil, layer)
		default:
			out = layer(h)
		}
		x.drop(h)
		h = out
	}
	n := t.norm(h, t.net.stacks[0].final)
	x.drop(h)
	x.begin(Loss, "loss", t.iteration)
	defer x.as("", "logits and loss")()
	loss := t.loss(n, labels)
	x.drop(n)
	return loss
}

// loss is the head and CrossEntropyLoss on float32 logits, or
// CEWithChunkedOutputLoss: the head is applied to pieces of the positions.
func (t *tune) loss(h, labels tensor) tensor {
	x := t.x
	entropy := func(logits tensor, rows int64) tensor {
		if t.w.Compile {
			return x.compiledCrossEntropy(logits, labels, rows)
		}
		up := x.cast(logits, f32)
		l := x.crossEntropy(up, labels, rows, t.w.Model.Vocab)
		x.drop(up)
		return l
	}
	head := t.net.head
	if t.w.Loss != workload.LossChunked {
		logits := x.linear(h, head)
		up := x.cast(logits, f32)
		x.drop(logits)
		l := entropy(up, t.tokens())
		x.drop(up)
		return l
	}
	chunks := lossPieces(t.w)
	each := ceilDiv(t.tokens(), chunks)
	var sizes []int64
	for left := t.tokens(); left > 0; left -= each {
		sizes = append(sizes, min(each, left)*head.in)
	}
	var logits []tensor
	for _, part := range x.split(h, sizes...) {
		logits = append(logits, x.linear(part, head))
		x.drop(part)
	}
	total := x.tensor(1, f32)
	for _, l := range logits {
		e := entropy(l, l.n/t.w.Model.Vocab)
		sum := x.add(total, e)
		x.drop(total, e)
		total = sum
	}
	x.drop(logits...)
	return total
}
