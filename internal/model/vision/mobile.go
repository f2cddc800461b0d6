package vision

import (
	"cmp"
	"math"
	"strconv"
	"strings"

	"unoom/internal/model/graph"
)

// mobileNet is a network of inverted residual blocks as timm builds it:
// EfficientNet and its second version, MobileNet, MnasNet, FBNet, TinyNet, LCNet.
type mobileNet struct {
	stem, head   int64
	fixedStem    bool
	width, depth float64
	lastDepth    float64 // of the last two stages, 0: as the others
	act          graph.Op
	round        float64 // how much rounding may take away: 0.9, or 0 for nothing
	fixedEnds    bool    // the first and last stages are not deepened
	depthRounded bool    // to the nearest, not up
	same         bool    // TensorFlow's padding

	// Squeeze-and-excitation.
	seAct, gate graph.Op // "": act, sigmoid
	seRound     bool     // its width is a multiple of eight
	seWide      bool     // its width is a share of the expanded channels, not of the block's

	headAfterPool bool // the last convolution works on the pooled maps
	headBias      bool

	// stages are in the order in which they run; each has groups of equal blocks
	// separated by commas: "ir 2 k3 s2 e6 c24 se.25".
	stages []string
}

// mobileBlock is one group of a stage.
type mobileBlock struct {
	kind           string // ir: inverted residual, ds: depthwise separable, dsa: with a last activation and no skip, er: fused, cn: plain
	repeat         int
	kernel, stride int64
	expand, se     float64
	channels       int64
	from           int64 // er: the width that is expanded, 0: the input's
	noSkip, skip   bool
	act            graph.Op
}

// parseMobileBlock reads a group. The lists below are the only input.
func parseMobileBlock(text string) (b mobileBlock) {
	f := strings.Fields(text)
	b.kind, b.expand, b.kernel, b.stride = f[0], 1, 3, 1
	b.repeat, _ = strconv.Atoi(f[1])
	for _, s := range f[2:] {
		at := strings.IndexAny(s, "0123456789.")
		if at < 0 {
			at = len(s)
		}
		v, _ := strconv.ParseFloat(s[at:], 64)
		switch s[:at] {
		case "k":
			b.kernel = int64(v)
		case "s":
			b.stride = int64(v)
		case "e":
			b.expand = v
		case "c":
			b.channels = int64(v)
		case "se":
			b.se = v
		case "from":
			b.from = int64(v)
		case "noskip":
			b.noSkip = true
		case "skip":
			b.skip = true
		case "relu":
			b.act = graph.ReLU
		}
	}
	return b
}

// The stages of published networks.
// Source: the papers; timm models/efficientnet.py and models/mobilenetv3.py.
func efficientNetStages() []string {
	return []string{"ds 1 k3 s1 c16 se.25", "ir 2 k3 s2 e6 c24 se.25", "ir 2 k5 s2 e6 c40 se.25", "ir 3 k3 s2 e6 c80 se.25",
		"ir 3 k5 s1 e6 c112 se.25", "ir 4 k5 s2 e6 c192 se.25", "ir 1 k3 s1 e6 c320 se.25"}
}

