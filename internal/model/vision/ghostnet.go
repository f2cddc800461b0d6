package vision

import (
	"regexp"

	"unoom/internal/model/graph"
)

// ghostnet makes half of its maps by cheap convolutions of the other half.
//
// Source: Han et al.: GhostNet, table 1; timm models/ghostnet.py.
func ghostnet(b *net, x graph.Value, width float64, classes int64) graph.Value {
	ch := func(c int64) int64 { return divisible(float64(c)*width, 4) }
	ghost := func(x graph.Value, name string, out int64, a activation) graph.Value {
		b.In(name, func() {
			half := (out + 1) / 2
			y := b.convNorm(x, "primary_conv", half, 1, graph.ConvOpt{}, a)
			z := b.convNorm(y, "cheap_operation", half, 3, graph.ConvOpt{Padding: 1, Groups: half}, a)
			s := b.Shape(y)
			x = b.Part(b.Cat(1, y, z), s[0], out, s[2], s[3])
		})
		return x
	}
	x = b.convNorm(x, "conv_stem", ch(16), 3, graph.ConvOpt{Stride: 2, Padding: 1}, relu)
	for i, k := range []struct {
		kernel, mid, out int64
		gated            bool
		stride           int64
	}{{3, 16, 16, false, 1}, {3, 48, 24, false, 2}, {3, 72, 24, false, 1}, {5, 72, 40, true, 2}, {5, 120, 40, true, 1}, {3, 240, 80, false, 2}, {3, 200, 80, false, 1},
		{3, 184, 80, false, 1}, {3, 184, 80, false, 1}, {3, 480, 112, true, 1}, {3, 672, 112, true, 1}, {5, 672, 160, true, 2}, {5, 960, 160, false, 1}, {5, 960, 160, true, 1},
		{5, 960, 160, false, 1}, {5, 960, 160, true, 1}} {
		b.In(block("blocks.", 0, i), func() {
			in, mid, out := b.Shape(x)[1], ch(k.mid), ch(k.out)
			y := ghost(x, "ghost1", mid, relu)
			if k.stride > 1 {
				y = b.convNorm(y, "conv_dw", mid, k.kernel, graph.ConvOpt{Stride: k.stride, Padding: k.kernel / 2, Groups: mid}, none)
			}
			if k.gated {
				y = b.squeeze(y, "se", divisible(float64(mid)/4, 4), graph.ReLU, graph.HardSigmoid)
			}
			y = ghost(y, "ghost2", out, none)
			if in != out || k.stride > 1 {
				x = b.convNorm(x, "shortcut.0", in, k.kernel, graph.ConvOpt{Stride: k.stride, Padding: k.kernel / 2, Groups: in}, none)
				x = b.convNorm(x, "shortcut.2", out, 1, graph.ConvOpt{}, none)
			}
			x = b.AddTo(y, x)
		})
	}
	x = b.AdaptivePool(b.convNorm(x, "blocks.9", ch(960), 1, graph.ConvOpt{}, relu), 1, 1)
	x = b.Act(graph.ReLU, b.Conv(x, "conv_head", 1280, 1, graph.ConvOpt{Bias: true}), true)
	return b.Linear(b.View(x, b.Shape(x)[0], 1280), "classifier", classes, true)
}

var ghostName = regexp.MustCompile(`^ghostnet_(\d{3})$`)

// zooGhost reads timm's names.
func zooGhost(name string, _ bool) *Spec {
	m := ghostName.FindStringSubmatch(name)
	if m == nil || percent(m[1]) == 0 {
		return nil
	}
	return &Spec{Builder: "ghostnet", Width: percent(m[1]), Image: 224}
}
