package memory

import (
	"strconv"

	"unoom/internal/model"
)

// flight is a micro-batch on its way through a chunk.
type flight struct {
	tape  *tape
	out   tensor
	leaf  int // pseudo parameter of the received input, −1: none
	input tensor
}

// train plays iterations of Megatron's training loop.
func (m *megatron) train(iterations int) {
	x := m.x
	params := len(x.params)
	group := int(m.p)
	if n, err := strconv.Atoi(m.option("microbatch-group-size-per-virtual-pipeline-stage")); err == nil && n > 0 {
		group = n
	}
	// Once the pipeline is full, micro-batches are alike: three for each stage
	// reach that with any schedule.
	micros := min(m.accumulation, 3*int(m.p))
	turns := pipeline(int(m.p), int(m.v), int(m.rnk), micros, group)
	for it := range iterations {
		m.iteration = it
		fl := map[[2]int]*flight{}
		for _, s := range turns {
			k := [2]int{s.chunk, s.micro}
			label := "micro-batch " + strconv.Itoa(s.micro)
			if s.forward {
				fl[k] = m.forward(s, label)
			} else {
				m.backward(fl[k], s, label)
				delete(fl, k)
			}
		}
		for _, st := range m.waiting {
			x.release(st)
		}
		m.waiting, m.deferred = nil, 0
		x.release(m.inputGrad)
		m.inputGrad = noStorage
		x.params = x.params[:params]
		x.begin(Step, "optimizer step", it)
		switch {
		case m.deepspeed:
			m.zeroStep(params)
		case it == 0:
			m.makeState(params)
		}
		m.ends = append(m.ends, x.cur)
	}
}

// forward plays one micro-batch through a chunk.
func (m *megatron) forward(s slot, label string) *flight {
	if m.net.m.Family == model.EncoderDecoder {
		return m.forwardT5(s, label)
	}
	x := m.x
	x.begin(Forward, label, m.iteration)
	f := &flight{leaf: -1}
	outer := x.newTape()
	f.tape = x.tape
	firstChunk, lastChunk := m.first && s.chunk == 0, m.last && s.chunk == int(m.v)-1
	batch := m.batchTensors(firstChunk, lastChunk)
	x.grad = true
	var h tensor
	if firstChunk {
		h = m.embed()
	} else {
		undo := x.as(Activations, "received activations")
		h = x.tensor(m.localTokens()*m.net.m.Hidden, m.residual)
		undo()
		f.leaf = x.pseudoLeaf(h)
		h = x.params[f.leaf].t
		f.input = h
		x.hold(h.st)
	}
	layer := m.layer
	if m.hybrid {
		layer = m.hybridLayer
	}
	h = m.throughLayers(h, m.chunks[s.chunk], layer)
	if lastChunk {
		x.begin(Loss, label, m.iteration)
		h = m.head(h, batch)
	} else {
		// What is sent is not kept, only its node: deallocate_output_tensor.
		// DeepSpeed keeps it, divided over the tensor parallel ranks.
		kept := int32(noStorage)
		if m.deepspeed {
			kept = x.alloc(m.residual.size(h.n / m.t))
		}
		x.release(h.st)
		h.st = kept
	}
	f.out = h
	x.drop(batch...)
	x.grad = false
	x.tape = outer
	return f
}

// backward plays the backward of one micro-batch through a chunk.
func (m *megatron) backward(f *flight, s slot, label string) {
	x := m.x
	x.begin(Backward, label, m.iteration)
	m.workspace(autogradThread)
	outer := x.tape
	x.tape = f.tape
	var g gradient
	if m.last && s.chunk == int(m.v)-1 {
		g = x.make(1, f32)
	} else {
		undo := x.as(Buffers, "received gradients")
		g = x.make(m.localTokens()*m.net.m.Hidden, m.residual)
		undo()
	}
	x.backward(f.out, g)
	if m.fsdp != nil {
		m.fsdp.finish()
	}
	x.drop(f.out)
	x.endTape(outer)
	if f.leaf >= 0 {
		// The loop's variable refers to what is sent until the next backward.
		x.release(m.inputGrad)
		m.inputGrad = x.params[f.leaf].grad
		x.params[f.leaf].grad = noStorage
		x.drop(f.input)
	}
}

// batchTensors are what get_batch brings to the GPU on this stage.
// Source: pretrain_gpt.py, get_batch; megatron/core/utils.py,
// get_batch_on_this_tp_rank.
func (m *megatron) batchTensors(first, last bool) []tensor {
	x := m.x
	defer x.as("", "input batch")()
	var ts []tensor
	n := m.batch * m.w.Seq
	if m.net.m.Family == model.Encoder {
		// tokens, types, labels, two masks, and what marks the pair; on every
		// stage. Source: pretrain_bert.py, get_batch.
		for range 6 {
			ts = append(ts, x.tensor(n, i64))
		}
		return ts
	}
	if !first && !last {
		return nil
	}
	if first || m.predicting() {
		ts = append(ts, x.tensor(n, i64), x.tensor(n, i64)) // tokens, positions
	}
	if last {
		ts = append(ts, x.tensor(n, i64), x.tensor(n, f32)) // labels, loss mask
	}
	if m.mask {
		ts = append(ts, x.tensor(m.batch*m.w.Seq*m.w.Seq, u8))
	}
	return ts
}

// embed is LanguageModelEmbedding.
func (m *megatron) embed() tensor {
	x := m.x
	defer x.as("", "embedding")()
	h := m.net.m.Hidden
	ids := tensor{st: noStorage, n: m.tokens(), dt: i64}
	words := x.embedding(ids, m.net.embed.weight(), h)
	e := x.keep(words)
	if m.net.pos != nil {
		pos := x.embedding(ids, m.net.pos.w, h)
		sum := x.add(words, pos)
		x.drop(e)
		e = sum
		defer x.drop(pos)
	}
	if m.net.seg != nil {
		types := x.embedding(ids, m.net.seg.w, h)
		sum := x.add(e, types)
		x.drop(e)
		e = sum
		defer x.drop(types)
	}
	defer x.drop(words)
	t := x.contiguous(e)
	x.drop(e)
	if m.sp {
		full := t.n
		l := x.op(m.localTokens()*h, t.dt, []tensor{t}, nil, false, func(f *frame) { f.send(0, f.x.make(full, f.g[0].dt)) })
		x.drop(t)
		t = l
	}
	if m.dropHidden {
		d := x.dropout(t, 0.1)
		x.drop(t)
		t = d
	}
	return t
}

// layer is one TransformerLayer.
func (m *megatron) layer(b *block, in tensor) tensor {
	x := m.x
	att := m.selfAttention(b, in)
	mid := m.biasDropoutAdd(att, b.o, in)
	x.drop(att)
	ff, last := none(), b.down
	if b.l.MoE != nil {
		ff, last = m.moe(b, mid), &matrix{bias: none()}
	} else if m.again.modules["mlp"] {
		ff = m.checkpointed([]tensor{mid}, func(ins []tensor) tensor {
			defer x.drop(ins...)
			return m.mlp(b, ins[0])
		})
	} else {
		ff = m.mlp(b, mid)
	}
	out := m.biasDropoutAdd(ff, last, mid)
	x.drop(ff, mid)
	return out
}
