package memory

import (
	"unoom/internal/model"
	"unoom/internal/workload"
)

// titan plays torchtitan: FSDP2 over float32 parameters with 16-bit
// computation, checkpointing inside each block, the loss in float32.
// Source: pytorch/torchtitan train.py and parallelisms/parallelize_llama.py
// (December 2024, f6a9daa).
type titan struct {
	player
	w  *workload.Workload
	s  *fsdp2
	ld *groupLoader
	// ways is the tensor parallel size.
	ways int64
}

func prepareTitan(x *machine, w *workload.Workload, lib library) (*titan, error) {
	t := &titan{w: w, ways: max(w.Parallel.Tensor, 1)}
	t.player = player{x: x, lib: lib, batch: w.MicroBatch, seq: w.Seq / w.Parallel.Context, accumulation: int(w.Accumulation)}
	switch {
	case w.Model.Family != model.Decoder:
		return nil, &NotModelled{"the family " + string(w.Model.Family) + " in torchtitan"}
	case lacking(w) != "":
		return nil, &NotModelled{lacking(w)}
	case w.Has("graph-trainer"):
		return nil, &NotModelled{"the graph trainer of torchtitan"}
	case w.Parallel.Pipeline > 1:
		return nil, &NotModelled{"pipeline parallelism in torchtitan"}
	case t.ways > 1 && w.Compile && w.Checkpointing == workload.NoCheckpointing:
		return nil, &NotModelled{"tensor parallelism under torch.compile without checkpointing in torchtitan"}
	case w.Sharding != workload.FSDP2:
		return nil, &NotModelled{"sharding " + string(w.Sharding) + " in torchtitan"}
	case w.FP8 != workload.NoFP8 && !w.Compile:
		return nil, &NotModelled{"float8 without torch.compile"}
	}
	t.lib.norm, t.lib.rope, t.lib.repeatKV = normEager, ropeMeta, true
	t.lib.attn = attnFlash
	t.lib.sharedRope = true
	t.cublas = cublasWorkspace(w.GPU)
	o, err := optimizerOf(w, implFused)
	if err != nil {
		return nil, err
	}
	o.gpuSteps = o.impl == implFused
	t.opt = o
	t.s = newFSDP2(x, w, w.Parallel.Data*w.Parallel.Context, bf16, f32, f32)
	ld := newGroupLoader(t.s)
	ld.ends = lib.groupedEnds
	ld.eight = w.Has("fp8-all-gather")
	t.net = x.load(w.Model, ld, func(int, int) bool { return true }, func(string) bool { return true }, t.split)
	if t.ways > 1 {
		for _, b := range t.net.stacks[0].blocks {
			t.share(b)
		}
	}
	ld.finish(w.ReshardAfterForward)
	t.ld = ld
	// freqs_cis, complex64
	undo := x.as(Weights, "buffers")
	x.alloc(8 * w.Seq * t.headDim() / 2)
	undo()
	t.cos, t.sin = none(), none()
	return t, nil
}

// keepEverySecondProduct is torchtitan's policy "op": attention, and every
// second matrix product.
// Source: torchtitan parallelisms/parallelize_llama.py, _custom_policy.
func keepEverySecondProduct(op, k int) bool {
	return op == opAttention || op == opCollective || op == opMatmul && k%2 == 0
}

// products counts the matrix products of a layer's forward pass.
func (b *block) products() int {
	n := 0
	for _, m := range []*matrix{b.q, b.k, b.v, b.qkv, b.o, b.gate, b.up, b.gateUp, b.down} {
		if m != nil {
			n++
		}
	}
	return n
}

// selectivePolicy is the policy for a layer. A compiled layer keeps only what
// its backward reads, which the last product is not.
func (t *titan) selectivePolicy(b *block) policy {
	if !t.w.Compile {
		return keepEverySecondProduct
	}
	last := b.products() - 1
	return func(op, k int) bool { return keepEverySecondProduct(op, k) && (op != opMatmul || k != last) }
}

func (t *titan) train(iterations int) {
	x := t.x
	for it := range iterations {
		t.iteration = it
		t.step1(it)
		t.ends = append(t.ends, x.cur)
	}
}

func (t *titan) step1(it int) {
	x := t.x
	x.begin(Forward, "forward", it)
	t.s.dropGrads()
	ids := x.tensor(t.tokens(), i64)
	labels := x.tensor(t.tokens(), i64)
	t.workspace(mainThread)
	outer := x.newTape()
	x.grad = true
	pred := t.s.forward(t.ld.root, ids, t.model)
	loss := pred
	if !t.lib.chunkedHead {
		loss = t.loss(pred, labels)
	}
	if !t.lib.keepLogits && !t.lib.chunkedHead {
		x.drop(pred)
	}
	x.begin(Backward, "backward", it)
	t.workspace(autogradThread)
	x.backward(loss, x.make(1, f32))
	t.s.finish()
	x.drop(loss)
	if t.lib.keepLogits {
		x.drop(pred)
	}
	x.grad = false
	x.endTape(outer)
	x.begin(Step, "optimizer step", it)
	t.s.step(&t.opt, it == 0)
	x.drop(ids, labels)
}

