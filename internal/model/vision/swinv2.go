package vision

import (
	"regexp"
	"strconv"

	"unoom/internal/model/graph"
)

// swinV2 is Swin's second version: norms after the branches, attention by the
// cosine, and its bias from a small network over distances.
func swinV2(b *net, x graph.Value, width int64, depths []int, heads []int64, window int64, drop float64, classes int64) graph.Value {
	x = b.Conv(x, "patch_embed.proj", width, 4, graph.ConvOpt{Stride: 4, Bias: true})
	x = b.LayerNorm(b.channelsLast(x), "patch_embed.norm")
	total, at := 0, 0
	for _, n := range depths {
		total += n
	}
	for stage, n := range depths {
		if stage > 0 {
			b.In(block("layers.downsample", stage, 0), func() {
				s := b.Shape(x)
				x = b.Copy(x, s[0], s[1]/2, s[2]/2, 4*s[3])
				x = b.LayerNorm(b.Linear(x, "reduction", 2*s[3], false), "norm")
			})
		}
		for i := range n {
			p := drop * float64(at) / float64(max(1, total-1))
			at++
			b.In(block("layers.", stage, i), func() {
				s := b.Shape(x)
				w := min(window, s[1])
				shifted := i%2 == 1 && w < s[1]
				y := b.windowed(x, w, shifted, func(y graph.Value, mask graph.Value) graph.Value {
					return b.cosineAttention(y, heads[stage], w, mask)
				})
				x = b.Add(x, b.Dropout(graph.DropPath, b.LayerNorm(y, "norm1"), p))
				c := s[3]
				y = b.Act(graph.GELU, b.Linear(x, "mlp.fc1", 4*c, true), false)
				y = b.LayerNorm(b.Linear(y, "mlp.fc2", c, true), "norm2")
				x = b.Add(x, b.Dropout(graph.DropPath, y, p))
			})
		}
	}
	x = b.LayerNorm(x, "norm")
	s := b.Shape(x)
	return b.Linear(b.Reduce(graph.Mean, x, s[0], s[3]), "head", classes, true)
}

// cosineAttention is attention over windows (n, length, width) by the cosine of
// queries and keys.
func (b *net) cosineAttention(x graph.Value, heads, window int64, mask graph.Value) graph.Value {
	s := b.Shape(x)
	n, l, c := s[0], s[1], s[2]
	if heads < 1 || c%heads != 0 {
		b.Fail("%d heads do not divide a width of %d", heads, c)
		return x
	}
	d := c / heads
	qkv := b.LinearBiased(x, "attn.qkv", 3*c, 2*c)
	part := func() graph.Value { return b.Part(qkv, n, heads, l, d) }
	unit := func(x graph.Value) graph.Value {
		return b.Copy(b.Binary(graph.Div, x, b.Act(graph.Scale, b.Reduce(graph.Mean, x, n, heads, l, 1), false)))
	}
	q, k, v := part(), part(), part()
	p := b.Scaled(b.MatMul(unit(q), unit(k), true), "attn.logit_scale", heads, 1, 1)
	side := (2*window - 1) * (2*window - 1)
	t := b.Act(graph.ReLU, b.Linear(b.Constant(graph.Float, side, 2), "attn.cpb_mlp.0", 512, true), true)
	t = b.Moved(graph.Gather, b.Linear(t, "attn.cpb_mlp.2", heads, false), 1, heads, l, l)
	p = b.Add(p, b.Act(graph.Scale, b.Act(graph.Sigmoid, t, false), false))
	if mask != graph.None {
		p = b.Add(p, mask)
	}
	p = b.Act(graph.Softmax, p, false)
	y := b.Copy(b.MatMul(p, b.Copy(v), false), n, l, c)
	return b.Linear(y, "attn.proj", c, true)
}

var swinV2Name = regexp.MustCompile(`^swinv2_(tiny|small|base)_window(\d+)_(\d+)$`)

// zooSwinV2 reads timm's names.
func zooSwinV2(name string, _ bool) *Spec {
	m := swinV2Name.FindStringSubmatch(name)
	if m == nil {
		return nil
	}
	s := &Spec{Builder: "swin_v2", Depths: []int{2, 2, 18, 2}}
	s.Window, _ = strconv.ParseInt(m[2], 10, 64)
	s.Image, _ = strconv.ParseInt(m[3], 10, 64)
	width := map[string]int64{"tiny": 96, "small": 96, "base": 128}[m[1]]
	s.Widths = []int64{width}
	for i := range 4 {
		s.Heads = append(s.Heads, width/32<<i)
	}
	if m[1] == "tiny" {
		s.Depths[2] = 6
	}
	return s
}
