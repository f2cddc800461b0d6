package vision

import (
	"cmp"
	"regexp"
	"strconv"

	"unoom/internal/model/graph"
)

// vitNet is an image transformer of timm's, torchvision's or transformers' form:
// ViT, DeiT and its third version, BEiT, DINOv2, the image tower of CLIP.
type vitNet struct {
	patch, width, depth, heads, mlp int64
	classes                         int64
	tokens                          int64 // beside the patches: class, distillation
	fused                           bool  // attention in one kernel
	scale                           bool  // layer scale
	preNorm                         bool  // a norm before the first block, and no bias of the patches
	relative                        bool  // BEiT's bias of each layer by distance
	keysPlain                       bool  // keys have no bias
	mean                            bool  // the head takes the patches' mean
	bare                            bool  // positions are of the patches alone
	drop                            float64
}

// vit is the network of a spec: patch, widths, depth, heads, mlp (0: four times
// the width), tokens (0: one), layer_scale, pre_norm, relative, mean_pool, bare,
// eager.
func (s *Spec) vit(classes int64) *vitNet {
	return &vitNet{
		patch: s.Patch, width: s.Widths[0], depth: int64(s.Depth), heads: s.Heads[0], mlp: cmp.Or(s.MLP, 4*s.Widths[0]), classes: classes,
		tokens: cmp.Or(s.Tokens, 1), fused: !s.Eager, scale: s.LayerScale, preNorm: s.PreNorm, relative: s.Relative, keysPlain: s.Relative, mean: s.MeanPool, bare: s.Bare, drop: s.Drop,
	}
}

// image adds the transformer over an image.
func (v *vitNet) image(b *net, x graph.Value) graph.Value {
	n := b.Shape(x)[0]
	x = b.Conv(x, "patch_embed.proj", v.width, v.patch, graph.ConvOpt{Stride: v.patch, Bias: !v.preNorm})
	h, w := b.Shape(x)[2], b.Shape(x)[3]
	x = b.tokensOf(x)
	l := b.Shape(x)[1]
	if v.bare {
		x = b.Plus(x, "pos_embed", 1, l, v.width)
	}
	parts := []graph.Value{b.Parameter("cls_token", n, 1, v.width)}
	if v.tokens > 1 {
		parts = append(parts, b.Parameter("dist_token", n, v.tokens-1, v.width))
	}
	x = b.Cat(1, append(parts, x)...)
	l += v.tokens
	if !v.bare && !v.relative {
		x = b.Plus(x, "pos_embed", 1, l, v.width)
	}
	if v.preNorm {
		x = b.LayerNorm(x, "norm_pre")
	}
	for i := range v.depth {
		b.In(block("blocks.", 0, int(i)), func() { x = v.layer(b, x, h, w) })
	}
	if v.mean {
		x = b.Reduce(graph.Mean, b.Part(x, n, l-v.tokens, v.width), n, v.width)
		return b.Linear(b.LayerNorm(x, "fc_norm"), "head", v.classes, true)
	}
	x = b.LayerNorm(x, "norm")
	y := b.Linear(b.Part(x, n, v.width), "head", v.classes, true)
	if v.tokens > 1 { // the mean of two heads
		z := b.Linear(b.Part(x, n, v.width), "head_dist", v.classes, true)
		y = b.Act(graph.Scale, b.Add(y, z), false)
	}
	return y
}

// layer is a pre-norm block over h·w patches.
func (v *vitNet) layer(b *net, x graph.Value, h, w int64) graph.Value {
	y := b.LayerNorm(x, "norm1")
	a := attend{heads: v.heads, fused: v.fused, keysPlain: v.keysPlain}
	if v.relative {
		a.relative = (2*h-1)*(2*w-1) + 3
	}
	y = b.selfAttention(y, a)
	if v.scale {
		y = b.Scaled(y, "ls1", v.width)
	}
	x = b.Add(x, b.Dropout(graph.DropPath, y, v.drop))
	y = b.LayerNorm(x, "norm2")
	y = b.Act(graph.GELU, b.Linear(y, "mlp.fc1", v.mlp, true), false)
	y = b.Linear(y, "mlp.fc2", v.width, true)
	if v.scale {
		y = b.Scaled(y, "ls2", v.width)
	}
	return b.Add(x, b.Dropout(graph.DropPath, y, v.drop))
}