// mobileNets returns the network of a scheme's name, nil if there is none.
func mobileNets(scheme string) *mobileNet {
	n := &mobileNet{stem: 32, head: 1280, width: 1, depth: 1, act: graph.ReLU, round: 0.9}
	switch scheme {
	case "efficientnet":
		n.act, n.stages, n.head = graph.SiLU, efficientNetStages(), -1280
	case "efficientnet_lite":
		n.act, n.fixedStem, n.fixedEnds = graph.HardTanh, true, true
		for _, s := range efficientNetStages() {
			n.stages = append(n.stages, strings.TrimSuffix(s, " se.25"))
		}
	case "efficientnet_edge":
		n.head = -1280
		n.stages = []string{"er 1 k3 e4 c24 from24 noskip", "er 2 k3 s2 e8 c32", "er 4 k3 s2 e8 c48", "ir 5 k5 s2 e8 c96", "ir 4 k5 e8 c144", "ir 2 k5 s2 e8 c192"}
	case "tinynet":
		n.act, n.stages, n.depthRounded, n.fixedStem, n.head = graph.SiLU, efficientNetStages(), true, true, -1280
	case "efficientnetv2_b":
		n.act, n.round, n.head = graph.SiLU, 0, -1280
		n.stages = []string{"cn 1 k3 c16 skip", "er 2 k3 s2 e4 c32", "er 2 k3 s2 e4 c48", "ir 3 k3 s2 e4 c96 se.25", "ir 5 k3 e6 c112 se.25", "ir 8 k3 s2 e6 c192 se.25"}
	case "efficientnetv2_s":
		n.act, n.stem, n.head = graph.SiLU, 24, -1280
		n.stages = []string{"cn 2 k3 c24 skip", "er 4 k3 s2 e4 c48", "er 4 k3 s2 e4 c64", "ir 6 k3 s2 e4 c128 se.25", "ir 9 k3 e6 c160 se.25", "ir 15 k3 s2 e6 c256 se.25"}
	case "efficientnetv2_rw":
		n.act, n.stem, n.head = graph.SiLU, 24, -1792
		n.stages = []string{"er 2 k3 e1 c24", "er 4 k3 s2 e4 c48", "er 4 k3 s2 e4 c64", "ir 6 k3 s2 e4 c128 se.25", "ir 9 k3 e6 c160 se.25", "ir 15 k3 s2 e6 c272 se.25"}
	case "efficientnetv2_m":
		n.act, n.stem = graph.SiLU, 24
		n.stages = []string{"cn 3 k3 c24 skip", "er 5 k3 s2 e4 c48", "er 5 k3 s2 e4 c80", "ir 7 k3 s2 e4 c160 se.25", "ir 14 k3 e6 c176 se.25", "ir 18 k3 s2 e6 c304 se.25", "ir 5 k3 e6 c512 se.25"}
	case "efficientnetv2_l":
		n.act = graph.SiLU
		n.stages = []string{"cn 4 k3 c32 skip", "er 7 k3 s2 e4 c64", "er 7 k3 s2 e4 c96", "ir 10 k3 s2 e4 c192 se.25", "ir 19 k3 e6 c224 se.25", "ir 25 k3 s2 e6 c384 se.25", "ir 7 k3 e6 c640 se.25"}
	case "efficientnetv2_xl":
		n.act = graph.SiLU
		n.stages = []string{"cn 4 k3 c32 skip", "er 8 k3 s2 e4 c64", "er 8 k3 s2 e4 c96", "ir 16 k3 s2 e4 c192 se.25", "ir 24 k3 e6 c256 se.25", "ir 32 k3 s2 e6 c512 se.25", "ir 8 k3 e6 c640 se.25"}
	case "mobilenetv1":
		n.act, n.head = graph.HardTanh, 0
		n.stages = []string{"dsa 1 k3 c64", "dsa 2 k3 s2 c128", "dsa 2 k3 s2 c256", "dsa 6 k3 s2 c512", "dsa 2 k3 s2 c1024"}
	case "mobilenetv2":
		n.act = graph.HardTanh
		n.stages = []string{"ds 1 k3 c16", "ir 2 k3 s2 e6 c24", "ir 3 k3 s2 e6 c32", "ir 4 k3 s2 e6 c64", "ir 3 k3 e6 c96", "ir 3 k3 s2 e6 c160", "ir 1 k3 e6 c320"}
	case "mnasnet":
		n.stages = []string{"ds 1 k3 c16 noskip", "ir 3 k3 s2 e3 c24", "ir 3 k5 s2 e3 c40", "ir 3 k5 s2 e6 c80", "ir 2 k3 e6 c96", "ir 4 k5 s2 e6 c192", "ir 1 k3 e6 c320 noskip"}
	case "semnasnet":
		n.stages = []string{"ds 1 k3 c16 noskip", "ir 2 k3 s2 e6 c24", "ir 3 k5 s2 e3 c40 se.25", "ir 4 k3 s2 e6 c80", "ir 2 k3 e6 c112 se.25", "ir 3 k5 s2 e6 c160 se.25", "ir 1 k3 e6 c320"}
	case "spnasnet":
		n.stages = []string{"ds 1 k3 c16 noskip", "ir 3 k3 s2 e3 c24", "ir 1 k5 s2 e6 c40,ir 3 k3 e3 c40", "ir 1 k5 s2 e6 c80,ir 3 k3 e3 c80",
			"ir 1 k5 e6 c96,ir 3 k5 e3 c96", "ir 4 k5 s2 e6 c192", "ir 1 k3 e6 c320 noskip"}
	case "fbnetc":
		n.stem, n.head = 16, 1984
		n.stages = []string{"ir 1 k3 e1 c16", "ir 1 k3 s2 e6 c24,ir 2 k3 e1 c24", "ir 1 k5 s2 e6 c32,ir 1 k5 e3 c32,ir 1 k5 e6 c32,ir 1 k3 e6 c32",
			"ir 1 k5 s2 e6 c64,ir 1 k5 e3 c64,ir 2 k5 e6 c64", "ir 3 k5 e6 c112,ir 1 k5 e3 c112", "ir 4 k5 s2 e6 c184", "ir 1 k3 e6 c352"}
	case "mobilenetv3_large", "mobilenetv3_small", "mobilenetv3_rw", "lcnet":
		n.stem, n.act, n.gate, n.headAfterPool, n.headBias = 16, graph.HardSwish, graph.HardSigmoid, true, true
		switch scheme {
		case "lcnet":
			n.seAct = graph.ReLU
			n.stages = []string{"dsa 1 k3 c32", "dsa 2 k3 s2 c64", "dsa 2 k3 s2 c128", "dsa 1 k3 s2 c256,dsa 1 k5 c256", "dsa 4 k5 c256", "dsa 2 k5 s2 c512 se.25"}
			return n
		case "mobilenetv3_small":
			n.head, n.seAct, n.seRound, n.seWide = 1024, graph.ReLU, true, true
			n.stages = []string{"ds 1 k3 s2 c16 se.25 relu", "ir 1 k3 s2 e4.5 c24 relu,ir 1 k3 e3.67 c24 relu", "ir 1 k5 s2 e4 c40 se.25,ir 2 k5 e6 c40 se.25",
				"ir 2 k5 e3 c48 se.25", "ir 3 k5 s2 e6 c96 se.25", "cn 1 k1 c576"}
			return n
		case "mobilenetv3_large":
			n.seAct, n.seRound = graph.ReLU, true
		default:
			n.headBias = false
		}
		n.seWide = true
		skip := ""
		if scheme == "mobilenetv3_rw" {
			skip = " noskip"
		}
		n.stages = []string{"ds 1 k3 c16 relu" + skip, "ir 1 k3 s2 e4 c24 relu,ir 1 k3 e3 c24 relu", "ir 3 k5 s2 e3 c40 se.25 relu",
			"ir 1 k3 s2 e6 c80,ir 1 k3 e2.5 c80,ir 2 k3 e2.3 c80", "ir 2 k3 e6 c112 se.25", "ir 3 k5 s2 e6 c160 se.25", "cn 1 k1 c960"}
	default:
		return nil
	}
	return n
}

