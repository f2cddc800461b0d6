package model

import (
	"encoding/json"
	"maps"
	"strconv"
)

// A Sight is how a vision-language model turns an image into tokens of its text:
// patches run through the stack "vision", and Merge×Merge of them become one
// token in the stack's tail, the projector.
type Sight struct {
	Patch    int64 // side of a patch in pixels
	Channels int64
	Frames   int64 // of a patch: images are doubled where it is two (Qwen)
	// Size is the side to which every image is resized, 0: images keep their size,
	// up to what the processor allows.
	Size int64
	// Merge is how many patches, to each side, make a token.
	Merge int64
	// Class is how many tokens without a place there are beside the patches.
	Class int64
	// Layers is how many layers of the tower the text sees; those after them run
	// without a gradient.
	Layers int
	// Links say what the projector's modules do, in the order of the stack's tail.
	Links []Link
	// Split says that a large image is cut into tiles of Size, whose number the
	// processor decides.
	Split bool
}

// A Link is one module of a projector.
type Link struct {
	Norm *Norm // nil: a matrix
	Act  Act   // after a matrix, "": none
	// Again says that it begins at the patches: what comes of it is added to a
	// layer of the text (Qwen3-VL).
	Again bool
}

// A projector is a list of modules under construction.
type projector struct {
	mods  []Module
	links []Link
}

func (p projector) norm(name string, n Norm, again bool) projector {
	return projector{append(p.mods, n.module(name, RoleProjector)), append(p.links, Link{Norm: &n, Again: again})}
}

func (p projector) matrix(name string, in, out int64, bias bool, act Act) projector {
	return projector{append(p.mods, linear(name, RoleProjector, in, out, bias, SplitNone)), append(p.links, Link{Act: act})}
}

// Patches returns how many patches an image of a size in pixels has, and how many
// tokens of the text it becomes.
func (s *Sight) Patches(height, width int64) (patches, tokens int64) {
	side := s.Patch * s.Merge
	if s.Size > 0 {
		height, width = s.Size, s.Size
	}
	round := func(n int64) int64 { return max(1, (n+side/2)/side) }
	if s.Size > 0 {
		n := s.Size / s.Patch
		return n*n + s.Class, (n / s.Merge) * (n / s.Merge)
	}
	h, w := round(height), round(width)
	return h*w*s.Merge*s.Merge + s.Class, h * w
}

