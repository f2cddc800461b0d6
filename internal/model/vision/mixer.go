package vision

import (
	"regexp"
	"strconv"

	"unoom/internal/model/graph"
)

// mixer is MLP-Mixer: one MLP over the patches, one over the channels.
func mixer(b *net, x graph.Value, patch, width int64, depth int, classes int64) graph.Value {
	n := b.Shape(x)[0]
	x = b.tokensOf(b.Conv(x, "stem.proj", width, patch, graph.ConvOpt{Stride: patch, Bias: true}))
	l := b.Shape(x)[1]
	mlp := func(x graph.Value, name string, hidden, out int64) graph.Value {
		x = b.Act(graph.GELU, b.Linear(x, name+".fc1", hidden, true), false)
		return b.Linear(x, name+".fc2", out, true)
	}
	for i := range depth {
		b.In(block("blocks.", 0, i), func() {
			y := b.View(b.LayerNorm(x, "norm1"), n, width, l)
			x = b.Add(x, b.View(mlp(y, "mlp_tokens", width/2, l), n, l, width))
			x = b.Add(x, mlp(b.LayerNorm(x, "norm2"), "mlp_channels", 4*width, width))
		})
	}
	x = b.Reduce(graph.Mean, b.LayerNorm(x, "norm"), n, width)
	return b.Linear(x, "head", classes, true)
}

var mixerName = regexp.MustCompile(`^mixer_([sbl])(16|32)_(\d{3})$`)

// zooMixer reads timm's names.
func zooMixer(name string, _ bool) *Spec {
	m := mixerName.FindStringSubmatch(name)
	if m == nil {
		return nil
	}
	s := &Spec{Builder: "mixer", Depth: 8, Widths: []int64{512}}
	switch m[1] {
	case "b":
		s.Depth, s.Widths = 12, []int64{768}
	case "l":
		s.Depth, s.Widths = 24, []int64{1024}
	}
	s.Patch, _ = strconv.ParseInt(m[2], 10, 64)
	s.Image, _ = strconv.ParseInt(m[3], 10, 64)
	return s
}
