package vision

import (
	"strings"

	"unoom/internal/model/graph"
)

// detector is a detector on a feature pyramid, as mmdetection or detectron2
// builds it: a backbone whose first stages are not trained, the pyramid, and a
// head of one stage or proposals with heads on regions.
type detector struct {
	backbone string // r50, x101_32x4d, hr18, regnetx-032, r2-101, s50
	method   string // rpn, faster, mask, cascade, cascade_mask, retinanet, fcos, atss
	caffe    bool   // the strides are in the 1×1 convolutions, norms are not trained
	folded   bool   // frozen norms are a product and a sum: detectron2
	group    bool   // group norm everywhere, and nothing is frozen but the stem
	standard bool   // group norm everywhere on standardised kernels
	sync     bool   // the backbone's norms see the whole batch and are trained
	context  int64  // global context blocks of this reduction, 0: none
	neck     string // "": a pyramid; "pafpn": and a path back up; c4, dc5: heads on one map
	resnet   *resnet
	classes  int64
}

// The regions that the heads are trained on.
//
// Source: mmdetection configs/_base_/models/cascade_rcnn_r50_fpn.py, num=512 and
// pos_fraction=0.25; detectron2 config/defaults.py, BATCH_SIZE_PER_IMAGE and
// POSITIVE_FRACTION.
const (
	regionsShown = 512 // of an image
	maskShare    = 4   // one in so many has a mask
)

const pyramidWidth = 256

// build adds the network and its loss.
func (d *detector) build(b *net, in Input) {
	x := b.Input(graph.Float, in.Batch, 3, in.Height, in.Width)
	maps := d.features(b, x)
	if b.err != nil {
		return
	}
	b.frozen, b.normEval, b.folded, b.norm = false, false, false, ""
	if d.neck == "c4" || d.neck == "dc5" {
		d.single(b, maps[len(maps)-1], in)
		return
	}
	levels := d.pyramid(b, maps)
	b.Hold(levels...)
	b.act, b.inPlace = graph.ReLU, true
	switch d.method {
	case "retinanet":
		d.dense(b, levels, 9, d.classes, false, false)
		return
	case "atss":
		d.dense(b, levels, 1, d.classes, true, true)
		return
	case "fcos":
		d.dense(b, levels, 1, d.classes, true, true)
		return
	}
	centred := b.centred
	b.centred = false
	losses := d.proposals(b, levels, pyramidWidth, 3)
	b.centred = centred
	if d.method != "rpn" {
		losses = append(losses, d.regions(b, levels[:4], in)...)
	}
	b.sumLosses(losses)
}

// pyramid is FPN, or for HRNet's joined maps their last convolutions.
func (d *detector) pyramid(b *net, maps []graph.Value) []graph.Value {
	if d.group {
		b.norm, b.groups = graph.GroupNorm, 32
	}
	b.bias, b.centred = !d.group, d.standard
	defer func() { b.bias = false }()
	one := func(x graph.Value, name string, kernel, stride int64) graph.Value {
		return b.convNorm(x, name, pyramidWidth, kernel, graph.ConvOpt{Stride: stride, Padding: kernel / 2}, none)
	}
	from := maps
	if !strings.HasPrefix(d.backbone, "hr") {
		if !d.twoStage() {
			from = maps[1:]
		}
		laterals := make([]graph.Value, len(from))
		for i, m := range from {
			laterals[i] = one(m, block("neck.lateral_convs.", i, 0), 1, 1)
		}
		for i := len(from) - 1; i > 0; i-- {
			s := b.Shape(laterals[i-1])
			laterals[i-1] = b.AddTo(laterals[i-1], b.Resize(laterals[i], s[2], s[3]))
		}
		from = laterals
	}
	var levels []graph.Value
	for i, l := range from {
		levels = append(levels, one(l, block("neck.fpn_convs.", i, 0), 3, 1))
	}
	if d.neck == "pafpn" {
		for i := range levels[1:] {
			levels[i+1] = b.AddTo(levels[i+1], one(levels[i], block("neck.downsample_convs.", i, 0), 3, 2))
		}
		for i := range levels[1:] {
			levels[i+1] = one(levels[i+1], block("neck.pafpn_convs.", i, 0), 3, 1)
		}
	}
	last := levels[len(levels)-1]
	if d.twoStage() {
		return append(levels, b.MaxPool(last, 1, 2, 0, false))
	}
	if strings.HasPrefix(d.backbone, "hr") {
		return append(levels, b.AvgPool(from[0], 16, 16, 0, false))
	}
	if d.method == "retinanet" {
		last = maps[len(maps)-1]
	}
	p6 := one(last, "neck.p6", 3, 2)
	p7 := one(b.Act(graph.ReLU, p6, false), "neck.p7", 3, 2)
	return append(levels, p6, p7)
}

