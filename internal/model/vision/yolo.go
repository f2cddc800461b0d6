package vision

import (
	"cmp"
	"math"
	"regexp"
	"strings"

	"unoom/internal/model/graph"
)

// yoloNet is a one-stage detector of the YOLO family as mmyolo builds it: a CSP
// backbone, a path aggregation neck, a head on three or four maps, and the loss.
type yoloNet struct {
	version      string  // "v5", "v8", "x"
	width, depth float64 // multipliers
	last         int64   // channels of v8's last stage
	p6           bool    // four maps
	masks        bool    // instance masks (v5)
	classes      int64
	boxes        int64 // of an image, in the fullest batch
}

// yoloName is how mmyolo's configurations name a network: "yolov5_s-v61_…",
// "yolov5_l-p6-v62_…", "yolov5_ins_m-v61_…", "yolov8_x_…", "yolox_tiny_…".
var yoloName = regexp.MustCompile(`^yolo(v5|v8|x)_(ins_)?(n|s|m|l|x|tiny|nano)(-p6)?[-_]`)

// parseYOLO reads the name of an mmyolo configuration, nil if it is of another
// form.
func parseYOLO(name string) *Spec {
	low := strings.ToLower(name)
	m := yoloName.FindStringSubmatch(low)
	if m == nil {
		return nil
	}
	s := &Spec{Builder: "yolo", Method: m[1], Backbone: m[3], Masks: m[2] != "", P6: m[4] != "", Classes: 80, Image: 640}
	switch {
	case strings.Contains(low, "_voc"):
		s.Classes, s.Image = 20, 512
	case strings.Contains(low, "crowdhuman"):
		s.Classes = 1
	case strings.Contains(low, "balloon"), strings.Contains(low, "_cat"):
		s.Classes = 1
	}
	if s.P6 {
		s.Image = 1280
	}
	if s.Method == "x" {
		// Every ten iterations the batches get another size.
		// Source: mmyolo configs/yolox, BatchSyncRandomResize, random_size_range.
		s.Largest = 800
		if s.Backbone == "tiny" || s.Backbone == "nano" {
			s.Image, s.Largest = 416, 640
		}
		s.Least = []int64{s.Image, s.Image}
	}
	return s
}

// newYOLO returns the network of a spec, nil for a size that its version has
// not.
//
// Source: deepen_factor and widen_factor of mmyolo's configurations.
func newYOLO(s *Spec) *yoloNet {
	n := &yoloNet{boxes: cmp.Or(s.Boxes, boxesShown), version: s.Method, p6: s.P6, masks: s.Masks, classes: s.Classes, last: 1024}
	scale := func(depth, width float64) *yoloNet { n.depth, n.width = depth, width; return n }
	switch s.Method + " " + s.Backbone {
	case "v5 n", "v8 n":
		return scale(0.33, 0.25)
	case "v5 s", "v8 s", "x s":
		return scale(0.33, 0.5)
	case "v5 m", "x m":
		return scale(0.67, 0.75)
	case "v5 l", "x l":
		return scale(1, 1)
	case "v5 x", "x x":
		return scale(1.33, 1.25)
	case "v8 m":
		n.last = 768
		return scale(0.67, 0.75)
	case "v8 l":
		n.last = 512
		return scale(1, 1)
	case "v8 x":
		n.last = 512
		return scale(1, 1.25)
	case "x tiny":
		return scale(0.33, 0.375)
	case "x nano":
		return scale(0.33, 0.25)
	}
	return nil
}

func (y *yoloNet) ch(c int64) int64 { return int64(math.Ceil(float64(c)*y.width/8)) * 8 }

func (y *yoloNet) repeat(n int) int {
	if n <= 1 {
		return n
	}
	return max(1, int(math.RoundToEven(float64(n)*y.depth)))
}

// build adds the network and its loss.
func (y *yoloNet) build(b *net, in Input) {
	b.norm, b.act, b.inPlace = graph.SyncNorm, graph.SiLU, true
	x := b.normalised(in)
	maps := y.backbone(b, x)
	maps = y.neck(b, maps)
	b.Hold(maps...)
	switch y.version {
	case "v5":
		y.headV5(b, maps)
	case "v8":
		y.headV8(b, maps)
	default:
		y.headX(b, maps)
	}
}

