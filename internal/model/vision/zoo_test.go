package vision

import (
	"fmt"
	"testing"

	"unoom/internal/model/graph"
)

// The table was read from torch 2.13 over timm 1.0.31 and torchvision 0.29: parameters, and the
// storages that autograd keeps of two images.
func TestNetworksOfTimm(t *testing.T) {
	n := 0
	table(t, "timm.txt", func(line string) {
		var name string
		var size, params, saved int64
		if _, err := fmt.Sscan(line, &name, &size, &params, &saved); err != nil {
			t.Fatal(line, err)
		}
		n++
		s := ParseName(name)
		if s == nil {
			t.Errorf("%s: the name is not understood", name)
			return
		}
		g, err := s.Build(Input{2, size, size})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			return
		}
		if got := g.Params(); got != params {
			t.Errorf("%s: %d parameters, want %d (%+d)", name, got, params, got-params)
		}
		if s.Relative { // on a CPU, attention with a trained bias is not one kernel
			return
		}
		// The loss is not in the figures; masks of dropout were floats there.
		got := g.Saved(4, false) - 2*(1000*4+8)
		for i := range g.Nodes {
			if n := &g.Nodes[i]; n.Op == graph.Dropout {
				got += 3 * g.Tensors[n.Out[0]].Elements()
			}
		}
		if d := float64(got)/float64(saved) - 1; d > 0.003 || d < -0.003 {
			t.Errorf("%s: %d bytes are saved, want %d (%+.3f %%)", name, got, saved, 100*d)
		}
	})
	if n < 20 {
		t.Errorf("only %d networks were compared", n)
	}
}

func TestNamesOfTheHubAndOfTorchvision(t *testing.T) {
	for name, params := range map[string]int64{
		"google/vit-large-patch32-384": 306632680, "microsoft/resnet-101": 44549160, "facebook/convnext-base-224": 88591464, "google/efficientnet-b0": 5288548,
		"microsoft/swin-small-patch4-window7-224": 49606258, "facebook/regnet-y-040": 20646656, "timm/resnet50.a1_in1k": 25557032, "facebook/deit-small-patch16-224": 22050664,
		"mobilenet_v3_large": 5483032, "efficientnet_v2_s": 21458488, "mnasnet1_0": 4383312, "regnet_y_16gf": 83590140, "vit_h_14": 632045800,
		"nvidia/segformer-b0-finetuned-ade-512-512": 3752694, "segformer_b2": 27461974,
	} {
		s := ParseName(name)
		if s == nil {
			t.Errorf("%s is not understood", name)
			continue
		}
		h, w := s.Size()
		g, err := s.Build(Input{1, h, w})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := g.Params(); got != params {
			t.Errorf("%s: %d parameters, want %d (%+d)", name, got, params, got-params)
		}
	}
}

// Read from transformers 5.24 in torch 2.13 with eager attention, as the others;
// with its fused attention the figures are 1.4 and 0.8 % smaller.
func TestSavedActivationsOfSegFormer(t *testing.T) {
	for name, want := range map[string]int64{"segformer_b0": 34294784, "segformer_b2": 113444096} {
		s := ParseName(name)
		s.Drop, s.Dropout = 0, 0
		g, err := s.Build(Input{2, 128, 128})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		// The loss, and the logits at the image's size, are not in the figures.
		got := g.Saved(4, false) - 2*128*128*(150*4+8)
		if d := float64(got)/float64(want) - 1; d > 0.015 || d < -0.015 {
			t.Errorf("%s: %d bytes are saved, want %d (%+.3f %%)", name, got, want, 100*d)
		}
	}
}
