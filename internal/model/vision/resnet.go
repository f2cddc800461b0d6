package vision

import (
	"regexp"
	"strconv"

	"unoom/internal/model/graph"
)

// resnet is ResNet and its kin: wider groups (ResNeXt), three convolutions as
// stem (V1c), average pools in the shortcut (V1d), dilated last stages.
type resnet struct {
	depth         int
	groups        int64 // of the middle convolution
	widthPerGroup int64
	base          int64 // channels of the stem, 64
	deepStem      bool
	stemChannels  int64
	avgDown       bool
	avgAlways     bool    // even where the stride is 1: OpenMMLab's
	strides       []int64 // of the stages
	dilations     []int64
	contract      bool // the first block of a dilated stage has half the dilation
	multiGrid     []int64
	caffe         bool // the stride is in the first convolution of a bottleneck
	norm          graph.Op
	upTo          int                                        // stages that are run, 0: all
	frozen        int                                        // stages that are not trained; -1: none, 0: the stem
	normEval      bool                                       // norms use their running statistics
	splits        int64                                      // ResNeSt's radix, 0: plain
	squeeze       int64                                      // squeeze-and-excitation by this factor, 0: none
	scales        int64                                      // Res2Net's splits of a bottleneck, 0: one convolution
	context       int64                                      // global context with this reduction after the last convolution, from the second stage on; 0: none
	ceilPool      bool                                       // the stem's pool rounds up
	between       func(stage int, x graph.Value) graph.Value // what is done to a stage's maps before the next, nil: nothing
}

// plainResNet is torchvision's.
func plainResNet(depth int) *resnet {
	return &resnet{depth: depth, groups: 1, widthPerGroup: 64, base: 64, stemChannels: 64, strides: []int64{1, 2, 2, 2}, dilations: []int64{1, 1, 1, 1},
		norm: graph.BatchNorm, frozen: -1}
}

// blocks returns the blocks of each stage, and whether they are bottlenecks.
func (r *resnet) blocks() ([]int, bool) {
	switch r.depth {
	case 18:
		return []int{2, 2, 2, 2}, false
	case 34:
		return []int{3, 4, 6, 3}, false
	case 14:
		return []int{1, 1, 1, 1}, true
	case 26:
		return []int{2, 2, 2, 2}, true
	case 50:
		return []int{3, 4, 6, 3}, true
	case 101:
		return []int{3, 4, 23, 3}, true
	case 152:
		return []int{3, 8, 36, 3}, true
	case 200:
		return []int{3, 24, 36, 3}, true
	}
	return nil, false
}

// ResNetBlocks returns the blocks of each stage of the ResNet of a depth and
// whether they are bottlenecks; nil if there is none.
func ResNetBlocks(depth int) ([]int, bool) { return (&resnet{depth: depth}).blocks() }

// forward adds the backbone and returns the outputs of its stages.
func (r *resnet) forward(b *net, x graph.Value) []graph.Value {
	blocks, bottleneck := r.blocks()
	if blocks == nil {
		b.Fail("no ResNet has %d layers", r.depth)
		return []graph.Value{x, x, x, x}
	}
	frozen := func(stage int) bool { return stage <= r.frozen }
	b.norm, b.frozen, b.normEval = r.norm, frozen(0), r.normEval
	if r.deepStem {
		half := r.stemChannels / 2
		x = b.convNorm(x, "stem.0", half, 3, graph.ConvOpt{Stride: 2, Padding: 1}, relu)
		x = b.convNorm(x, "stem.3", half, 3, graph.ConvOpt{Padding: 1}, relu)
		x = b.convNorm(x, "stem.6", r.stemChannels, 3, graph.ConvOpt{Padding: 1}, relu)
	} else {
		x = b.convNorm(x, "conv1", r.stemChannels, 7, graph.ConvOpt{Stride: 2, Padding: 3}, relu)
	}
	x = b.MaxPool(x, 3, 2, 1, r.ceilPool)
	var outs []graph.Value
	for stage, n := range blocks {
		if r.upTo > 0 && stage >= r.upTo {
			break
		}
		b.frozen = frozen(stage + 1)
		width := r.base << stage
		for i := range n {
			stride, dilation := int64(1), r.dilations[stage]
			if i == 0 {
				stride = r.strides[stage]
				if r.contract && dilation > 1 {
					dilation /= 2
				}
			}
			if stage == len(blocks)-1 && len(r.multiGrid) > 0 {
				dilation = r.dilations[stage] * r.multiGrid[i%len(r.multiGrid)]
				if i == 0 && r.contract && r.dilations[stage] > 1 {
					dilation = r.dilations[stage] / 2 * r.multiGrid[0]
				}
			}
			b.In(block("layer", stage+1, i), func() {
				if bottleneck {
					x = r.bottleneck(b, x, width, stride, dilation, stage, i == 0)
				} else {
					x = r.basic(b, x, width, stride, dilation)
				}
			})
		}
		outs = append(outs, x)
		if r.between != nil {
			x = r.between(stage, x)
		}
	}
	b.frozen, b.normEval = false, false
	return outs
}