// normalised is the input as OpenMMLab's data preprocessor makes it from bytes:
// the pixels as floats, less a mean and divided.
func (b *net) normalised(in Input) graph.Value {
	raw := b.Input(graph.Byte, in.Batch, 3, in.Height, in.Width)
	x := b.Float(raw)
	x = b.Act(graph.Scale, b.Act(graph.Scale, x, false), false)
	b.Hold(raw, x) // train_step's data has them until the iteration ends
	return x
}

// csp is CSPLayer: two branches of half the width, blocks on one of them, joined.
func (y *yoloNet) csp(b *net, x graph.Value, name string, out int64, n int, identity bool) graph.Value {
	b.In(name, func() {
		mid := out / 2
		short := b.convNorm(x, "short_conv", mid, 1, graph.ConvOpt{}, main)
		m := b.convNorm(x, "main_conv", mid, 1, graph.ConvOpt{}, main)
		for i := range n {
			m = y.block(b, m, block("blocks.", i, 0), 1, identity)
		}
		x = b.convNorm(b.Cat(1, m, short), "final_conv", out, 1, graph.ConvOpt{}, main)
	})
	return x
}

// block is DarknetBottleneck with a first kernel of a size.
func (y *yoloNet) block(b *net, x graph.Value, name string, kernel int64, identity bool) graph.Value {
	b.In(name, func() {
		c := b.Shape(x)[1]
		z := b.convNorm(x, "conv1", c, kernel, graph.ConvOpt{Padding: kernel / 2}, main)
		z = b.convNorm(z, "conv2", c, 3, graph.ConvOpt{Padding: 1}, main)
		if identity {
			z = b.Add(z, x)
		}
		x = z
	})
	return x
}

// csp2 is YOLOv8's C2f: one projection, split; every block's result is joined.
func (y *yoloNet) csp2(b *net, x graph.Value, name string, out int64, n int, identity bool) graph.Value {
	b.In(name, func() {
		mid := out / 2
		m := b.convNorm(x, "main_conv", 2*mid, 1, graph.ConvOpt{}, main)
		s := b.Shape(m)
		parts := []graph.Value{b.Part(m, s[0], mid, s[2], s[3]), b.Part(m, s[0], mid, s[2], s[3])}
		for i := range n {
			parts = append(parts, y.block(b, parts[len(parts)-1], block("blocks.", i, 0), 3, identity))
		}
		x = b.convNorm(b.Cat(1, parts...), "final_conv", out, 1, graph.ConvOpt{}, main)
	})
	return x
}

// stage is the CSP layer of the version.
func (y *yoloNet) stage(b *net, x graph.Value, name string, out int64, n int, identity bool) graph.Value {
	if y.version == "v8" {
		return y.csp2(b, x, name, out, n, identity)
	}
	return y.csp(b, x, name, out, n, identity)
}

// pooledCat is SPPF (one pool after the other) or SPP (side by side).
func (y *yoloNet) pooledCat(b *net, x graph.Value, name string, out int64) graph.Value {
	b.In(name, func() {
		x = b.convNorm(x, "conv1", b.Shape(x)[1]/2, 1, graph.ConvOpt{}, main)
		parts := []graph.Value{x}
		for i := range 3 {
			if y.version == "x" {
				k := int64(5 + 4*i)
				parts = append(parts, b.MaxPool(x, k, 1, k/2, false))
				continue
			}
			parts = append(parts, b.MaxPool(parts[i], 5, 1, 2, false))
		}
		x = b.convNorm(b.Cat(1, parts...), "conv2", out, 1, graph.ConvOpt{}, main)
	})
	return x
}