// deepHead says that the head on regions has four convolutions with norms, as
// ResNeSt's detectors have.
func (d *detector) deepHead() bool { return strings.HasPrefix(d.backbone, "s") }

func (d *detector) twoStage() bool {
	switch d.method {
	case "retinanet", "fcos", "atss":
		return false
	}
	return true
}

// flat is a prediction as rows of a width: (n, c, h, w) to (n·h·w·c/width, width),
// moved.
func (b *net) flat(x graph.Value, width int64) graph.Value {
	s := b.Shape(x)
	return b.Copy(x, s[0]*s[1]*s[2]*s[3]/width, width)
}

// dense is the head of a detector of one stage: four convolutions for classes,
// four for boxes, on every level.
func (d *detector) dense(b *net, levels []graph.Value, anchors, classes int64, norm, centre bool) {
	if norm {
		b.norm, b.groups = graph.GroupNorm, 32
		b.bias = d.method == "fcos"
	} else {
		b.norm, b.bias = "", true
	}
	var losses, all []graph.Value
	for i, l := range levels {
		level := func() {
			tower := func(name string) graph.Value {
				x := l
				for k := range 4 {
					x = b.convNorm(x, block(name, 0, k), pyramidWidth, 3, graph.ConvOpt{Padding: 1}, main)
				}
				return x
			}
			c, r := tower("bbox_head.cls_convs"), tower("bbox_head.reg_convs")
			predict := func(x graph.Value, name string, out int64) graph.Value {
				return b.Conv(x, "bbox_head."+name, out, 3, graph.ConvOpt{Padding: 1, Bias: true})
			}
			scores := b.flat(predict(c, "cls", anchors*classes), classes)
			if d.folded {
				all = append(all, scores)
			} else { // the fused focal loss keeps the scores and its targets
				losses = append(losses, b.bce(scores))
			}
			box := predict(r, "reg", anchors*4)
			if centre {
				box = b.Act(graph.Exp, b.Act(graph.Scale, box, false), false)
				losses = append(losses, b.bce(b.flat(predict(r, "centre", 1), 1)))
			}
			box = b.flat(box, 4)
			losses = append(losses, b.Reduce(graph.Mean, b.Act(graph.Abs, b.Binary(graph.Mul, box, b.Constant(graph.Float32, b.Shape(box)...)), false), 1))
		}
		if i == 0 {
			level()
			continue
		}
		b.Again(level)
	}
	d.overlaps(b, anchors*cells(b, levels))
	if len(all) > 0 {
		losses = append(losses, focalLoss(b, b.Cat(0, all...)))
	}
	b.sumLosses(losses)
}

