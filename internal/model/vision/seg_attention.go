package vision

import "unoom/internal/model/graph"

// The heads that relate every position to others.

// attendOpt are the settings of OpenMMLab's SelfAttentionBlock.
type attendOpt struct {
	width, out int64 // of queries and keys; of the result
	norm       bool  // queries and keys are ConvModules
	convs      int   // of queries and keys
	shared     bool  // one projection for queries and keys
	pool       []int64
	scaled     bool
	project    bool // the result is projected
	valueNorm  bool
}

// sequence flattens maps to (n, c, h·w), a view.
func (b *net) sequence(x graph.Value) graph.Value {
	s := b.Shape(x)
	return b.View(x, s[0], s[1], s[2]*s[3])
}

// project is one projection of an attention.
func (h *segHeads) project(x graph.Value, name string, out int64, norm bool, convs int) graph.Value {
	for i := range max(1, convs) {
		if norm {
			x = h.unit(x, block(name, i, 0), out, 1)
		} else {
			x = h.plain(x, block(name, i, 0), out)
		}
	}
	return x
}

// pooled joins pooled maps of several sizes: (n, c, Σ s²).
func (h *segHeads) pooled(x graph.Value, sizes []int64) graph.Value {
	if len(sizes) == 0 {
		return h.sequence(x)
	}
	var outs []graph.Value
	for _, s := range sizes {
		outs = append(outs, h.sequence(h.AdaptivePool(x, s, s)))
	}
	return h.Cat(2, outs...)
}

// attend is SelfAttentionBlock.
func (h *segHeads) attend(name string, queries, keys graph.Value, o attendOpt) graph.Value {
	var y graph.Value
	h.In(name, func() {
		s := h.Shape(queries)
		n, hh, w := s[0], s[2], s[3]
		q := h.project(queries, "query_project", o.width, o.norm, o.convs)
		var k graph.Value
		if o.shared {
			h.Again(func() { k = h.project(keys, "query_project", o.width, o.norm, o.convs) })
		} else {
			k = h.project(keys, "key_project", o.width, o.norm, o.convs)
		}
		vw := o.out
		if o.project {
			vw = o.width
		}
		v := h.project(keys, "value_project", vw, o.valueNorm, 1)
		qs := h.Copy(h.sequence(q), n, hh*w, o.width)
		ks := h.pooled(k, o.pool)
		vs := h.pooled(v, o.pool)
		l := h.Shape(ks)[2]
		vs = h.Copy(vs, n, l, vw)
		p := h.MatMul(qs, ks, false)
		if o.scaled {
			p = h.Act(graph.Scale, p, false)
		}
		p = h.Act(graph.Softmax, p, false)
		c := h.MatMul(p, vs, false)
		y = h.View(h.Copy(c, n, vw, hh*w), n, vw, hh, w)
		if o.project {
			y = h.project(y, "out_project", o.out, o.valueNorm, 1)
		}
	})
	return y
}

// ann fuses the last two maps by attention to pooled keys, then relates the
// result to itself.
func (h *segHeads) ann() {
	scales := []int64{1, 3, 6, 8}
	h.In("decode_head", func() {
		low, high := h.at(2), h.at(3)
		top := h.Shape(high)[1]
		c := h.attend("fusion.stages.0", high, low, attendOpt{width: 256, out: top, norm: true, pool: scales, scaled: true, project: true})
		c = h.Reduce(graph.Sum, h.Copy(c), h.Shape(c)...) // stack and sum over one stage
		x := h.convNorm(h.Cat(1, c, high), "fusion.bottleneck", top, 1, graph.ConvOpt{}, none)
		x = h.Dropout(graph.Dropout2d, x, 0.1)
		x = h.unit(x, "bottleneck", h.channels, 3)
		c = h.attend("context.stages.0", x, x, attendOpt{width: 256, out: h.channels, norm: true, shared: true, pool: scales, scaled: true, project: true})
		c = h.Reduce(graph.Sum, h.Copy(c), h.Shape(c)...)
		x = h.unit(h.Cat(1, c, x), "context.bottleneck", h.channels, 1)
		h.loss(h.classify(x, "conv_seg", 0.1))
	})
	h.aux()
}

