package vision

import "unoom/internal/model/graph"

// cspNet is a network of cross stage partial blocks as timm builds it, and plain
// Darknet.
type cspNet struct {
	stem, stemKernel int64
	pooled           bool // the stem's stride is 4: a pool follows
	depths           []int
	widths           []int64
	strides          []int64
	groups           int64
	expand           []float64 // of the stages' width before the split; none: a plain Darknet
	bottle, ratio    []float64 // of the blocks' middle, of the blocks
	grow             bool      // the strided convolution has the stage's width
	linear           bool      // no activation before the split
	dark             bool      // blocks of two convolutions
}

// cspNets returns the network of a name, nil if there is none.
//
// Source: Wang et al.: CSPNet; timm models/cspnet.py.
func cspNets(name string) *cspNet {
	dark := &cspNet{stem: 32, stemKernel: 3, depths: []int{1, 2, 8, 8, 4}, widths: []int64{64, 128, 256, 512, 1024}, strides: []int64{2}, groups: 1,
		bottle: []float64{0.5}, ratio: []float64{1}, dark: true}
	res := &cspNet{stem: 64, stemKernel: 7, pooled: true, depths: []int{3, 3, 5, 2}, widths: []int64{128, 256, 512, 1024}, strides: []int64{1, 2}, groups: 1,
		expand: []float64{2}, bottle: []float64{0.5}, ratio: []float64{1}, linear: true}
	switch name {
	case "darknet53":
		return dark
	case "darknet21":
		dark.depths = []int{1, 1, 1, 2, 2}
		return dark
	case "darknet17":
		dark.depths = []int{1, 1, 1, 1, 1}
		return dark
	case "cspdarknet53":
		dark.expand, dark.bottle, dark.ratio, dark.grow = []float64{2, 1}, []float64{0.5, 1}, []float64{1, 0.5}, true
		return dark
	case "cspresnet50":
		return res
	case "cspresnext50":
		res.widths, res.groups, res.expand, res.bottle, res.ratio = []int64{256, 512, 1024, 2048}, 32, []float64{1}, []float64{1}, []float64{0.5}
		return res
	}
	return nil
}

// at is the value of a stage; the last one holds for all later.
func at[T any](list []T, stage int) T { return list[min(stage, len(list)-1)] }

// forward adds the network.
func (c *cspNet) forward(b *net, x graph.Value, classes int64) graph.Value {
	b.act = graph.LeakyReLU
	stride := int64(1)
	if c.pooled {
		stride = 2
	}
	x = b.convNorm(x, "stem", c.stem, c.stemKernel, graph.ConvOpt{Stride: stride, Padding: c.stemKernel / 2}, main)
	if c.pooled {
		x = b.MaxPool(x, 3, 2, 1, false)
	}
	for stage, n := range c.depths {
		b.In(block("stages.", stage, 0), func() { x = c.stage(b, x, stage, n) })
	}
	return b.classifier(x, classes, 0)
}

func (c *cspNet) stage(b *net, x graph.Value, stage, n int) graph.Value {
	out := c.widths[stage]
	width := int64(float64(out) * at(c.ratio, stage))
	if s := at(c.strides, stage); s != 1 {
		down := b.Shape(x)[1]
		if c.grow || c.expand == nil {
			down = out
		}
		x = b.convNorm(x, "conv_down", down, 3, graph.ConvOpt{Stride: s, Padding: 1, Groups: c.groups}, main)
	}
	blocks := func(y graph.Value) graph.Value {
		for i := range n {
			b.In(block("blocks.", 0, i), func() { y = c.block(b, y, width, int64(float64(width)*at(c.bottle, stage))) })
		}
		return y
	}
	if c.expand == nil {
		return blocks(x)
	}
	wide := int64(float64(out) * at(c.expand, stage))
	last := main
	if c.linear {
		last = none
	}
	x = b.convNorm(x, "conv_exp", wide, 1, graph.ConvOpt{}, last)
	s := b.Shape(x)
	half := func() graph.Value { return b.Part(x, s[0], wide/2, s[2], s[3]) }
	side, y := half(), half()
	y = b.convNorm(blocks(y), "conv_transition_b", wide/2, 1, graph.ConvOpt{}, main)
	return b.convNorm(b.Cat(1, side, y), "conv_transition", out, 1, graph.ConvOpt{}, main)
}

func (c *cspNet) block(b *net, x graph.Value, out, mid int64) graph.Value {
	y := b.convNorm(x, "conv1", mid, 1, graph.ConvOpt{}, main)
	if c.dark {
		return b.Add(b.convNorm(y, "conv2", out, 3, graph.ConvOpt{Padding: 1, Groups: c.groups}, main), x)
	}
	y = b.convNorm(y, "conv2", mid, 3, graph.ConvOpt{Padding: 1, Groups: c.groups}, main)
	y = b.convNorm(y, "conv3", out, 1, graph.ConvOpt{}, none)
	return b.Act(b.act, b.Add(y, x), false)
}

// zooCSP reads timm's names.
func zooCSP(name string, _ bool) *Spec {
	if cspNets(name) == nil {
		return nil
	}
	return &Spec{Builder: "csp", Method: name, Image: 256}
}