// focalLoss is the sigmoid focal loss, operation by operation.
//
// Source: fvcore nn/focal_loss.py; detectron2 modeling/meta_arch/retinanet.py,
// which first picks the anchors that count.
func focalLoss(b *net, scores graph.Value) graph.Value {
	scores = b.Copy(scores)
	s := b.Shape(scores)
	target := b.Constant(graph.Float32, s...)
	less := func(x graph.Value) graph.Value { return b.Act(graph.Scale, x, false) } // 1 - x
	p := b.Act(graph.Sigmoid, scores, false)
	ce := b.Loss(graph.BCELogits, graph.Float32, []graph.Value{scores, target}, s...)
	right := b.Add(b.Binary(graph.Mul, p, target), b.Binary(graph.Mul, less(p), less(target)))
	loss := b.Binary(graph.Mul, ce, b.Act(graph.Pow, less(right), false))
	alpha := b.Add(less(target), less(less(target)))
	loss = b.Binary(graph.Mul, alpha, loss)
	return b.Reduce(graph.Sum, loss, 1)
}

// objectsMost are the boxes of COCO's fullest training image. Of a run's many
// batches the one that needs most has such an image.
// Source: annotations of instances_train2017, crowds left aside.
const objectsMost = 93

// overlaps is the comparison of every anchor with every object of an image: the
// corners of the intersections, their sides, areas and unions, all of them alive
// at the end.
//
// Source: mmdetection core/bbox/iou_calculators/iou2d_calculator.py,
// bbox_overlaps; detectron2 structures/boxes.py, pairwise_intersection.
func (d *detector) overlaps(b *net, anchors int64) {
	b.NoGrad(func() {
		grid := func(more ...int64) graph.Value {
			return b.Constant(graph.Float32, append([]int64{objectsMost, anchors}, more...)...)
		}
		low, high := grid(2), grid(2)
		sides := b.Act(graph.Scale, b.Binary(graph.Sub, high, low), false)
		if d.folded { // in place and without names
			both := b.Reduce(graph.Sum, sides, objectsMost, anchors)
			b.Binary(graph.Div, both, both)
			return
		}
		both := b.Reduce(graph.Sum, sides, objectsMost, anchors)
		union := b.Act(graph.Scale, both, false)
		share := b.Binary(graph.Div, both, union)
		b.Reduce(graph.Max, b.Binary(graph.Add, share, b.Part(low, objectsMost, anchors)), anchors)
		b.Reduce(graph.Max, b.Binary(graph.Add, b.Part(high, objectsMost, anchors), b.Part(sides, objectsMost, anchors)), anchors)
	})
}

// cells counts the positions of all levels.
func cells(b *net, levels []graph.Value) int64 {
	n := int64(0)
	for _, l := range levels {
		s := b.Shape(l)
		n += s[2] * s[3]
	}
	return n
}

// proposals is the region proposal network.
func (d *detector) proposals(b *net, levels []graph.Value, width, anchors int64) []graph.Value {
	var losses []graph.Value
	for i, l := range levels {
		level := func() {
			b.norm, b.bias = "", true
			x := b.convNorm(l, "rpn_head.rpn_conv", width, 3, graph.ConvOpt{Padding: 1}, main)
			scores := b.Conv(x, "rpn_head.rpn_cls", anchors, 1, graph.ConvOpt{Bias: true})
			box := b.Conv(x, "rpn_head.rpn_reg", 4*anchors, 1, graph.ConvOpt{Bias: true})
			losses = append(losses, b.bce(b.flat(scores, 1)))
			box = b.flat(box, 4)
			losses = append(losses, b.Reduce(graph.Mean, b.Act(graph.Abs, b.Binary(graph.Mul, box, b.Constant(graph.Float32, b.Shape(box)...)), false), 1))
		}
		if i == 0 {
			level()
			continue
		}
		b.Again(level)
	}
	d.overlaps(b, anchors*cells(b, levels))
	return losses
}

// pooled cuts regions out of the levels, each from the level of its size.
func (d *detector) pooled(b *net, levels []graph.Value, regions, size int64) graph.Value {
	x := b.Constant(graph.Float, regions, pyramidWidth, size, size)
	share := max(1, regions/int64(len(levels)))
	for _, l := range levels {
		part := b.Moved(graph.Gather, l, share, pyramidWidth, size, size)
		x = b.Into(graph.Gather, x, part)
	}
	return x
}