// backbone returns the maps that the neck takes.
func (y *yoloNet) backbone(b *net, x graph.Value) []graph.Value {
	down := graph.ConvOpt{Stride: 2, Padding: 1}
	switch y.version {
	case "v5":
		x = b.convNorm(x, "backbone.stem", y.ch(64), 6, graph.ConvOpt{Stride: 2, Padding: 2}, main)
	case "v8":
		x = b.convNorm(x, "backbone.stem", y.ch(64), 3, down, main)
	default: // Focus: four pixels become channels
		s := b.Shape(x)
		var parts []graph.Value
		for range 4 {
			parts = append(parts, b.Part(x, s[0], s[1], (s[2]+1)/2, (s[3]+1)/2))
		}
		x = b.convNorm(b.Cat(1, parts...), "backbone.stem", y.ch(64), 3, graph.ConvOpt{Padding: 1}, main)
	}
	type stage struct {
		out int64
		n   int
	}
	stages := []stage{{128, 3}, {256, 6}, {512, 9}, {1024, 3}}
	switch {
	case y.version == "v8":
		stages = []stage{{128, 3}, {256, 6}, {512, 6}, {y.last, 3}}
	case y.version == "x":
		stages = []stage{{128, 3}, {256, 9}, {512, 9}, {1024, 3}}
	case y.p6:
		stages = []stage{{128, 3}, {256, 6}, {512, 9}, {768, 3}, {1024, 3}}
	}
	var maps []graph.Value
	for i, s := range stages {
		name := block("backbone.stage", i+1, 0)
		last := i == len(stages)-1
		x = b.convNorm(x, name+".down", y.ch(s.out), 3, down, main)
		if last && y.version == "x" {
			x = y.pooledCat(b, x, name+".spp", y.ch(s.out))
		}
		x = y.stage(b, x, name+".csp", y.ch(s.out), y.repeat(s.n), !last || y.version != "x")
		if last && y.version != "x" {
			x = y.pooledCat(b, x, name+".spp", y.ch(s.out))
		}
		if i > 0 {
			maps = append(maps, x)
		}
	}
	return maps
}

// neck is PAFPN: top down, then bottom up.
func (y *yoloNet) neck(b *net, maps []graph.Value) []graph.Value {
	n := len(maps)
	width := func(i int) int64 { return b.Shape(maps[i])[1] }
	reps := y.repeat(3)
	inner := make([]graph.Value, n)
	inner[n-1] = maps[n-1]
	if y.version != "v8" {
		inner[n-1] = b.convNorm(maps[n-1], block("neck.reduce_layers.", n-1, 0), width(n-2), 1, graph.ConvOpt{}, main)
	}
	for i := n - 1; i > 0; i-- {
		low := maps[i-1]
		s := b.Shape(low)
		up := b.Resize(inner[i], s[2], s[3])
		x := b.Cat(1, up, low)
		x = y.stage(b, x, block("neck.top_down_layers.", n-1-i, 0), width(i-1), reps, false)
		if y.version != "v8" && i > 1 {
			x = b.convNorm(x, block("neck.top_down_layers.", n-1-i, 1), width(i-2), 1, graph.ConvOpt{}, main)
		}
		inner[i-1] = x
	}
	outs := []graph.Value{inner[0]}
	for i := range n - 1 {
		x := b.convNorm(outs[i], block("neck.downsample_layers.", i, 0), b.Shape(outs[i])[1], 3, graph.ConvOpt{Stride: 2, Padding: 1}, main)
		x = y.stage(b, b.Cat(1, x, inner[i+1]), block("neck.bottom_up_layers.", i, 0), width(i+1), reps, false)
		outs = append(outs, x)
	}
	if y.version == "x" {
		for i := range outs {
			outs[i] = b.convNorm(outs[i], block("neck.out_layers.", i, 0), y.ch(256), 1, graph.ConvOpt{}, main)
		}
	}
	return outs
}

// bce adds binary cross entropy between logits and targets of their shape, and
// its mean.
func (b *net) bce(logits graph.Value) graph.Value {
	s := b.Shape(logits)
	target := b.Constant(graph.Float32, s...)
	l := b.Loss(graph.BCELogits, graph.Float32, []graph.Value{logits, target}, s...)
	return b.Reduce(graph.Mean, l, 1)
}

// How many objects an image has decides what matching and mask losses need. A
// COCO image has 7.3 boxes (860,001 in 117,266 images); of four in a mosaic, cut
// by a window of half the side, a third to a half remain, and logs show the
// fullest batch of many. Both numbers are fitted on mmyolo's published peaks, of
// networks with instance masks and of YOLOv8: known to a factor of two.
const (
	boxesShown = 30 // of an image, in the fullest batch
	boxesMost  = 2  // times as many in the fullest image of a batch
)

// positives is the number of predictions of one level that YOLOv5 matches to a
// box, for each: about half of the nine anchors over three levels, times three
// neighbouring cells.
const positives = 4.5

