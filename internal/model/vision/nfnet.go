package vision

import (
	"regexp"

	"unoom/internal/model/graph"
)

// nfNet is a network without norms: the kernels are standardised instead.
type nfNet struct {
	scale int64 // F0 is 1
	paper bool  // DeepMind's own form: padding, scaled activations, a gain for each branch
}

// forward adds NFNet.
//
// Source: Brock et al.: High-Performance Large-Scale Image Recognition Without
// Normalization; timm models/nfnet.py.
func (f *nfNet) forward(b *net, x graph.Value, classes int64) graph.Value {
	act := func(x graph.Value) graph.Value {
		x = b.Act(graph.GELU, x, false)
		if f.paper {
			x = b.Act(graph.Scale, x, true)
		}
		return x
	}
	conv := func(x graph.Value, name string, out, kernel, stride, groups int64) graph.Value {
		o := graph.ConvOpt{Stride: stride, Padding: kernel / 2, Groups: groups, Bias: true, Standard: true}
		if f.paper && stride > 1 {
			s := b.Shape(x)
			x, o.Padding = b.Moved(graph.Pad, x, s[0], s[1], s[2]+1, s[3]+1), 0
		}
		return b.Conv(x, name, out, kernel, o)
	}
	for i, out := range []int64{16, 32, 64, 128} {
		if i > 0 {
			x = act(x)
		}
		stride := int64(1)
		if i == 0 || i == 3 {
			stride = 2
		}
		x = conv(x, block("stem.conv", i+1, 0), out, 3, stride, 1)
	}
	for stage, out := range []int64{256, 512, 1536, 1536} {
		n := []int64{1, 2, 6, 3}[stage] * f.scale
		for i := range n {
			stride := int64(1)
			if i == 0 && stage > 0 {
				stride = 2
			}
			b.In(block("stages.", stage, int(i)), func() {
				y := b.Act(graph.Scale, act(x), false)
				if b.Shape(x)[1] != out || stride > 1 {
					x = y
					if stride > 1 {
						x = b.AvgPool(x, 2, 2, 0, true)
					}
					x = conv(x, "downsample.conv", out, 1, 1, 1)
				}
				mid := out / 2
				y = conv(act(conv(y, "conv1", mid, 1, 1, 1)), "conv2", mid, 3, stride, mid/128)
				y = conv(act(y), "conv2b", mid, 3, 1, mid/128)
				y = conv(act(y), "conv3", out, 1, 1, 1)
				y = b.Act(graph.Scale, b.squeeze(y, "attn_last", out/2, graph.ReLU, graph.Sigmoid), false)
				if f.paper {
					y = b.Scaled(y, "skipinit_gain", 1)
				}
				x = b.Add(b.Act(graph.Scale, y, false), x)
			})
		}
	}
	x = act(conv(x, "final_conv", 3072, 1, 1, 1))
	return b.classifier(x, classes, 0)
}

var nfName = regexp.MustCompile(`^(dm_)?nfnet_f([0-7])$`)

// zooNFNet reads timm's names.
func zooNFNet(name string, _ bool) *Spec {
	m := nfName.FindStringSubmatch(name)
	if m == nil {
		return nil
	}
	n := int(m[2][0] - '0')
	return &Spec{Builder: "nfnet", Depth: n, Same: m[1] != "", Image: []int64{192, 224, 256, 320, 384, 416, 448, 480}[n]}
}