// apc weighs pooled regions for every position.
func (h *segHeads) apc() {
	h.In("decode_head", func() {
		in := h.last()
		outs := []graph.Value{in}
		for i, size := range []int64{1, 2, 3, 6} {
			h.In(block("acm_modules.", i, 0), func() {
				p := h.AdaptivePool(in, size, size)
				x := h.unit(in, "input_redu_conv", h.channels, 1)
				p = h.unit(p, "pooled_redu_conv", h.channels, 1)
				s := h.Shape(x)
				n, hh, w := s[0], s[2], s[3]
				p = h.Copy(h.sequence(p), n, size*size, h.channels)
				g := h.like(h.unit(h.AdaptivePool(x, 1, 1), "global_info", h.channels, 1), x)
				a := h.plain(h.Add(x, g), "gla", size*size)
				a = h.Act(graph.Sigmoid, h.Copy(a, n, hh*w, size*size), false)
				z := h.MatMul(a, p, false)
				z = h.View(h.Copy(z, n, h.channels, hh*w), n, h.channels, hh, w)
				z = h.unit(z, "residual_conv", h.channels, 1)
				z = h.Act(graph.ReLU, h.Add(z, x), false)
				outs = append(outs, h.unit(z, "fusion_conv", h.channels, 1))
			})
		}
		x := h.unit(h.Cat(1, outs...), "bottleneck", h.channels, 3)
		h.loss(h.classify(x, "conv_seg", 0.1))
	})
	h.aux()
}

// around is an FCN head with a module between its two convolutions.
func (h *segHeads) around(f func(graph.Value) graph.Value) {
	h.In("decode_head", func() {
		x := h.last()
		y := h.unit(f(h.unit(x, "convs.0", h.channels, 3)), "convs.1", h.channels, 3)
		y = h.unit(h.Cat(1, x, y), "conv_cat", h.channels, 3)
		h.loss(h.classify(y, "conv_seg", 0.1))
	})
	h.aux()
}

// cc attends twice along rows and columns.
func (h *segHeads) cc() {
	h.around(func(x graph.Value) graph.Value {
		once := func() {
			s := h.Shape(x)
			n, c, hh, w := s[0], s[1], s[2], s[3]
			q, k, v := h.plain(x, "cca.query_conv", c/8), h.plain(x, "cca.key_conv", c/8), h.plain(x, "cca.value_conv", c)
			e := h.Broadcast(graph.CrissCross, q, k, n, hh+w-1, hh, w)
			a := h.Act(graph.Softmax, e, false)
			y := h.Broadcast(graph.CrissCross, a, v, n, c, hh, w)
			x = h.Add(h.Scaled(y, "cca.gamma", 1), x)
		}
		once()
		h.Again(once)
		return x
	})
}

// da is attention over positions and over channels, with a loss for each and for
// their sum.
func (h *segHeads) da() {
	h.In("decode_head", func() {
		in := h.last()
		x := h.unit(in, "pam_in_conv", h.channels, 3)
		y := h.attend("pam", x, x, attendOpt{width: 64, out: h.channels})
		x = h.Add(h.Scaled(y, "pam.gamma", 1), x)
		pam := h.unit(x, "pam_out_conv", h.channels, 3)
		pamOut := h.classify(pam, "pam_conv_seg", 0.1)

		x = h.unit(in, "cam_in_conv", h.channels, 3)
		q := h.sequence(x)
		e := h.MatMul(q, h.sequence(x), true)
		s := h.Shape(e)
		m := h.Reduce(graph.Max, e, s[0], s[1], 1)
		e = h.Broadcast(graph.Sub, m, e, s...)
		a := h.Act(graph.Softmax, e, false)
		xs := h.Shape(x)
		y = h.View(h.MatMul(a, h.sequence(x), false), xs...)
		x = h.Add(h.Scaled(y, "cam.gamma", 1), x)
		cam := h.unit(x, "cam_out_conv", h.channels, 3)
		camOut := h.classify(cam, "cam_conv_seg", 0.1)

		out := h.classify(h.Add(pam, cam), "conv_seg", 0.1)
		h.loss(out)
		h.loss(pamOut)
		h.loss(camOut)
	})
	h.aux()
}

