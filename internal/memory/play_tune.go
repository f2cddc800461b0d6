package memory

import (
	"unoom/internal/model"
	"unoom/internal/workload"
)

// tune plays torchtune's recipes for full fine-tuning and for adapters, on one
// device or with FSDP2 on several: everything in one 16-bit type, layers that may
// be compiled and recomputed one by one.
// Source: pytorch/torchtune 1814feb17 (November 2024) recipes/
// full_finetune_single_device.py, full_finetune_distributed.py,
// lora_finetune_single_device.py, lora_finetune_distributed.py and
// torchtune/modules.
type tune struct {
	player
	w       *workload.Workload
	offload bool // inputs of recomputed layers wait in host memory
}

func prepareTune(x *machine, w *workload.Workload, lib library) (*tune, error) {
	t := &tune{w: w, offload: w.Offload == workload.OffloadActivations || w.Offload == workload.OffloadOptimizerAct}
	t.player = player{x: x, lib: lib, batch: w.MicroBatch, seq: w.Seq, accumulation: int(w.Accumulation)}
	p := w.Parallel
	switch {
	case w.Model.Family != model.Decoder:
		return nil, &NotModelled{"the family " + string(w.Model.Family) + " in torchtune"}
	case lacking(w) != "":
		return nil, &NotModelled{lacking(w) + " in torchtune"}
	case p.Tensor*p.Pipeline*p.Context > 1:
		return nil, &NotModelled{"tensor, pipeline or context parallelism in torchtune"}
	case p.World > 1 && w.Sharding != workload.FSDP2 && w.Sharding != workload.FSDP:
		return nil, &NotModelled{"sharding " + string(w.Sharding) + " in torchtune"}
	case w.Method != workload.Full && !w.Method.Adapted():
		return nil, &NotModelled{"the method " + string(w.Method) + " in torchtune"}
	case w.Objective != workload.NextToken:
		return nil, &NotModelled{"the objective " + string(w.Objective) + " in torchtune"}
	}
	t.chooseAttention()
	t.lib.norm, t.lib.rope, t.lib.sharedRope = normEager, ropeTune, true
	t.cublas = cublasWorkspace(w.GPU)
	t.checkpointed = w.Checkpointing == workload.FullCheckpoint
	ld := &plainLoader{train: func(place) bool { return !w.Method.Adapted() }, compiled: w.Compile}
	t.choosePrecision(w, ld)
	t.amp = f32
	t.chooseAdapters(ld)
	o, err := optimizerOf(w, t.lib.adam)
	if err != nil {
		return nil, err
	}
	t.opt = o
	t.load(ld)
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
	if o.inBackward && t.shards == nil {
		for i := range x.params {
			x.params[i].after = t.stepOne
		}
	}
	return t, nil
}

// chooseAttention: with packed samples the mask is a block mask, and the kernel
// FlexAttention's: like the memory-efficient one it accumulates nothing in
// float32. Without, there is no mask. Keys and values are expanded to all heads.
// Source: torchtune modules/attention_utils.py, _sdpa_or_flex_attention, and
// modules/attention.py, MultiHeadAttention.forward.
func (t *tune) chooseAttention() {
	t.gathersRope = !t.w.Has("variable-length") && t.w.Options["packed"] != "false"
	t.lib.attn, t.lib.repeatKV = attnEfficient, true
	if !t.gathersRope && t.w.Precision != workload.FP32 && (t.w.GPU.Compute == 0 || t.w.GPU.Compute >= 80) {
		t.lib.attn = attnFlash
	}
}

// chooseAdapters: pairs are in the dtype of training, and of the base the linear
// modules of layers are quantised.
// Source: torchtune modules/peft/lora.py, LoRALinear; modules/low_precision/
// nf4_linear.py, FrozenNF4Linear.
func (t *tune) chooseAdapters(ld *plainLoader) {
	w := t.w
	if !w.Method.Adapted() {
		return
	}
	ld.rank, ld.dropout, ld.adt, ld.style = w.Adapter.Rank, w.Adapter.Dropout, ld.dt, adapterTune
	ld.dora = w.Method == workload.DoRA || w.Method == workload.QDoRA
	ld.adapt = func(p place) bool { return p.layer >= 0 && targeted(w.Adapter.Targets, p.mod) }
	if w.Base != workload.NotQuantised || w.Method == workload.QLoRA || w.Method == workload.QDoRA {
		ld.quant = quantAO
	}
}

// load builds the weights: whole, or in one FSDP2 group for each layer. The
// configurations of full fine-tuning set the embedding and the head apart, with
// custom_sharded_layers.
func (t *tune) load(ld *plainLoader) {
	x, w := t.x, t.w
	all, ends := func(int, int) bool { return true }, func(string) bool { return true }
	one := func(*model.Module) int64 { return 1 }
	if w.Parallel.World <= 1 {
		t.net = x.load(w.Model, ld, all, ends, one)
		return
	}
	ranks := w.Parallel.Data
	if w.Parallel.Shard > 0 {
		ranks = w.Parallel.Shard
	}
	t.shards = newFSDP2(x, w, ranks, ld.dt, ld.dt, ld.dt)
	t.shards.host = w.Offload == workload.OffloadParams
	t.groups = newGroupLoader(t.shards)
	t.groups.plainLoader, t.groups.frozen = *ld, ld.dt
	t.groups.ends = !w.Method.Adapted() && !w.Model.TiedHead
	t.net = x.load(w.Model, t.groups, all, ends, one)
	after := w.ReshardAfterForward
	if after == "" {
		after = "always" // but for the root
	}
	t.groups.finish(after)
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
		x.microBatches(t.accumulation, t.carried, func(int) { t.microBatch(it) })
		x.begin(Step, "optimizer step", it)
		switch {
		case t.shards != nil:
			t.shards.step(&t.opt, it == 0)
			t.shards.dropGrads()
		case !t.opt.inBackward:
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
	loss := t.rooted(ids, func(ids tensor) tensor { return t.forward(ids, labels) })
	x.begin(Backward, "backward", it)
	t.workspace(autogradThread)
	x.backward(loss, x.make(1, f32))
	t.endPass()
	x.drop(loss, ids, labels, positions)
	x.grad = false
	x.endTape(outer)
}

// forward is TransformerDecoder.forward and the recipe's loss.
func (t *tune) forward(ids, labels tensor) tensor {
	x := t.x
	undo := x.as("", "embedding")
	h := t.grouped(func(ld *groupLoader) *group { return ld.embed }, ids, func(ids tensor) tensor {
		return x.embedding(ids, t.net.embed.weight(), t.net.embed.out)
	})
	undo()
	for i, b := range t.net.stacks[0].blocks {
		layer := func(in tensor) tensor { return t.decoderLayer(b, in) }
		if t.w.Compile {
			layer = func(in tensor) tensor { return t.compiledLayer(b, in) }
		}
		body := layer
		switch {
		case t.checkpointed && t.offload:
			body = func(in tensor) tensor { return x.offloaded(in, layer) }
		case t.checkpointed:
			body = func(in tensor) tensor { return x.checkpoint(in, nil, nil, layer) }
		}
		out := t.grouped(func(ld *groupLoader) *group { return ld.layers[i] }, h, body)
		x.drop(h)
		h = out
	}
	out := t.grouped(func(ld *groupLoader) *group { return ld.head }, h, func(h tensor) tensor {
		n := t.norm(h, t.net.stacks[0].final)
		x.begin(Loss, "loss", t.iteration)
		defer x.as("", "logits and loss")()
		loss := t.loss(n, labels)
		x.drop(n)
		return loss
	})
	x.drop(h)
	return out
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
