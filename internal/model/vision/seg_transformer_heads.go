package vision

import (
	"strings"

	"unoom/internal/model/graph"
)

// The heads that OpenMMLab puts on image transformers.

// single is an FCN head without joined input: some convolutions, and the classes.
func (h *segHeads) single(name string, x graph.Value, width, kernel int64, convs int, dropout float64) {
	h.In(name, func() {
		for i := range convs {
			x = h.unit(x, block("convs.", i, 0), width, kernel)
		}
		h.loss(h.classify(x, "conv_seg", dropout))
	})
}

// setr is SETR: convolutions and interpolations on the last map of a large image
// transformer, with the same on earlier ones.
func (h *segHeads) setr() {
	v := plainViT{at: []int{9, 14, 19, 23}}
	aux := 1                                        // convolutions of the heads on earlier maps
	if h.classes == 150 || h.method == "setr-pup" { // 150: the configurations for ADE20K
		aux = 2
	}
	mla := h.method == "setr-mla"
	if mla {
		v.at, v.bare = []int{5, 11, 17, 23}, true
	}
	outs, hh, w := v.run(h.net, h.image, "l")
	if v.bare {
		for i, x := range outs {
			outs[i] = h.asMap(x, hh, w)
		}
	} else {
		outs = h.patches(outs, hh, w)
	}
	normed := func(m graph.Value, name string) graph.Value {
		s := h.Shape(m)
		return h.asMap(h.LayerNorm(h.Copy(h.tokensOf(m), s[0], hh*w, s[1]), name), hh, w)
	}
	if mla {
		h.mla(outs, normed)
		return
	}
	up := func(name string, m graph.Value, convs int, scale, kernel int64) {
		h.In(name, func() {
			x := normed(m, "norm")
			for i := range convs {
				x = h.unit(x, block("up_convs.", i, 0), 256, kernel)
				s := h.Shape(x)
				x = h.Resize(x, scale*s[2], scale*s[3])
			}
			h.loss(h.plain(x, "conv_seg", h.classes))
		})
	}
	convs, scale, kernel := 1, int64(4), int64(1)
	if h.method == "setr-pup" {
		convs, scale, kernel = 4, 2, 3
	}
	up("decode_head", outs[3], convs, scale, kernel)
	for i := range 3 {
		up(block("auxiliary_head.", i, 0), outs[i], aux, 4, kernel)
	}
}

// mla is SETR's head on sums over levels.
func (h *segHeads) mla(outs []graph.Value, normed func(graph.Value, string) graph.Value) {
	feats := make([]graph.Value, len(outs))
	h.In("neck", func() {
		for i, m := range outs {
			outs[i] = normed(m, block("norm.", i, 0))
		}
		for i, m := range outs {
			feats[i] = h.unit(m, block("mla.channel_proj.", i, 0), 256, 1)
		}
		for i := len(feats) - 2; i >= 0; i-- {
			feats[i] = h.Add(feats[i+1], feats[i])
		}
		for i := len(feats) - 1; i >= 0; i-- {
			feats[i] = h.unit(feats[i], block("mla.feat_extract.", i, 0), 256, 3)
		}
	})
	h.In("decode_head", func() {
		var ups []graph.Value
		for i, x := range feats {
			x = h.unit(h.unit(x, block("up_convs.", i, 0), 128, 3), block("up_convs.", i, 1), 128, 3)
			s := h.Shape(x)
			ups = append(ups, h.Resize(x, 4*s[2], 4*s[3]))
		}
		h.loss(h.plain(h.Cat(1, ups...), "conv_seg", h.classes))
	})
	for i, x := range feats {
		h.single(block("auxiliary_head.", i, 0), x, 256, 1, 0, 0)
	}
}

// segmenter is Segmenter: classes as further patches of a small transformer, or a
// plain projection.
func (h *segHeads) segmenter() {
	size := strings.TrimPrefix(h.tag, "segmenter-")
	width, depth, heads := vitSize(size)
	v := plainViT{at: []int{depth - 1}, drop: 0.1, norm: true}
	outs, hh, w := v.run(h.net, h.image, size)
	m := h.patches(outs, hh, w)[0]
	if h.method != "segmenter-mask" {
		h.single("decode_head", m, width, 1, 0, 0)
		return
	}
	h.In("decode_head", func() {
		s := h.Shape(m)
		n, l := s[0], hh*w
		x := h.Linear(h.Copy(h.channelsLast(m), n, l, width), "dec_proj", width, true)
		x = h.Cat(1, x, h.Parameter("cls_emb", n, h.classes, width))
		for i := range 2 {
			x = h.encoder(x, block("layers.", 0, i), heads, 4*width, dropAt(0.1, i, 2))
		}
		x = h.LayerNorm(x, "decoder_norm")
		unit := func(rows int64, name string) graph.Value {
			y := h.Linear(h.Copy(h.Part(x, n, rows, width)), name, width, false)
			norm := h.Act(graph.Sqrt, h.Reduce(graph.Sum, h.Act(graph.Pow, y, false), n, rows, 1), false)
			return h.Binary(graph.Div, y, norm)
		}
		masks := h.MatMul(unit(l, "patch_proj"), unit(h.classes, "classes_proj"), true)
		masks = h.LayerNorm(masks, "mask_norm")
		h.loss(h.asMap(masks, hh, w))
	})
}

