package vision

import "testing"

// stable is Stable Diffusion 1.5.
func stable() Spec {
	return Spec{Builder: "unet", Widths: []int64{320, 640, 1280, 1280}, Depths: []int{1, 1, 1, 0}, Heads: []int64{8, 8, 8, 8}, Layers: 2, Context: 768}
}

// The counts are those of diffusers 0.42's classes on the meta device.
func TestDiffusionNetworksHaveTheirParameters(t *testing.T) {
	for name, c := range map[string]struct {
		spec Spec
		want int64
	}{
		"Stable Diffusion 1.5": {stable(), 859520964},
		"Stable Diffusion 2.1": {Spec{Builder: "unet", Widths: []int64{320, 640, 1280, 1280}, Depths: []int{1, 1, 1, 0}, Heads: []int64{5, 10, 20, 20}, Layers: 2, Context: 1024, Linear: true}, 865910724},
		"Stable Diffusion XL":  {Spec{Builder: "unet", Widths: []int64{320, 640, 1280}, Depths: []int{0, 2, 10}, Heads: []int64{5, 10, 20}, Layers: 2, Context: 2048, Linear: true, Extra: 2816}, 2567463684},
		"DiT-XL/2":             {Spec{Builder: "dit", Widths: []int64{1152}, Depth: 28, Heads: []int64{16}, Patch: 2, Classes: 1000}, 749826464},
	} {
		g, err := c.spec.Build(Input{1, 512, 512})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := g.Params(); got != c.want {
			t.Errorf("%s: %d parameters, want %d (%+d)", name, got, c.want, got-c.want)
		}
	}
}

// Read with saved_tensors_hooks from diffusers' class on the CPU in torch 2.13,
// whose attention there is one fused kernel, with a latent of 16×16.
func TestSavedActivationsOfStableDiffusion(t *testing.T) {
	s := stable()
	g, err := s.Build(Input{2, 128, 128})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := g.Saved(4, false), int64(249030080); got != want {
		t.Errorf("%d bytes are saved, want %d", got, want)
	}
}