// scaled is a network of a spec: method (the scheme), width, scale (of the
// depth), last_scale, same.
func (s *Spec) mobile() *mobileNet {
	n := mobileNets(s.Method)
	if n == nil {
		return nil
	}
	n.width, n.depth, n.lastDepth, n.same = cmp.Or(s.Width, 1), cmp.Or(s.Scale, 1), s.LastScale, s.Same
	if s.Linear { // fixed stem and ends, as in MobileNetV2's deeper kin
		n.fixedStem, n.fixedEnds = true, true
	}
	if strings.HasPrefix(s.Method, "mobilenetv3") && n.width < 0.75 {
		n.fixedStem = true
	}
	return n
}

func (n *mobileNet) ch(c int64) int64 { return divisibleBy(float64(c)*n.width, 8, n.round) }

// pad is the padding of a window of a size.
func (n *mobileNet) pad(kernel, stride int64) int64 {
	if n.same && stride > 1 {
		return 0 // the maps are padded before
	}
	return (kernel - 1) / 2
}

// conv is a convolution with a norm and an activation.
func (n *mobileNet) conv(b *net, x graph.Value, name string, out, kernel, stride, groups int64, a activation) graph.Value {
	if n.same && stride > 1 {
		s := b.Shape(x)
		up := func(v int64) int64 { return v + max(((v+stride-1)/stride-1)*stride+kernel-v, 0) }
		if h, w := up(s[2]), up(s[3]); h != s[2] || w != s[3] {
			x = b.Moved(graph.Pad, x, s[0], s[1], h, w)
		}
	}
	return b.convNorm(x, name, out, kernel, graph.ConvOpt{Stride: stride, Padding: n.pad(kernel, stride), Groups: groups}, a)
}

