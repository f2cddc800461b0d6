package model

import (
	"encoding/json"

	"unoom/internal/model/vision"
)

// perLevel reads a number for each level of a U-Net: a list, or one for all.
func (c *config) perLevel(levels int, def int64, key string) []int64 {
	out := make([]int64, levels)
	_, v, ok := c.find(key)
	var list []int64
	one := def
	switch {
	case !ok:
	case len(v) == 0 || v[0] != '[':
		one = c.dimOr(def, key)
	case json.Unmarshal(v, &list) != nil:
		c.fail(key, "is not a list of whole numbers")
		list = nil // the part before the fault is there
	case len(list) != levels:
		c.fail(key, "has %d entries for %d levels", len(list), levels)
		list = nil
	}
	for i := range out {
		out[i] = one
		if list != nil {
			out[i] = list[i]
		}
		if out[i] < 1 || out[i] > dimensionMost {
			c.fail(key, "%d is not a size a model can have", out[i])
			out[i] = 1
		}
	}
	return out
}

// image builds an image network from its spec; what the builder refuses is a
// fault of the configuration.
func (c *config) image(spec vision.Spec, family Family) *Model {
	if c.err() != nil {
		return &Model{}
	}
	m, err := FromVision(c.name, spec)
	if err != nil {
		c.errs = append(c.errs, err)
		return &Model{}
	}
	m.Family = family
	return m
}

// latentSide is the side of a picture by that of its latent.
const latentSide = 8

// unetCondition is Stable Diffusion's U-Net.
func unetCondition(c *config) *Model {
	widths := c.ints("block_out_channels")
	if len(widths) == 0 {
		widths = []int64{320, 640, 1280, 1280}
	}
	if len(widths) > 16 {
		c.fail("block_out_channels", "has %d levels", len(widths))
		return &Model{}
	}
	for _, w := range widths {
		if w < 1 || w > 1<<16 {
			c.fail("block_out_channels", "%d is not a width a model can have", w)
		}
	}
	kinds := c.texts("down_block_types")
	if kinds == nil {
		for range len(widths) - 1 {
			kinds = append(kinds, "CrossAttnDownBlock2D")
		}
		kinds = append(kinds, "DownBlock2D")
	}
	if len(kinds) != len(widths) {
		c.fail("down_block_types", "has %d entries for %d levels", len(kinds), len(widths))
		return &Model{}
	}
	depths := c.perLevel(len(widths), 1, "transformer_layers_per_block")
	// The class takes attention_head_dim for the number of heads where that is
	// not given, as the published configurations expect.
	key := "attention_head_dim"
	if c.has("num_attention_heads") {
		key = "num_attention_heads"
	}
	spec := vision.Spec{
		Builder: "unet", Widths: widths, Heads: c.perLevel(len(widths), 8, key), Layers: int(min(c.dimOr(2, "layers_per_block"), 64)),
		Context: c.dimOr(1280, "cross_attention_dim"), Linear: c.boolOr(false, "use_linear_projection"),
		Channels: c.dimOr(4, "in_channels"), Image: latentSide * min(c.dimOr(64, "sample_size"), 1<<12),
	}
	for i, k := range kinds {
		switch k {
		case "CrossAttnDownBlock2D":
			spec.Depths = append(spec.Depths, int(min(depths[i], 256)))
		case "DownBlock2D":
			spec.Depths = append(spec.Depths, 0)
		default:
			c.fail("down_block_types", "%q is not modelled", k)
			spec.Depths = append(spec.Depths, 0)
		}
	}
	blocks := 0
	for _, d := range spec.Depths {
		blocks += (d + 1) * 2 * (spec.Layers + 1)
	}
	if blocks > 4096 {
		c.fail("transformer_layers_per_block", "%d blocks are more than a U-Net has", blocks)
	}
	switch kind := c.textOr("", "addition_embed_type"); kind {
	case "":
	case "text_time":
		spec.Extra = c.dim("projection_class_embeddings_input_dim")
	default:
		c.fail("addition_embed_type", "%q is not modelled", kind)
	}
	return c.image(spec, Diffusion)
}

// ditModel is the class-conditional diffusion transformer.
func ditModel(c *config) *Model {
	if kind := c.textOr("ada_norm_zero", "norm_type"); kind != "ada_norm_zero" {
		c.fail("norm_type", "%q is not modelled", kind)
	}
	heads := c.dimOr(16, "num_attention_heads")
	return c.image(vision.Spec{
		Builder: "dit", Widths: []int64{heads * min(c.dimOr(72, "attention_head_dim"), 1<<12)}, Heads: []int64{heads},
		Depth: int(min(c.dimOr(28, "num_layers"), 1<<10)), Patch: min(c.dimOr(2, "patch_size"), 64), Classes: c.dimOr(1000, "num_embeds_ada_norm"),
		Image: latentSide * min(c.dimOr(32, "sample_size"), 1<<12),
	}, Diffusion)
}
