package vision

import "unoom/internal/model/graph"

// segNet is a segmentation network of OpenMMLab's parts: a backbone, perhaps a
// neck, decode heads, and their losses.
type segNet struct {
	backbone string // tag of the configuration's name: "r50-d8", "m-v2-d8", "hr18", …
	method   string
	classes  int64
	dilation int64 // of an FCN head
}

// build adds the network and its losses.
func (s *segNet) build(b *net, in Input) {
	b.norm = graph.SyncNorm
	x := b.Input(graph.Float, in.Batch, 3, in.Height, in.Width)
	label := b.Input(graph.Int64, in.Batch, 1, in.Height, in.Width)
	h := &segHeads{net: b, classes: s.classes, label: label, dilation: s.dilation, method: s.method, tag: s.backbone, image: x}
	if whole := h.whole()[s.method]; whole != nil { // no backbone with a head of its own
		whole()
		h.finishLoss()
		return
	}
	bb := s.features(b, x)
	if b.err != nil {
		return
	}
	b.Hold(bb.maps...)
	b.norm = graph.SyncNorm
	h.features, h.channels = bb, bb.channels
	head := map[string]func(){
		"fcn": h.fcn, "pspnet": h.psp, "deeplabv3": h.aspp, "deeplabv3plus": h.asppPlus, "upernet": h.uper, "fpn": h.fpn,
		"ann": h.ann, "apcnet": h.apc, "ccnet": h.cc, "danet": h.da, "dmnet": h.dm, "dnl": h.dnl, "encnet": h.enc, "emanet": h.ema,
		"gcnet": h.gc, "isanet": h.isa, "nonlocal": h.nonLocal, "psanet": h.psa, "ocrnet": h.ocr, "fastfcn-psp": func() { h.joinedPyramid(); h.psp() }, "fastfcn-aspp": func() { h.joinedPyramid(); h.aspp() },
		"fastfcn-enc": func() { h.joinedPyramid(); h.enc() },
		"segformer":   h.mixed, "ham": h.ham,
		"cgnet": h.cgnet, "lraspp": h.lraspp, "fast_scnn": h.fastSCNN, "pointrend": h.pointRend,
	}[s.method]
	if head == nil {
		b.Fail("segmentation method %q is not known", s.method)
		return
	}
	head()
	h.finishLoss()
}

// whole are the methods that build their whole network.
func (h *segHeads) whole() map[string]func() {
	return map[string]func(){
		"setr-naive": h.setr, "setr-pup": h.setr, "setr-mla": h.setr, "segmenter-mask": h.segmenter, "segmenter-fcn": h.segmenter, "segmenter-linear": h.segmenter, "dpt": h.dpt,
		"bisenetv1": h.bisenetV1, "bisenetv2": h.bisenetV2, "stdc": h.stdc, "icnet": h.icnet, "erfnet": h.erfnet, "ddrnet": h.ddrnet, "pidnet": h.pidnet,
	}
}

// segFeatures are the maps of a backbone, and how wide the heads on it are.
type segFeatures struct {
	maps     []graph.Value
	channels int64 // of a decode head on the last map
	aux      int   // the map of the auxiliary head; -1: none
	auxWidth int64
}

// segHeads builds decode heads.
type segHeads struct {
	*net
	method   string
	tag      string // of the backbone
	image    graph.Value
	features segFeatures
	classes  int64
	channels int64
	dilation int64
	label    graph.Value
	losses   []graph.Value
	sampled  bool // only the hardest pixels count, by a weight for each
	binary   bool // every class against the others
}

// at returns the map of an index; -1 is the last.
func (h *segHeads) at(i int) graph.Value {
	if i < 0 {
		i += len(h.features.maps)
	}
	if i < 0 || i >= len(h.features.maps) {
		h.Fail("the backbone has no map %d", i)
		return h.features.maps[0]
	}
	return h.features.maps[i]
}

