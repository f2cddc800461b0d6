package model

import "unoom/internal/model/vision"

// viTower reads an image transformer's keys: ViT, DeiT, BEiT, DINOv2, SigLIP.
func viTower(c *config) (d *decoder, tokens, patch, channels int64) {
	d = &decoder{
		bidirectional: true,
		hidden:        c.dim("hidden_size"), layers: c.dim("num_hidden_layers"),
		norm:    layerNorm(),
		attn:    Attention{Heads: c.dim("num_attention_heads"), Position: Learned, Dropout: c.floatOr(0, "attention_probs_dropout_prob", "attention_dropout")},
		qkvBias: true, bias: true,
		mlp:          MLP{FFN: c.dimOr(c.dimOr(4, "mlp_ratio")*c.dim("hidden_size"), "intermediate_size"), Act: c.act(GELU, "hidden_act"), Bias: true, Dropout: c.floatOr(0, "hidden_dropout_prob")},
		resDropout:   c.floatOr(0, "hidden_dropout_prob"),
		embedDropout: c.floatOr(0, "hidden_dropout_prob"),
		names: names{
			q: "attention.attention.query", k: "attention.attention.key", v: "attention.attention.value", o: "attention.output.dense",
			up: "intermediate.dense", down: "output.dense", norm1: "layernorm_before", norm2: "layernorm_after", final: "layernorm",
		},
	}
	image := c.dimOr(224, "image_size")
	patch = c.dimOr(16, "patch_size")
	channels = c.dimOr(3, "num_channels")
	if image < patch {
		c.fail("image_size", "%d is smaller than a patch of %d", image, patch)
		patch = image
	}
	return d, (image / patch) * (image / patch), patch, channels
}

// tower is the image transformer as operations.
func (d *decoder) tower(c *config, patch, tokens int64) *vision.Spec {
	return &vision.Spec{Builder: "vit", Patch: patch, Widths: []int64{d.hidden}, Depth: int(d.layers), Heads: []int64{d.attn.Heads}, MLP: d.mlp.FFN,
		Tokens: tokens, Classes: c.labels(), Image: c.dimOr(224, "image_size"), Drop: c.floatOr(0, "drop_path_rate")}
}

// patchEmbedding is a convolution that cuts the image into patches.
func patchEmbedding(name string, channels, patch, width int64, bias bool) Module {
	m := Module{Name: name, Kind: Convolution, Role: RolePatch, In: channels, Out: width,
		Params: []Param{{Name: "weight", Shape: []int64{width, channels, patch, patch}}}}
	if bias {
		m.Params = append(m.Params, Param{Name: "bias", Shape: []int64{width}})
	}
	return m
}

// tokensOf returns the parameters of class tokens and positions.
func tokensOf(name string, shape ...int64) Module {
	return Module{Name: name, Kind: ParamsAlone, Role: RolePosition, Params: []Param{{Shape: shape}}}
}

func (d *decoder) imageModel(c *config, tokens int64, embed ...Module) *Model {
	s := d.stack("encoder")
	m := &Model{Family: Encoder, Hidden: d.hidden, MaxSeq: tokens, Position: Learned, EmbedDropout: d.embedDropout, Stacks: []*Stack{s}, Embed: embed}
	switch m.HeadKind = c.head(HeadClassify); m.HeadKind {
	case HeadNone:
	default:
		m.HeadKind = HeadClassify
		m.Head = []Module{dense("classifier", RoleClassifier, d.hidden, c.labels())}
	}
	return m
}

func vit(c *config) *Model {
	d, n, patch, channels := viTower(c)
	d.qkvBias = c.boolOr(true, "qkv_bias")
	h, extra := d.hidden, int64(1)
	embed := []Module{tokensOf("embeddings.cls_token", 1, 1, h)}
	if c.textOr("", "model_type") == "deit" {
		extra = 2
		embed = append(embed, tokensOf("embeddings.distillation_token", 1, 1, h))
	}
	embed = append(embed, tokensOf("embeddings.position_embeddings", 1, n+extra, h),
		patchEmbedding("embeddings.patch_embeddings.projection", channels, patch, h, true))
	m := d.imageModel(c, n+extra, embed...)
	if m.HeadKind == HeadNone {
		m.Head = []Module{dense("pooler.dense", RolePooler, h, h)}
	}
	m.Tower = d.tower(c, patch, extra)
	return m
}

