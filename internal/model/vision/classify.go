package vision

import (
	"math"

	"unoom/internal/model/graph"
)

// The classification networks below are torchvision's: the same operations in
// the same order.

// classifier adds a global average pool and a dense layer.
func (b *net) classifier(x graph.Value, classes int64, dropout float64) graph.Value {
	n, c := b.Shape(x)[0], b.Shape(x)[1]
	x = b.View(b.AdaptivePool(x, 1, 1), n, c)
	x = b.Dropout(graph.Dropout, x, dropout)
	return b.Linear(x, "classifier", classes, true)
}

// crossEntropy adds the loss of a classifier.
func (b *net) crossEntropy(logits graph.Value) {
	n := b.Shape(logits)[0]
	target := b.Input(graph.Int64, n)
	p := b.Act(graph.LogSoftmax, logits, false)
	b.Start(b.Loss(graph.NLL, graph.Float32, []graph.Value{p, target}, 1))
}

// vgg is VGG with the number of layers in its name.
func vgg(b *net, x graph.Value, depth int, norm bool, classes int64) graph.Value {
	convs := map[int][]int{11: {1, 1, 2, 2, 2}, 13: {2, 2, 2, 2, 2}, 16: {2, 2, 3, 3, 3}, 19: {2, 2, 4, 4, 4}}[depth]
	if convs == nil {
		b.Fail("no VGG has %d layers", depth)
		return x
	}
	for stage, n := range convs {
		for i := range n {
			x = b.Conv(x, block("features.", stage, i), min(int64(64)<<stage, 512), 3, graph.ConvOpt{Padding: 1, Bias: true})
			if norm {
				x = b.Norm(graph.BatchNorm, x, block("norm.", stage, i), false)
			}
			x = b.Act(graph.ReLU, x, true)
		}
		x = b.MaxPool(x, 2, 2, 0, false)
	}
	x = b.AdaptivePool(x, 7, 7)
	x = b.View(x, b.Shape(x)[0], 512*49)
	for i := range 2 {
		x = b.Act(graph.ReLU, b.Linear(x, block("classifier.", i, 0), 4096, true), true)
		x = b.Dropout(graph.Dropout, x, 0.5)
	}
	return b.Linear(x, "classifier.6", classes, true)
}

// mobilenetV2 is an inverted residual network of a width.
func mobilenetV2(b *net, x graph.Value, width float64, classes int64) graph.Value {
	b.act = graph.HardTanh
	in := divisible(32*width, 8)
	x = b.convNorm(x, "features.0", in, 3, graph.ConvOpt{Stride: 2, Padding: 1}, main)
	for stage, s := range []struct {
		expand, channels int64
		n                int
		stride           int64
	}{{1, 16, 1, 1}, {6, 24, 2, 2}, {6, 32, 3, 2}, {6, 64, 4, 2}, {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}} {
		out := divisible(float64(s.channels)*width, 8)
		for i := range s.n {
			stride := int64(1)
			if i == 0 {
				stride = s.stride
			}
			b.In(block("features.", stage+1, i), func() {
				x = invertedResidual(b, x, out, s.expand, 3, stride, 1)
			})
		}
	}
	x = b.convNorm(x, "features.18", divisible(1280*max(1, width), 8), 1, graph.ConvOpt{}, main)
	return b.classifier(x, classes, 0.2)
}

// invertedResidual is MobileNetV2's block.
func invertedResidual(b *net, x graph.Value, out, expand, kernel, stride, dilation int64) graph.Value {
	in := b.Shape(x)[1]
	hidden := in * expand
	y := x
	if expand != 1 {
		y = b.convNorm(y, "expand", hidden, 1, graph.ConvOpt{}, main)
	}
	y = b.convNorm(y, "depthwise", hidden, kernel, graph.ConvOpt{Stride: stride, Padding: kernel / 2 * dilation, Dilation: dilation, Groups: hidden}, main)
	y = b.convNorm(y, "project", out, 1, graph.ConvOpt{}, none)
	if stride == 1 && in == out {
		return b.Add(x, y)
	}
	return y
}

// squeeze is squeeze-and-excitation: the map is scaled by a gate computed from
// its mean. hidden is the width of the gate.
func (b *net) squeeze(x graph.Value, name string, hidden int64, act, gate graph.Op) graph.Value {
	c := b.Shape(x)[1]
	b.In(name, func() {
		s := b.AdaptivePool(x, 1, 1)
		s = b.Conv(s, "fc1", hidden, 1, graph.ConvOpt{Bias: true})
		s = b.Act(act, s, true)
		s = b.Conv(s, "fc2", c, 1, graph.ConvOpt{Bias: true})
		s = b.Act(gate, s, false)
		x = b.Binary(graph.Mul, x, s)
	})
	return x
}