// dm convolves with kernels computed from the pooled input.
func (h *segHeads) dm() {
	h.In("decode_head", func() {
		in := h.last()
		outs := []graph.Value{in}
		for i, size := range []int64{1, 3, 5, 7} {
			h.In(block("dcm_modules.", i, 0), func() {
				k := h.plain(h.AdaptivePool(in, size, size), "filter_gen_conv", h.channels)
				x := h.unit(in, "input_redu_conv", h.channels, 1)
				s := h.Shape(x)
				n, c, hh, w := s[0], s[1], s[2], s[3]
				x = h.View(x, 1, n*c, hh, w)
				k = h.View(k, n*c, 1, size, size)
				pad := (size - 1) / 2
				x = h.Moved(graph.Pad, x, 1, n*c, hh+2*pad, w+2*pad)
				y := h.View(h.DynamicConv(x, k, size, 0), n, c, hh, w)
				y = h.Act(graph.ReLU, h.normed(y, "norm"), true)
				outs = append(outs, y)
			})
		}
		x := h.unit(h.Cat(1, outs...), "bottleneck", h.channels, 3)
		h.loss(h.classify(x, "conv_seg", 0.1))
	})
	h.aux()
}

// relate is the non-local block: every position attends to all others.
func (h *segHeads) relate(x graph.Value, disentangled bool) graph.Value {
	s := h.Shape(x)
	n, c, hh, w := s[0], s[1], s[2], s[3]
	inter := c / 2
	g := h.sequence(h.plain(x, "nl.g", inter))
	theta := h.sequence(h.plain(x, "nl.theta", inter))
	phi := h.sequence(h.plain(x, "nl.phi", inter))
	if disentangled {
		theta = h.subtractMean(theta, n, inter, 1)
		phi = h.subtractMean(phi, n, inter, 1)
	}
	p := h.MatMul(h.View(theta, n, hh*w, inter), phi, false)
	p = h.ActIn(graph.Scale, p)
	if disentangled {
		p = h.ActIn(graph.Scale, p)
	}
	p = h.Act(graph.Softmax, p, false)
	gv := h.View(g, n, hh*w, inter)
	y := h.MatMul(p, gv, false)
	y = h.View(h.Copy(y, n, inter, hh*w), n, inter, hh, w)
	if disentangled {
		m := h.Act(graph.Softmax, h.sequence(h.plain(x, "nl.conv_mask", 1)), false)
		u := h.MatMul(m, gv, false)
		y = h.Add(y, h.View(h.Copy(u, n, inter, 1), n, inter, 1, 1))
	}
	return h.Add(x, h.convNorm(y, "nl.conv_out", c, 1, graph.ConvOpt{}, none))
}

// subtractMean subtracts the mean in place.
func (h *segHeads) subtractMean(x graph.Value, shape ...int64) graph.Value {
	return h.Into(graph.Sub, x, h.Reduce(graph.Mean, x, shape...))
}

func (h *segHeads) dnl() { h.around(func(x graph.Value) graph.Value { return h.relate(x, true) }) }
func (h *segHeads) nonLocal() {
	h.around(func(x graph.Value) graph.Value { return h.relate(x, false) })
}

// gc adds one global context to every position.
func (h *segHeads) gc() {
	h.around(func(x graph.Value) graph.Value {
		s := h.Shape(x)
		n, c := s[0], s[1]
		m := h.Act(graph.Softmax, h.sequence(h.plain(x, "gc.conv_mask", 1)), false)
		l := h.Shape(m)[2]
		ctx := h.MatMul(h.View(x, n, 1, c, s[2]*s[3]), h.View(m, n, 1, l, 1), false)
		ctx = h.View(ctx, n, c, 1, 1)
		y := h.plain(ctx, "gc.channel_add_conv.0", c/4)
		y = h.View(y, n, c/4)
		y = h.LayerNorm(y, "gc.channel_add_conv.1")
		y = h.Act(graph.ReLU, h.View(y, n, c/4, 1, 1), true)
		return h.Add(x, h.plain(y, "gc.channel_add_conv.3", c))
	})
}