// dpt is the dense prediction transformer: maps of four sizes, fused from the
// coarsest up.
func (h *segHeads) dpt() {
	v := plainViT{at: []int{2, 5, 8, 11}, side: 14}
	outs, hh, w := v.run(h.net, h.image, "b")
	h.In("decode_head", func() {
		var feats []graph.Value
		for i, width := range []int64{96, 192, 384, 768} {
			s := h.Shape(outs[i])
			n, c := s[0], s[2]
			x := h.patches(outs[i:i+1], hh, w)[0]
			// The class token goes beside every patch.
			y := h.Cat(2, h.tokensOf(x), h.View(h.Part(outs[i], n, 1, c), n, hh*w, c))
			y = h.Act(graph.GELU, h.Linear(y, block("readout.", i, 0), c, true), false)
			x = h.Conv(h.asMap(y, hh, w), block("projects.", i, 0), width, 1, graph.ConvOpt{Bias: true})
			name := block("resize_layers.", i, 0)
			switch i {
			case 0:
				x = h.ConvTranspose(x, name, width, 4, graph.ConvOpt{Stride: 4, Bias: true})
			case 1:
				x = h.ConvTranspose(x, name, width, 2, graph.ConvOpt{Stride: 2, Bias: true})
			case 3:
				x = h.Conv(x, name, width, 3, graph.ConvOpt{Stride: 2, Padding: 1, Bias: true})
			}
			feats = append(feats, x)
		}
		for i := range feats {
			feats[i] = h.Conv(feats[i], block("convs.", i, 0), 256, 3, graph.ConvOpt{Padding: 1})
		}
		residual := func(x graph.Value, name string) graph.Value {
			short := h.Copy(x)
			for i := range 2 { // activation, convolution, norm
				x = h.convNorm(h.Act(graph.ReLU, x, i > 0), block(name, 0, i), 256, 3, graph.ConvOpt{Padding: 1}, none)
			}
			return h.Add(x, short)
		}
		var x graph.Value
		for i := range feats {
			h.In(block("fusion_blocks.", i, 0), func() {
				f := feats[len(feats)-1-i]
				if i == 0 {
					x = f
				} else {
					x = h.Add(x, residual(h.like(f, x), "res_conv_unit1."))
				}
				x = residual(x, "res_conv_unit2.")
				s := h.Shape(x)
				x = h.Conv(h.Resize(x, 2*s[2], 2*s[3]), "project", 256, 1, graph.ConvOpt{Bias: true})
			})
		}
		x = h.unit(x, "project", 256, 3)
		h.loss(h.classify(x, "conv_seg", 0.1))
	})
}

// mixed is SegFormer's head: every map to one width, joined.
func (h *segHeads) mixed() {
	h.In("decode_head", func() {
		var outs []graph.Value
		for i, m := range h.features.maps {
			outs = append(outs, h.like(h.unit(m, block("convs.", i, 0), h.channels, 1), h.features.maps[0]))
		}
		x := h.unit(h.Cat(1, outs...), "fusion_conv", h.channels, 1)
		h.loss(h.classify(x, "conv_seg", 0.1))
	})
}

// ham is SegNeXt's head: the maps joined and factorised by multiplicative updates,
// through which gradients flow.
//
// Source: mmsegmentation models/decode_heads/ham_head.py, NMF2D.
func (h *segHeads) ham() {
	width := map[string]int64{"mscan-b": 512, "mscan-l": 1024}[h.tag]
	if width == 0 {
		width = 256
	}
	const rank = 16
	h.In("decode_head", func() {
		h.norm, h.groups = graph.GroupNorm, 32
		var joined []graph.Value
		for _, m := range h.features.maps[1:] {
			joined = append(joined, h.like(m, h.features.maps[1]))
		}
		x := h.unit(h.Cat(1, joined...), "squeeze", width, 1)
		y := h.Act(graph.ReLU, h.Conv(x, "hamburger.ham_in", width, 1, graph.ConvOpt{Bias: true}), true)
		s := h.Shape(y)
		n, l := s[0], s[2]*s[3]
		rows, cols := h.View(y, n, width, l), h.View(y, n, l, width)
		var bases graph.Value
		h.NoGrad(func() { bases = h.Constant(graph.Float32, n, width, rank) })
		coef := h.Act(graph.Softmax, h.MatMul(cols, bases, false), false)
		flip := func(x graph.Value) graph.Value {
			s := h.Shape(x)
			return h.View(x, s[0], s[2], s[1])
		}
		// update multiplies a factor by what brings the product nearer.
		update := func(factor, x, other graph.Value) graph.Value {
			up := h.MatMul(x, other, false)
			down := h.MatMul(factor, h.MatMul(flip(other), other, false), false)
			return h.Binary(graph.Div, h.Binary(graph.Mul, factor, up), h.Act(graph.Scale, down, false))
		}
		for range 6 {
			coef = update(coef, cols, bases)
			bases = update(bases, rows, coef)
		}
		coef = update(coef, cols, bases)
		y = h.View(h.MatMul(bases, flip(coef), false), s...)
		y = h.convNorm(y, "hamburger.ham_out", width, 1, graph.ConvOpt{}, none)
		x = h.Act(graph.ReLU, h.Add(x, y), true)
		x = h.unit(x, "align", max(width, 256), 1)
		h.loss(h.classify(x, "conv_seg", 0.1))
	})
}