// last is the last map.
func (h *segHeads) last() graph.Value { return h.at(-1) }

// unit is ConvModule: convolution, norm, ReLU in place.
func (h *segHeads) unit(x graph.Value, name string, out, kernel int64) graph.Value {
	return h.convNorm(x, name, out, kernel, graph.ConvOpt{Padding: kernel / 2}, relu)
}

// plain is a 1×1 convolution with a bias.
func (h *segHeads) plain(x graph.Value, name string, out int64) graph.Value {
	return h.Conv(x, name, out, 1, graph.ConvOpt{Bias: true})
}

// classify is cls_seg: dropout of whole maps, and a 1×1 convolution.
func (h *segHeads) classify(x graph.Value, name string, dropout float64) graph.Value {
	return h.plain(h.Dropout(graph.Dropout2d, x, dropout), name, h.classes)
}

// like resizes x to the size of y.
func (h *segHeads) like(x, y graph.Value) graph.Value {
	s := h.Shape(y)
	return h.Resize(x, s[2], s[3])
}

// loss is BaseDecodeHead.losses: the logits are resized to the label, cross
// entropy keeps a value for each pixel, and the accuracy takes the best class.
func (h *segHeads) loss(logits graph.Value) {
	s := h.Shape(h.label)
	n, hh, w := s[0], s[2], s[3]
	logits = h.Resize(h.Float(logits), hh, w)
	if h.binary {
		h.oneHot(logits)
		return
	}
	weight := graph.None
	if h.sampled {
		h.NoGrad(func() {
			h.Moved(graph.Gather, h.Act(graph.Softmax, logits, false), n, hh, w)
			weight = h.Constant(graph.Float32, n, hh, w)
		})
	}
	p := h.Act(graph.LogSoftmax, logits, false)
	l := h.Loss(graph.NLL, graph.Float32, []graph.Value{p, h.label}, n, hh, w)
	if h.sampled {
		l = h.Binary(graph.Mul, l, weight)
	}
	h.losses = append(h.losses, h.Reduce(graph.Mean, l, 1))
	h.NoGrad(func() {
		h.Reduce(graph.TopK, logits, n, 1, hh, w)
	})
}

// oneHot is the loss of every class against the others: the label becomes a map for
// each class, and so does the mask of pixels that count.
//
// Source: mmsegmentation models/losses/cross_entropy_loss.py, binary_cross_entropy.
func (h *segHeads) oneHot(logits graph.Value) {
	s := h.Shape(logits)
	labels := h.Constant(graph.Int64, s...)
	h.Constant(graph.Int64, 3, s[0]*s[2]*s[3])
	weight := h.Constant(graph.Float32, s...)
	l := h.Loss(graph.BCELogits, graph.Float32, []graph.Value{logits, h.Float(labels)}, s...)
	h.Hold(labels)
	h.losses = append(h.losses, h.Reduce(graph.Mean, h.Binary(graph.Mul, l, weight), 1))
	h.NoGrad(func() { h.Reduce(graph.TopK, logits, s[0], 1, s[2], s[3]) })
}

// finishLoss sums the losses.
func (h *segHeads) finishLoss() {
	if len(h.losses) == 0 {
		h.Fail("the network has no loss")
		return
	}
	sum := h.losses[0]
	for _, l := range h.losses[1:] {
		sum = h.Add(sum, l)
	}
	h.Start(sum)
}

// aux is the auxiliary FCN head on an earlier map.
func (h *segHeads) aux() {
	f := h.features
	if f.aux < 0 {
		return
	}
	h.In("auxiliary_head", func() {
		x := h.convNorm(h.at(f.aux), "convs.0", f.auxWidth, 3, graph.ConvOpt{Padding: h.dilation, Dilation: h.dilation}, relu)
		h.loss(h.classify(x, "conv_seg", 0.1))
	})
}