// regions are the heads on proposals.
func (d *detector) regions(b *net, levels []graph.Value, in Input) []graph.Value {
	stages, masks := 1, strings.Contains(d.method, "mask")
	if strings.HasPrefix(d.method, "cascade") {
		stages = 3
	}
	n := in.Batch * regionsShown
	var losses []graph.Value
	for stage := range stages {
		b.In(block("roi_head.", stage, 0), func() {
			x := d.pooled(b, levels, n, 7)
			if d.group || d.deepHead() {
				b.norm, b.groups, b.bias = graph.GroupNorm, 32, false
				if !d.group {
					b.norm = graph.SyncNorm
				}
				for i := range 4 {
					x = b.convNorm(x, block("shared_convs.", 0, i), pyramidWidth, 3, graph.ConvOpt{Padding: 1}, main)
				}
			}
			x = b.View(x, n, pyramidWidth*49)
			x = b.Act(graph.ReLU, b.Linear(x, "shared_fcs.0", 1024, true), true)
			if !d.group && !d.deepHead() {
				x = b.Act(graph.ReLU, b.Linear(x, "shared_fcs.1", 1024, true), true)
			}
			losses = append(losses, d.predictions(b, x, stages == 1)...)
			if masks && (stage == 0 || !d.folded) { // detectron2's cascade has one mask head
				losses = append(losses, d.masks(b, levels, in, n/maskShare))
			}
		})
	}
	return losses
}

// predictions are classes and boxes of regions, with their losses; a box for each
// class, or one.
func (d *detector) predictions(b *net, x graph.Value, boxes bool) []graph.Value {
	n := b.Shape(x)[0]
	scores := b.Linear(x, "fc_cls", d.classes+1, true)
	sides := int64(4)
	if boxes {
		sides *= d.classes
	}
	box := b.Linear(x, "fc_reg", sides, true)
	p := b.Act(graph.LogSoftmax, scores, false)
	return []graph.Value{
		b.Loss(graph.NLL, graph.Float32, []graph.Value{p, b.Constant(graph.Int64, n)}, 1),
		b.Reduce(graph.Mean, b.Act(graph.Abs, b.Moved(graph.Gather, box, n/maskShare, 4), false), 1),
	}
}

// masks is the head of instance masks, on the regions that hold an object.
func (d *detector) masks(b *net, levels []graph.Value, in Input, n int64) graph.Value {
	return d.drawn(b, d.pooled(b, levels, n, 14), in, 4)
}

// drawn is the mask head on regions cut out of the maps: some convolutions, one
// that doubles the sides, and the masks.
func (d *detector) drawn(b *net, x graph.Value, in Input, convs int) graph.Value {
	n := b.Shape(x)[0]
	b.norm, b.bias = "", true
	switch {
	case d.group:
		b.norm, b.groups, b.bias = graph.GroupNorm, 32, false
	case d.deepHead():
		b.norm, b.bias = graph.SyncNorm, false
	}
	for i := range convs {
		x = b.convNorm(x, block("mask_head.convs.", 0, i), pyramidWidth, 3, graph.ConvOpt{Padding: 1}, main)
	}
	x = b.Act(graph.ReLU, b.ConvTranspose(x, "mask_head.upsample", pyramidWidth, 2, graph.ConvOpt{Stride: 2, Bias: true}), true)
	x = b.Conv(x, "mask_head.conv_logits", d.classes, 1, graph.ConvOpt{Bias: true})
	s := b.Shape(x)
	if !d.folded {
		// Each region's object is drawn over the whole image, in bytes and in
		// floats, before it is cut out.
		// Source: mmdetection core/mask/structures.py, BitmapMasks.crop_and_resize.
		b.NoGrad(func() {
			whole := b.Float(b.Constant(graph.Byte, regionsShown/maskShare, in.Height, in.Width))
			b.Moved(graph.Gather, whole, regionsShown/maskShare, s[2], s[3])
		})
	}
	return b.bce(b.Moved(graph.Gather, x, n, s[2], s[3]))
}
