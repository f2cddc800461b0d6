package model

import (
	"cmp"
	"strings"
)

// backbone are the names of Mamba in transformers.
func backboneNames() names {
	return names{tokens: "backbone.embeddings", final: "backbone.norm_f", head: "lm_head", norm1: "norm"}
}

// mamba is the first Mamba: every layer is one state-space mixer.
func mamba(c *config) *Model {
	h := c.dim("hidden_size")
	d := &decoder{
		hidden: h, vocab: c.dim("vocab_size"), layers: c.dim("num_hidden_layers", "n_layer"),
		norm: Norm{Kind: RMSNorm, Affine: true}, names: backboneNames(),
		tied: c.boolOr(true, "tie_word_embeddings"),
		ssm: &SSM{Version: 1, Inner: c.dimOr(int64(c.floatOr(2, "expand")*float64(h)), "intermediate_size"), State: c.dimOr(16, "state_size"),
			Conv: c.dimOr(4, "conv_kernel"), DTRank: rank(c, h, "time_step_rank")},
		ssmPrefix: "mixer.",
		isSSM:     func(int64) bool { return true },
	}
	return d.model(c)
}

// rank reads a rank that may be "auto": one sixteenth of the width, rounded up.
func rank(c *config, hidden int64, key string) int64 {
	if _, v, ok := c.find(key); ok && string(v) != `"auto"` {
		return c.dim(key)
	}
	return (hidden + 15) / 16
}

func mamba2(c *config) *Model {
	h := c.dim("hidden_size")
	inner := int64(c.floatOr(2, "expand") * float64(h))
	d := &decoder{
		hidden: h, vocab: c.dim("vocab_size"), layers: c.dim("num_hidden_layers"),
		norm: Norm{Kind: RMSNorm, Affine: true}, names: backboneNames(),
		tied: c.boolOr(false, "tie_word_embeddings"),
		ssm: &SSM{Version: 2, Inner: inner, State: c.dimOr(128, "state_size"), Heads: c.dimOr(128, "num_heads"), HeadDim: c.dimOr(64, "head_dim"),
			Groups: c.dimOr(8, "n_groups"), Conv: c.dimOr(4, "conv_kernel"), Chunk: c.dimOr(256, "chunk_size"), Norm: true},
		ssmPrefix: "mixer.",
		isSSM:     func(int64) bool { return true },
	}
	return d.model(c)
}

// hybridSSM reads the Mamba 2 mixer of Bamba and Granite.
func hybridSSM(c *config, h int64) *SSM {
	inner := c.dimOr(2, "mamba_expand") * h
	heads := c.dimOr(128, "mamba_n_heads")
	dim := inner / heads
	if _, v, ok := c.find("mamba_d_head"); ok && string(v) != `"auto"` {
		dim = c.dim("mamba_d_head")
	}
	if c.boolOr(false, "mamba_proj_bias") {
		c.fail("mamba_proj_bias", "true is not modelled")
	}
	return &SSM{Version: 2, Inner: inner, State: c.dimOr(256, "mamba_d_state"), Heads: heads, HeadDim: dim, Groups: c.dimOr(1, "mamba_n_groups"),
		Conv: c.dimOr(4, "mamba_d_conv"), Chunk: c.dimOr(256, "mamba_chunk_size"), Norm: true}
}

func bamba(c *config) *Model {
	d := llamaLike(c)
	n := &d.names
	n.norm2, n.final = "pre_ff_layernorm", "model.final_layernorm"
	n.gate, n.up, n.down = "feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"
	d.attn.RopeDim = d.partialRotary(c, 0.5)
	d.ssm, d.ssmPrefix = hybridSSM(c, d.hidden), "mamba."
	attention := listed(c.ints("attn_layer_indices"))
	d.isSSM = func(i int64) bool { return !attention(i) }
	return d.model(c)
}

// graniteHybrid is Granite 4: Mamba 2 and attention, with or without experts,
// and a shared MLP in every layer.
func graniteHybrid(c *config) *Model {
	d := llamaLike(c)
	d.logitScaled = true
	d.names = graniteNames()
	if c.textOr("nope", "position_embedding_type") != "rope" {
		d.attn.Position = NoPosition
	}
	shared := c.dim("shared_intermediate_size")
	if e := c.intOr(0, "num_local_experts"); e > 0 {
		d.moe = &MoE{Experts: c.dim("num_local_experts"), TopK: c.dim("num_experts_per_tok"), FFN: d.mlp.FFN, Act: d.mlp.Act,
			Gated: true, FusedGateUp: true, SharedFFN: shared}
	}
	d.mlp.FFN, d.mlp.FusedGateUp = shared, true
	d.ssm, d.ssmPrefix = hybridSSM(c, d.hidden), "mamba."
	kinds := c.texts("layer_types", "layers_block_type")
	if int64(len(kinds)) != d.layers {
		c.fail("layer_types", "has %d entries for %d layers", len(kinds), d.layers)
		return d.model(c)
	}
	d.isSSM = func(i int64) bool { return kinds[i] == "mamba" || kinds[i] == "linear_attention" }
	return d.model(c)
}