// efficientNet scales the widths and depths of B0.
func efficientNet(b *net, x graph.Value, width, depth, dropout float64, classes int64) graph.Value {
	b.act = graph.SiLU
	ch := func(c float64) int64 { return divisible(c*width, 8) }
	stages := []struct {
		expand, kernel, stride int64
		channels               float64
		n                      float64
	}{{1, 3, 1, 16, 1}, {6, 3, 2, 24, 2}, {6, 5, 2, 40, 2}, {6, 3, 2, 80, 3}, {6, 5, 1, 112, 3}, {6, 5, 2, 192, 4}, {6, 3, 1, 320, 1}}
	total := 0
	for _, s := range stages {
		total += int(math.Ceil(s.n * depth))
	}
	x = b.convNorm(x, "features.0", ch(32), 3, graph.ConvOpt{Stride: 2, Padding: 1}, main)
	at := 0
	for stage, s := range stages {
		for i := range int(math.Ceil(s.n * depth)) {
			stride := int64(1)
			if i == 0 {
				stride = s.stride
			}
			drop := 0.2 * float64(at) / float64(total)
			at++
			b.In(block("features.", stage+1, i), func() { x = mbConv(b, x, ch(s.channels), s.expand, s.kernel, stride, drop) })
		}
	}
	x = b.convNorm(x, "features.8", 4*ch(320), 1, graph.ConvOpt{}, main)
	return b.classifier(x, classes, dropout)
}

// mbConv is EfficientNet's block.
func mbConv(b *net, x graph.Value, out, expand, kernel, stride int64, drop float64) graph.Value {
	in := b.Shape(x)[1]
	hidden := divisible(float64(in*expand), 8)
	y := x
	if hidden != in {
		y = b.convNorm(y, "expand", hidden, 1, graph.ConvOpt{}, main)
	}
	y = b.convNorm(y, "depthwise", hidden, kernel, graph.ConvOpt{Stride: stride, Padding: kernel / 2, Groups: hidden}, main)
	y = b.squeeze(y, "se", max(1, in/4), graph.SiLU, graph.Sigmoid)
	y = b.convNorm(y, "project", out, 1, graph.ConvOpt{}, none)
	if stride == 1 && in == out {
		y = b.Dropout(graph.DropPath, y, drop)
		return b.AddTo(y, x)
	}
	return y
}

// densenet joins the maps of all earlier layers of a block.
func densenet(b *net, x graph.Value, blocks []int, growth, stem, classes int64) graph.Value {
	x = b.convNorm(x, "features.conv0", stem, 7, graph.ConvOpt{Stride: 2, Padding: 3}, relu)
	x = b.MaxPool(x, 3, 2, 1, false)
	for k, n := range blocks {
		maps := []graph.Value{x}
		for i := range n {
			b.In(block("features.denseblock", k+1, i), func() {
				y := maps[0]
				y = b.Cat(1, maps...)
				y = b.Act(graph.ReLU, b.Norm(graph.BatchNorm, y, "norm1", false), true)
				y = b.Conv(y, "conv1", 4*growth, 1, graph.ConvOpt{})
				y = b.Act(graph.ReLU, b.Norm(graph.BatchNorm, y, "norm2", false), true)
				maps = append(maps, b.Conv(y, "conv2", growth, 3, graph.ConvOpt{Padding: 1}))
			})
		}
		x = b.Cat(1, maps...)
		if k < len(blocks)-1 {
			b.In(block("features.transition", k+1, 0), func() {
				x = b.Act(graph.ReLU, b.Norm(graph.BatchNorm, x, "norm", false), true)
				x = b.Conv(x, "conv", b.Shape(x)[1]/2, 1, graph.ConvOpt{})
				x = b.AvgPool(x, 2, 2, 0, false)
			})
		}
	}
	x = b.Norm(graph.BatchNorm, x, "features.norm5", false)
	return b.classifier(b.Act(graph.ReLU, x, true), classes, 0)
}

// tokensOf turns maps into a sequence: (n, c, h, w) to (n, h·w, c), a view.
func (b *net) tokensOf(x graph.Value) graph.Value {
	s := b.Shape(x)
	return b.View(x, s[0], s[2]*s[3], s[1])
}

// channelsLast is a view with the channels as the last dimension.
func (b *net) channelsLast(x graph.Value) graph.Value {
	s := b.Shape(x)
	return b.View(x, s[0], s[2], s[3], s[1])
}

// channelsFirst is the view back.
func (b *net) channelsFirst(x graph.Value) graph.Value {
	s := b.Shape(x)
	return b.View(x, s[0], s[3], s[1], s[2])
}

// norm2d is a layer norm over the channels of maps.
func (b *net) norm2d(x graph.Value, name string) graph.Value {
	return b.channelsFirst(b.LayerNorm(b.channelsLast(x), name))
}
