package memory

import (
	"unoom/internal/model"
	"unoom/internal/workload"
)

// tower is the image part of a vision-language model.
type tower struct {
	st *stack
	// embed are the parameters before the tower, the first of which cuts images into
	// patches; projector are the modules after it.
	embed     []*vector
	projector []projection
}

// projection is one module of a projector: a norm, or a matrix.
type projection struct {
	norm *vector
	mat  *matrix
}

// view is what the tower is shown in each micro-batch.
type view struct {
	images          int64 // of one sample
	patches, tokens int64 // of one image
}

// prepareView reads how large images are, and leaves p.view nil for a run on
// text alone.
func (p *player) prepareView(w *workload.Workload) error {
	s := w.Model.Sight
	if s == nil || w.Image[0] == 0 {
		return nil
	}
	if p.fsdp != nil || p.zero3 != nil || p.shards != nil {
		return &NotModelled{"images of a vision-language model with weights that ranks share out"}
	}
	v := &view{images: max(1, w.ImagesPerSample)}
	v.patches, v.tokens = s.Patches(w.Image[0], w.Image[1])
	p.view = v
	return nil
}

// seen reports whether a module belongs to the tower, and is frozen with it.
func seen(w *workload.Workload, pl place) bool {
	switch {
	case pl.mod.Role == model.RoleProjector:
		return w.Has("freeze-projector")
	case pl.part == "vision", pl.mod.Role == model.RoleSight:
		return w.Has("freeze-vision")
	}
	return false
}

// pixels is the batch's image tensor, in float32 as the processor makes it.
func (p *player) pixels() tensor {
	s := p.net.m.Sight
	n := p.batch * p.view.images * (p.view.patches - s.Class) * s.Patch * s.Patch * s.Channels * max(s.Frames, 1)
	return p.x.tensor(n, f32)
}

// lookAt replaces the places of images in the embedded text by what the tower
// makes of them; it takes h over. deep is what is added to the first layers.
// Source: transformers v5.24 models/qwen2_5_vl/modeling_qwen2_5_vl.py,
// Qwen2_5_VLModel.forward; models/llava/modeling_llava.py; aten/src/ATen/native/
// cuda/IndexKernel.cpp, masked_scatter__cuda: a sum of the mask in int64.
func (p *player) lookAt(h tensor, checkpointed bool) (out tensor, deep []tensor) {
	if p.view == nil {
		return h, nil
	}
	x := p.x
	made := p.towerForward(checkpointed)
	features, deep := made[0], made[1:]
	n, d, fn := h.n, h.dt, features.n
	mask := x.tensor(n, u8)
	sums := x.tensor(n, i64)
	out = x.op(n, d, []tensor{h, features}, []tensor{mask}, false, func(f *frame) {
		if f.want(0) {
			f.send(0, f.x.make(n, d))
		}
		if f.want(1) {
			f.send(1, f.x.make(fn, d))
		}
	})
	x.drop(mask, sums, h, features)
	return out, deep
}

// towerForward is the tower and the projector on all images of the batch.
func (p *player) towerForward(checkpointed bool) []tensor {
	x, t := p.x, p.net.tower
	defer x.as("", "image tower")()
	s := p.net.m.Sight
	images := p.batch * p.view.images
	pixels := p.pixels()
	rows := images * (p.view.patches - s.Class)
	h := p.patchEmbedding(pixels, rows, t.st.s.Hidden)
	x.drop(pixels)
	cls := h
	if s.Class > 0 { // the class token is joined to the patches
		h = x.join(h.dt, h, tensor{st: noStorage, n: images * s.Class * t.st.s.Hidden, dt: h.dt})
		x.drop(cls)
	}
	for _, v := range t.embed[1:] {
		out := h
		switch {
		case v.kind != "":
			out = p.norm(h, v)
		case v.w.n >= t.st.s.Hidden*(p.view.patches-s.Class): // positions
			out = x.addRows(h, v.w)
		default:
			continue
		}
		x.drop(h)
		h = out
	}
	cos, sin := none(), none()
	dim := int64(0)
	if a := t.st.blocks[0].l.Attention; a.Position == model.Rope {
		dim = a.HeadDim
		cos, sin = x.tensor(rows*dim, f32), x.tensor(rows*dim, f32)
	}
	for i, b := range t.st.blocks {
		if i == s.Layers {
			break
		}
		body := func(in tensor) tensor { return p.asTower(cos, sin, func() tensor { return p.decoderLayer(b, in) }) }
		var out tensor
		switch {
		case !checkpointed:
			out = body(h)
		case p.lib.reentrant && !h.needsGrad(): // CheckpointFunction gives no gradient then
			grad := x.grad
			x.grad = false
			out = body(h)
			x.grad = grad
		case p.lib.reentrant:
			out = x.checkpointReentrant(h, []tensor{cos, sin}, body)
		default:
			out = x.checkpoint(h, []tensor{cos, sin}, nil, body)
		}
		x.drop(h)
		h = out
	}
	if dim > 0 {
		x.drop(cos, sin)
	}
	return p.projected(h)
}