// shortcut adds the projection of a block whose input has another shape.
func (r *resnet) shortcut(b *net, x graph.Value, out, stride int64) graph.Value {
	if b.Shape(x)[1] == out && stride == 1 {
		return x
	}
	conv := stride
	if r.avgDown && (stride != 1 || r.avgAlways) {
		conv = 1
		x = b.AvgPool(x, stride, stride, 0, true)
	}
	return b.convNorm(x, "downsample", out, 1, graph.ConvOpt{Stride: conv}, none)
}

func (r *resnet) basic(b *net, x graph.Value, width, stride, dilation int64) graph.Value {
	y := b.convNorm(x, "1", width, 3, graph.ConvOpt{Stride: stride, Padding: dilation, Dilation: dilation}, relu)
	y = b.convNorm(y, "2", width, 3, graph.ConvOpt{Padding: 1}, none)
	y = r.excited(b, y)
	y = b.AddTo(y, r.shortcut(b, x, width, stride))
	return b.Act(graph.ReLU, y, true)
}

func (r *resnet) bottleneck(b *net, x graph.Value, width, stride, dilation int64, stage int, first bool) graph.Value {
	mid := width * r.widthPerGroup / 64 * r.groups
	s1, s2 := int64(1), stride
	if r.caffe {
		s1, s2 = stride, 1
	}
	if r.scales > 0 {
		mid = width * r.widthPerGroup / 64 * r.scales
	}
	y := b.convNorm(x, "1", mid, 1, graph.ConvOpt{Stride: s1}, relu)
	switch {
	case r.scales > 0:
		y = r.split(b, y, mid/r.scales, s2, first)
	case r.splits > 0:
		y = r.splitAttention(b, y, mid, s2, dilation)
	default:
		y = b.convNorm(y, "2", mid, 3, graph.ConvOpt{Stride: s2, Padding: dilation, Dilation: dilation, Groups: r.groups}, relu)
	}
	y = b.convNorm(y, "3", 4*width, 1, graph.ConvOpt{}, none)
	y = r.excited(b, y)
	if r.context > 0 && stage > 0 {
		y = b.globalContext(y, "context_block", r.context)
	}
	y = b.AddTo(y, r.shortcut(b, x, 4*width, stride))
	return b.Act(graph.ReLU, y, true)
}

// split is Res2Net's middle: each part of the channels takes the result of the one
// before it, except in the first block of a stage.
func (r *resnet) split(b *net, x graph.Value, width, stride int64, first bool) graph.Value {
	s := b.Shape(x)
	part := func() graph.Value { return b.Part(x, s[0], width, s[2], s[3]) }
	var sp, out graph.Value
	for i := range int(r.scales) - 1 {
		y := b.Copy(part())
		if i > 0 && !first {
			y = b.Add(sp, part())
		}
		sp = b.convNorm(y, block("convs.", i, 0), width, 3, graph.ConvOpt{Stride: stride, Padding: 1}, relu)
		if i == 0 {
			out = sp
		} else {
			out = b.Cat(1, out, sp)
		}
	}
	last := part()
	if first && stride > 1 {
		last = b.AvgPool(last, 3, stride, 1, false)
	}
	return b.Cat(1, out, last)
}

