package vision

import (
	"strings"

	"unoom/internal/model/graph"
)

// The networks for fast segmentation: two branches, one of detail and one of
// context.

// refined is an attention refinement module of BiSeNet.
func (h *segHeads) refined(x graph.Value, name string, width int64) graph.Value {
	h.In(name, func() {
		x = h.unit(x, "conv_layer", width, 3)
		a := h.convNorm(h.AdaptivePool(x, 1, 1), "atten_conv_layer.1", width, 1, graph.ConvOpt{}, none)
		x = h.Binary(graph.Mul, x, h.Act(graph.Sigmoid, a, false))
	})
	return x
}

// bisenetV1 has a shallow path of detail beside a ResNet.
func (h *segHeads) bisenetV1() {
	depth, spatial, out := 18, int64(64), int64(256)
	if h.tag != "r18" {
		depth, spatial, out = 50, 256, 1024
	}
	if h.tag == "r101" {
		depth = 101
	}
	r := plainResNet(depth)
	r.norm = graph.SyncNorm
	maps := r.forward(h.net, h.image)
	width := h.Shape(maps[1])[1]
	one := func(x graph.Value, name string) graph.Value { return h.unit(x, name, width, 1) }
	top := one(h.AdaptivePool(maps[3], 1, 1), "context_path.gap_conv.1")
	x32 := h.Add(h.refined(maps[3], "context_path.arm32", width), top)
	x32 = h.unit(h.like(x32, maps[2]), "context_path.conv_head32", width, 3)
	x16 := h.Add(h.refined(maps[2], "context_path.arm16", width), x32)
	x16 = h.unit(h.like(x16, maps[1]), "context_path.conv_head16", width, 3)
	x := h.convNorm(h.image, "spatial_path.layer1", spatial, 7, graph.ConvOpt{Stride: 2, Padding: 3}, relu)
	for i := range 2 {
		x = h.convNorm(x, block("spatial_path.layer", i+2, 0), spatial, 3, graph.ConvOpt{Stride: 2, Padding: 1}, relu)
	}
	x = h.unit(x, "spatial_path.layer4", 2*spatial, 1)
	x = h.unit(h.Cat(1, x, x16), "ffm.conv1", out, 1)
	a := h.Act(graph.Sigmoid, h.unit(h.AdaptivePool(x, 1, 1), "ffm.conv_atten.0", out, 1), false)
	x = h.Add(h.Binary(graph.Mul, x, a), x)
	h.Hold(x, x16, x32)
	h.single("decode_head", x, out, 3, 1, 0.1)
	for i, m := range []graph.Value{x16, x32} {
		h.single(block("auxiliary_head.", i, 0), m, width/2, 3, 1, 0.1)
	}
}

// gather is a gather-and-expand layer of BiSeNetV2.
func (h *segHeads) gather(x graph.Value, name string, out, stride int64) graph.Value {
	h.In(name, func() {
		in := h.Shape(x)[1]
		mid := 6 * in
		y, short := h.unit(x, "conv1", in, 3), x
		if stride == 1 {
			y = h.convNorm(y, "dwconv.0", mid, 3, graph.ConvOpt{Padding: 1, Groups: in}, relu)
		} else {
			y = h.convNorm(y, "dwconv.0", mid, 3, graph.ConvOpt{Stride: 2, Padding: 1, Groups: in}, none)
			y = h.convNorm(y, "dwconv.1", mid, 3, graph.ConvOpt{Padding: 1, Groups: mid}, relu)
			short = h.convNorm(x, "shortcut.0", in, 3, graph.ConvOpt{Stride: 2, Padding: 1, Groups: in}, none)
			short = h.convNorm(short, "shortcut.1", out, 1, graph.ConvOpt{}, none)
		}
		y = h.convNorm(y, "conv2", out, 1, graph.ConvOpt{}, none)
		x = h.Act(graph.ReLU, h.Add(y, short), false)
	})
	return x
}

