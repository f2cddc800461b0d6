package model

import "slices"

// mixtralNames are Llama's with the experts of Mixtral.
func mixtralNames() names {
	n := llamaNames()
	n.router = "block_sparse_moe.gate"
	n.expGate, n.expUp, n.expDown = "block_sparse_moe.experts.w1", "block_sparse_moe.experts.w3", "block_sparse_moe.experts.w2"
	return n
}

func mixtral(c *config) *Model {
	d := llamaLike(c)
	d.attn.KVHeads = c.dimOr(min(8, d.attn.Heads), "num_key_value_heads")
	d.attn.Window = c.intOr(0, "sliding_window")
	d.names = mixtralNames()
	d.moe = &MoE{Experts: c.dimOr(8, "num_local_experts"), TopK: c.dimOr(2, "num_experts_per_tok"), FFN: d.mlp.FFN, Act: d.mlp.Act,
		Gated: true, AuxLoss: c.boolOr(false, "output_router_logits")}
	return d.model(c)
}

// phimoe is Phi-3.5-MoE.
func phimoe(c *config) *Model {
	d := llamaLike(c)
	d.norm = layerNorm()
	d.names = mixtralNames()
	d.headBias = c.boolOr(false, "lm_head_bias")
	d.attn.Window = c.intOr(0, "sliding_window")
	d.moe = &MoE{Experts: c.dimOr(16, "num_local_experts"), TopK: c.dimOr(2, "num_experts_per_tok"), FFN: d.mlp.FFN, Act: d.mlp.Act,
		Gated: true, AuxLoss: c.boolOr(false, "output_router_logits")}
	return d.model(c)
}

// qwenMoE is Qwen2-MoE and Qwen3-MoE.
func qwenMoE(c *config) *Model {
	d := llamaLike(c)
	second := c.textOr("", "model_type") == "qwen2_moe"
	if second {
		d.qkvBias, d.bias = c.boolOr(true, "qkv_bias"), false
	} else {
		d.attn.HeadDim = c.dimOr(0, "head_dim")
		d.attn.QKNorm = QKNormPerHead
	}
	qwenWindow(c, d)
	d.moe = &MoE{Experts: c.dim("num_experts", "num_local_experts"), TopK: c.dim("num_experts_per_tok"), FFN: c.dim("moe_intermediate_size"),
		Act: d.mlp.Act, Gated: true, AuxLoss: c.boolOr(false, "output_router_logits")}
	if second {
		d.moe.SharedFFN = c.countOr(0, "shared_expert_intermediate_size")
		d.moe.SharedSwitch = d.moe.SharedFFN > 0
	}
	step, dense := c.intOr(1, "decoder_sparse_step"), c.ints("mlp_only_layers")
	d.isMoE = func(i int64) bool { return !slices.Contains(dense, i) && step > 0 && (i+1)%step == 0 }
	return d.model(c)
}

// deepseek is DeepSeek-MoE (with ordinary attention) and DeepSeek V2, V3 and
// their relatives (with latent attention).
func deepseek(c *config) *Model {
	d := llamaLike(c)
	kind := c.textOr("", "model_type")
	// V3 moves a bias of the router instead of adding a loss.
	balanced := kind != "deepseek" && kind != "deepseek_v2" || c.textOr("", "topk_method") == "noaux_tc"
	if kind != "deepseek" {
		mla := &MLA{QRank: c.intOr(0, "q_lora_rank"), KVRank: c.dim("kv_lora_rank"), NopeDim: c.dim("qk_nope_head_dim"), RopeDim: c.dim("qk_rope_head_dim")}
		if mla.QRank < 0 || mla.QRank > dimensionMost {
			c.fail("q_lora_rank", "%d is not a rank", mla.QRank)
			mla.QRank = 0
		}
		d.attn.MLA = mla
		d.attn.HeadDim = mla.NopeDim + mla.RopeDim
		d.attn.VHeadDim = c.dimOr(max(1, d.hidden/d.attn.Heads), "v_head_dim")
		d.attn.RopeDim = mla.RopeDim
		d.attn.KVHeads = d.attn.Heads
	}
	d.names.sharedExperts()
	switch kind { // dense
	case "minicpm3", "youtu":
		d.tied = c.boolOr(true, "tie_word_embeddings")
		return d.model(c)
	}
	if c.has("n_routed_experts") {
		d.moe = &MoE{Experts: c.dim("n_routed_experts"), TopK: c.dim("num_experts_per_tok"), FFN: c.dim("moe_intermediate_size"), Act: d.mlp.Act,
			Gated: true, ScoreBias: balanced}
		d.moe.AuxLoss = c.floatOr(0, "aux_loss_alpha") > 0 && !d.moe.ScoreBias
		d.moe.SharedFFN = c.dimOr(0, "n_shared_experts") * d.moe.FFN
		every := c.intOr(1, "moe_layer_freq")
		d.sparse(c, 0)
		if sparse := d.isMoE; every != 1 {
			d.isMoE = func(i int64) bool { return sparse(i) && every > 0 && i%every == 0 }
		}
	}
	return d.model(c)
}

