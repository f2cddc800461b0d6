package vision

import (
	"testing"

	"unoom/internal/model/graph"
)

// What autograd keeps of two images was read from torch 2.13 with
// torch.autograd.graph.saved_tensors_hooks on torchvision 0.29's networks: the
// storages of all saved tensors, without parameters and buffers.
func TestSavedActivationsAreThoseOfTorchvision(t *testing.T) {
	for _, c := range []struct {
		name   string
		spec   Spec
		params int64
		saved  int64
	}{
		{"resnet18", Spec{Builder: "resnet", Depth: 18}, 11689512, 44398080},
		{"resnet50", Spec{Builder: "resnet", Depth: 50}, 25557032, 172031488},
		{"vgg16", Spec{Builder: "vgg", Depth: 16}, 138357544, 146710528},
		{"mobilenet_v2", Spec{Builder: "mobilenet_v2", Width: 1}, 3504872, 156555520},
		{"efficientnet_b0", Spec{Builder: "efficientnet", Width: 1, Scale: 1, Dropout: 0.2}, 5288548, 176556168},
		{"densenet121", Spec{Builder: "densenet", Depths: []int{6, 12, 24, 16}, Growth: 32, Widths: []int64{64}}, 7978856, 261057280},
		{"vit_b_16", Spec{Builder: "vit", Patch: 16, Widths: []int64{768}, Depth: 12, Heads: []int64{12}, MLP: 3072}, 86567656, 236321360},
		{"convnext_tiny", Spec{Builder: "convnext", Depths: []int{3, 3, 9, 3}, Widths: []int64{96, 192, 384, 768}, Drop: 0.1}, 28589128, 218311752},
		{"swin_t", Spec{Builder: "swin", Widths: []int64{96}, Depths: []int{2, 2, 6, 2}, Heads: []int64{3, 6, 12, 24}, Window: 7, Drop: 0.2}, 28288354, 213268432},
	} {
		g, err := c.spec.Build(Input{2, 224, 224})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := g.Params(); got != c.params {
			t.Errorf("%s: %d parameters, want %d (%+d)", c.name, got, c.params, got-c.params)
		}
		// The loss is not in the figures. Masks of dropout were floats there, on
		// the CPU, and are bytes on a GPU.
		got := g.Saved(4, false) - 2*(1000*4+8)
		for i := range g.Nodes {
			if n := &g.Nodes[i]; n.Op == graph.Dropout {
				got += 3 * g.Tensors[n.Out[0]].Elements()
			}
		}
		if got != c.saved {
			t.Errorf("%s: %d bytes are saved, want %d (%+d, %.3f %%)", c.name, got, c.saved, got-c.saved, 100*(float64(got)/float64(c.saved)-1))
		}
	}
}

// Before torch 1.11 the derivative of ReLU6 in place took its result; since then
// the operand is cloned for it.
func TestReLU6InPlaceByVersion(t *testing.T) {
	s := Spec{Builder: "mobilenet_v2", Width: 1}
	g, err := s.Build(Input{2, 224, 224})
	if err != nil {
		t.Fatal(err)
	}
	clones, last := int64(0), int64(0)
	for i := range g.Nodes {
		if n := &g.Nodes[i]; n.Op == graph.HardTanh {
			last = 4 * g.Tensors[n.Out[0]].Elements()
			clones += last
		}
	}
	// Convolutions keep the results in both; the last goes into a mean, which
	// does not. The old log_softmax keeps its operand too.
	want := clones - last - 2*1000*4
	if got := g.Saved(4, false) - g.Saved(4, true); got != want {
		t.Errorf("torch since 1.11 keeps %d bytes more, want %d", got, want)
	}
}
