package memory

import "unoom/internal/model"

// Tensor parallelism of torchtitan: DTensor plans over each block, with the
// sequence divided between them, and the loss over a divided vocabulary.
// Source: pytorch/torchtitan parallelisms/parallelize_llama.py, apply_tp;
// torch/distributed/_functional_collectives.py: what is gathered or scattered
// along another dimension than the first is copied once more.

// split is how many tensor parallel ranks divide a module.
func (t *titan) split(mod *model.Module) int64 {
	if mod.Split == model.SplitNone {
		return 1
	}
	return t.ways
}

// share gives a layer the heads of this rank.
func (t *titan) share(b *block) {
	a := *b.l.Attention
	a.Heads /= t.ways
	a.KVHeads = max(a.KVHeads/t.ways, 1)
	l := *b.l
	l.Attention = &a
	b.l = &l
}

// parallelLayer is decoderLayer on this rank's part of the sequence, with whole
// sequences within attention and the MLP.
func (t *titan) parallelLayer(b *block, in tensor) tensor {
	x := t.x
	half := func(in tensor, norm *vector, body func(*block, tensor) tensor) tensor {
		normed := t.norm(in, norm)
		whole := t.gather(normed)
		x.drop(normed)
		partial := body(b, whole)
		x.drop(whole)
		part := t.scatter(partial)
		x.drop(partial)
		out := x.add(in, part)
		x.drop(part)
		return out
	}
	mid := half(in, b.norm1, t.attention)
	out := half(mid, b.norm2, t.feedForward)
	x.drop(mid)
	return out
}

// gather brings the sequence together; its gradient is scattered.
func (t *titan) gather(part tensor) tensor {
	x := t.x
	n, d := part.n, part.dt
	whole := n * t.ways
	fn := int32(0)
	if x.recording(part) {
		fn = x.push(1, []tensor{part}, nil, func(f *frame) {
			chunks := f.x.alloc(d.size(whole))
			g := f.x.make(n, d)
			f.x.release(chunks)
			f.send(0, g)
		})
	}
	flat := x.tensor(whole, d)
	out := x.tensor(whole, d)
	x.drop(flat)
	out.fn = fn
	return out
}

// scatter sums partial results and divides the sequence; selective checkpointing
// keeps what it gives.
func (t *titan) scatter(partial tensor) tensor {
	x := t.x
	whole, d := partial.n, partial.dt
	n := whole / t.ways
	fn := int32(0)
	if x.recording(partial) {
		fn = x.push(1, []tensor{partial}, nil, func(f *frame) {
			flat := f.x.alloc(d.size(whole))
			g := f.x.make(whole, d)
			f.x.release(flat)
			f.send(0, g)
		})
	}
	x.scratch(d.size(whole)) // chunks of the sequence, one after the other
	out := tensor{}
	if x.sac != nil {
		out = x.sac.output(x, opCollective, n, d)
	} else {
		out = x.tensor(n, d)
	}
	out.fn = fn
	return out
}
