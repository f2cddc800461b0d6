package vision

import (
	"strings"

	"unoom/internal/model/graph"
)

// single adds proposals and heads on one map: the last stage of the backbone is
// run on every region (C4), or dilated and run on the whole map (DC5).
//
// Source: detectron2 configs/Base-RCNN-C4.yaml, Base-RCNN-DilatedC5.yaml.
func (d *detector) single(b *net, m graph.Value, in Input) {
	b.Hold(m)
	b.act, b.inPlace = graph.ReLU, true
	width := b.Shape(m)[1]
	losses := d.proposals(b, []graph.Value{m}, width, 15)
	if d.method == "rpn" {
		b.sumLosses(losses)
		return
	}
	n := in.Batch * regionsShown
	cut := func(n, size int64) graph.Value { return b.Moved(graph.Gather, m, n, width, size, size) }
	var x graph.Value
	if d.neck == "c4" {
		x = cut(n, 14)
		b.norm, b.folded, b.bias = graph.BatchNorm, d.folded, false
		for i := range 3 {
			b.In(block("roi_heads.res", 5, i), func() { x = d.resnet.bottleneck(b, x, 512, int64(1+(2-i)/2), 1, 3, i == 0) })
		}
		b.folded = false
		y := b.AdaptivePool(x, 1, 1)
		losses = append(losses, d.predictions(b, b.View(y, n, b.Shape(y)[1]), true)...)
	} else {
		y := b.View(cut(n, 7), n, width*49)
		for i := range 2 {
			y = b.Act(graph.ReLU, b.Linear(y, block("box_head.fc", i+1, 0), 1024, true), true)
		}
		losses = append(losses, d.predictions(b, y, true)...)
	}
	if strings.Contains(d.method, "mask") {
		if d.neck == "c4" {
			s := b.Shape(x)
			losses = append(losses, d.drawn(b, b.Moved(graph.Gather, x, n/maskShare, s[1], s[2], s[3]), in, 0))
		} else {
			losses = append(losses, d.drawn(b, cut(n/maskShare, 14), in, 4))
		}
	}
	b.sumLosses(losses)
}