// enc encodes the map by its distances to code words.
func (h *segHeads) enc() {
	const codes = 32
	h.In("decode_head", func() {
		x := h.unit(h.last(), "bottleneck", h.channels, 3)
		s := h.Shape(x)
		n, c, l := s[0], s[1], s[2]*s[3]
		y := h.unit(x, "enc_module.encoding_project", c, 1)
		y = h.Copy(h.sequence(y), n, l, c)
		words := h.Parameter("enc_module.codewords", 1, codes, c)
		d := h.Broadcast(graph.Sub, y, words, n, l, codes, c)
		d = h.Reduce(graph.Sum, h.Act(graph.Pow, d, false), n, l, codes)
		d = h.Scaled(d, "enc_module.scale", codes)
		a := h.Act(graph.Softmax, d, false)
		e := h.Broadcast(graph.Sub, y, words, n, l, codes, c)
		e = h.Reduce(graph.Sum, h.Broadcast(graph.Mul, e, h.View(a, n, l, codes, 1), n, l, codes, c), n, codes, c)
		e = h.Act(graph.ReLU, h.normed(e, "enc_module.bn"), true)
		e = h.Reduce(graph.Mean, e, n, c)
		g := h.Act(graph.Sigmoid, h.Linear(e, "enc_module.fc", c, true), false)
		y = h.Binary(graph.Mul, x, h.View(g, n, c, 1, 1))
		y = h.Act(graph.ReLU, h.Add(x, y), true)
		out := h.classify(y, "conv_seg", 0.1)
		se := h.Linear(e, "se_layer", h.classes, true)
		h.loss(out)
		target := h.Constant(graph.Float32, n, h.classes)
		h.losses = append(h.losses, h.Reduce(graph.Mean, h.Loss(graph.BCELogits, graph.Float32, []graph.Value{se, target}, n, h.classes), 1))
	})
	h.aux()
}

// ema reconstructs the map from a few bases found without gradients.
func (h *segHeads) ema() {
	const bases = 64
	h.In("decode_head", func() {
		in := h.last()
		x := h.unit(in, "ema_in_conv", 512, 3)
		s := h.Shape(x)
		n, c, hh, w := s[0], s[1], s[2], s[3]
		y := h.Conv(x, "ema_mid_conv", 512, 1, graph.ConvOpt{Bias: true, Frozen: true})
		f := h.sequence(y)
		var attention, base graph.Value
		h.NoGrad(func() {
			base = h.Constant(graph.Float, n, c, bases)
			for range 3 {
				attention = h.Act(graph.Softmax, h.MatMul(h.View(f, n, hh*w, c), base, false), false)
				base = h.MatMul(f, h.Binary(graph.Div, attention, h.Reduce(graph.Sum, attention, n, 1, bases)), false)
				base = h.Binary(graph.Div, base, h.Reduce(graph.Sum, base, n, 1, bases))
			}
			y = h.View(h.MatMul(base, attention, true), n, c, hh, w)
		})
		y = h.Act(graph.ReLU, y, true)
		y = h.convNorm(y, "ema_out_conv", 512, 1, graph.ConvOpt{}, none)
		y = h.Act(graph.ReLU, h.Add(x, y), true)
		y = h.unit(y, "bottleneck", 256, 3)
		y = h.unit(h.Cat(1, in, y), "conv_cat", 256, 3)
		h.loss(h.classify(y, "conv_seg", 0.1))
	})
	h.aux()
}