// bisenetV2 has a wide shallow branch and a narrow deep one, whose every stage has
// a head.
func (h *segHeads) bisenetV2() {
	down := graph.ConvOpt{Stride: 2, Padding: 1}
	detail := h.image
	for i, width := range []int64{64, 64, 128} {
		detail = h.convNorm(detail, block("detail.", i, 0), width, 3, down, relu)
		for k := range 1 + min(i, 1) {
			detail = h.unit(detail, block("detail.", i, k+1), width, 3)
		}
	}
	x := h.convNorm(h.image, "semantic.stage1.conv_first", 16, 3, down, relu)
	left := h.convNorm(h.unit(x, "semantic.stage1.convs.0", 8, 1), "semantic.stage1.convs.1", 16, 3, down, relu)
	x = h.unit(h.Cat(1, left, h.MaxPool(x, 3, 2, 1, false)), "semantic.stage1.fuse_last", 16, 3)
	stages := []graph.Value{x}
	for i, width := range []int64{32, 64, 128} {
		for k := range 2 + max(0, i-1)*2 {
			x = h.gather(x, block("semantic.stage", i+2, k), width, int64(2-min(k, 1)))
		}
		stages = append(stages, x)
	}
	g := h.Norm(graph.SyncNorm, h.AdaptivePool(x, 1, 1), "semantic.ce.gap", false)
	x = h.unit(h.Add(x, h.unit(g, "semantic.ce.conv_gap", 128, 1)), "semantic.ce.conv_last", 128, 3)
	// Bilateral guided aggregation.
	separable := func(x graph.Value, name string) graph.Value {
		x = h.convNorm(x, name+".0", 128, 3, graph.ConvOpt{Padding: 1, Groups: 128}, none)
		return h.Conv(x, name+".1", 128, 1, graph.ConvOpt{Bias: true})
	}
	d := separable(detail, "bga.detail_dwconv")
	low := h.AvgPool(h.convNorm(detail, "bga.detail_down", 128, 3, down, none), 3, 2, 1, false)
	s := h.convNorm(x, "bga.semantic_conv", 128, 3, graph.ConvOpt{Padding: 1}, none)
	sd := separable(x, "bga.semantic_dwconv")
	one := h.Binary(graph.Mul, d, h.Act(graph.Sigmoid, h.like(s, d), false))
	two := h.Binary(graph.Mul, low, h.Act(graph.Sigmoid, sd, false))
	x = h.unit(h.Add(one, h.like(two, one)), "bga.conv", 128, 3)
	h.single("decode_head", x, 1024, 3, 1, 0.1)
	for i, width := range []int64{16, 64, 256, 1024} {
		h.single(block("auxiliary_head.", i, 0), stages[i], width, 3, 2, 0.1)
	}
}

// stdc is STDC: blocks that join convolutions of falling width, and BiSeNet's
// context path.
func (h *segHeads) stdc() {
	stages := [][]int64{{2, 1}, {2, 1}, {2, 1}}
	if h.tag == "stdc2" {
		stages = [][]int64{{2, 1, 1, 1}, {2, 1, 1, 1, 1}, {2, 1, 1}}
	}
	down := graph.ConvOpt{Stride: 2, Padding: 1}
	x := h.convNorm(h.convNorm(h.image, "stages.0", 32, 3, down, relu), "stages.1", 64, 3, down, relu)
	var maps []graph.Value
	for i, strides := range stages {
		out := int64(256) << i
		for k, stride := range strides {
			h.In(block("stages.", i+2, k), func() {
				first := h.unit(x, "layers.0", out/2, 1)
				parts, y := []graph.Value{first}, first
				if stride == 2 {
					y = h.convNorm(first, "downsample", out/2, 3, graph.ConvOpt{Stride: 2, Padding: 1, Groups: out / 2}, none)
				}
				for j, width := range []int64{out / 4, out / 8, out / 8} {
					y = h.unit(y, block("layers.", j+1, 0), width, 3)
					parts = append(parts, y)
				}
				if stride == 2 {
					parts[0] = h.AvgPool(first, 3, 2, 1, false)
				}
				x = h.Cat(1, parts...)
			})
		}
		maps = append(maps, x)
	}
	up := h.like(h.unit(h.AdaptivePool(x, 1, 1), "conv_avg", 128, 1), x)
	var arms []graph.Value
	for i := range 2 {
		a := h.Add(h.refined(maps[2-i], block("arms.", i, 0), 128), up)
		up = h.unit(h.like(a, maps[1-i]), block("convs.", i, 0), 128, 3)
		arms = append(arms, up)
	}
	x = h.unit(h.Cat(1, maps[0], arms[1]), "ffm.conv0", 256, 1)
	a := h.Act(graph.ReLU, h.Conv(h.AdaptivePool(x, 1, 1), "ffm.attention.1", 64, 1, graph.ConvOpt{}), true)
	a = h.Act(graph.Sigmoid, h.Conv(a, "ffm.attention.2", 256, 1, graph.ConvOpt{}), false)
	x = h.Add(h.Binary(graph.Mul, x, a), x)
	h.sampled = true
	h.single("decode_head", x, 256, 3, 1, 0.1)
	h.single("auxiliary_head.0", arms[1], 64, 3, 1, 0.1)
	h.single("auxiliary_head.1", arms[0], 64, 3, 1, 0.1)
	h.In("auxiliary_head.2", func() { // boundaries: two classes, each against its own
		y := h.classifyTo(h.unit(maps[0], "convs.0", 64, 3), "conv_seg", 2)
		s := h.Shape(h.label)
		y = h.Resize(h.Float(y), s[2], s[3])
		h.losses = append(h.losses, h.bce(y))
		p := h.View(h.Act(graph.Sigmoid, y, false), s[0], 2, s[2], s[3]) // dice
		target := h.Constant(graph.Float32, s[0], 2, s[2], s[3])
		h.losses = append(h.losses, h.Reduce(graph.Mean, h.Binary(graph.Mul, p, target), 1), h.Reduce(graph.Mean, h.Act(graph.Pow, p, false), 1))
	})
}

