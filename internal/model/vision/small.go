package vision

import (
	"strconv"

	"unoom/internal/model/graph"
)

// alexnet is AlexNet as torchvision builds it.
func alexnet(b *net, x graph.Value, classes int64) graph.Value {
	conv := func(name string, out, kernel int64, o graph.ConvOpt) {
		o.Bias = true
		x = b.Act(graph.ReLU, b.Conv(x, name, out, kernel, o), true)
	}
	conv("features.0", 64, 11, graph.ConvOpt{Stride: 4, Padding: 2})
	x = b.MaxPool(x, 3, 2, 0, false)
	conv("features.3", 192, 5, graph.ConvOpt{Padding: 2})
	x = b.MaxPool(x, 3, 2, 0, false)
	conv("features.6", 384, 3, graph.ConvOpt{Padding: 1})
	conv("features.8", 256, 3, graph.ConvOpt{Padding: 1})
	conv("features.10", 256, 3, graph.ConvOpt{Padding: 1})
	x = b.MaxPool(x, 3, 2, 0, false)
	x = b.AdaptivePool(x, 6, 6)
	x = b.View(x, b.Shape(x)[0], 256*36)
	for i := range 2 {
		x = b.Dropout(graph.Dropout, x, 0.5)
		x = b.Act(graph.ReLU, b.Linear(x, block("classifier.", i, 0), 4096, true), true)
	}
	return b.Linear(x, "classifier.6", classes, true)
}

// squeezenet is SqueezeNet 1.1, or 1.0 with a larger first kernel and later
// pools.
func squeezenet(b *net, x graph.Value, first bool, classes int64) graph.Value {
	conv := func(x graph.Value, name string, out, kernel int64, o graph.ConvOpt) graph.Value {
		o.Bias = true
		return b.Act(graph.ReLU, b.Conv(x, name, out, kernel, o), true)
	}
	pools := []int{0, 2, 4} // before these
	if first {
		x = conv(x, "features.0", 96, 7, graph.ConvOpt{Stride: 2})
		pools = []int{0, 3, 7}
	} else {
		x = conv(x, "features.0", 64, 3, graph.ConvOpt{Stride: 2})
	}
	for i := range 8 {
		for _, p := range pools {
			if p == i {
				x = b.MaxPool(x, 3, 2, 0, true)
			}
		}
		squeeze := int64(16 * (i/2 + 1))
		b.In(block("fire", i, 0), func() {
			x = conv(x, "squeeze", squeeze, 1, graph.ConvOpt{})
			x = b.Cat(1, conv(x, "expand1x1", 4*squeeze, 1, graph.ConvOpt{}), conv(x, "expand3x3", 4*squeeze, 3, graph.ConvOpt{Padding: 1}))
		})
	}
	x = b.Dropout(graph.Dropout, x, 0.5)
	x = b.AdaptivePool(conv(x, "classifier.1", classes, 1, graph.ConvOpt{}), 1, 1)
	return b.View(x, b.Shape(x)[0], classes)
}

// shufflenet is ShuffleNet V2 of a width.
func shufflenet(b *net, x graph.Value, width float64, classes int64) graph.Value {
	widths := map[float64][]int64{0.5: {48, 96, 192, 1024}, 1: {116, 232, 464, 1024}, 1.5: {176, 352, 704, 1024}, 2: {244, 488, 976, 2048}}[width]
	if widths == nil {
		b.Fail("no ShuffleNet has the width %g", width)
		return x
	}
	x = b.convNorm(x, "conv1", 24, 3, graph.ConvOpt{Stride: 2, Padding: 1}, relu)
	x = b.MaxPool(x, 3, 2, 1, false)
	for stage, n := range []int{4, 8, 4} {
		c := widths[stage] / 2
		for i := range n {
			b.In(block("stage", stage+2, i), func() {
				s := b.Shape(x)
				main, stride := x, int64(1)
				var side graph.Value
				if i == 0 {
					stride = 2
					side = b.convNorm(x, "branch1.0", s[1], 3, graph.ConvOpt{Stride: 2, Padding: 1, Groups: s[1]}, none)
					side = b.convNorm(side, "branch1.2", c, 1, graph.ConvOpt{}, relu)
				} else {
					side, main = b.Part(x, s[0], c, s[2], s[3]), b.Part(x, s[0], c, s[2], s[3])
				}
				y := b.convNorm(main, "branch2.0", c, 1, graph.ConvOpt{}, relu)
				y = b.convNorm(y, "branch2.3", c, 3, graph.ConvOpt{Stride: stride, Padding: 1, Groups: c}, none)
				y = b.convNorm(y, "branch2.5", c, 1, graph.ConvOpt{}, relu)
				x = b.Copy(b.Cat(1, side, y)) // the channels are shuffled
			})
		}
	}
	x = b.convNorm(x, "conv5", widths[3], 1, graph.ConvOpt{}, relu)
	return b.classifier(x, classes, 0)
}