// textDefaults are what a configuration of a vision-language model leaves out of
// its text part, because the class of that part has it.
// Source: transformers v5.24, the configuration classes of these types.
var textDefaults = map[string]map[string]int64{
	"llama":       {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000},
	"mistral":     {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000},
	"qwen2":       {"hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 151936},
	"gemma":       {"hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 256000},
	"gemma2":      {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 256000},
	"gemma3_text": {"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208},
}

// textModel builds the text part of a vision-language model. Older files of Qwen
// have its keys beside the others.
func (c *config) textModel(kind string, tied bool) *Model {
	t := c.object("text_config")
	if t != c {
		kind = t.textOr(kind, "model_type")
	}
	tied = c.boolOr(t.boolOr(tied, "tie_word_embeddings"), "tie_word_embeddings")
	o := &config{name: c.name, path: t.path, opt: c.opt, outer: c, raw: maps.Clone(t.raw)}
	o.raw["tie_word_embeddings"] = json.RawMessage(strconv.FormatBool(tied))
	o.raw["model_type"] = json.RawMessage(strconv.Quote(kind))
	delete(o.raw, "architectures") // of the text alone: it has a head here
	build := builderOf(kind)
	if build == nil {
		c.fail("text_config.model_type", "%q is not one that unoom knows", kind)
		build = llama
	}
	return build(o.withDefaults(textDefaults[kind]))
}

// see puts a tower with its projector before the text.
func (m *Model) see(sight *Sight, d *decoder, embed []Module, to projector) *Model {
	s := d.stack("vision")
	s.Tail, sight.Links = append(s.Tail, to.mods...), to.links
	for i := range embed {
		embed[i].Role = RoleSight
	}
	m.Embed = append(m.Embed, embed...)
	m.Stacks = append([]*Stack{s}, m.Stacks...)
	if sight.Layers <= 0 || sight.Layers > len(s.Layers) {
		sight.Layers = len(s.Layers)
	}
	sight.Merge = max(sight.Merge, 1)
	m.Sight = sight
	return m
}

// siglipTower reads the tower of CLIP or SigLIP and their kin.
func siglipTower(v *config) (d *decoder, sight *Sight, embed []Module) {
	if v.boolOr(false, "vision_use_head") {
		v.fail("vision_use_head", "true is not modelled")
	}
	v = v.withDefaults(map[string]int64{"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12})
	d, n, patch, channels := viTower(v)
	d.names = names{
		q: "self_attn.q_proj", k: "self_attn.k_proj", v: "self_attn.v_proj", o: "self_attn.out_proj",
		norm1: "layer_norm1", norm2: "layer_norm2", up: "mlp.fc1", down: "mlp.fc2", final: "vision_tower.post_layernorm",
	}
	h := d.hidden
	sight = &Sight{Patch: patch, Channels: channels, Size: v.dimOr(224, "image_size")}
	clip := v.textOr("", "model_type") == "clip_vision_model"
	d.mlp.Act = v.act(GELUTanh, "hidden_act")
	if clip {
		d.mlp.Act = v.act(QuickGELU, "hidden_act")
		sight.Class = 1
		embed = append(embed, tokensOf("vision_tower.embeddings.class_embedding", h))
	}
	embed = append(embed, patchEmbedding("vision_tower.embeddings.patch_embedding", channels, patch, h, !clip),
		towerTable("vision_tower.embeddings.position_embedding", n+sight.Class, h))
	if clip {
		norm := d.norm
		norm.Width = h
		embed = append(embed, norm.module("vision_tower.pre_layrnorm", RoleNone))
	}
	return d, sight, embed
}

// towerTable is a table of positions of a tower.
func towerTable(name string, rows, width int64) Module {
	return embedding(name, RoleNone, rows, width, SplitNone)
}

// gemma3Sees is Gemma 3 with images: patches are averaged to a few tokens, which
// are normalised and projected.
func gemma3Sees(c *config, m *Model) *Model {
	d, sight, embed := siglipTower(c.object("vision_config"))
	h := d.hidden
	norm := Norm{Kind: RMSNorm, Width: h, Affine: true, Style: "gemma"}
	side := sight.Size / sight.Patch
	for sight.Merge = 1; side/sight.Merge*(side/sight.Merge) > c.dimOr(256, "mm_tokens_per_image"); {
		sight.Merge++
	}
	return m.see(sight, d, embed, projector{}.norm("multi_modal_projector.mm_soft_emb_norm", norm, false).
		matrix("multi_modal_projector.mm_input_projection", h, m.Hidden, false, ""))
}

// llava is LLaVA, LLaVA-NeXT and LLaVA-OneVision: two dense layers after CLIP or
// SigLIP, of which the last layers may be left out.
func llava(c *config) *Model {
	kind := c.textOr("", "model_type")
	text, tied := "llama", false
	if kind == "llava_onevision" {
		text = "qwen2"
	}
	m := c.textModel(text, tied)
	d, sight, embed := siglipTower(c.object("vision_config"))
	h := d.hidden
	bias := c.boolOr(true, "multimodal_projector_bias")
	at := int64(-2)
	if kind == "llava_onevision" {
		at = -1
	}
	if _, v, ok := c.find("vision_feature_layer"); ok && len(v) > 0 && v[0] == '[' {
		c.fail("vision_feature_layer", "more than one layer is not modelled")
	} else if at = c.intOr(at, "vision_feature_layer"); at < 0 {
		at += d.layers + 1
	}
	sight.Layers = int(at)
	if kind != "llava" {
		sight.Split = true
		embed = append(embed, Module{Name: "image_newline", Kind: ParamsAlone, Params: []Param{{Shape: []int64{m.Hidden}}}})
	}
	return m.see(sight, d, embed, projector{}.matrix("multi_modal_projector.linear_1", h, m.Hidden, bias, c.act(GELU, "projector_hidden_act")).
		matrix("multi_modal_projector.linear_2", m.Hidden, m.Hidden, bias, ""))
}

// paligemma has one dense layer after SigLIP.
func paligemma(c *config) *Model {
	m := c.textModel("gemma", true)
	d, sight, embed := siglipTower(c.object("vision_config"))
	return m.see(sight, d, embed, projector{}.matrix("multi_modal_projector.linear", d.hidden, c.dimOr(m.Hidden, "projection_dim"), true, ""))
}

// idefics3 is Idefics 3 and SmolVLM: neighbouring patches are joined and projected.
func idefics3(c *config) *Model {
	m := c.textModel("llama", false)
	d, sight, embed := siglipTower(c.object("vision_config").withDefaults(map[string]int64{"hidden_size": 1152, "num_attention_heads": 16, "patch_size": 32}))
	sight.Merge, sight.Split = c.dimOr(2, "scale_factor"), true
	d.names.final = "vision_model.post_layernorm"
	return m.see(sight, d, embed, projector{}.matrix("connector.modality_projection.proj", d.hidden*sight.Merge*sight.Merge, m.Hidden, false, ""))
}

// internvl is InternVL in transformers' own code.
func internvl(c *config) *Model {
	m := c.textModel("qwen2", true)
	v := c.object("vision_config")
	image, side := v.firstOr(448, "image_size"), v.firstOr(14, "patch_size")
	v = v.withDefaults(map[string]int64{"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16})
	v.raw["image_size"], v.raw["patch_size"] = number(image), number(side)
	d, n, patch, channels := viTower(v)
	d.qkvBias = v.boolOr(false, "attention_bias")
	if v.boolOr(false, "use_qk_norm") {
		v.fail("use_qk_norm", "true is not modelled")
	}
	d.norm = Norm{Kind: LayerNorm, Affine: true, Bias: true}
	if v.textOr("layer_norm", "norm_type") != "layer_norm" {
		v.fail("norm_type", "is not modelled")
	}
	d.noFinalNorm = v.boolOr(true, "use_mean_pooling")
	d.names = names{q: "attention.q_proj", k: "attention.k_proj", v: "attention.v_proj", o: "attention.projection_layer",
		up: "mlp.fc1", down: "mlp.fc2", norm1: "layernorm_before", norm2: "layernorm_after", final: "vision_tower.layernorm"}
	h := d.hidden
	d.extra = layerScale(h)
	embed := []Module{{Name: "vision_tower.embeddings.cls_token", Kind: ParamsAlone, Params: []Param{{Shape: []int64{1, 1, h}}}}}
	if v.boolOr(true, "use_absolute_position_embeddings") {
		embed = append(embed, towerTable("vision_tower.embeddings.position_embeddings", n+1, h))
	}
	embed = append(embed, patchEmbedding("vision_tower.embeddings.patch_embeddings.projection", channels, patch, h, true))
	sight := &Sight{Patch: patch, Channels: channels, Size: image, Class: 1, Split: true, Merge: max(1, int64(1/c.floatOr(0.5, "downsample_ratio")))}
	wide := Norm{Kind: LayerNorm, Width: h * sight.Merge * sight.Merge, Affine: true, Bias: true}
	return m.see(sight, d, embed, projector{}.norm("multi_modal_projector.layer_norm", wide, false).
		matrix("multi_modal_projector.linear_1", wide.Width, m.Hidden, true, c.act(GELU, "projector_hidden_act")).
		matrix("multi_modal_projector.linear_2", m.Hidden, m.Hidden, true, ""))
}

// layerScale adds the two vectors that scale what a layer adds.
func layerScale(h int64) func(*Layer) {
	return func(l *Layer) {
		l.LayerScale = true
		l.Modules = append(l.Modules, Module{Name: "lambda", Kind: ParamsAlone, Role: RoleLayerScale, Params: []Param{
			{Name: "1", Shape: []int64{h}}, {Name: "2", Shape: []int64{h}}}})
	}
}

func number(n int64) json.RawMessage { return json.RawMessage(strconv.FormatInt(n, 10)) }

// mistral3 is Mistral Small 3.1 and later: Pixtral's tower, whose patches are
// merged before they are projected. Pixtral itself, as LLaVA, does not merge.
func mistral3(c *config) *Model {
	m := c.textModel("mistral", false)
	d, sight, embed := pixtralTower(c.object("vision_config"))
	h := d.hidden
	sight.Merge = c.dimOr(2, "spatial_merge_size")
	bias := c.boolOr(false, "multimodal_projector_bias")
	norm := d.norm
	norm.Width = h
	return m.see(sight, d, embed, projector{}.norm("multi_modal_projector.norm", norm, false).
		matrix("multi_modal_projector.patch_merger.merging_layer", h*sight.Merge*sight.Merge, h, false, "").
		matrix("multi_modal_projector.linear_1", h, m.Hidden, bias, c.act(GELU, "projector_hidden_act")).
		matrix("multi_modal_projector.linear_2", m.Hidden, m.Hidden, bias, ""))
}

func pixtralTower(v *config) (*decoder, *Sight, []Module) {
	v = v.withDefaults(map[string]int64{"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16})
	d := &decoder{
		bidirectional: true, noFinalNorm: true,
		hidden: v.dim("hidden_size"), layers: v.dim("num_hidden_layers"),
		norm: Norm{Kind: RMSNorm, Affine: true},
		attn: Attention{Heads: v.dim("num_attention_heads"), HeadDim: v.dimOr(0, "head_dim"), Position: Rope, Dropout: v.floatOr(0, "attention_dropout")},
		mlp:  MLP{FFN: v.dim("intermediate_size"), Act: v.act(GELU, "hidden_act"), Gated: true},
		names: names{q: "attention.q_proj", k: "attention.k_proj", v: "attention.v_proj", o: "attention.o_proj",
			gate: "feed_forward.gate_proj", up: "feed_forward.up_proj", down: "feed_forward.down_proj", norm1: "attention_norm", norm2: "ffn_norm"},
	}
	sight := &Sight{Patch: v.dimOr(16, "patch_size"), Channels: v.dimOr(3, "num_channels")}
	norm := d.norm
	norm.Width = d.hidden
	return d, sight, []Module{patchEmbedding("vision_tower.patch_conv", sight.Channels, sight.Patch, d.hidden, false), norm.module("vision_tower.ln_pre", RoleNone)}
}

// qwenVL is Qwen2-VL, Qwen2.5-VL and Qwen3-VL: images keep their size, and a patch
// spans two frames.
func qwenVL(c *config) *Model {
	kind := c.textOr("", "model_type")
	m := c.textModel(kind+"_text", false)
	v := c.object("vision_config").withDefaults(map[string]int64{"spatial_merge_size": 2, "temporal_patch_size": 2, "num_heads": 16})
	h := v.dimOr(v.dimOr(1152, "hidden_size"), "embed_dim")
	d := &decoder{
		bidirectional: true, noFinalNorm: true, hidden: h, layers: v.dimOr(32, "depth"),
		norm:    Norm{Kind: LayerNorm, Affine: true, Bias: true},
		attn:    Attention{Heads: v.dim("num_heads"), Position: Rope, FusedQKV: true, FloatRope: true},
		qkvBias: true, bias: true,
		names: names{qkv: "attn.qkv", o: "attn.proj", gate: "mlp.gate_proj", up: "mlp.fc1", down: "mlp.fc2", norm1: "norm1", norm2: "norm2"},
	}
	sight := &Sight{Patch: v.dimOr(14, "patch_size"), Channels: v.dimOr(3, "in_channels", "in_chans"), Frames: v.dim("temporal_patch_size"), Merge: v.dim("spatial_merge_size")}
	wide := h * sight.Merge * sight.Merge
	patch := patchEmbedding("visual.patch_embed.proj", sight.Channels, sight.Patch, h, kind == "qwen3_vl" || kind == "qwen3_vl_moe")
	patch.Params[0].Shape = []int64{h, sight.Channels, sight.Frames, sight.Patch, sight.Patch}
	embed := []Module{patch}
	merger := func(to projector, name, ln, first, second string, normed int64) projector {
		n := d.norm
		n.Width = normed
		return to.norm(name+ln, n, len(to.mods) > 0).matrix(name+first, wide, wide, true, GELU).matrix(name+second, wide, m.Hidden, true, "")
	}
	switch kind {
	case "qwen2_vl":
		d.mlp = MLP{FFN: v.dimOr(4, "mlp_ratio") * h, Act: v.act(QuickGELU, "hidden_act"), Bias: true}
	case "qwen2_5_vl":
		d.norm = Norm{Kind: RMSNorm, Affine: true}
		d.mlp = MLP{FFN: v.dimOr(3420, "intermediate_size"), Act: v.act(SiLU, "hidden_act"), Gated: true, Bias: true}
		d.names.up, d.names.down = "mlp.up_proj", "mlp.down_proj"
		full := listed(v.ints("fullatt_block_indexes"))
		side := v.dimOr(112, "window_size")
		d.window = func(i int64) int64 {
			if full(i) {
				return 0
			}
			return (side / sight.Patch) * (side / sight.Patch)
		}
	default:
		d.mlp = MLP{FFN: v.dimOr(4304, "intermediate_size"), Act: v.act(GELUTanh, "hidden_act"), Bias: true}
		d.names.up, d.names.down = "mlp.linear_fc1", "mlp.linear_fc2"
		embed = append(embed, towerTable("visual.pos_embed", v.dimOr(2304, "num_position_embeddings"), h))
		to := merger(projector{}, "visual.merger.", "norm", "linear_fc1", "linear_fc2", h)
		for range v.ints("deepstack_visual_indexes") {
			to = merger(to, "visual.deepstack_merger_list.", "norm", "linear_fc1", "linear_fc2", wide)
		}
		return m.see(sight, d, embed, to)
	}
	return m.see(sight, d, embed, merger(projector{}, "visual.merger.", "ln_q", "mlp.0", "mlp.2", h))
}