// classifyTo is classify with a number of classes of its own.
func (h *segHeads) classifyTo(x graph.Value, name string, classes int64) graph.Value {
	return h.plain(h.Dropout(graph.Dropout2d, x, 0.1), name, classes)
}

// icnet runs three sizes of the image and fuses them.
func (h *segHeads) icnet() {
	depth := map[string]int{"r18": 18, "r50": 50, "r101": 101}[h.tag]
	down := graph.ConvOpt{Stride: 2, Padding: 1}
	x := h.image
	for i, width := range []int64{32, 32, 64} {
		x = h.convNorm(x, block("conv_sub1.", i, 0), width, 3, down, relu)
	}
	sub1 := x
	half := func(x graph.Value) graph.Value {
		s := h.Shape(x)
		return h.Resize(x, s[2]/2, s[3]/2)
	}
	r := plainResNet(depth)
	r.norm, r.deepStem, r.contract, r.ceilPool = graph.SyncNorm, true, true, true
	r.strides, r.dilations = []int64{1, 2, 1, 1}, []int64{1, 1, 2, 4}
	r.between = func(stage int, x graph.Value) graph.Value {
		if stage == 1 {
			return half(x)
		}
		return x
	}
	maps := r.forward(h.net, half(h.image))
	sub2 := h.unit(maps[1], "conv_sub2", 256, 1)
	width := h.channels
	h.channels = 512
	outs := h.pyramid(maps[3], "psp_modules.")
	x = h.unit(h.Cat(1, append(outs[1:], outs[0])...), "psp_bottleneck", h.channels, 3)
	h.channels = width
	sub4 := h.unit(x, "conv_sub4", 256, 1)
	fuse := func(name string, low, high graph.Value) (both, from graph.Value) {
		h.In(name, func() {
			from = h.convNorm(h.like(low, high), "conv_low", 128, 3, graph.ConvOpt{Padding: 2, Dilation: 2}, relu)
			both = h.Act(graph.ReLU, h.Add(from, h.unit(high, "conv_high", 128, 1)), true)
		})
		return both, from
	}
	c24, x24 := fuse("neck.cff_24", sub4, sub2)
	c12, x12 := fuse("neck.cff_12", c24, sub1)
	h.single("decode_head", c12, 128, 3, 1, 0)
	h.single("auxiliary_head.0", x24, 128, 3, 1, 0.1)
	h.single("auxiliary_head.1", x12, 128, 3, 1, 0.1)
}