// attend are the settings of selfAttention.
type attend struct {
	heads     int64
	fused     bool
	keysPlain bool  // queries and values have a bias, keys none
	relative  int64 // rows of a table of biases by distance, 0: none
}

// selfAttention is attention over (n, length, width) with one projection for
// queries, keys and values.
func (b *net) selfAttention(x graph.Value, a attend) graph.Value {
	s := b.Shape(x)
	n, l, c := s[0], s[1], s[2]
	if a.heads < 1 || c%a.heads != 0 {
		b.Fail("%d heads do not divide a width of %d", a.heads, c)
		return x
	}
	d := c / a.heads
	var qkv graph.Value
	if a.keysPlain {
		qkv = b.LinearBiased(x, "attn.qkv", 3*c, 2*c)
	} else {
		qkv = b.Linear(x, "attn.qkv", 3*c, true)
	}
	q, k, v := b.Part(qkv, n, a.heads, l, d), b.Part(qkv, n, a.heads, l, d), b.Part(qkv, n, a.heads, l, d)
	bias := graph.None
	if a.relative > 0 {
		bias = b.Gathered("attn.relative_position_bias_table", []int64{a.relative, a.heads}, 1, a.heads, l, l)
	}
	var y graph.Value
	if a.fused {
		y = b.View(b.Attention(q, k, v, bias), n, l, c)
	} else {
		// matmul copies what is no plain batch of matrices.
		p := b.MatMul(b.Copy(q), b.Copy(k), true)
		p = b.Act(graph.Scale, p, false)
		if bias != graph.None {
			p = b.Add(p, bias)
		}
		p = b.Act(graph.Softmax, p, false)
		y = b.Copy(b.MatMul(p, b.Copy(v), false), n, l, c)
	}
	return b.Linear(y, "attn.proj", c, true)
}

// vitName is how timm names image transformers.
var vitName = regexp.MustCompile(`^(vit|deit|deit3|beit|beitv2)_(tiny|small|medium|base|large|huge|giant|gigantic)_(distilled_)?patch(\d+)(?:_(clip))?(?:_(reg4))?_(?:(\d+)|(dinov2))$`)

// zooViT reads timm's names of image transformers.
func zooViT(name string, _ bool) *Spec {
	m := vitName.FindStringSubmatch(name)
	if m == nil || m[6] != "" {
		return nil
	}
	s := &Spec{Builder: "vit", Image: 518}
	s.Patch, _ = strconv.ParseInt(m[4], 10, 64)
	if m[7] != "" {
		s.Image, _ = strconv.ParseInt(m[7], 10, 64)
	}
	size := func(width int64, depth int, heads, mlp int64) {
		s.Widths, s.Depth, s.Heads, s.MLP = []int64{width}, depth, []int64{heads}, mlp
	}
	switch m[2] {
	case "tiny":
		size(192, 12, 3, 0)
	case "small":
		size(384, 12, 6, 0)
	case "medium":
		size(512, 12, 8, 0)
	case "base":
		size(768, 12, 12, 0)
	case "large":
		size(1024, 24, 16, 0)
	case "huge":
		size(1280, 32, 16, 0)
	case "giant":
		size(1408, 40, 16, 6144)
	default:
		size(1664, 48, 16, 8192)
	}
	switch m[1] {
	case "deit":
		if m[3] != "" {
			s.Tokens = 2
		}
	case "deit3":
		s.LayerScale, s.Bare = true, true
	case "beit", "beitv2":
		s.LayerScale, s.Relative, s.MeanPool = true, true, true
	}
	s.PreNorm = m[5] != ""
	if m[8] != "" {
		s.LayerScale = true
		if m[2] == "giant" { // its MLP is gated
			return nil
		}
	}
	return s
}
