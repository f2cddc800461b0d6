package vision

import (
	"regexp"
	"strconv"
	"strings"

	"unoom/internal/model/graph"
)

// backboneTag is how OpenMMLab's configurations name a backbone: "r50-d8",
// "r101-d16-mg124", "r18b-d8" (b: torchvision's stem), "s101-d8" (ResNeSt),
// "x101-32x4d".
var backboneTag = regexp.MustCompile(`^(r|s|x)(\d+)(b|s)?(?:-(\d+)x(\d+)d)?(?:-d(\d+))?(?:-(mg124))?(-rsb)?$`)

// features adds the backbone of the network's tag.
func (s *segNet) features(b *net, x graph.Value) segFeatures {
	if f, ok := s.transformer(b, x); ok {
		return f
	}
	switch tag := s.backbone; {
	case tag == "m-v2-d8" || tag == "m-v2":
		return mobilenetV2Features(b, x)
	case strings.HasPrefix(tag, "m-v3"):
		return mobilenetV3Features(b, x, strings.HasSuffix(tag, "s") || strings.HasPrefix(tag, "m-v3s"))
	case strings.HasPrefix(tag, "hr"):
		small := strings.HasSuffix(tag, "s")
		w, err := strconv.ParseInt(strings.Trim(tag, "hrs"), 10, 64)
		if err != nil || w < 1 || w > 128 {
			b.Fail("backbone %q is not known", tag)
			return segFeatures{maps: []graph.Value{x}}
		}
		return segFeatures{maps: hrnet(b, x, w, small), channels: -1, aux: -1}
	case strings.HasPrefix(tag, "unet"):
		f := unetFeatures(b, x)
		if s.method != "fcn" {
			f.channels = 16
		}
		return f
	case tag == "m3n21":
		return segFeatures{maps: cgnet(b, x), aux: -1}
	case tag == "fastscnn":
		return segFeatures{maps: fastSCNN(b, x), aux: -1}
	}
	m := backboneTag.FindStringSubmatch(s.backbone)
	if m == nil {
		b.Fail("backbone %q is not known", s.backbone)
		return segFeatures{maps: []graph.Value{x}}
	}
	depth, _ := strconv.Atoi(m[2])
	r := plainResNet(depth)
	r.norm = graph.SyncNorm
	r.deepStem = m[3] != "b" && m[8] == "" // rsb: the weights of another training
	if m[3] == "s" {
		r.stemChannels = 128
	}
	if m[1] == "s" {
		r.splits, r.deepStem, r.stemChannels, r.avgDown, r.avgAlways = 2, true, 128, true, true
	}
	if m[4] != "" {
		r.groups, _ = strconv.ParseInt(m[4], 10, 64)
		r.widthPerGroup, _ = strconv.ParseInt(m[5], 10, 64)
	}
	r.contract = true
	switch m[6] {
	case "8":
		r.strides, r.dilations = []int64{1, 2, 1, 1}, []int64{1, 1, 2, 4}
	case "16":
		r.strides, r.dilations = []int64{1, 2, 2, 1}, []int64{1, 1, 1, 2}
	case "", "32":
		if strings.HasPrefix(s.method, "fastfcn") {
			r.dilations = []int64{1, 1, 2, 4}
		}
	default:
		b.Fail("a stride of %s is not modelled", m[6])
	}
	if m[7] != "" {
		r.multiGrid = []int64{1, 2, 4}
	}
	f := segFeatures{maps: r.forward(b, x), channels: 512, aux: 2, auxWidth: 256}
	if depth < 50 {
		f.channels, f.auxWidth = 128, 64
		if s.method == "upernet" {
			f.channels, f.auxWidth = 512, 256
		}
	}
	return f
}

