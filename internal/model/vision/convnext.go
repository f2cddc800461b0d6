package vision

import (
	"regexp"
	"strconv"

	"unoom/internal/model/graph"
)

// convnext has depthwise convolutions and an MLP on the channels. Its second
// version norms the MLP's maps by their energy (grn) instead of a layer scale.
func convnext(b *net, x graph.Value, depths []int, widths []int64, drop float64, grn bool, classes int64) graph.Value {
	x = convnextStages(b, x, depths, widths, drop, grn, nil)
	x = b.AdaptivePool(x, 1, 1)
	x = b.norm2d(x, "classifier.0")
	return b.Linear(b.View(x, b.Shape(x)[0], b.Shape(x)[1]), "classifier.2", classes, true)
}

// convnextStages adds the stages; each is called with the end of every stage, nil:
// none.
func convnextStages(b *net, x graph.Value, depths []int, widths []int64, drop float64, grn bool, each func(stage int, x graph.Value)) graph.Value {
	x = b.Conv(x, "features.0.0", widths[0], 4, graph.ConvOpt{Stride: 4, Bias: true})
	x = b.norm2d(x, "features.0.1")
	total, at := sum(depths), 0
	for stage, n := range depths {
		c := widths[stage]
		if stage > 0 {
			x = b.norm2d(x, block("features.down", stage, 0))
			x = b.Conv(x, block("features.down", stage, 1), c, 2, graph.ConvOpt{Stride: 2, Bias: true})
		}
		for i := range n {
			p := dropAt(drop, at, total)
			at++
			b.In(block("features.", stage, i), func() {
				y := b.Conv(x, "dwconv", c, 7, graph.ConvOpt{Padding: 3, Groups: c, Bias: true})
				y = b.LayerNorm(b.channelsLast(y), "norm")
				y = b.Act(graph.GELU, b.Linear(y, "fc1", 4*c, true), false)
				if grn {
					y = responseNorm(b, y)
				}
				y = b.channelsFirst(b.Linear(y, "fc2", c, true))
				if !grn {
					y = b.Scaled(y, "layer_scale", c, 1, 1)
				}
				y = b.Dropout(graph.DropPath, y, p)
				x = b.AddTo(y, x)
			})
		}
		if each != nil {
			each(stage, x)
		}
	}
	return x
}

// responseNorm is ConvNeXt V2's: x + bias + weight·(x·norm/mean of norms).
func responseNorm(b *net, x graph.Value) graph.Value {
	s := b.Shape(x)
	n, c := s[0], s[3]
	energy := b.Reduce(graph.Mean, b.Act(graph.Pow, x, false), n, 1, 1, c)
	rest := b.Act(graph.Scale, b.Reduce(graph.Mean, energy, n, 1, 1, 1), false)
	y := b.Binary(graph.Mul, x, b.Binary(graph.Div, energy, rest))
	y = b.Plus(b.Scaled(y, "grn.weight", c), "grn.bias", c)
	return b.Add(x, y)
}

var convnextName = regexp.MustCompile(`^convnext(v2)?_(atto|femto|pico|nano|tiny|small|base|large|xlarge|huge)(?:_(\d{3}))?$`)

// zooConvNeXt reads timm's names.
func zooConvNeXt(name string, _ bool) *Spec {
	m := convnextName.FindStringSubmatch(name)
	if m == nil {
		return nil
	}
	s := &Spec{Builder: "convnext", Depths: []int{3, 3, 27, 3}, ResponseNorm: m[1] != "", Image: 224}
	widths := map[string]int64{"atto": 40, "femto": 48, "pico": 64, "nano": 80, "tiny": 96, "small": 96, "base": 128, "large": 192, "xlarge": 256, "huge": 352}
	for i := range 4 {
		s.Widths = append(s.Widths, widths[m[2]]<<i)
	}
	switch m[2] {
	case "atto", "femto", "pico":
		s.Depths = []int{2, 2, 6, 2}
	case "nano":
		s.Depths = []int{2, 2, 8, 2}
	case "tiny":
		s.Depths = []int{3, 3, 9, 3}
	}
	if m[3] != "" {
		s.Image, _ = strconv.ParseInt(m[3], 10, 64)
	}
	return s
}