// glm4MoE is GLM-4.5.
func glm4MoE(c *config) *Model {
	d := llamaLike(c)
	d.attn.HeadDim = c.dimOr(128, "head_dim")
	d.attn.RopeDim = d.partialRotary(c, 0.5)
	d.bias = false
	if c.boolOr(false, "use_qk_norm") {
		d.attn.QKNorm = QKNormPerHead
	}
	d.names.sharedExperts()
	d.moe = &MoE{Experts: c.dim("n_routed_experts"), TopK: c.dim("num_experts_per_tok"), FFN: c.dim("moe_intermediate_size"), Act: d.mlp.Act,
		Gated: true, ScoreBias: true}
	d.moe.SharedFFN = c.dimOr(1, "n_shared_experts") * d.moe.FFN
	d.sparse(c, 1)
	return d.model(c)
}

// sharedMoE is what many followers of DeepSeek V3 are: ordinary attention, experts
// that every token takes, a router that is balanced without a loss (EXAONE MoE,
// Sarvam, Hunyuan 3, Solar Open).
func sharedMoE(c *config) *Model {
	d := llamaLike(c)
	kind := c.textOr("", "model_type")
	if kind == "exaone_moe" || kind == "hy_v3" || c.boolOr(false, "use_qk_norm") {
		d.attn.QKNorm = QKNormPerHead
	}
	if kind == "exaone_moe" {
		slidingLayers(c, d, nil)
	}
	d.names.sharedExperts()
	d.moe = &MoE{Experts: c.dim("n_routed_experts", "num_experts"), TopK: c.dim("num_experts_per_tok"), FFN: c.dim("moe_intermediate_size"), Act: d.mlp.Act,
		Gated: true, ScoreBias: true}
	d.moe.SharedFFN = c.countOr(0, "n_shared_experts", "num_shared_experts") * d.moe.FFN
	d.sparse(c, 0)
	return d.model(c)
}

// sparse reads which layers have experts: by name for each layer in new
// configurations, from a first one on in others.
func (d *decoder) sparse(c *config, first int64) {
	first = c.intOr(first, "first_k_dense_replace")
	d.isMoE = func(i int64) bool { return i >= first }
	kinds := c.texts("mlp_layer_types")
	switch {
	case len(kinds) == 0:
	case int64(len(kinds)) != d.layers:
		c.fail("mlp_layer_types", "has %d entries for %d layers", len(kinds), d.layers)
	default:
		d.isMoE = func(i int64) bool { return kinds[i] == "sparse" }
	}
}

// sharedExperts are DeepSeek's names of the experts that every token takes.
func (n *names) sharedExperts() {
	n.shGate, n.shUp, n.shDown = "mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj", "mlp.shared_experts.down_proj"
}

// dots is dots.llm1: Qwen 3's attention, DeepSeek V3's experts.
func dots(c *config) *Model {
	d := llamaLike(c)
	d.attn.QKNorm = QKNormPerHead
	slidingLayers(c, d, nil)
	d.names.sharedExperts()
	d.moe = &MoE{Experts: c.dim("n_routed_experts"), TopK: c.dim("num_experts_per_tok"), FFN: c.dim("moe_intermediate_size"), Act: d.mlp.Act,
		Gated: true, ScoreBias: true}
	d.moe.SharedFFN = c.countOr(0, "n_shared_experts") * d.moe.FFN
	d.sparse(c, 0)
	return d.model(c)
}