// mobilenetV2Features is MobileNetV2 with its last strides replaced by dilation.
func mobilenetV2Features(b *net, x graph.Value) segFeatures {
	b.act, b.inPlace = graph.HardTanh, true
	x = b.convNorm(x, "conv1", 32, 3, graph.ConvOpt{Stride: 2, Padding: 1}, main)
	var maps []graph.Value
	for stage, s := range []struct {
		expand, channels int64
		n                int
		stride, dilation int64
	}{{1, 16, 1, 1, 1}, {6, 24, 2, 2, 1}, {6, 32, 3, 2, 1}, {6, 64, 4, 1, 2}, {6, 96, 3, 1, 2}, {6, 160, 3, 1, 4}, {6, 320, 1, 1, 4}} {
		for i := range s.n {
			stride := int64(1)
			if i == 0 {
				stride = s.stride
			}
			b.In(block("layer", stage+1, i), func() { x = invertedResidual(b, x, s.channels, s.expand, 3, stride, s.dilation) })
		}
		if stage == 1 || stage == 2 || stage == 4 || stage == 6 {
			maps = append(maps, x)
		}
	}
	return segFeatures{maps: maps, channels: 512, aux: 2, auxWidth: 256}
}

// mobilenetV3Features is MobileNetV3 as LRASPP uses it: the stride of the last
// blocks is replaced by dilation.
func mobilenetV3Features(b *net, x graph.Value, small bool) segFeatures {
	type row struct {
		kernel, mid, out int64
		se, swish        bool
		stride           int64
	}
	rows := []row{{3, 16, 16, false, false, 1}, {3, 64, 24, false, false, 2}, {3, 72, 24, false, false, 1}, {5, 72, 40, true, false, 2}, {5, 120, 40, true, false, 1},
		{5, 120, 40, true, false, 1}, {3, 240, 80, false, true, 2}, {3, 200, 80, false, true, 1}, {3, 184, 80, false, true, 1}, {3, 184, 80, false, true, 1},
		{3, 480, 112, true, true, 1}, {3, 672, 112, true, true, 1}, {5, 672, 160, true, true, 2}, {5, 960, 160, true, true, 1}, {5, 960, 160, true, true, 1}}
	keep, dilate4, dilate8, last := []int{0, 2}, 6, 12, int64(960)
	if small {
		rows = []row{{3, 16, 16, true, false, 2}, {3, 72, 24, false, false, 2}, {3, 88, 24, false, false, 1}, {5, 96, 40, true, true, 2}, {5, 240, 40, true, true, 1},
			{5, 240, 40, true, true, 1}, {5, 120, 48, true, true, 1}, {5, 144, 48, true, true, 1}, {5, 288, 96, true, true, 2}, {5, 576, 96, true, true, 1}, {5, 576, 96, true, true, 1}}
		keep, dilate4, dilate8, last = []int{-1, 0}, 3, 8, 576
	}
	b.act, b.inPlace = graph.HardSwish, true
	// Convolutions with a stride are padded by a copy, as TensorFlow does.
	// Source: mmcv cnn/bricks/conv2d_adaptive_padding.py.
	padded := func(x graph.Value, kernel, stride, dilation int64) graph.Value {
		s := b.Shape(x)
		side := func(n int64) int64 { return n + max(0, ((n+stride-1)/stride-1)*stride+(kernel-1)*dilation+1-n) }
		return b.Moved(graph.Pad, x, s[0], s[1], side(s[2]), side(s[3]))
	}
	x = b.convNorm(padded(x, 3, 2, 1), "layer0", 16, 3, graph.ConvOpt{Stride: 2}, main)
	var maps []graph.Value
	if keep[0] < 0 {
		maps = append(maps, x)
	}
	for i, r := range rows {
		stride, dilation := r.stride, int64(1)
		if i >= dilate4 {
			dilation = 2
		}
		if i >= dilate8 {
			dilation = 4
		}
		if i == dilate4 || i == dilate8 {
			stride = 1
		}
		act := graph.ReLU
		if r.swish {
			act = graph.HardSwish
		}
		b.In(block("layer", i+1, 0), func() {
			b.act = act
			in, y := b.Shape(x)[1], x
			if r.mid != in {
				y = b.convNorm(y, "expand", r.mid, 1, graph.ConvOpt{}, main)
			}
			o := graph.ConvOpt{Stride: stride, Padding: r.kernel / 2 * dilation, Dilation: dilation, Groups: r.mid}
			if r.stride > 1 {
				y, o.Padding = padded(y, r.kernel, stride, dilation), 0
			}
			y = b.convNorm(y, "depthwise", r.mid, r.kernel, o, main)
			if r.se {
				y = b.squeeze(y, "se", divisible(float64(r.mid/4), 8), graph.ReLU, graph.HardSigmoid)
			}
			y = b.convNorm(y, "linear", r.out, 1, graph.ConvOpt{}, none)
			if stride == 1 && in == r.out {
				y = b.Add(x, y)
			}
			x = y
		})
		if i == keep[0] || i == keep[1] {
			maps = append(maps, x)
		}
	}
	b.act = graph.HardSwish
	x = b.convNorm(x, "layer16", last, 1, graph.ConvOpt{}, main)
	b.act = graph.ReLU
	return segFeatures{maps: append(maps, x), aux: -1}
}

