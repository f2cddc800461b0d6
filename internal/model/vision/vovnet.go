package vision

import "unoom/internal/model/graph"

// vovNet joins the maps of all convolutions of a block once, at its end.
type vovNet struct {
	stem     int64 // channels of the third convolution
	depths   []int // blocks of each stage
	layers   int   // convolutions of a block
	residual bool
	gated    bool // the last block of a stage ends in a gate for each channel
}

// vovNets returns the network of a name, nil if there is none.
//
// Source: Lee et al.: An Energy and GPU-Computation Efficient Backbone Network;
// timm models/vovnet.py.
func vovNets(name string) *vovNet {
	switch name {
	case "vovnet39a":
		return &vovNet{128, []int{1, 1, 2, 2}, 5, false, false}
	case "vovnet57a":
		return &vovNet{128, []int{1, 1, 4, 3}, 5, false, false}
	case "ese_vovnet19b":
		return &vovNet{128, []int{1, 1, 1, 1}, 3, true, true}
	case "ese_vovnet39b":
		return &vovNet{128, []int{1, 1, 2, 2}, 5, true, true}
	case "ese_vovnet57b":
		return &vovNet{128, []int{1, 1, 4, 3}, 5, true, true}
	case "ese_vovnet99b":
		return &vovNet{128, []int{1, 3, 9, 3}, 5, true, true}
	}
	return nil
}

// forward adds the network.
func (v *vovNet) forward(b *net, x graph.Value, classes int64) graph.Value {
	three := func(x graph.Value, name string, out, stride int64) graph.Value {
		return b.convNorm(x, name, out, 3, graph.ConvOpt{Stride: stride, Padding: 1}, relu)
	}
	x = three(three(three(x, "stem.0", 64, 2), "stem.1", 64, 1), "stem.2", v.stem, 2)
	for stage, n := range v.depths {
		mid, out := int64(128+32*stage), int64(256*(stage+1))
		if stage > 0 {
			x = b.MaxPool(x, 3, 2, 0, true)
		}
		for i := range n {
			b.In(block("stages.", stage, i), func() {
				maps, y := []graph.Value{x}, x
				for k := range v.layers {
					y = three(y, block("conv_mid.", 0, k), mid, 1)
					maps = append(maps, y)
				}
				y = b.convNorm(b.Cat(1, maps...), "conv_concat", out, 1, graph.ConvOpt{}, relu)
				if v.gated && i == n-1 {
					g := b.Conv(b.AdaptivePool(y, 1, 1), "attn.fc", out, 1, graph.ConvOpt{Bias: true})
					y = b.Binary(graph.Mul, y, b.Act(graph.HardSigmoid, g, false))
				}
				if v.residual && i > 0 {
					y = b.Add(y, x)
				}
				x = y
			})
		}
	}
	return b.classifier(x, classes, 0)
}

// zooVoV reads timm's names.
func zooVoV(name string, _ bool) *Spec {
	if vovNets(name) == nil {
		return nil
	}
	return &Spec{Builder: "vovnet", Method: name, Image: 224}
}