// fcn is two convolutions and one over their result joined with their input.
func (h *segHeads) fcn() {
	switch {
	case len(h.features.maps) == 4 && h.features.aux < 0 && h.features.channels < 0: // HRNet: all maps, resized
		h.hrHead()
	case h.features.aux >= 0 && h.features.auxWidth == 64 && h.features.channels == 64: // U-Net
		h.In("decode_head", func() {
			x := h.unit(h.last(), "convs.0", 64, 3)
			h.loss(h.classify(x, "conv_seg", 0.1))
		})
		h.aux()
	default:
		h.In("decode_head", func() {
			x := h.last()
			o := graph.ConvOpt{Padding: h.dilation, Dilation: h.dilation}
			y := h.convNorm(h.convNorm(x, "convs.0", h.channels, 3, o, relu), "convs.1", h.channels, 3, o, relu)
			y = h.unit(h.Cat(1, x, y), "conv_cat", h.channels, 3)
			h.loss(h.classify(y, "conv_seg", 0.1))
		})
		h.aux()
	}
}

// joined resizes all maps to the first and joins them.
func (h *segHeads) joined() graph.Value {
	var xs []graph.Value
	for _, m := range h.features.maps {
		xs = append(xs, h.like(m, h.features.maps[0]))
	}
	return h.Cat(1, xs...)
}

// hrHead is the 1×1 FCN head over all maps of HRNet.
func (h *segHeads) hrHead() {
	h.In("decode_head", func() {
		x := h.joined()
		x = h.unit(x, "convs.0", h.Shape(x)[1], 1)
		h.loss(h.classify(x, "conv_seg", 0))
	})
}

// pyramid is the pooling pyramid of PSPNet: x and its pooled maps, resized.
func (h *segHeads) pyramid(x graph.Value, name string) []graph.Value {
	outs := []graph.Value{x}
	for i, size := range []int64{1, 2, 3, 6} {
		y := h.AdaptivePool(x, size, size)
		y = h.unit(y, block(name, i, 1), h.channels, 1)
		outs = append(outs, h.like(y, x))
	}
	return outs
}

func (h *segHeads) psp() {
	h.In("decode_head", func() {
		x := h.Cat(1, h.pyramid(h.last(), "psp_modules.")...)
		x = h.unit(x, "bottleneck", h.channels, 3)
		h.loss(h.classify(x, "conv_seg", 0.1))
	})
	h.aux()
}

// atrous is the atrous pyramid of DeepLab; separable where v3+ makes it so.
func (h *segHeads) atrous(x graph.Value, dilations []int64, separable bool) graph.Value {
	outs := []graph.Value{h.like(h.unit(h.AdaptivePool(x, 1, 1), "image_pool.1", h.channels, 1), x)}
	for i, d := range dilations {
		name := block("aspp_modules.", i, 0)
		switch {
		case d == 1:
			outs = append(outs, h.unit(x, name, h.channels, 1))
		case separable:
			outs = append(outs, h.separable(x, name, h.channels, 3, d))
		default:
			outs = append(outs, h.convNorm(x, name, h.channels, 3, graph.ConvOpt{Padding: d, Dilation: d}, relu))
		}
	}
	return h.unit(h.Cat(1, outs...), "bottleneck", h.channels, 3)
}

// separable is a depthwise and a pointwise ConvModule.
func (b *net) separable(x graph.Value, name string, out, kernel, dilation int64) graph.Value {
	b.In(name, func() {
		x = b.convNorm(x, "depthwise_conv", b.Shape(x)[1], kernel, graph.ConvOpt{Padding: kernel / 2 * dilation, Dilation: dilation, Groups: b.Shape(x)[1]}, relu)
		x = b.convNorm(x, "pointwise_conv", out, 1, graph.ConvOpt{}, relu)
	})
	return x
}

// dilations are those of the pyramid: half as wide where the maps are half as
// fine, and on a U-Net.
func (h *segHeads) dilations() []int64 {
	if h.Shape(h.label)[2]/max(1, h.Shape(h.last())[2]) >= 15 || h.features.channels == 16 {
		return []int64{1, 6, 12, 18}
	}
	return []int64{1, 12, 24, 36}
}