// asTower runs f with the batch of the tower: images of patches, or for towers
// that rotate, each image by itself.
func (p *player) asTower(cos, sin tensor, f func() tensor) tensor {
	batch, seq, c, s, cache := p.batch, p.seq, p.cos, p.sin, p.cache
	p.batch, p.seq, p.cos, p.sin, p.cache = batch*p.view.images, p.view.patches, cos, sin, nil
	defer func() { p.batch, p.seq, p.cos, p.sin, p.cache = batch, seq, c, s, cache }()
	return f()
}

// patchEmbedding is a convolution whose stride is its kernel: the input is cast
// to the dtype of the weight, and saved where that is trained.
func (p *player) patchEmbedding(pixels tensor, rows, width int64) tensor {
	x := p.x
	v := p.net.tower.embed[0]
	w := x.castWeight(v.w)
	in := x.cast(pixels, w.dt)
	wn, wd, bn := v.w.n, w.dt, v.b.n
	out := x.op(rows*width, w.dt, []tensor{w, v.b}, []tensor{in, w}, false, func(f *frame) {
		if f.want(0) {
			f.send(0, f.x.make(wn, wd))
		}
		if f.want(1) {
			f.send(1, f.x.make(bn, wd))
		}
	})
	x.drop(in, w)
	return out
}

// projected is what stands after the tower, for each projector: the tokens of the
// text, and what is added to its first layers. Where several patches become one
// token their vectors are joined, which is a view; an average is a copy.
func (p *player) projected(h tensor) []tensor {
	x, t, s := p.x, p.net.tower, p.net.m.Sight
	if t.st.final != nil && s.Layers == len(t.st.blocks) {
		n := p.norm(h, t.st.final)
		x.drop(h)
		h = n
	}
	// part is some of the rows, copied.
	part := func(h tensor, n int64) tensor {
		full, d := h.n, h.dt
		out := x.op(n, d, []tensor{h}, nil, false, func(f *frame) { f.send(0, f.x.make(full, d)) })
		x.drop(h)
		return out
	}
	if s.Class > 0 {
		h = part(h, h.n/p.view.patches*(p.view.patches-s.Class))
	}
	want := p.batch * p.view.images * p.view.tokens
	var out []tensor
	at := x.keep(h)
	step := func(next tensor) { x.drop(at); at = next }
	for i, l := range s.Links {
		switch m := t.projector[i]; {
		case l.Norm != nil:
			if l.Again {
				out = append(out, at)
				at = x.keep(h)
			}
			if l.Norm.Width == t.st.s.Hidden && i+1 < len(s.Links) && t.projector[i+1].mat.in == l.Norm.Width && at.n/l.Norm.Width > want && s.Size > 0 {
				at = part(at, want*l.Norm.Width) // averaged
			}
			step(p.norm(at, m.norm))
		default:
			step(x.project(at, m.mat))
			if l.Act != "" {
				step(p.activate(at, l.Act))
			}
		}
	}
	x.drop(h)
	return append(out, at)
}

// deepen adds what a further projector made of the images to the text, after one
// of its first layers; it takes both over.
// Source: transformers v5.24 models/qwen3_vl/modeling_qwen3_vl.py,
// _deepstack_process.
func (p *player) deepen(h, features tensor) tensor {
	x := p.x
	n, d, fn := h.n, h.dt, features.n
	rows := fn / p.net.m.Hidden
	at := x.tensor(2*rows, i64)
	out := x.op(n, d, []tensor{h, features}, []tensor{at}, false, func(f *frame) {
		if f.want(0) {
			f.send(0, f.x.make(n, d))
		}
		if f.want(1) {
			f.send(1, f.x.make(fn, d))
		}
	})
	picked := x.tensor(fn, d)
	sum := x.tensor(fn, d)
	x.drop(picked, sum, at, h, features)
	return out
}