// erfnet factorises its convolutions.
func (h *segHeads) erfnet() {
	x := h.image
	down := func(out int64, name string) {
		in := h.Shape(x)[1]
		y := h.Conv(x, name+".conv", out-in, 3, graph.ConvOpt{Stride: 2, Padding: 1, Bias: true})
		p := h.MaxPool(x, 2, 2, 0, false)
		x = h.Act(graph.ReLU, h.Norm(graph.BatchNorm, h.Cat(1, y, p), name+".bn", false), false)
	}
	flat := func(name string, dropout float64, dilation int64) {
		h.In(name, func() {
			c, y := h.Shape(x)[1], x
			for i, d := range []int64{1, dilation} {
				y = h.Act(graph.ReLU, h.Conv(y, block("convs_layers.", i, 0), c, 3, graph.ConvOpt{KernelW: 1, Padding: d, PadW: -1, Dilation: d, Bias: true}), false)
				y = h.Conv(y, block("convs_layers.", i, 2), c, 1, graph.ConvOpt{KernelW: 3, PadW: d, Dilation: d, Bias: true})
				y = h.Norm(graph.BatchNorm, y, block("convs_layers.", i, 3), false)
				if i == 0 {
					y = h.Act(graph.ReLU, y, false)
				} else {
					y = h.Dropout(graph.Dropout, y, dropout)
				}
			}
			x = h.Act(graph.ReLU, h.Add(y, x), false)
		})
	}
	down(16, "encoder.0")
	down(64, "encoder.1")
	for i := range 5 {
		flat(block("encoder.2.", i, 0), 0.1, 1)
	}
	down(128, "encoder.7")
	for i := range 2 {
		for k := range 4 {
			flat(block("encoder.8.", i, k), 0.1, 2<<k)
		}
	}
	for i, out := range []int64{64, 16} {
		name := block("decoder.", i, 0)
		s := h.Shape(x)
		y := h.ConvTranspose(x, name+".conv", out, 3, graph.ConvOpt{Stride: 2, Padding: 1, Bias: true})
		y = h.Moved(graph.Pad, y, s[0], out, 2*s[2], 2*s[3])
		x = h.Act(graph.ReLU, h.Norm(graph.BatchNorm, y, name+".bn", false), false)
		for k := range 2 {
			flat(block(name, 0, k), 0, 1)
		}
	}
	h.single("decode_head", x, 128, 3, 1, 0.1)
}

// dual is what DDRNet and PIDNet have in common: layers of residual blocks whose
// last activation is left to the caller.
func (h *segHeads) layer(x graph.Value, name string, bottleneck bool, width, stride int64, blocks int, open bool) graph.Value {
	for i := range blocks {
		h.In(block(name, 0, i), func() {
			s, out := stride, width
			if i > 0 {
				s = 1
			}
			if bottleneck {
				out = 2 * width
			}
			y := x
			if bottleneck {
				y = h.unit(y, "conv1", width, 1)
				y = h.convNorm(y, "conv2", width, 3, graph.ConvOpt{Stride: s, Padding: 1}, relu)
				y = h.convNorm(y, "conv3", out, 1, graph.ConvOpt{}, none)
			} else {
				y = h.convNorm(y, "conv1", width, 3, graph.ConvOpt{Stride: s, Padding: 1}, relu)
				y = h.convNorm(y, "conv2", width, 3, graph.ConvOpt{Padding: 1}, none)
			}
			short := x
			if i == 0 && (stride != 1 || h.Shape(x)[1] != out) {
				short = h.convNorm(x, "downsample", out, 1, graph.ConvOpt{Stride: s}, none)
			}
			x = h.AddTo(y, short)
			if !bottleneck && !(open && i == blocks-1) {
				x = h.Act(graph.ReLU, x, true)
			}
		})
	}
	return x
}

// stemOf is the common stem of DDRNet and PIDNet, at an eighth of the image.
func (h *segHeads) stemOf(c int64, blocks int) graph.Value {
	down := graph.ConvOpt{Stride: 2, Padding: 1}
	x := h.convNorm(h.convNorm(h.image, "stem.0", c, 3, down, relu), "stem.1", c, 3, down, relu)
	x = h.Act(graph.ReLU, h.layer(x, "stem.2", false, c, 1, blocks, true), false)
	return h.Act(graph.ReLU, h.layer(x, "stem.4", false, 2*c, 2, blocks, true), false)
}

// before is a ConvModule whose norm and activation come first.
func (h *segHeads) before(x graph.Value, name string, out, kernel, groups int64) graph.Value {
	h.In(name, func() {
		x = h.Act(graph.ReLU, h.normed(x, "bn"), true)
		x = h.Conv(x, "conv", out, kernel, graph.ConvOpt{Padding: kernel / 2, Groups: groups})
	})
	return x
}