func (h *segHeads) aspp() {
	h.In("decode_head", func() {
		h.loss(h.classify(h.atrous(h.last(), h.dilations(), false), "conv_seg", 0.1))
	})
	h.aux()
}

func (h *segHeads) asppPlus() {
	h.In("decode_head", func() {
		x := h.atrous(h.last(), h.dilations(), true)
		low, width := h.at(0), int64(48)
		if h.channels < 512 {
			width = 12
		}
		c := h.unit(low, "c1_bottleneck", width, 1)
		x = h.Cat(1, h.like(x, c), c)
		x = h.separable(h.separable(x, "sep_bottleneck.0", h.channels, 3, 1), "sep_bottleneck.1", h.channels, 3, 1)
		h.loss(h.classify(x, "conv_seg", 0.1))
	})
	h.aux()
}

// uper is UPerNet: a pooling pyramid on top, a feature pyramid below it.
func (h *segHeads) uper() {
	h.In("decode_head", func() {
		n := len(h.features.maps)
		lat := make([]graph.Value, n)
		for i, m := range h.features.maps[:n-1] {
			lat[i] = h.Act(graph.ReLU, h.convNorm(m, block("lateral_convs.", i, 0), h.channels, 1, graph.ConvOpt{}, none), false)
		}
		lat[n-1] = h.unit(h.Cat(1, h.pyramid(h.last(), "psp_modules.")...), "bottleneck", h.channels, 3)
		for i := n - 1; i > 0; i-- {
			lat[i-1] = h.Add(lat[i-1], h.like(lat[i], lat[i-1]))
		}
		outs := make([]graph.Value, n)
		for i := range n - 1 {
			outs[i] = h.Act(graph.ReLU, h.convNorm(lat[i], block("fpn_convs.", i, 0), h.channels, 3, graph.ConvOpt{Padding: 1}, none), false)
		}
		outs[n-1] = lat[n-1]
		for i := n - 1; i > 0; i-- {
			outs[i] = h.like(outs[i], outs[0])
		}
		x := h.unit(h.Cat(1, outs...), "fpn_bottleneck", h.channels, 3)
		h.loss(h.classify(x, "conv_seg", 0.1))
	})
	h.aux()
}

// neckFPN is the feature pyramid of detection, without norms.
func (b *net) neckFPN(maps []graph.Value, width int64) []graph.Value {
	n := len(maps)
	lat, outs := make([]graph.Value, n), make([]graph.Value, n)
	b.In("neck", func() {
		for i, m := range maps {
			lat[i] = b.Conv(m, block("lateral_convs.", i, 0), width, 1, graph.ConvOpt{Bias: true})
		}
		for i := n - 1; i > 0; i-- {
			s := b.Shape(lat[i-1])
			lat[i-1] = b.Add(lat[i-1], b.Resize(lat[i], s[2], s[3]))
		}
		for i := range lat {
			outs[i] = b.Conv(lat[i], block("fpn_convs.", i, 0), width, 3, graph.ConvOpt{Padding: 1, Bias: true})
		}
	})
	return outs
}

// pyramidHead is the head of Semantic FPN: every level is brought to the first
// one's size in steps of two, and summed.
func (h *segHeads) pyramidHead(maps []graph.Value, width int64) graph.Value {
	var sum graph.Value
	for i, m := range maps {
		x := m
		for k := range max(1, i) {
			x = h.unit(x, block("scale_heads.", i, k), width, 3)
			if i > 0 {
				s := h.Shape(x)
				x = h.Resize(x, 2*s[2], 2*s[3])
			}
		}
		if i == 0 {
			sum = x
			continue
		}
		sum = h.Add(sum, h.like(x, sum))
	}
	return sum
}