// googlenet is Inception v1 with batch norm, without its middle classifiers.
func googlenet(b *net, x graph.Value, classes int64) graph.Value {
	conv := func(x graph.Value, name string, out, kernel int64) graph.Value {
		return b.convNorm(x, name, out, kernel, graph.ConvOpt{Padding: kernel / 2}, relu)
	}
	x = b.convNorm(x, "conv1", 64, 7, graph.ConvOpt{Stride: 2, Padding: 3}, relu)
	x = b.MaxPool(x, 3, 2, 0, true)
	x = conv(conv(x, "conv2", 64, 1), "conv3", 192, 3)
	x = b.MaxPool(x, 3, 2, 0, true)
	for i, c := range [][6]int64{{64, 96, 128, 16, 32, 32}, {128, 128, 192, 32, 96, 64}, {192, 96, 208, 16, 48, 64}, {160, 112, 224, 24, 64, 64}, {128, 128, 256, 24, 64, 64},
		{112, 144, 288, 32, 64, 64}, {256, 160, 320, 32, 128, 128}, {256, 160, 320, 32, 128, 128}, {384, 192, 384, 48, 128, 128}} {
		switch i {
		case 2:
			x = b.MaxPool(x, 3, 2, 0, true)
		case 7:
			x = b.MaxPool(x, 2, 2, 0, true)
		}
		b.In(block("inception", i, 0), func() {
			x = b.Cat(1, conv(x, "branch1", c[0], 1), conv(conv(x, "branch2.0", c[1], 1), "branch2.1", c[2], 3),
				conv(conv(x, "branch3.0", c[3], 1), "branch3.1", c[4], 3), conv(b.MaxPool(x, 3, 1, 1, true), "branch4", c[5], 1))
		})
	}
	return b.classifier(x, classes, 0.2)
}

// zooPlain reads names that say all.
func zooPlain(name string, _ bool) *Spec {
	switch name {
	case "alexnet", "googlenet", "xception":
		s := &Spec{Builder: name, Image: 224}
		if name == "xception" {
			s.Image = 299
		}
		return s
	case "inception_v3":
		return &Spec{Builder: "inception_v3", Image: 299}
	case "squeezenet1_0", "squeezenet1_1":
		return &Spec{Builder: "squeezenet", Same: name == "squeezenet1_0", Image: 224}
	case "shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "shufflenet_v2_x1_5", "shufflenet_v2_x2_0":
		w, _ := strconv.ParseFloat(string(name[len(name)-3])+"."+string(name[len(name)-1]), 64)
		return &Spec{Builder: "shufflenet", Width: w, Image: 224}
	case "vgg11", "vgg13", "vgg16", "vgg19", "vgg11_bn", "vgg13_bn", "vgg16_bn", "vgg19_bn":
		depth, _ := strconv.Atoi(name[3:5])
		return &Spec{Builder: "vgg", Depth: depth, Norm: len(name) > 5, Image: 224}
	case "densenet121":
		return &Spec{Builder: "densenet", Depths: []int{6, 12, 24, 16}, Growth: 32, Widths: []int64{64}, Image: 224}
	case "densenet169":
		return &Spec{Builder: "densenet", Depths: []int{6, 12, 32, 32}, Growth: 32, Widths: []int64{64}, Image: 224}
	case "densenet201":
		return &Spec{Builder: "densenet", Depths: []int{6, 12, 48, 32}, Growth: 32, Widths: []int64{64}, Image: 224}
	case "densenet161":
		return &Spec{Builder: "densenet", Depths: []int{6, 12, 36, 24}, Growth: 48, Widths: []int64{96}, Image: 224}
	}
	return nil
}