// scales is the pyramid of pools of DDRNet (one scale after the other) and of the
// small PIDNets (all at once, by groups).
func (h *segHeads) scales(x graph.Value, branch, out int64, parallel bool) graph.Value {
	h.In("spp", func() {
		first := h.before(x, "scales.0", branch, 1, 1)
		feats := []graph.Value{first}
		for i := range 4 {
			p := x
			if i < 3 {
				k := int64(2) << i
				p = h.AvgPool(x, 2*k+1, k, k, false)
			} else {
				p = h.AdaptivePool(x, 1, 1)
			}
			up := h.like(h.before(p, block("scales.", i+1, 0), branch, 1, 1), x)
			if parallel {
				feats = append(feats, h.Add(up, first))
				continue
			}
			feats = append(feats, h.before(h.Add(up, feats[i]), block("processes.", i, 0), branch, 3, 1))
		}
		if parallel {
			feats = []graph.Value{first, h.before(h.Cat(1, feats[1:]...), "processes", 4*branch, 3, 4)}
		}
		x = h.Add(h.before(h.Cat(1, feats...), "compression", out, 1, 1), h.before(x, "shortcut", out, 1, 1))
	})
	return x
}

// dualHead is the head of both: norm, activation, convolution, norm, activation.
func (h *segHeads) dualHead(x graph.Value, name string, width, out int64) graph.Value {
	h.In(name, func() {
		x = h.Act(graph.ReLU, h.normed(h.before(x, "conv", width, 3, 1), "norm"), true)
		x = h.plain(h.Dropout(graph.Dropout2d, x, 0), "cls_seg", out)
	})
	return x
}

// hardest is the loss over the hardest pixels.
func (h *segHeads) hardest(logits graph.Value) {
	s := h.Shape(h.label)
	p := h.Act(graph.LogSoftmax, logits, false)
	q := h.Act(graph.Softmax, logits, false)
	l := h.Loss(graph.NLL, graph.Float32, []graph.Value{p, h.label}, s[0], s[2], s[3])
	pixels := s[0] * s[2] * s[3]
	pick := func(x graph.Value) graph.Value { // by an index that autograd keeps
		return h.Loss(graph.Gather, graph.Float32, []graph.Value{x, h.Constant(graph.Int64, pixels)}, pixels)
	}
	order := pick(pick(q))
	l = pick(h.View(l, pixels))
	h.NoGrad(func() { h.Reduce(graph.TopK, order, pixels) })
	h.losses = append(h.losses, h.Reduce(graph.Mean, l, 1))
}

// ddrnet keeps a fine branch beside a coarse one and exchanges maps twice.
func (h *segHeads) ddrnet() {
	c, branch := int64(64), int64(128)
	head := int64(128)
	if strings.HasSuffix(h.tag, "slim") {
		c, head = 32, 64
	}
	re := func(x graph.Value) graph.Value { return h.Act(graph.ReLU, x, false) }
	x := h.stemOf(c, 2)
	low, fine := h.layer(x, "context.0", false, 4*c, 2, 2, true), h.layer(x, "spatial.0", false, 2*c, 1, 2, true)
	down := graph.ConvOpt{Stride: 2, Padding: 1}
	comp := h.convNorm(re(low), "compression_1", 2*c, 1, graph.ConvOpt{}, none)
	low = h.AddTo(low, h.convNorm(re(fine), "down_1", 4*c, 3, down, none))
	fine = h.AddTo(fine, h.like(comp, fine))
	early := h.Copy(fine)
	low, fine = h.layer(re(low), "context.1", false, 8*c, 2, 2, true), h.layer(re(fine), "spatial.1", false, 2*c, 1, 2, true)
	comp = h.convNorm(re(low), "compression_2", 2*c, 1, graph.ConvOpt{}, none)
	low = h.AddTo(low, h.convNorm(h.convNorm(re(fine), "down_2.0", 4*c, 3, down, relu), "down_2.1", 8*c, 3, down, none))
	fine = h.AddTo(fine, h.like(comp, fine))
	fine, low = h.layer(re(fine), "spatial.2", true, 2*c, 1, 1, true), h.layer(re(low), "context.2", true, 8*c, 2, 1, true)
	low = h.scales(low, branch, 4*c, false)
	x = h.Add(fine, h.like(low, fine))
	s := h.Shape(h.label)
	coarse := h.Resize(h.Float(h.dualHead(x, "head", head, h.classes)), s[2], s[3])
	other := h.Resize(h.Float(h.dualHead(early, "aux_head", head, h.classes)), s[2], s[3])
	h.hardest(coarse)
	h.hardest(other)
	h.NoGrad(func() { h.Reduce(graph.TopK, coarse, s[0], 1, s[2], s[3]) })
}