// unetFeatures is U-Net with five stages.
func unetFeatures(b *net, x graph.Value) segFeatures {
	two := func(x graph.Value, name string, width int64) graph.Value {
		x = b.convNorm(x, name+".0", width, 3, graph.ConvOpt{Padding: 1}, relu)
		return b.convNorm(x, name+".1", width, 3, graph.ConvOpt{Padding: 1}, relu)
	}
	var enc []graph.Value
	for i := range 5 {
		if i > 0 {
			x = b.MaxPool(x, 2, 2, 0, false)
		}
		x = two(x, block("encoder.", i, 0), 64<<i)
		enc = append(enc, x)
	}
	outs := []graph.Value{x}
	for i := 3; i >= 0; i-- {
		skip := enc[i]
		s := b.Shape(skip)
		// InterpConv: interpolate, then a convolution.
		x = b.Resize(x, s[2], s[3])
		x = b.convNorm(x, block("decoder.", i, 0)+".up", 64<<i, 1, graph.ConvOpt{}, relu)
		x = two(b.Cat(1, skip, x), block("decoder.", i, 0)+".conv", 64<<i)
		outs = append(outs, x)
	}
	return segFeatures{maps: outs, channels: 64, aux: 3, auxWidth: 64}
}

// cgnet mixes local and surrounding context in every block.
func cgnet(b *net, x graph.Value) []graph.Value {
	pools := func(n int) graph.Value {
		y := x
		for range n {
			y = b.AvgPool(y, 3, 2, 1, false)
		}
		return y
	}
	prelu := func(x graph.Value, name string) graph.Value { return b.PReLU(b.normed(x, name+".0"), name+".1") }
	unit := func(x graph.Value, name string, out, kernel, stride int64) graph.Value {
		b.In(name, func() {
			x = b.Conv(x, "conv", out, kernel, graph.ConvOpt{Stride: stride, Padding: kernel / 2})
			x = prelu(x, "bn")
		})
		return x
	}
	half, quarter := pools(1), pools(2)
	for i := range 3 {
		stride := int64(1)
		if i == 0 {
			stride = 2
		}
		x = unit(x, block("stem.", i, 0), 32, 3, stride)
	}
	x = prelu(b.Cat(1, x, half), "norm_prelu_0")
	outs := []graph.Value{x}
	for level, l := range []struct {
		blocks              int
		width               int64
		dilation, reduction int64
	}{{3, 64, 2, 8}, {21, 128, 4, 16}} {
		var down graph.Value
		for i := range l.blocks {
			b.In(block("level", level+1, i), func() { x = contextBlock(b, x, l.width, l.dilation, l.reduction, i == 0, unit) })
			if i == 0 {
				down = x
			}
		}
		if level == 0 {
			x = b.Cat(1, x, down, quarter)
		} else {
			x = b.Cat(1, down, x)
		}
		x = prelu(x, block("norm_prelu_", level+1, 0))
		outs = append(outs, x)
	}
	return outs
}

