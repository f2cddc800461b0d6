package vision

import "unoom/internal/model/graph"

// repVGG is RepVGG as it is trained: a 3×3 convolution, a 1×1 convolution and
// the maps themselves, each with a norm, are added.
type repVGG struct {
	depths []int
	widths []float64 // times 64, 128, 256, 512
}

// repVGGs returns the network of a name's ending, nil if there is none.
//
// Source: Ding et al.: RepVGG, table 2.
func repVGGs(kind string) *repVGG {
	a, b := []int{2, 4, 14, 1}, []int{4, 6, 16, 1}
	switch kind {
	case "a0":
		return &repVGG{a, []float64{0.75, 0.75, 0.75, 2.5}}
	case "a1":
		return &repVGG{a, []float64{1, 1, 1, 2.5}}
	case "a2":
		return &repVGG{a, []float64{1.5, 1.5, 1.5, 2.75}}
	case "b0":
		return &repVGG{b, []float64{1, 1, 1, 2.5}}
	case "b1":
		return &repVGG{b, []float64{2, 2, 2, 4}}
	case "b2":
		return &repVGG{b, []float64{2.5, 2.5, 2.5, 5}}
	case "b3":
		return &repVGG{b, []float64{3, 3, 3, 5}}
	}
	return nil
}

// forward adds the network.
func (r *repVGG) forward(b *net, x graph.Value, classes int64) graph.Value {
	layer := func(name string, out, stride int64) {
		b.In(name, func() {
			same := stride == 1 && b.Shape(x)[1] == out
			var identity graph.Value
			if same {
				identity = b.normed(x, "identity")
			}
			y := b.Add(b.convNorm(x, "conv_1x1", out, 1, graph.ConvOpt{Stride: stride}, none),
				b.convNorm(x, "conv_kxk", out, 3, graph.ConvOpt{Stride: stride, Padding: 1}, none))
			if same {
				y = b.AddTo(y, identity)
			}
			x = b.Act(graph.ReLU, y, true)
		})
	}
	layer("stem", min(64, int64(64*r.widths[0])), 2)
	for stage, n := range r.depths {
		for i := range n {
			stride := int64(1)
			if i == 0 {
				stride = 2
			}
			layer(block("stages.", stage, i), int64(float64(int64(64)<<stage)*r.widths[stage]), stride)
		}
	}
	return b.classifier(x, classes, 0)
}

// zooRepVGG reads timm's names.
func zooRepVGG(name string, _ bool) *Spec {
	if len(name) != 9 || name[:7] != "repvgg_" || repVGGs(name[7:]) == nil {
		return nil
	}
	return &Spec{Builder: "repvgg", Method: name[7:], Image: 224}
}