func minimaxM2(c *config) *Model {
	d := llamaLike(c)
	d.attn.QKNorm = QKNormFull
	d.attn.RopeDim = d.partialRotary(c, 1)
	if n := c.intOr(0, "rotary_dim"); n > 0 {
		d.attn.RopeDim = n
	}
	d.names = mixtralNames()
	d.moe = &MoE{Experts: c.dim("num_local_experts"), TopK: c.dim("num_experts_per_tok"), FFN: d.mlp.FFN, Act: d.mlp.Act, Gated: true, ScoreBias: true,
		AuxLoss: c.boolOr(false, "output_router_logits")}
	return d.model(c)
}

// hunyuanMoE is Hunyuan-A13B. Its configuration may give a figure for each layer,
// which are all the same in what is published.
func hunyuanMoE(c *config) *Model {
	d := llamaLike(c)
	d.attn.QKNorm = QKNormPerHead
	n := &d.names
	n.qNorm, n.kNorm = "self_attn.query_layernorm", "self_attn.key_layernorm"
	n.router = "mlp.gate.wg"
	n.shGate, n.shUp, n.shDown = "mlp.shared_mlp.gate_proj", "mlp.shared_mlp.up_proj", "mlp.shared_mlp.down_proj"
	d.moe = &MoE{Experts: c.dim("num_experts"), TopK: c.firstOr(1, "moe_topk"), FFN: d.mlp.FFN, Act: d.mlp.Act, Gated: true}
	d.moe.SharedFFN = d.mlp.FFN * c.firstOr(1, "num_shared_expert")
	return d.model(c)
}

// flexOLMo is OLMoE with OLMo 2's norms.
func flexOLMo(c *config) *Model {
	d := llamaLike(c)
	d.placement = OutNorm
	d.attn.QKNorm = QKNormFull
	d.names.norm1, d.names.norm2 = "post_attention_layernorm", "post_feedforward_layernorm"
	d.moe = &MoE{Experts: c.dim("num_experts"), TopK: c.dim("num_experts_per_tok"), FFN: d.mlp.FFN, Act: d.mlp.Act, Gated: true,
		AuxLoss: c.boolOr(false, "output_router_logits")}
	return d.model(c)
}

// ernieMoE is ERNIE 4.5.
func ernieMoE(c *config) *Model {
	d := llamaLike(c)
	d.qkvBias = c.boolOr(false, "use_bias")
	d.bias, d.mlp.Bias = d.qkvBias, d.qkvBias
	d.tied = c.boolOr(true, "tie_word_embeddings")
	d.names.sharedExperts()
	d.moe = &MoE{Experts: c.dim("moe_num_experts"), TopK: c.dim("moe_k"), FFN: c.dim("moe_intermediate_size"), Act: d.mlp.Act,
		Gated: true, ScoreBias: true}
	d.moe.SharedFFN = c.dimOr(0, "moe_num_shared_experts") * d.moe.FFN
	first, every := c.intOr(1, "moe_layer_start_index"), c.intOr(1, "moe_layer_interval")
	d.isMoE = func(i int64) bool { return i >= first && every > 0 && (i+1)%every == 0 }
	return d.model(c)
}

func dbrx(c *config) *Model {
	attn, ffn := c.object("attn_config"), c.object("ffn_config")
	heads := c.dim("n_heads")
	d := &decoder{
		hidden: c.dim("d_model"), vocab: c.dim("vocab_size"), layers: c.dim("n_layers"), maxSeq: c.dimOr(2048, "max_seq_len"),
		norm: Norm{Kind: LayerNorm, Affine: true},
		attn: Attention{Heads: heads, KVHeads: attn.dimOr(heads, "kv_n_heads"), FusedQKV: true, Position: Rope},
		moe:  &MoE{Experts: ffn.dim("moe_num_experts"), TopK: ffn.dim("moe_top_k"), FFN: ffn.dim("ffn_hidden_size"), Act: SiLU, Gated: true},
		tied: c.boolOr(false, "tie_word_embeddings"),
		names: names{
			tokens: "transformer.wte", final: "transformer.norm_f", head: "lm_head",
			qkv: "norm_attn_norm.attn.Wqkv", o: "norm_attn_norm.attn.out_proj", norm1: "norm_attn_norm.norm_1", norm2: "norm_attn_norm.norm_2",
			router: "ffn.router.layer", expGate: "ffn.experts.mlp.w1", expUp: "ffn.experts.mlp.v1", expDown: "ffn.experts.mlp.w2",
		},
	}
	return d.model(c)
}

