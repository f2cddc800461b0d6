package vision

import "unoom/internal/model/graph"

// A branchConv is one convolution of a branch.
type branchConv struct {
	out, kernel int64
	stride      int64 // 0: 1, with padding; else none
	wide, tall  bool  // 1×kernel, kernel×1
}

// branch adds convolutions one after the other.
func (b *net) branch(x graph.Value, name string, convs ...branchConv) graph.Value {
	for i, c := range convs {
		o := graph.ConvOpt{Stride: max(1, c.stride)}
		if c.stride == 0 {
			o.Padding = c.kernel / 2
		}
		k := c.kernel
		switch {
		case c.wide:
			k, o.KernelW, o.PadW, o.Padding = 1, c.kernel, c.kernel/2, 0
		case c.tall:
			o.KernelW, o.PadW = 1, -1
		}
		x = b.convNorm(x, block(name, 0, i), c.out, k, o, relu)
	}
	return x
}

// inceptionV3 is Inception v3 without the classifier of its middle.
func inceptionV3(b *net, x graph.Value, dropout float64, classes int64) graph.Value {
	conv := func(out, kernel int64) branchConv { return branchConv{out: out, kernel: kernel} }
	down := func(out, kernel, stride int64) branchConv {
		return branchConv{out: out, kernel: kernel, stride: stride}
	}
	wide := func(out, kernel int64) branchConv { return branchConv{out: out, kernel: kernel, wide: true} }
	tall := func(out, kernel int64) branchConv { return branchConv{out: out, kernel: kernel, tall: true} }
	pooled := func(out int64) graph.Value { return b.branch(b.AvgPool(x, 3, 1, 1, false), "pool", conv(out, 1)) }

	x = b.branch(x, "stem", down(32, 3, 2), down(32, 3, 1), conv(64, 3))
	x = b.MaxPool(x, 3, 2, 0, false)
	x = b.branch(x, "stem2", conv(80, 1), down(192, 3, 1))
	x = b.MaxPool(x, 3, 2, 0, false)
	for i, pool := range []int64{32, 64, 64} {
		b.In(block("mixed_5", 0, i), func() {
			x = b.Cat(1, b.branch(x, "1", conv(64, 1)), b.branch(x, "5", conv(48, 1), conv(64, 5)),
				b.branch(x, "3", conv(64, 1), conv(96, 3), conv(96, 3)), pooled(pool))
		})
	}
	b.In("mixed_6a", func() {
		x = b.Cat(1, b.branch(x, "3", down(384, 3, 2)), b.branch(x, "3d", conv(64, 1), conv(96, 3), down(96, 3, 2)), b.MaxPool(x, 3, 2, 0, false))
	})
	for i, c := range []int64{128, 160, 160, 192} {
		b.In(block("mixed_6", 0, i), func() {
			x = b.Cat(1, b.branch(x, "1", conv(192, 1)), b.branch(x, "7", conv(c, 1), wide(c, 7), tall(192, 7)),
				b.branch(x, "7d", conv(c, 1), tall(c, 7), wide(c, 7), tall(c, 7), wide(192, 7)), pooled(192))
		})
	}
	b.In("mixed_7a", func() {
		x = b.Cat(1, b.branch(x, "3", conv(192, 1), down(320, 3, 2)),
			b.branch(x, "7", conv(192, 1), wide(192, 7), tall(192, 7), down(192, 3, 2)), b.MaxPool(x, 3, 2, 0, false))
	})
	for i := range 2 {
		b.In(block("mixed_7", 0, i), func() {
			three := b.branch(x, "3", conv(384, 1))
			double := b.branch(x, "3d", conv(448, 1), conv(384, 3))
			x = b.Cat(1, b.branch(x, "1", conv(320, 1)),
				b.Cat(1, b.branch(three, "3a", wide(384, 3)), b.branch(three, "3b", tall(384, 3))),
				b.Cat(1, b.branch(double, "3da", wide(384, 3)), b.branch(double, "3db", tall(384, 3))), pooled(192))
		})
	}
	return b.classifier(x, classes, dropout)
}

// xception is Xception: separable convolutions with a shortcut around each two
// or three.
func xception(b *net, x graph.Value, classes int64) graph.Value {
	separable := func(x graph.Value, name string, out int64) graph.Value {
		c := b.Shape(x)[1]
		x = b.Conv(x, name+".conv1", c, 3, graph.ConvOpt{Padding: 1, Groups: c})
		x = b.Conv(x, name+".pointwise", out, 1, graph.ConvOpt{})
		return b.normed(x, name+".bn")
	}
	x = b.convNorm(x, "conv1", 32, 3, graph.ConvOpt{Stride: 2}, relu)
	x = b.convNorm(x, "conv2", 64, 3, graph.ConvOpt{}, relu)
	for i, k := range []struct {
		out    int64
		stride int64
	}{{128, 2}, {256, 2}, {728, 2}, {728, 1}, {728, 1}, {728, 1}, {728, 1}, {728, 1}, {728, 1}, {728, 1}, {728, 1}, {1024, 2}} {
		reps := 3
		if k.stride == 2 {
			reps = 2
		}
		b.In(block("block", i+1, 0), func() {
			y := x
			for r := range reps {
				if r > 0 || i > 0 {
					y = b.Act(graph.ReLU, y, r > 0)
				}
				out := k.out
				if i == 11 && r == 0 { // grows in its second convolution
					out = b.Shape(x)[1]
				}
				y = separable(y, block("rep", 0, r), out)
			}
			if k.stride == 2 {
				y = b.MaxPool(y, 3, 2, 1, false)
				x = b.normed(b.Conv(x, "skip", k.out, 1, graph.ConvOpt{Stride: 2}), "skipbn")
			}
			x = b.AddTo(y, x)
		})
	}
	x = b.Act(graph.ReLU, separable(x, "conv3", 1536), true)
	x = b.Act(graph.ReLU, separable(x, "conv4", 2048), true)
	return b.classifier(x, classes, 0)
}
