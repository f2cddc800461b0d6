package vision

import (
	"regexp"

	"unoom/internal/model/graph"
)

// segFormer is SegFormer: a transformer in four stages, whose attention looks at
// maps made smaller, and a head of dense layers. Of the spec it reads widths,
// depths, heads, reductions, mlp (the ratio), context (the head's width) and
// classes.
func segFormer(b *net, s *Spec, in Input) {
	if n := len(s.Widths); n == 0 || len(s.Depths) != n || len(s.Heads) != n || len(s.Reductions) != n {
		b.Fail("SegFormer wants widths, depths, heads and reductions of the same number")
		return
	}
	x := b.Input(graph.Float, in.Batch, 3, in.Height, in.Width)
	label := b.Input(graph.Int64, in.Batch, in.Height, in.Width)
	total, at := sum(s.Depths), 0
	var maps []graph.Value
	for stage, width := range s.Widths {
		kernel, stride := int64(3), int64(2)
		if stage == 0 {
			kernel, stride = 7, 4
		}
		x = b.Conv(x, block("patch_embeddings.", stage, 0), width, kernel, graph.ConvOpt{Stride: stride, Padding: kernel / 2, Bias: true})
		h, w := b.Shape(x)[2], b.Shape(x)[3]
		x = b.LayerNorm(b.tokensOf(x), block("patch_embeddings.norm.", stage, 0))
		for i := range s.Depths[stage] {
			p := dropAt(s.Drop, at, total)
			at++
			b.In(block("block.", stage, i), func() {
				y := b.reducedAttention(b.LayerNorm(x, "layer_norm_1"), s.Heads[stage], s.Reductions[stage], h, w)
				x = b.Add(b.Dropout(graph.DropPath, y, p), x)
				y = b.Linear(b.LayerNorm(x, "layer_norm_2"), "mlp.dense1", 4*width, true)
				y = b.Conv(b.View(y, in.Batch, 4*width, h, w), "mlp.dwconv", 4*width, 3, graph.ConvOpt{Padding: 1, Groups: 4 * width, Bias: true})
				y = b.Linear(b.Act(graph.GELU, b.tokensOf(y), false), "mlp.dense2", width, true)
				x = b.Add(b.Dropout(graph.DropPath, y, p), x)
			})
		}
		x = b.LayerNorm(x, block("layer_norm.", stage, 0))
		x = b.Copy(x, in.Batch, width, h, w)
		maps = append(maps, x)
	}
	first := b.Shape(maps[0])
	var joined []graph.Value
	for i, m := range maps {
		t := b.Shape(m)
		y := b.Linear(b.tokensOf(m), block("decode_head.linear_c.", i, 0), s.Context, true)
		y = b.View(y, in.Batch, s.Context, t[2], t[3])
		joined = append(joined, b.Resize(y, first[2], first[3]))
	}
	y := b.convNorm(b.Cat(1, joined...), "decode_head.linear_fuse", s.Context, 1, graph.ConvOpt{}, none)
	y = b.Act(graph.ReLU, y, false)
	y = b.Dropout(graph.Dropout, y, s.Dropout)
	y = b.Conv(y, "decode_head.classifier", s.classes(), 1, graph.ConvOpt{Bias: true})
	y = b.Resize(y, in.Height, in.Width)
	b.Start(b.Loss(graph.NLL, graph.Float32, []graph.Value{b.Act(graph.LogSoftmax, y, false), label}, 1))
}

// reducedAttention looks from every position at maps made smaller by a factor.
func (b *net) reducedAttention(x graph.Value, heads, factor, h, w int64) graph.Value {
	s := b.Shape(x)
	n, l, c := s[0], s[1], s[2]
	if heads < 1 || c%heads != 0 {
		b.Fail("%d heads do not divide a width of %d", heads, c)
		return x
	}
	q := b.Linear(x, "attention.query", c, true)
	from := x
	if factor > 1 {
		y := b.Conv(b.View(x, n, c, h, w), "attention.sr", c, factor, graph.ConvOpt{Stride: factor, Bias: true})
		from = b.LayerNorm(b.tokensOf(y), "attention.layer_norm")
	}
	k := b.Shape(from)[1]
	d := c / heads
	kk := b.View(b.Linear(from, "attention.key", c, true), n, heads, k, d)
	v := b.View(b.Linear(from, "attention.value", c, true), n, heads, k, d)
	p := b.MatMul(b.Copy(b.View(q, n, heads, l, d)), b.Copy(kk), true)
	p = b.Act(graph.Softmax, b.Act(graph.Scale, p, false), false)
	y := b.Copy(b.MatMul(p, b.Copy(v), false), n, l, c)
	return b.Linear(y, "attention.output", c, true)
}

var segFormerName = regexp.MustCompile(`^(?:segformer_)?mit_b([0-5])$|^segformer_b([0-5])(?:_.*)?$`)

// zooSegFormer reads the hub's names.
func zooSegFormer(name string, _ bool) *Spec {
	m := segFormerName.FindStringSubmatch(name)
	if m == nil {
		return nil
	}
	s := &Spec{Builder: "segformer", Widths: []int64{64, 128, 320, 512}, Heads: []int64{1, 2, 5, 8}, Reductions: []int64{8, 4, 2, 1}, Context: 768, Classes: 150,
		Drop: 0.1, Dropout: 0.1, Crop: []int64{512, 512}}
	s.Depths = [][]int{{2, 2, 2, 2}, {2, 2, 2, 2}, {3, 4, 6, 3}, {3, 4, 18, 3}, {3, 8, 27, 3}, {3, 6, 40, 3}}[(m[1] + m[2])[0]-'0']
	switch m[1] + m[2] {
	case "0":
		s.Widths, s.Context = []int64{32, 64, 160, 256}, 256
	case "1":
		s.Context = 256
	}
	return s
}