// nemotronLetters are the letters of the layers that transformers 5 names.
var nemotronLetters = map[string]string{
	"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E",
}

// nemotronH has layers of one mixer or one MLP each, by a pattern of letters, or
// by a list of names.
func nemotronH(c *config) *Model {
	pattern := c.textOr("", "hybrid_override_pattern")
	if kinds := c.texts("layers_block_type"); len(kinds) > 0 {
		pattern = ""
		for _, kind := range kinds {
			pattern += cmp.Or(nemotronLetters[kind], "?")
		}
		c = c.withDefaults(map[string]int64{"num_hidden_layers": int64(len(kinds))})
	}
	d := llamaLike(c)
	d.attn.Position = NoPosition
	d.attn.HeadDim = c.dimOr(128, "attention_head_dim", "head_dim")
	d.mlp.Gated, d.mlp.Act = false, c.act(SquaredReLU, "mlp_hidden_act")
	d.names.norm1, d.names.norm2 = "norm", ""
	d.names.tokens, d.names.final = "backbone.embeddings", "backbone.norm_f"
	heads, dim := c.dim("mamba_num_heads"), c.dim("mamba_head_dim")
	d.ssm = &SSM{Version: 2, Inner: heads * dim, State: c.dimOr(128, "ssm_state_size"), Heads: heads, HeadDim: dim, Groups: c.dimOr(8, "n_groups"),
		Conv: c.dimOr(4, "conv_kernel"), Chunk: c.dimOr(128, "chunk_size"), Norm: true}
	d.ssmPrefix = "mixer."
	if strings.Contains(pattern, "E") {
		d.names.router, d.names.expUp, d.names.expDown = "mixer.gate", "mixer.experts.up_proj", "mixer.experts.down_proj"
		d.names.shUp, d.names.shDown = "mixer.shared_experts.up_proj", "mixer.shared_experts.down_proj"
		d.moe = &MoE{Experts: c.dim("n_routed_experts"), TopK: c.dim("num_experts_per_tok"), FFN: c.dim("moe_intermediate_size"), Act: d.mlp.Act, ScoreBias: true}
		d.moe.SharedFFN = c.countOr(1, "n_shared_experts") * c.dimOr(d.moe.FFN, "moe_shared_expert_intermediate_size")
		if c.has("moe_latent_size") {
			c.fail("moe_latent_size", "is not modelled")
		}
	}
	d.setPattern(c, "hybrid_override_pattern", pattern)
	return d.model(c)
}

// setPattern checks a pattern of layers.
func (d *decoder) setPattern(c *config, key, pattern string) {
	if int64(len(pattern)) != d.layers || strings.Trim(pattern, "M*-E") != "" {
		c.fail(key, "%q is not one of M, *, - or E for each of %d layers", pattern, d.layers)
		return
	}
	d.pattern = pattern
	if strings.Contains(pattern, "E") && d.moe == nil {
		c.fail(key, "has layers of experts, but their number is not given")
		d.pattern = ""
	}
}

// jamba alternates Mamba 1 and attention, dense layers and experts.
func jamba(c *config) *Model {
	d := llamaLike(c)
	d.attn.Position = NoPosition
	n := &d.names
	n.norm2, n.final = "pre_ff_layernorm", "model.final_layernorm"
	n.gate, n.up, n.down = "feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"
	n.router = "feed_forward.router"
	n.expGate, n.expUp, n.expDown = "feed_forward.experts.gate_proj", "feed_forward.experts.up_proj", "feed_forward.experts.down_proj"
	s := &SSM{Version: 1, Inner: c.dimOr(2, "mamba_expand") * d.hidden, State: c.dimOr(16, "mamba_d_state"), Conv: c.dimOr(4, "mamba_d_conv"),
		DTRank: rank(c, d.hidden, "mamba_dt_rank")}
	d.ssm, d.ssmPrefix = s, "mamba."
	every, at := c.intOr(8, "attn_layer_period"), c.intOr(4, "attn_layer_offset")
	d.isSSM = func(i int64) bool { return every < 1 || i%every != at }
	if e := c.dimOr(16, "num_experts"); e > 1 {
		d.moe = &MoE{Experts: e, TopK: c.dimOr(2, "num_experts_per_tok"), FFN: d.mlp.FFN, Act: d.mlp.Act, Gated: true,
			AuxLoss: c.boolOr(false, "output_router_logits")}
		every, at := c.intOr(2, "expert_layer_period"), c.intOr(1, "expert_layer_offset")
		d.isMoE = func(i int64) bool { return every > 0 && i%every == at }
	}
	d.extra = func(l *Layer) { // Jamba norms the three inputs of the scan
		if l.SSM != nil {
			for _, in := range []struct {
				name  string
				width int64
			}{{"dt", s.DTRank}, {"b", s.State}, {"c", s.State}} {
				n := Norm{Kind: RMSNorm, Width: in.width, Affine: true}
				l.Modules = append(l.Modules, n.module("mamba."+in.name+"_layernorm", RoleSSMNorm))
			}
		}
	}
	return d.model(c)
}