// forward adds the network.
func (n *mobileNet) forward(b *net, x graph.Value, classes int64, dropout float64) graph.Value {
	b.act = n.act
	stem := n.stem
	if !n.fixedStem {
		stem = n.ch(stem)
	}
	x = n.conv(b, x, "stem", stem, 3, 2, 1, main)
	for stage, text := range n.stages {
		groups := strings.Split(text, ",")
		blocks := make([]mobileBlock, len(groups))
		for i := range groups {
			blocks[i] = parseMobileBlock(groups[i])
		}
		n.deepen(blocks, stage)
		at := 0
		for _, g := range blocks {
			for i := range g.repeat {
				k := g
				if i > 0 {
					k.stride = 1
				}
				b.In(block("blocks.", stage, at), func() { x = n.block(b, x, &k) })
				at++
			}
		}
	}
	b.act = n.act
	head := n.head
	switch {
	case head < 0:
		head = n.ch(-head)
		if n.depthRounded {
			head = max(head, -n.head)
		}
	case n.act == graph.HardTanh && !n.fixedStem && head > 0:
		head = max(head, n.ch(head))
	}
	switch {
	case n.headAfterPool:
		x = b.AdaptivePool(x, 1, 1)
		x = b.Act(n.act, b.Conv(x, "conv_head", head, 1, graph.ConvOpt{Bias: n.headBias}), true)
		x = b.Dropout(graph.Dropout, b.View(x, b.Shape(x)[0], head), dropout)
		return b.Linear(x, "classifier", classes, true)
	case head > 0:
		x = b.convNorm(x, "head", head, 1, graph.ConvOpt{}, main)
	}
	return b.classifier(x, classes, dropout)
}

// deepen scales the number of blocks of a stage and spreads them over its
// groups, the last first.
func (n *mobileNet) deepen(blocks []mobileBlock, stage int) {
	depth := n.depth
	if n.fixedEnds && (stage == 0 || stage == len(n.stages)-1) {
		depth = 1
	}
	if n.lastDepth > 0 && stage >= len(n.stages)-2 {
		depth = n.lastDepth
	}
	total := 0
	for i := range blocks {
		total += blocks[i].repeat
	}
	want := int(math.Ceil(float64(total)*depth - 1e-9))
	if n.depthRounded {
		want = max(1, int(math.RoundToEven(float64(total)*depth)))
	}
	for i := len(blocks) - 1; i >= 0; i-- {
		r := blocks[i].repeat
		blocks[i].repeat = max(1, int(math.RoundToEven(float64(r)/float64(total)*float64(want))))
		total -= r
		want -= blocks[i].repeat
	}
}

// block adds one block.
func (n *mobileNet) block(b *net, x graph.Value, k *mobileBlock) graph.Value {
	b.act = cmp.Or(k.act, n.act)
	in, out := b.Shape(x)[1], n.ch(k.channels)
	skip := k.stride == 1 && in == out && !k.noSkip
	mid := divisible(float64(in)*k.expand, 8)
	y := x
	excited := func(c int64, expand float64) {
		if k.se == 0 {
			return
		}
		width := float64(c) * k.se
		if !n.seWide {
			width /= expand
		}
		hidden := int64(math.RoundToEven(width))
		if n.seRound {
			hidden = divisible(width, 8)
		}
		y = b.squeeze(y, "se", hidden, cmp.Or(n.seAct, b.act), cmp.Or(n.gate, graph.Sigmoid))
	}
	switch k.kind {
	case "cn":
		y = n.conv(b, y, "conv", out, k.kernel, k.stride, 1, main)
		skip = skip && k.skip
	case "ds", "dsa":
		y = n.conv(b, y, "conv_dw", in, k.kernel, k.stride, in, main)
		excited(in, 1)
		last := none
		if k.kind == "dsa" {
			last, skip = main, false
		}
		y = n.conv(b, y, "conv_pw", out, 1, 1, 1, last)
	case "er":
		if k.from > 0 {
			mid = divisible(float64(n.ch(k.from))*k.expand, 8)
		}
		y = n.conv(b, y, "conv_exp", mid, k.kernel, k.stride, 1, main)
		excited(mid, k.expand)
		y = n.conv(b, y, "conv_pwl", out, 1, 1, 1, none)
	default:
		y = n.conv(b, y, "conv_pw", mid, 1, 1, 1, main)
		y = n.conv(b, y, "conv_dw", mid, k.kernel, k.stride, mid, main)
		excited(mid, k.expand)
		y = n.conv(b, y, "conv_pwl", out, 1, 1, 1, none)
	}
	if skip {
		y = b.Add(y, x)
	}
	return y
}