func (h *segHeads) fpn() {
	maps := h.neckFPN(h.features.maps, 256)
	h.In("decode_head", func() {
		h.loss(h.classify(h.pyramidHead(maps, 128), "conv_seg", 0.1))
	})
}

// pointRend refines FPN's coarse prediction at sampled points.
func (h *segHeads) pointRend() {
	maps := h.neckFPN(h.features.maps, 256)
	const points = 2048
	h.In("decode_head", func() {
		first := func() graph.Value { return h.classify(h.pyramidHead(maps, 128), "conv_seg", 0) }
		coarse := first()
		h.loss(coarse)
		h.Again(func() { coarse = first() }) // as in every cascade: see ocr
		n := h.Shape(coarse)[0]
		fine := h.Moved(graph.Gather, maps[0], n, 256, points)
		few := h.Moved(graph.Gather, coarse, n, h.classes, points)
		x := h.Cat(1, fine, few)
		for i := range 3 {
			s := h.Shape(x)
			x = h.Conv(h.View(x, s[0], s[1], 1, s[2]), block("fcs.", i, 0), 256, 1, graph.ConvOpt{Bias: true})
			x = h.Act(graph.ReLU, x, false)
			x = h.Cat(1, h.View(x, s[0], 256, points), few)
		}
		s := h.Shape(x)
		x = h.Conv(h.View(x, s[0], s[1], 1, s[2]), "fc_seg", h.classes, 1, graph.ConvOpt{Bias: true})
		p := h.Act(graph.LogSoftmax, x, false)
		target := h.Constant(graph.Int64, n, 1, points)
		l := h.Loss(graph.NLL, graph.Float32, []graph.Value{p, target}, n, 1, points)
		h.losses = append(h.losses, h.Reduce(graph.Mean, l, 1))
	})
}

// joinedPyramid is FastFCN's neck: the last three maps joined at the size of the
// first of them.
func (h *segHeads) joinedPyramid() {
	maps := h.features.maps[1:]
	var feats []graph.Value
	h.In("neck", func() {
		for i, m := range maps {
			f := h.unit(m, block("conv_layers.", i, 0), 512, 3)
			if i > 0 {
				f = h.like(f, feats[0])
			}
			feats = append(feats, f)
		}
		f := h.Cat(1, feats...)
		var outs []graph.Value
		for i, d := range []int64{1, 2, 4, 8} {
			h.In(block("dilation_layers.", i, 0), func() {
				c := h.Shape(f)[1]
				y := h.convNorm(f, "depthwise_conv", c, 3, graph.ConvOpt{Padding: d, Dilation: d, Groups: c}, none)
				outs = append(outs, h.convNorm(y, "pointwise_conv", 512, 1, graph.ConvOpt{}, relu))
			})
		}
		h.features.maps = []graph.Value{h.features.maps[0], maps[0], maps[1], h.Cat(1, outs...)}
	})
}

// lraspp is the head of MobileNetV3.
func (h *segHeads) lraspp() {
	h.In("decode_head", func() {
		maps := h.features.maps
		x := maps[len(maps)-1]
		pool := h.AvgPool(x, min(49, h.Shape(x)[2], h.Shape(x)[3]), 16, 0, false)
		gate := h.Act(graph.Sigmoid, h.Conv(pool, "image_pool.1", 128, 1, graph.ConvOpt{}), true)
		x = h.Binary(graph.Mul, h.unit(x, "aspp_conv", 128, 1), h.like(gate, x))
		x = h.plain(x, "conv_up_input", 128)
		for i := len(maps) - 2; i >= 0; i-- {
			x = h.like(x, maps[i])
			x = h.Cat(1, x, h.Conv(maps[i], block("convs.", i, 0), []int64{32, 64}[min(i, 1)], 1, graph.ConvOpt{}))
			x = h.unit(x, block("conv_ups.", i, 0), 128, 1)
		}
		h.loss(h.classify(x, "conv_seg", 0.1))
	})
}
