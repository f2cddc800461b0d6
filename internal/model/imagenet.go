package model

import (
	"slices"

	"unoom/internal/model/vision"
)

// The classification networks of transformers are those of torchvision and timm:
// they are read as image networks.

// sizes reads a list of sizes.
func (c *config) sizes(def []int64, keys ...string) []int64 {
	out := def
	for _, k := range keys {
		if list := c.ints(k); len(list) > 0 {
			out = list
			break
		}
	}
	for _, n := range out {
		if n < 1 || n > 1<<16 {
			c.fail(keys[0], "%d is not a size a model can have", n)
			return def
		}
	}
	return out
}

// depths reads the number of blocks of each stage.
func (c *config) depths(def ...int64) []int {
	var out []int
	for _, n := range c.sizes(def, "depths") {
		out = append(out, int(min(n, 256)))
	}
	return out
}

func resnetImages(c *config) *Model {
	depth := 0
	for _, known := range []int{14, 18, 26, 34, 50, 101, 152, 200} {
		if blocks, bottleneck := vision.ResNetBlocks(known); slices.Equal(blocks, c.depths(3, 4, 6, 3)) && bottleneck == (c.textOr("bottleneck", "layer_type") == "bottleneck") {
			depth = known
		}
	}
	if depth == 0 {
		c.fail("depths", "no ResNet has these")
		return &Model{}
	}
	if c.boolOr(false, "downsample_in_first_stage") {
		c.fail("downsample_in_first_stage", "true is not modelled")
	}
	return c.image(vision.Spec{Builder: "resnet", Depth: depth, Classes: c.labels(), Image: 224}, Vision)
}

func convnextImages(c *config) *Model {
	depths, widths := c.depths(3, 3, 9, 3), c.sizes([]int64{96, 192, 384, 768}, "hidden_sizes")
	if len(depths) != len(widths) {
		c.fail("depths", "has %d entries for %d widths", len(depths), len(widths))
		return &Model{}
	}
	return c.image(vision.Spec{Builder: "convnext", Depths: depths, Widths: widths, Drop: c.floatOr(0, "drop_path_rate"), Classes: c.labels(),
		ResponseNorm: c.textOr("", "model_type") == "convnextv2", Image: c.dimOr(224, "image_size")}, Vision)
}

func swinImages(c *config) *Model {
	depths, heads := c.depths(2, 2, 6, 2), c.sizes([]int64{3, 6, 12, 24}, "num_heads")
	if len(depths) != len(heads) {
		c.fail("depths", "has %d entries for %d numbers of heads", len(depths), len(heads))
		return &Model{}
	}
	return c.image(vision.Spec{Builder: "swin", Widths: []int64{min(c.dimOr(96, "embed_dim"), 1<<12)}, Depths: depths, Heads: heads, Window: min(c.dimOr(7, "window_size"), 64),
		Drop: c.floatOr(0.1, "drop_path_rate"), Classes: c.labels(), Image: c.dimOr(224, "image_size")}, Vision)
}

// segformer is SegFormer for segmentation.
func segformer(c *config) *Model {
	widths := c.sizes([]int64{32, 64, 160, 256}, "hidden_sizes")
	depths, heads, reductions := c.depths(2, 2, 2, 2), c.sizes([]int64{1, 2, 5, 8}, "num_attention_heads"), c.sizes([]int64{8, 4, 2, 1}, "sr_ratios")
	if len(depths) != len(widths) || len(heads) != len(widths) || len(reductions) != len(widths) {
		c.fail("depths", "%d depths, %d widths, %d numbers of heads and %d reductions do not go together", len(depths), len(widths), len(heads), len(reductions))
		return &Model{}
	}
	side := c.dimOr(512, "image_size")
	return c.image(vision.Spec{Builder: "segformer", Widths: widths, Depths: depths, Heads: heads, Reductions: reductions, Context: min(c.dimOr(256, "decoder_hidden_size"), 1<<12),
		Classes: c.labels(), Drop: c.floatOr(0.1, "drop_path_rate"), Dropout: c.floatOr(0.1, "classifier_dropout_prob"), Crop: []int64{side, side}}, Vision)
}