// dinov2 scales each branch and pools the class token with the patches.
func dinov2(c *config) *Model {
	d, n, patch, channels := viTower(c)
	if c.boolOr(false, "use_swiglu_ffn") {
		c.fail("use_swiglu_ffn", "true is not modelled")
	}
	h := d.hidden
	d.names.norm1, d.names.norm2 = "norm1", "norm2"
	d.names.up, d.names.down = "mlp.fc1", "mlp.fc2"
	d.extra = func(l *Layer) {
		l.Modules = append(l.Modules, Module{Name: "layer_scale", Kind: ParamsAlone, Params: []Param{
			{Name: "1.lambda1", Shape: []int64{h}}, {Name: "2.lambda1", Shape: []int64{h}}}})
	}
	m := d.imageModel(c, n+1, tokensOf("embeddings.cls_token", 1, 1, h), tokensOf("embeddings.mask_token", 1, h),
		tokensOf("embeddings.position_embeddings", 1, n+1, h), patchEmbedding("embeddings.patch_embeddings.projection", channels, patch, h, true))
	if m.HeadKind == HeadClassify {
		m.Head = []Module{dense("classifier", RoleClassifier, 2*h, c.labels())}
	}
	m.Tower = d.tower(c, patch, 1)
	m.Tower.LayerScale = true
	return m
}

// beit has a relative position bias in each layer, and no bias on the keys.
func beit(c *config) *Model {
	d, n, patch, channels := viTower(c)
	h, heads := d.hidden, d.attn.Heads
	side := c.dimOr(224, "image_size") / patch
	rows := (2*side-1)*(2*side-1) + 3
	relative, shared := c.boolOr(false, "use_relative_position_bias"), c.boolOr(false, "use_shared_relative_position_bias")
	scaled := c.floatOr(0.1, "layer_scale_init_value") > 0
	if relative {
		d.attn.Position = RelativeBias
	}
	d.extra = func(l *Layer) {
		k := l.Module(RoleK)
		k.Params = k.Params[:1]
		if scaled {
			l.Modules = append(l.Modules, Module{Name: "lambda", Kind: ParamsAlone, Params: []Param{
				{Name: "1", Shape: []int64{h}}, {Name: "2", Shape: []int64{h}}}})
		}
		if relative {
			l.Modules = append(l.Modules, Module{Name: "attention.attention.relative_position_bias.relative_position_bias_table",
				Kind: ParamsAlone, Role: RoleRelB, Params: []Param{{Shape: []int64{rows, heads}}}})
		}
	}
	d.noFinalNorm = c.boolOr(true, "use_mean_pooling")
	embed := []Module{tokensOf("embeddings.cls_token", 1, 1, h)}
	if c.boolOr(false, "use_mask_token") {
		embed = append(embed, tokensOf("embeddings.mask_token", 1, 1, h))
	}
	if c.boolOr(false, "use_absolute_position_embeddings") {
		embed = append(embed, tokensOf("embeddings.position_embeddings", 1, n+1, h))
	}
	embed = append(embed, patchEmbedding("embeddings.patch_embeddings.projection", channels, patch, h, true))
	m := d.imageModel(c, n+1, embed...)
	if shared {
		m.Stacks[0].Tail = append(m.Stacks[0].Tail, Module{Name: "encoder.relative_position_bias.relative_position_bias_table",
			Kind: ParamsAlone, Role: RoleRelB, Params: []Param{{Shape: []int64{rows, heads}}}})
	}
	if d.noFinalNorm {
		norm := d.norm
		m.Head = append([]Module{norm.module("pooler.layernorm", RoleHeadNorm)}, m.Head...)
	}
	m.Tower = d.tower(c, patch, 1)
	m.Tower.LayerScale, m.Tower.Relative, m.Tower.MeanPool = scaled, relative || shared, d.noFinalNorm
	return m
}
