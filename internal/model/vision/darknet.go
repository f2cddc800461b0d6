package vision

import (
	"regexp"
	"strconv"

	"unoom/internal/model/graph"
)

// yolo3Name is how mmdetection names YOLOv3: "yolov3_d53_320_273e_coco", or newer
// "yolov3_d53_8xb8-ms-608-273e_coco".
var yolo3Name = regexp.MustCompile(`^yolov3_d53_(?:\d+xb\d+-)?(fp16_|amp-)?(?:mstrain-|ms-)?(\d{3})[_-]`)

// parseYOLO3 reads such a name, nil if it is of another form.
func parseYOLO3(name string) *Spec {
	m := yolo3Name.FindStringSubmatch(name)
	if m == nil {
		return nil
	}
	size, _ := strconv.ParseInt(m[2], 10, 64)
	return &Spec{Builder: "yolo3", Classes: 80, Image: size, FP16: m[1] != ""}
}

// darknet53 returns the last three maps of the backbone of YOLOv3.
func darknet53(b *net, x graph.Value) []graph.Value {
	x = b.convNorm(x, "backbone.conv1", 32, 3, graph.ConvOpt{Padding: 1}, main)
	var maps []graph.Value
	for i, n := range []int{1, 2, 8, 8, 4} {
		c := int64(64) << i
		x = b.convNorm(x, block("backbone.down", i+1, 0), c, 3, graph.ConvOpt{Stride: 2, Padding: 1}, main)
		for k := range n {
			b.In(block("backbone.res", i+1, k), func() {
				y := b.convNorm(x, "conv1", c/2, 1, graph.ConvOpt{}, main)
				y = b.convNorm(y, "conv2", c, 3, graph.ConvOpt{Padding: 1}, main)
				x = b.Add(y, x)
			})
		}
		if i >= 2 {
			maps = append(maps, x)
		}
	}
	return maps
}

// yolo3 is YOLOv3 as mmdetection builds it.
func yolo3(b *net, in Input, classes int64) {
	b.norm, b.act, b.inPlace = graph.SyncNorm, graph.LeakyReLU, true
	x := b.Input(graph.Float, in.Batch, 3, in.Height, in.Width)
	maps := darknet53(b, x)
	detect := func(x graph.Value, name string, c int64) graph.Value {
		b.In(name, func() {
			for i := range 5 {
				k, out := int64(1), c
				if i%2 == 1 {
					k, out = 3, 2*c
				}
				x = b.convNorm(x, block("conv", i+1, 0), out, k, graph.ConvOpt{Padding: k / 2}, main)
			}
		})
		return x
	}
	var outs []graph.Value
	for i := range 3 {
		c := int64(512) >> i
		m := maps[2-i]
		if i == 0 {
			x = m
		} else {
			y := b.convNorm(outs[i-1], block("neck.conv", i, 0), c, 1, graph.ConvOpt{}, main)
			s := b.Shape(m)
			x = b.Cat(1, b.Resize(y, s[2], s[3]), m)
		}
		outs = append(outs, detect(x, block("neck.detect", i+1, 0), c))
	}
	var losses []graph.Value
	for i, m := range outs {
		y := b.convNorm(m, block("bbox_head.convs_bridge.", i, 0), 1024>>i, 3, graph.ConvOpt{Padding: 1}, main)
		p := b.Conv(y, block("bbox_head.convs_pred.", i, 0), 3*(5+classes), 1, graph.ConvOpt{Bias: true})
		s := b.Shape(p)
		p = b.Copy(p, s[0], 3*s[2]*s[3], 5+classes)
		cells := b.Shape(p)[1]
		for _, width := range []int64{classes, 1, 2, 2} { // class, confidence, centre, size
			losses = append(losses, b.bce(b.Part(p, s[0], cells, width)))
		}
	}
	b.sumLosses(losses)
}