// contextBlock is CGNet's block.
func contextBlock(b *net, x graph.Value, out, dilation, reduction int64, down bool, unit func(graph.Value, string, int64, int64, int64) graph.Value) graph.Value {
	channels, kernel, stride := out/2, int64(1), int64(1)
	if down {
		channels, kernel, stride = out, 3, 2
	}
	y := unit(x, "conv1x1", channels, kernel, stride)
	local := b.Conv(y, "f_loc", channels, 3, graph.ConvOpt{Padding: 1, Groups: channels})
	around := b.Conv(y, "f_sur", channels, 3, graph.ConvOpt{Padding: dilation, Dilation: dilation, Groups: channels})
	j := b.PReLU(b.normed(b.Cat(1, local, around), "bn"), "activate")
	if down {
		j = b.Conv(j, "bottleneck", out, 1, graph.ConvOpt{})
	}
	n := b.Shape(j)[0]
	g := b.View(b.AdaptivePool(j, 1, 1), n, out)
	g = b.Act(graph.ReLU, b.Linear(g, "f_glo.fc.0", out/reduction, true), true)
	g = b.Act(graph.Sigmoid, b.Linear(g, "f_glo.fc.2", out, true), false)
	y = b.Binary(graph.Mul, j, b.View(g, n, out, 1, 1))
	if !down {
		y = b.Add(x, y)
	}
	return y
}

// cgnet's head is a dropout-free 1×1 convolution.
func (h *segHeads) cgnet() {
	h.In("decode_head", func() { h.loss(h.plain(h.last(), "conv_seg", h.classes)) })
}

// fastSCNN learns to downsample, sees the whole image at 1/32, and fuses both.
func fastSCNN(b *net, x graph.Value) []graph.Value {
	x = b.convNorm(x, "learning_to_downsample.conv", 32, 3, graph.ConvOpt{Stride: 2}, relu)
	ds := func(x graph.Value, name string, out int64) graph.Value {
		b.In(name, func() {
			c := b.Shape(x)[1]
			x = b.convNorm(x, "depthwise_conv", c, 3, graph.ConvOpt{Stride: 2, Padding: 1, Groups: c}, none)
			x = b.convNorm(x, "pointwise_conv", out, 1, graph.ConvOpt{}, relu)
		})
		return x
	}
	x = ds(x, "learning_to_downsample.dsconv1", 48)
	high := ds(x, "learning_to_downsample.dsconv2", 64)
	x = high
	b.act = graph.ReLU
	for i, out := range []int64{64, 96, 128} {
		for k := range 3 {
			stride := int64(1)
			if k == 0 && i < 2 {
				stride = 2
			}
			b.In(block("global.bottleneck", i+1, k), func() { x = invertedResidual(b, x, out, 6, 3, stride, 1) })
		}
	}
	outs := []graph.Value{x}
	for i, size := range []int64{1, 2, 3, 6} {
		y := b.convNorm(b.AdaptivePool(x, size, size), block("global.ppm.", i, 1), 32, 1, graph.ConvOpt{}, relu)
		s := b.Shape(x)
		outs = append(outs, b.Resize(y, s[2], s[3]))
	}
	low := b.convNorm(b.Cat(1, outs...), "global.out", 128, 3, graph.ConvOpt{Padding: 1}, relu)
	s := b.Shape(high)
	y := b.Resize(low, s[2], s[3])
	y = b.convNorm(y, "fusion.dwconv", 128, 3, graph.ConvOpt{Padding: 1, Groups: 128}, relu)
	y = b.convNorm(y, "fusion.conv_lower", 128, 1, graph.ConvOpt{}, none)
	z := b.convNorm(high, "fusion.conv_higher", 128, 1, graph.ConvOpt{}, none)
	return []graph.Value{high, low, b.Act(graph.ReLU, b.Add(z, y), true)}
}

// fastSCNN's head is separable, with two auxiliary ones.
func (h *segHeads) fastSCNN() {
	h.binary = true
	h.In("decode_head", func() {
		x := h.separable(h.last(), "convs.0", 128, 3, 1)
		x = h.separable(x, "convs.1", 128, 3, 1)
		h.loss(h.classify(x, "conv_seg", 0.1))
	})
	for i, at := range []int{1, 0} {
		h.In(block("auxiliary_head.", i, 0), func() {
			x := h.unit(h.at(at), "convs.0", 32, 3)
			h.loss(h.classify(x, "conv_seg", 0.1))
		})
	}
}