// graniteNames are Llama's with the experts of Granite, whose gate and up
// projections are one matrix.
func graniteNames() names {
	n := llamaNames()
	n.router = "block_sparse_moe.router.layer"
	n.expGateUp, n.expDown = "block_sparse_moe.input_linear", "block_sparse_moe.output_linear"
	n.shGateUp, n.shDown = "shared_mlp.input_linear", "shared_mlp.output_linear"
	n.gateUp, n.down = "shared_mlp.input_linear", "shared_mlp.output_linear"
	return n
}

// graniteMoE is Granite-MoE without and with a shared expert.
func graniteMoE(c *config) *Model {
	d := llamaLike(c)
	d.logitScaled = true
	d.names = graniteNames()
	d.moe = &MoE{Experts: c.dim("num_local_experts"), TopK: c.dim("num_experts_per_tok"), FFN: d.mlp.FFN, Act: d.mlp.Act,
		Gated: true, FusedGateUp: true, SharedFFN: c.countOr(0, "shared_intermediate_size"), AuxLoss: c.boolOr(false, "output_router_logits")}
	return d.model(c)
}

func olmoe(c *config) *Model {
	d := llamaLike(c)
	d.attn.QKNorm = QKNormFull
	d.moe = &MoE{Experts: c.dimOr(64, "num_experts"), TopK: c.dimOr(8, "num_experts_per_tok"), FFN: d.mlp.FFN, Act: d.mlp.Act, Gated: true,
		AuxLoss: c.boolOr(false, "output_router_logits")}
	return d.model(c)
}

func gptOSS(c *config) *Model {
	d := llamaLike(c)
	d.attn.HeadDim = c.dimOr(64, "head_dim")
	d.qkvBias = c.boolOr(true, "attention_bias")
	d.bias = d.qkvBias
	d.attn.Sinks = true
	slidingLayers(c, d, func(i int64) bool { return i%2 == 0 })
	d.names.router = "mlp.router"
	d.moe = &MoE{Experts: c.dim("num_local_experts"), TopK: c.dim("num_experts_per_tok", "experts_per_token"), FFN: d.mlp.FFN, Act: ClippedSwiGL,
		Gated: true, FusedGateUp: true, Bias: true, RouterBias: true, AuxLoss: c.boolOr(false, "output_router_logits")}
	return d.model(c)
}

// llama4 alternates dense layers and layers of one routed and one shared expert.
// The vision tower of the multimodal file is left out: see docs/known-limits.md.
func llama4(outer *config) *Model {
	c := outer.object("text_config")
	d := llamaLike(c)
	n := &d.names
	n.gate, n.up, n.down = "feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"
	n.router, n.expGateUp, n.expDown = "feed_forward.router", "feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj"
	n.shGate, n.shUp, n.shDown = "feed_forward.shared_expert.gate_proj", "feed_forward.shared_expert.up_proj", "feed_forward.shared_expert.down_proj"
	d.moe = &MoE{Experts: c.dim("num_local_experts"), TopK: c.dimOr(1, "num_experts_per_tok"), FFN: d.mlp.FFN, Act: d.mlp.Act,
		Gated: true, FusedGateUp: true, SharedFFN: d.mlp.FFN}
	d.mlp.FFN = c.dimOr(d.mlp.FFN, "intermediate_size_mlp")
	step := c.intOr(1, "interleave_moe_layer_step")
	d.isMoE = func(i int64) bool { return step > 0 && (i+1)%step == 0 }
	d.noRope = func(i int64) bool { return (i+1)%4 == 0 }
	return d.model(c)
}