// headV5 has one convolution for each map; every prediction is sliced from it.
func (y *yoloNet) headV5(b *net, maps []graph.Value) {
	attributes := 5 + y.classes
	if y.masks {
		attributes += 32
	}
	var protos graph.Value
	var losses, coefficients []graph.Value
	for i, m := range maps {
		p := b.Conv(m, block("bbox_head.convs_pred.", i, 0), 3*attributes, 1, graph.ConvOpt{Bias: true})
		s := b.Shape(p)
		slice := func(n int64) graph.Value {
			return b.Copy(b.Part(p, s[0], 3*n, s[2], s[3]))
		}
		cls := slice(y.classes)
		box := slice(4)
		objectness := slice(1)
		if y.masks {
			coefficients = append(coefficients, slice(32))
		}
		n := int64(positives * float64(y.boxes*s[0]))
		losses = append(losses, b.bce(objectness))
		losses = append(losses, b.Reduce(graph.Mean, b.Act(graph.Sigmoid, b.Moved(graph.Gather, box, n, 4), false), 1))
		if y.classes > 1 {
			losses = append(losses, b.bce(b.Moved(graph.Gather, cls, n, y.classes)))
		}
	}
	if y.masks {
		b.In("bbox_head.proto_pred", func() {
			mid := y.ch(256)
			x := b.convNorm(maps[0], "conv1", mid, 3, graph.ConvOpt{Padding: 1}, main)
			s := b.Shape(x)
			x = b.Resize(x, 2*s[2], 2*s[3])
			x = b.convNorm(x, "conv2", mid, 3, graph.ConvOpt{Padding: 1}, main)
			protos = b.convNorm(x, "conv3", 32, 1, graph.ConvOpt{}, main)
		})
		losses = append(losses, y.maskLoss(b, protos, coefficients)...)
	}
	b.sumLosses(losses)
}

// maskLoss compares, image by image and level by level, the mask of every
// matched prediction with its object's.
func (y *yoloNet) maskLoss(b *net, protos graph.Value, coefficients []graph.Value) []graph.Value {
	s := b.Shape(protos)
	n := int64(positives * float64(y.boxes))
	var losses []graph.Value
	for _, c := range coefficients {
		for range s[0] {
			k := b.Moved(graph.Gather, c, n, 32)
			p := b.Part(protos, 32, s[2]*s[3])
			mask := b.MatMul(k, p, false)
			target := b.Constant(graph.Float32, n, s[2]*s[3])
			l := b.Loss(graph.BCELogits, graph.Float32, []graph.Value{mask, target}, n, s[2]*s[3])
			crop := b.Constant(graph.Byte, n, s[2]*s[3])
			l = b.Binary(graph.Mul, l, crop)
			losses = append(losses, b.Reduce(graph.Mean, l, 1))
		}
	}
	return losses
}

// sumLosses starts backward from the sum.
func (b *net) sumLosses(losses []graph.Value) {
	if len(losses) == 0 {
		b.Fail("the network has no loss")
		return
	}
	sum := losses[0]
	for _, l := range losses[1:] {
		sum = b.Add(sum, l)
	}
	b.Start(sum)
}