// pidnet has a third branch for boundaries.
func (h *segHeads) pidnet() {
	type size struct {
		c, branch, head int64
		stem, blocks    int
	}
	z := map[string]size{"pid-s": {32, 96, 128, 2, 3}, "pid-m": {64, 96, 128, 2, 3}, "pid-l": {64, 112, 256, 3, 4}}[h.tag]
	c, small := z.c, z.stem == 2
	re := func(x graph.Value) graph.Value { return h.Act(graph.ReLU, x, false) }
	near := func(x graph.Value, name string, out, kernel int64) graph.Value {
		return h.convNorm(x, name, out, kernel, graph.ConvOpt{Padding: kernel / 2}, none)
	}
	x := h.stemOf(c, z.stem)
	i := re(h.layer(x, "i_branch.0", false, 4*c, 2, z.blocks, true))
	p := h.layer(x, "p_branch.0", false, 2*c, 1, z.stem, true)
	first, wide := c, c
	if !small {
		first, wide = 2*c, 2*c
	}
	d := h.layer(x, "d_branch.0", false, first, 1, 1, true)
	guided := func(name string, p, i graph.Value) graph.Value { // PagFM
		h.In(name, func() {
			f := h.like(near(i, "f_i", c, 1), p)
			q := near(p, "f_p", c, 1)
			sh := h.Shape(q)
			sigma := h.Act(graph.Sigmoid, h.Reduce(graph.Sum, h.Binary(graph.Mul, q, f), sh[0], 1, sh[2], sh[3]), false)
			up := h.like(i, p)
			p = h.Add(h.Binary(graph.Mul, up, sigma), h.Binary(graph.Mul, p, h.Act(graph.Scale, sigma, false)))
		})
		return p
	}
	p = guided("pag_1", p, near(i, "compression_1", 2*c, 1))
	d = h.AddTo(d, h.like(near(i, "diff_1", wide, 3), d))
	early := h.Copy(p)
	i = re(h.layer(i, "i_branch.1", false, 8*c, 2, z.blocks, true))
	p = h.layer(re(p), "p_branch.1", false, 2*c, 1, z.stem, true)
	d = h.layer(re(d), "d_branch.1", small, wide, 1, 1, true)
	p = guided("pag_2", p, near(i, "compression_2", 2*c, 1))
	d = h.AddTo(d, h.like(near(i, "diff_2", 2*c, 3), d))
	edge := h.Copy(d)
	i = h.layer(i, "i_branch.2", true, 8*c, 2, 2, true)
	p = h.layer(re(p), "p_branch.2", true, 2*c, 1, 1, true)
	d = h.layer(re(d), "d_branch.2", true, 2*c, 1, 1, true)
	i = h.like(h.scales(i, z.branch, 4*c, small), p)
	h.In("dfm", func() {
		sigma := h.Act(graph.Sigmoid, d, false)
		rest := h.Act(graph.Scale, sigma, false)
		if small {
			one := near(h.Add(h.Binary(graph.Mul, i, rest), p), "f_p", 4*c, 1)
			x = h.Add(one, near(h.Add(i, h.Binary(graph.Mul, p, sigma)), "f_i", 4*c, 1))
			return
		}
		x = h.before(h.Add(h.Binary(graph.Mul, p, sigma), h.Binary(graph.Mul, i, rest)), "conv", 4*c, 3, 1)
	})
	s := h.Shape(h.label)
	full := func(x graph.Value) graph.Value { return h.Resize(h.Float(x), s[2], s[3]) }
	logits := h.dualHead(x, "i_head", z.head, h.classes)
	pl, dl := h.dualHead(early, "p_head", z.head, h.classes), h.dualHead(edge, "d_head", c, 1)
	plain, il, dl := full(pl), full(logits), full(dl)
	l := h.Loss(graph.NLL, graph.Float32, []graph.Value{h.Act(graph.LogSoftmax, plain, false), h.label}, s[0], s[2], s[3])
	h.losses = append(h.losses, h.Reduce(graph.Mean, l, 1))
	h.hardest(il)
	h.losses = append(h.losses, h.bce(dl))
	h.hardest(il)
	h.NoGrad(func() { h.Reduce(graph.TopK, il, s[0], 1, s[2], s[3]) })
}