// isa attends between and within blocks of positions.
func (h *segHeads) isa() {
	h.In("decode_head", func() {
		x := h.unit(h.last(), "in_conv", h.channels, 3)
		residual := x
		s := h.Shape(x)
		n, c, hh, w := s[0], s[1], s[2], s[3]
		gh, gw := (hh+7)/8, (w+7)/8
		if gh*8 != hh || gw*8 != w {
			x = h.Moved(graph.Pad, x, n, c, gh*8, gw*8)
		}
		o := attendOpt{width: 256, out: c, norm: true, convs: 2, scaled: true}
		x = h.Copy(x, n*64, c, gh, gw)
		x = h.unit(h.attend("global_relation", x, x, o), "global_relation.output_project", c, 1)
		x = h.Copy(x, n*gh*gw, c, 8, 8)
		x = h.unit(h.attend("local_relation", x, x, o), "local_relation.output_project", c, 1)
		x = h.Copy(x, n, c, gh*8, gw*8)
		if gh*8 != hh || gw*8 != w {
			x = h.Part(x, n, c, hh, w)
		}
		x = h.unit(h.Cat(1, x, residual), "out_conv", c, 1)
		h.loss(h.classify(x, "conv_seg", 0.1))
	})
	h.aux()
}

// psa predicts a mask over all positions for each position, in two directions.
func (h *segHeads) psa() {
	h.In("decode_head", func() {
		in := h.last()
		s := h.Shape(in)
		n, hh, w := s[0], s[2], s[3]
		side := int64(97)
		if h.classes == 150 {
			side = 66 // the configurations for ADE20K, whose crops are smaller
		}
		sh, sw := hh/2, w/2
		if hh%2 != 0 && w%2 != 0 {
			sh, sw = (hh-1)/2+1, (w-1)/2+1
		}
		var outs []graph.Value
		for _, name := range []string{"", "_p"} {
			x := h.unit(in, "reduce"+name, h.channels, 1)
			x = h.Resize(x, sh, sw)
			y := h.unit(x, "attention"+name+".0", h.channels, 1)
			y = h.Conv(y, "attention"+name+".1", side*side, 1, graph.ConvOpt{})
			y = h.Moved(graph.Gather, y, n, sh*sw, sh, sw)
			y = h.Act(graph.Softmax, y, false)
			z := h.MatMul(h.sequence(x), h.View(y, n, sh*sw, sh*sw), false)
			outs = append(outs, h.Act(graph.Scale, h.View(z, n, h.channels, sh, sw), false))
		}
		x := h.convNorm(h.Cat(1, outs...), "proj", s[1], 1, graph.ConvOpt{Padding: 1}, relu)
		x = h.like(x, in)
		x = h.unit(h.Cat(1, in, x), "bottleneck", h.channels, 3)
		h.loss(h.classify(x, "conv_seg", 0.1))
	})
	h.aux()
}

// ocr relates every position to the classes that a first head predicts.
//
// A cascade of heads runs the first twice: for its loss, and for what the second
// takes. Source: mmsegmentation models/segmentors/cascade_encoder_decoder.py.
func (h *segHeads) ocr() {
	h.In("decode_head", func() {
		in, dropout := h.last(), 0.1
		first := func() graph.Value { return h.classify(h.unit(h.at(2), "0.convs.0", 256, 3), "0.conv_seg", 0.1) }
		if h.features.channels < 0 { // HRNet
			dropout = 0
			first = func() graph.Value {
				x := h.joined()
				return h.plain(h.unit(x, "0.convs.0", h.Shape(x)[1], 1), "0.conv_seg", h.classes)
			}
		}
		coarse := first()
		h.loss(coarse)
		h.Again(func() { coarse = first() })
		if h.features.channels < 0 {
			in = h.joined()
		}
		x := h.unit(in, "1.bottleneck", 512, 3)
		s := h.Shape(x)
		n, c, hh, w := s[0], s[1], s[2], s[3]
		p := h.Act(graph.Softmax, h.Act(graph.Scale, h.sequence(coarse), false), false)
		ctx := h.MatMul(p, h.View(x, n, hh*w, c), false)
		ctx = h.View(h.Copy(ctx, n, c, h.classes), n, c, h.classes, 1)
		y := h.attend("1.object_context_block", x, ctx, attendOpt{width: 256, out: c, norm: true, convs: 2, scaled: true, project: true, valueNorm: true})
		y = h.unit(h.Cat(1, y, x), "1.object_context_block.bottleneck", c, 1)
		h.loss(h.classify(y, "1.conv_seg", dropout))
	})
}