// headV8 has two branches of two convolutions for each map, and distances as
// distributions over 16 bins.
func (y *yoloNet) headV8(b *net, maps []graph.Value) {
	const bins = 16
	first := b.Shape(maps[0])[1]
	reg := max(bins, first/4, 4*bins)
	cls := max(first, y.classes)
	branch := func(x graph.Value, name string, mid, out int64) graph.Value {
		b.In(name, func() {
			x = b.convNorm(x, "0", mid, 3, graph.ConvOpt{Padding: 1}, main)
			x = b.convNorm(x, "1", mid, 3, graph.ConvOpt{Padding: 1}, main)
			x = b.Conv(x, "2", out, 1, graph.ConvOpt{Bias: true})
		})
		return x
	}
	var scores, boxes, distances []graph.Value
	for i, m := range maps {
		c := branch(m, block("bbox_head.cls_preds.", i, 0), cls, y.classes)
		d := branch(m, block("bbox_head.reg_preds.", i, 0), reg, 4*bins)
		s := b.Shape(d)
		n, cells := s[0], s[2]*s[3]
		d = b.View(d, n, cells, 4, bins)
		p := b.Act(graph.Softmax, d, false)
		p = b.MatMul(p, b.Constant(graph.Float, bins, 1), false)
		boxes = append(boxes, b.View(p, n, cells, 4))
		distances = append(distances, b.Copy(d, n, cells, 4*bins))
		scores = append(scores, b.Copy(c, n, cells, y.classes))
	}
	d, s, p := b.Cat(1, distances...), b.Cat(1, scores...), b.Cat(1, boxes...)
	p = b.Act(graph.Scale, p, false)
	shape := b.Shape(s)
	n, cells := shape[0], shape[1]
	y.assign(b, s, n, cells)
	l := b.bce(s)
	matched := n * y.boxes * 10 // the assigner's topk
	p = b.Moved(graph.Gather, p, matched, 4)
	d = b.Moved(graph.Gather, d, matched, 4*bins)
	b.sumLosses([]graph.Value{l, b.Reduce(graph.Mean, p, 1), b.Reduce(graph.Mean, b.Act(graph.LogSoftmax, d, false), 1)})
}

// assign is the task-aligned assigner: without gradients it compares every box
// with every cell. Boxes are padded to the most of any image of the batch.
//
// Source: mmyolo task_modules/assigners/batch_task_aligned_assigner.py.
func (y *yoloNet) assign(b *net, scores graph.Value, n, cells int64) {
	b.NoGrad(func() {
		boxes, top := boxesMost*y.boxes, int64(10)
		grid := func(more ...int64) graph.Value {
			return b.Constant(graph.Float32, append([]int64{n, boxes, cells}, more...)...)
		}
		s := b.Act(graph.Sigmoid, scores, false)
		picked := b.Moved(graph.Gather, s, n, boxes, cells)
		overlap := grid()
		metric := b.Binary(graph.Mul, picked, overlap)
		// select_candidates_in_gts: repeated points, and distances to the sides.
		points, low, high := grid(2), grid(2), grid(2)
		toLow, toHigh := b.Binary(graph.Sub, points, low), b.Binary(graph.Sub, high, points)
		inside := b.Reduce(graph.Max, b.Cat(3, toLow, toHigh), n, boxes, cells)
		inside = b.Binary(graph.Mul, metric, inside)
		// select_topk_candidates: a one-hot row of all cells for each candidate.
		hot := b.Constant(graph.Int64, n, boxes, top, cells)
		mask := b.Float(b.Reduce(graph.Sum, hot, n, boxes, cells))
		mask = b.Binary(graph.Mul, mask, inside)
		labels := b.Constant(graph.Int64, n, cells, y.classes)
		b.Binary(graph.Mul, b.Float(labels), b.Reduce(graph.Max, mask, n, cells, 1))
		b.Binary(graph.Mul, overlap, mask)
	})
}

// headX has decoupled branches of two convolutions and three predictions.
func (y *yoloNet) headX(b *net, maps []graph.Value) {
	var losses []graph.Value
	var scores []graph.Value
	for i, m := range maps {
		c := y.ch(256)
		branch := func(name string) graph.Value {
			x := m
			for k := range 2 {
				x = b.convNorm(x, block(name, i, k), c, 3, graph.ConvOpt{Padding: 1}, main)
			}
			return x
		}
		cls, reg := branch("bbox_head.multi_level_cls_convs."), branch("bbox_head.multi_level_reg_convs.")
		s := b.Conv(cls, block("bbox_head.multi_level_conv_cls.", i, 0), y.classes, 1, graph.ConvOpt{Bias: true})
		box := b.Conv(reg, block("bbox_head.multi_level_conv_reg.", i, 0), 4, 1, graph.ConvOpt{Bias: true})
		obj := b.Conv(reg, block("bbox_head.multi_level_conv_obj.", i, 0), 1, 1, graph.ConvOpt{Bias: true})
		scores = append(scores, b.Copy(s))
		losses = append(losses, b.bce(obj), b.Reduce(graph.Mean, box, 1))
	}
	for _, s := range scores {
		sh := b.Shape(s)
		losses = append(losses, b.bce(b.Moved(graph.Gather, s, 10*y.boxes*sh[0], y.classes)))
	}
	b.sumLosses(losses)
}