// loss is cross_entropy_loss, or chunked_cross_entropy_loss.
// Source: torchtitan components/loss.py.
func (t *titan) loss(pred, labels tensor) tensor {
	x := t.x
	x.begin(Loss, "loss", t.iteration)
	defer x.as("", "logits and loss")()
	vocab := t.w.Model.Vocab / t.ways // the loss is parallel too
	switch {
	case t.w.Loss != workload.LossChunked && t.w.Compile && t.lib.compiledLoss:
		return x.compiledCrossEntropy(pred, labels, t.tokens())
	case t.w.Loss != workload.LossChunked:
		up := x.cast(pred, f32)
		l := x.crossEntropy(up, labels, t.tokens(), vocab)
		x.drop(up)
		return l
	}
	return x.chunkedCrossEntropy(pred, labels, t.tokens(), vocab, lossPieces(t.w))
}

// headChunks is how many pieces the head and the loss run on.
// Source: torchtitan components/loss.py, ChunkedLossWrapper.Config.num_chunks.
const headChunks = 8

// chunkedHead is ChunkedLossWrapper: the hidden states are copied in pieces; for
// each the logits, the loss and their backward follow at once. The gradient of
// the hidden states is summed in float32, that of the head in its own dtype.
func (t *titan) chunkedHead(h tensor) tensor {
	x := t.x
	w, d := t.net.head.weight(), h.dt
	vocab := t.w.Model.Vocab / t.ways
	n := ceilDiv(t.tokens(), headChunks) * vocab
	hn, wn, wd := h.n, w.n, w.dt
	fn := int32(0)
	rec := x.recording(h, w)
	if rec {
		fn = x.push(1, []tensor{h, w}, nil, func(f *frame) {
			x := f.x
			f.send(0, x.make(hn, d)) // cast back from the float32 sum
			x.hold(f.kept[1])
			f.send(1, gradient{st: f.kept[1], n: wn, dt: wd, ok: true})
		})
	}
	pieces := x.tensor(hn, d)
	sum := x.tensor(hn, f32)
	gradW := none()
	for range headChunks {
		logits := x.tensor(n, d)
		up := x.tensor(n, f32)
		logp := x.tensor(n, f32)
		x.drop(up)
		sparse := x.tensor(n, f32) // gradient of the losses
		g := x.tensor(n, f32)
		x.drop(sparse, logp)
		low := x.tensor(n, d)
		x.drop(g, logits)
		part := x.tensor(hn/headChunks, d)
		more := x.tensor(wn, wd)
		x.drop(low, part)
		if gradW.st < 0 {
			gradW = more
		} else {
			x.drop(more)
		}
	}
	loss := x.tensor(1, f32)
	if rec {
		x.saveOutput(sum)
		x.saveOutput(gradW)
		loss.fn = fn
	}
	x.drop(pieces, sum, gradW)
	return loss
}

// model is Transformer.forward.
func (t *titan) model(ids tensor) tensor {
	x := t.x
	undo := x.as("", "embedding")
	h := t.s.around(t.ld.embed, ids, func(ids tensor) tensor {
		h := x.embedding(ids, t.net.embed.weight(), t.net.embed.out)
		if t.ways == 1 {
			return h
		}
		part := t.scatter(h)
		x.drop(h)
		return part
	})
	undo()
	for i, b := range t.net.stacks[0].blocks {
		layer := func(in tensor) tensor { return t.decoderLayer(b, in) }
		if t.ways > 1 {
			layer = func(in tensor) tensor { return t.parallelLayer(b, in) }
		}
		body := layer
		if t.w.Compile && t.w.Checkpointing == workload.NoCheckpointing && uncompilable(b) == "" {
			body = func(in tensor) tensor { return t.compiledLayer(b, in) }
		}
		switch t.w.Checkpointing {
		case workload.FullCheckpoint:
			body = func(in tensor) tensor { return x.checkpoint(in, nil, nil, layer) }
		case workload.Selective:
			body = func(in tensor) tensor { return x.checkpoint(in, nil, t.selectivePolicy(b), layer) }
		}
		out := t.s.forward(t.ld.layers[i], h, body)
		x.drop(h)
		h = out
	}
	out := t.s.around(t.ld.head, h, func(h tensor) tensor {
		n := t.norm(h, t.net.stacks[0].final)
		defer x.as("", "logits and loss")()
		if t.ways > 1 {
			whole := t.gather(n)
			x.drop(n)
			n = whole
		}
		if t.lib.chunkedHead {
			x.begin(Loss, "head and loss", t.iteration)
			loss := t.chunkedHead(n)
			x.drop(n)
			return loss
		}
		out := x.linear(n, t.net.head)
		x.drop(n)
		return out
	})
	x.drop(h)
	if t.lib.floatInModel && !t.lib.chunkedHead {
		defer x.as("", "logits and loss")()
		up := x.cast(out, f32)
		x.drop(out)
		out = up
	}
	return out
}