// globalContext adds what an attention over all positions finds to every one.
//
// Source: mmcv cnn/bricks/context_block.py.
func (b *net) globalContext(x graph.Value, name string, reduction int64) graph.Value {
	b.In(name, func() {
		s := b.Shape(x)
		n, c, l := s[0], s[1], s[2]*s[3]
		p := b.Act(graph.Softmax, b.View(b.Conv(x, "conv_mask", 1, 1, graph.ConvOpt{Bias: true}), n, 1, l, 1), false)
		y := b.View(b.MatMul(b.View(x, n, 1, c, l), p, false), n, c, 1, 1)
		y = b.Conv(y, "channel_add_conv.0", c/reduction, 1, graph.ConvOpt{Bias: true})
		y = b.View(b.LayerNorm(b.View(y, n, c/reduction), "channel_add_conv.1"), n, c/reduction, 1, 1)
		y = b.Conv(b.Act(graph.ReLU, y, true), "channel_add_conv.3", c, 1, graph.ConvOpt{Bias: true})
		x = b.Add(x, y)
	})
	return x
}

// excited adds squeeze-and-excitation where the network has it.
func (r *resnet) excited(b *net, y graph.Value) graph.Value {
	if r.squeeze == 0 {
		return y
	}
	return b.squeeze(y, "se", divisibleBy(float64(b.Shape(y)[1])/float64(r.squeeze), 8, 0), graph.ReLU, graph.Sigmoid)
}

// splitAttention is ResNeSt's middle convolution: radix groups, weighted by
// attention over their pooled sum, with the stride in an average pool after it.
func (r *resnet) splitAttention(b *net, x graph.Value, channels, stride, dilation int64) graph.Value {
	radix := r.splits
	y := b.convNorm(x, "conv2.conv", channels*radix, 3, graph.ConvOpt{Padding: dilation, Dilation: dilation, Groups: r.groups * radix}, relu)
	s := b.Shape(y)
	parts := b.View(y, s[0], radix, channels, s[2], s[3])
	gap := b.Reduce(graph.Sum, parts, s[0], channels, s[2], s[3])
	gap = b.AdaptivePool(gap, 1, 1)
	inter := max(channels*radix/4, 32)
	gap = b.convNorm(gap, "conv2.fc1", inter, 1, graph.ConvOpt{Groups: r.groups, Bias: true}, relu)
	atten := b.Conv(gap, "conv2.fc2", channels*radix, 1, graph.ConvOpt{Groups: r.groups, Bias: true})
	atten = b.Act(graph.Softmax, b.View(atten, s[0], radix, channels, 1, 1), false)
	out := b.Binary(graph.Mul, parts, atten)
	y = b.Copy(b.Reduce(graph.Sum, out, s[0], channels, s[2], s[3]))
	if stride > 1 {
		y = b.AvgPool(y, 3, stride, 1, false)
	}
	return y
}

// resnetName is how timm names the networks of torchvision and their kin.
var resnetName = regexp.MustCompile(`^(?:gluon_|tv_|ssl_|swsl_|ig_)?(wide_|se)?(resnet|resnext)(\d+)(c|d|t)?(?:_(\d+)x(\d+)d?|_(2)|_v1b)?$`)

// zooResNet reads such a name: resnet50d, seresnext50_32x4d, wide_resnet101_2.
func zooResNet(name string, _ bool) *Spec {
	m := resnetName.FindStringSubmatch(name)
	if m == nil || m[4] == "t" || (m[1] == "wide_") != (m[7] != "") || (m[2] == "resnext") != (m[5] != "") {
		return nil
	}
	s := &Spec{Builder: "resnet", Image: 224}
	s.Depth, _ = strconv.Atoi(m[3])
	if blocks, _ := (&resnet{depth: s.Depth}).blocks(); blocks == nil {
		return nil
	}
	if m[5] != "" {
		s.Groups, _ = strconv.ParseInt(m[5], 10, 64)
		width, _ := strconv.ParseFloat(m[6], 64)
		s.Width = width
	}
	switch m[1] {
	case "wide_":
		s.Width = 128
	case "se":
		s.Squeeze = 16
	}
	switch m[4] {
	case "c":
		s.Stem = "deep"
	case "d":
		s.Stem = "deep-avg"
	}
	return s
}
