package model

// layerNorm is torch's LayerNorm with weight and bias.
func layerNorm() Norm { return Norm{Kind: LayerNorm, Affine: true, Bias: true} }

func gpt2(c *config) *Model {
	h := c.dim("n_embd", "hidden_size")
	d := &decoder{
		hidden: h, vocab: c.dim("vocab_size"), layers: c.dim("n_layer", "num_hidden_layers"),
		maxSeq: c.dimOr(1024, "n_positions", "n_ctx"),
		norm:   layerNorm(),
		attn: Attention{Heads: c.dim("n_head", "num_attention_heads"), FusedQKV: true, Position: Learned,
			Dropout: c.floatOr(0.1, "attn_pdrop")},
		qkvBias: true, bias: true,
		mlp:          MLP{FFN: c.dimOr(4*h, "n_inner"), Act: c.act(GELUNew, "activation_function"), Bias: true, Dropout: c.floatOr(0.1, "resid_pdrop")},
		resDropout:   c.floatOr(0.1, "resid_pdrop"),
		embedDropout: c.floatOr(0.1, "embd_pdrop"),
		tied:         c.boolOr(true, "tie_word_embeddings"),
		names:        gptNames(),
	}
	d.positions = d.maxSeq
	return d.model(c)
}

// gptBigCode is StarCoder: GPT-2 with multi-query attention.
func gptBigCode(c *config) *Model {
	h := c.dim("n_embd", "hidden_size")
	d := &decoder{
		hidden: h, vocab: c.dim("vocab_size"), layers: c.dim("n_layer"), maxSeq: c.dimOr(1024, "n_positions"),
		norm:    layerNorm(),
		attn:    Attention{Heads: c.dim("n_head"), FusedQKV: true, Position: Learned, Dropout: c.floatOr(0.1, "attn_pdrop")},
		qkvBias: true, bias: true,
		mlp:          MLP{FFN: c.dimOr(4*h, "n_inner"), Act: c.act(GELUTanh, "activation_function"), Bias: true, Dropout: c.floatOr(0.1, "resid_pdrop")},
		resDropout:   c.floatOr(0.1, "resid_pdrop"),
		embedDropout: c.floatOr(0.1, "embd_pdrop"),
		tied:         c.boolOr(true, "tie_word_embeddings"),
		names:        gptNames(),
	}
	if c.boolOr(true, "multi_query") {
		d.attn.KVHeads = 1
	}
	d.positions = d.maxSeq
	return d.model(c)
}

func gptNeo(c *config) *Model {
	h := c.dim("hidden_size")
	d := &decoder{
		hidden: h, vocab: c.dim("vocab_size"), layers: c.dim("num_layers"), maxSeq: c.dimOr(2048, "max_position_embeddings"),
		norm:         layerNorm(),
		attn:         Attention{Heads: c.dim("num_heads"), Position: Learned, Dropout: c.floatOr(0, "attention_dropout")},
		bias:         true,
		mlp:          MLP{FFN: c.dimOr(4*h, "intermediate_size"), Act: c.act(GELUNew, "activation_function"), Bias: true, Dropout: c.floatOr(0, "resid_dropout")},
		resDropout:   c.floatOr(0, "resid_dropout"),
		embedDropout: c.floatOr(0, "embed_dropout"),
		tied:         c.boolOr(true, "tie_word_embeddings"),
		names:        gptNames(),
	}
	n := &d.names
	n.q, n.k, n.v, n.o = "attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj", "attn.attention.out_proj"
	d.positions = d.maxSeq
	// attention_types is [[["global", "local"], 12]]; its window only masks, the
	// scores are computed in full, so that it changes nothing here.
	return d.model(c)
}

func gptNeoX(c *config) *Model {
	h := c.dim("hidden_size")
	bias := c.boolOr(true, "attention_bias")
	d := &decoder{
		hidden: h, vocab: c.dim("vocab_size"), layers: c.dim("num_hidden_layers"), maxSeq: c.dimOr(2048, "max_position_embeddings"),
		norm:    layerNorm(),
		attn:    Attention{Heads: c.dim("num_attention_heads"), FusedQKV: true, Position: Rope, Dropout: c.floatOr(0, "attention_dropout")},
		qkvBias: bias, bias: bias,
		mlp:        MLP{FFN: c.dim("intermediate_size"), Act: c.act(GELU, "hidden_act"), Bias: true, Dropout: c.floatOr(0, "hidden_dropout")},
		resDropout: c.floatOr(0, "hidden_dropout"),
		parallel:   c.boolOr(true, "use_parallel_residual"),
		tied:       c.boolOr(false, "tie_word_embeddings"),
		names: names{
			tokens: "gpt_neox.embed_in", final: "gpt_neox.final_layer_norm", head: "embed_out",
			qkv: "attention.query_key_value", o: "attention.dense", up: "mlp.dense_h_to_4h", down: "mlp.dense_4h_to_h",
			norm1: "input_layernorm", norm2: "post_attention_layernorm",
		},
	}
	d.attn.RopeDim = d.partialRotary(c, 0.25)
	return d.model(c)
}

// gptJ is GPT-J, and CodeGen, which fuses the projection of queries, keys and
// values.
func gptJ(c *config) *Model {
	h := c.dim("n_embd", "hidden_size")
	d := &decoder{
		hidden: h, vocab: c.dim("vocab_size"), layers: c.dim("n_layer"), maxSeq: c.dimOr(2048, "n_positions"),
		norm:         layerNorm(),
		attn:         Attention{Heads: c.dim("n_head"), Position: Rope, RopeDim: c.intOr(64, "rotary_dim"), Dropout: c.floatOr(0, "attn_pdrop")},
		mlp:          MLP{FFN: c.dimOr(4*h, "n_inner"), Act: c.act(GELUNew, "activation_function"), Bias: true, Dropout: c.floatOr(0, "resid_pdrop")},
		resDropout:   c.floatOr(0, "resid_pdrop"),
		embedDropout: c.floatOr(0, "embd_pdrop"),
		parallel:     true, sharedNorm: true,
		tied: c.boolOr(false, "tie_word_embeddings"), headBias: true,
		names: gptNames(),
	}
	n := &d.names
	n.o, n.up, n.down = "attn.out_proj", "mlp.fc_in", "mlp.fc_out"
	if c.textOr("", "model_type") == "codegen" {
		d.attn.FusedQKV = true
		n.qkv = "attn.qkv_proj"
	}
	return d.model(c)
}

func falcon(c *config) *Model {
	h := c.dim("hidden_size", "n_embed")
	heads := c.dim("num_attention_heads", "n_head")
	bias := c.boolOr(false, "bias")
	d := &decoder{
		hidden: h, vocab: c.dim("vocab_size"), layers: c.dim("num_hidden_layers", "n_layer"), maxSeq: c.dimOr(2048, "max_position_embeddings"),
		norm:    layerNorm(),
		attn:    Attention{Heads: heads, FusedQKV: true, Position: Rope, Dropout: c.floatOr(0, "attention_dropout")},
		qkvBias: bias, bias: bias,
		mlp:        MLP{FFN: c.dimOr(4*h, "ffn_hidden_size"), Act: c.act(GELU, "activation"), Bias: bias, Dropout: c.floatOr(0, "hidden_dropout")},
		resDropout: c.floatOr(0, "hidden_dropout"),
		parallel:   c.boolOr(true, "parallel_attn"),
		tied:       c.boolOr(true, "tie_word_embeddings"),
		names: names{
			tokens: "transformer.word_embeddings", final: "transformer.ln_f", head: "lm_head",
			qkv: "self_attention.query_key_value", o: "self_attention.dense", up: "mlp.dense_h_to_4h", down: "mlp.dense_4h_to_h",
			norm1: "input_layernorm", norm2: "post_attention_layernorm",
		},
	}
	if c.boolOr(false, "alibi") {
		d.attn.Position = Alibi
	}
	switch {
	case c.boolOr(false, "new_decoder_architecture"):
		d.attn.KVHeads = c.dimOr(heads, "num_kv_heads", "n_head_kv")
		d.parallel = true
		if c.intOr(2, "num_ln_in_parallel_attn") == 2 {
			d.names.norm1, d.names.norm2 = "ln_attn", "ln_mlp"
		} else {
			d.sharedNorm = true
		}
	default:
		if c.boolOr(true, "multi_query") {
			d.attn.KVHeads = 1
		}
		d.sharedNorm = d.parallel
	}
	return d.model(c)
}

func opt(c *config) *Model {
	h := c.dim("hidden_size")
	bias := c.boolOr(true, "enable_bias")
	affine := c.boolOr(true, "layer_norm_elementwise_affine")
	d := &decoder{
		hidden: h, vocab: c.dim("vocab_size"), layers: c.dim("num_hidden_layers"), maxSeq: c.dimOr(2048, "max_position_embeddings"),
		norm:    Norm{Kind: LayerNorm, Affine: affine, Bias: affine},
		attn:    Attention{Heads: c.dim("num_attention_heads"), Position: Learned, Dropout: c.floatOr(0, "attention_dropout")},
		qkvBias: bias, bias: bias,
		mlp:        MLP{FFN: c.dim("ffn_dim"), Act: c.act(ReLU, "activation_function"), Bias: bias, Dropout: c.floatOr(0.1, "dropout"), ActDropout: c.floatOr(0, "activation_dropout")},
		resDropout: c.floatOr(0.1, "dropout"), embedDropout: 0,
		tied: c.boolOr(true, "tie_word_embeddings"),
		names: names{
			tokens: "model.decoder.embed_tokens", positions: "model.decoder.embed_positions", final: "model.decoder.final_layer_norm", head: "lm_head",
			q: "self_attn.q_proj", k: "self_attn.k_proj", v: "self_attn.v_proj", o: "self_attn.out_proj",
			up: "fc1", down: "fc2", norm1: "self_attn_layer_norm", norm2: "final_layer_norm",
		},
	}
	d.positions = d.maxSeq + 2 // OPTLearnedPositionalEmbedding's offset
	if w := c.dimOr(h, "word_embed_proj_dim"); w != h {
		d.embedWidth = w
	}
	if !c.boolOr(true, "do_layer_norm_before") {
		d.placement = PostNorm
		d.noFinalNorm = true
	}
	if c.boolOr(false, "_remove_final_layer_norm") {
		d.noFinalNorm = true
	}
	return d.model(c)
}

func bloom(c *config) *Model {
	h := c.dim("hidden_size", "n_embed")
	d := &decoder{
		hidden: h, vocab: c.dim("vocab_size"), layers: c.dim("n_layer", "num_hidden_layers"), maxSeq: c.intOr(0, "seq_length"),
		norm:    layerNorm(),
		attn:    Attention{Heads: c.dim("n_head", "num_attention_heads"), FusedQKV: true, Position: Alibi, Dropout: c.floatOr(0, "attention_dropout")},
		qkvBias: true, bias: true,
		mlp:        MLP{FFN: 4 * h, Act: BloomGELU, Bias: true, Dropout: c.floatOr(0, "hidden_dropout")},
		resDropout: c.floatOr(0, "hidden_dropout"),
		embedNorm:  true,
		tied:       c.boolOr(true, "tie_word_embeddings"),
		names: names{
			tokens: "transformer.word_embeddings", final: "transformer.ln_f", head: "lm_head",
			qkv: "self_attention.query_key_value", o: "self_attention.dense", up: "mlp.dense_h_to_4h", down: "mlp.dense_4h_to_h",
			norm1: "input_layernorm", norm2: "post_attention_layernorm",
		},
	}
	return d.model(c)
}

func mpt(c *config) *Model {
	h := c.dim("d_model")
	attn := c.object("attn_config")
	bias := !c.boolOr(true, "no_bias")
	d := &decoder{
		hidden: h, vocab: c.dim("vocab_size"), layers: c.dim("n_layers"), maxSeq: c.dimOr(2048, "max_seq_len"),
		norm:    Norm{Kind: LayerNorm, Affine: true, Bias: bias},
		attn:    Attention{Heads: c.dim("n_heads"), FusedQKV: true, Position: Learned, Dropout: attn.floatOr(0, "attn_pdrop")},
		qkvBias: bias, bias: bias,
		mlp:          MLP{FFN: int64(c.floatOr(4, "expansion_ratio") * float64(h)), Act: GELU, Bias: bias, Dropout: c.floatOr(0, "resid_pdrop")},
		resDropout:   c.floatOr(0, "resid_pdrop"),
		embedDropout: c.floatOr(0, "emb_pdrop"),
		tied:         c.boolOr(true, "tie_word_embeddings"),
		names: names{
			tokens: "transformer.wte", positions: "transformer.wpe", final: "transformer.norm_f", head: "lm_head",
			qkv: "attn.Wqkv", o: "attn.out_proj", up: "ffn.up_proj", down: "ffn.down_proj", norm1: "norm_1", norm2: "norm_2",
		},
	}
	switch attn.textOr("multihead_attention", "attn_type") {
	case "multiquery_attention":
		d.attn.KVHeads = 1
	case "grouped_query_attention":
		d.attn.KVHeads = attn.dim("kv_n_heads")
	}
	switch {
	case attn.boolOr(true, "alibi"):
		d.attn.Position = Alibi
	case attn.boolOr(false, "rope"):
		d.attn.Position = Rope
	default:
		d.positions = d.maxSeq
	}
	return d.model(c)
}

func starcoder2(c *config) *Model {
	bias := c.boolOr(true, "use_bias")
	d := llamaLike(c)
	d.norm = layerNorm()
	d.qkvBias, d.bias = bias, bias
	d.mlp = MLP{FFN: c.dim("intermediate_size"), Act: c.act(GELUTanh, "hidden_act"), Bias: bias, Dropout: c.floatOr(0, "residual_dropout")}
	d.names.up, d.names.down = "mlp.c_fc", "mlp.c_proj"
	d.tied = c.boolOr(true, "tie_word_embeddings")
	d.resDropout = c.floatOr(0, "residual_dropout")
	d.embedDropout = c.floatOr(0, "embedding_dropout")
	d.attn.Window = c.intOr(0, "sliding_window")
	return d.model(c)
}

// phi is Phi-1, 1.5 and 2.
func phi(c *config) *Model {
	d := llamaLike(c)
	d.norm = layerNorm()
	d.qkvBias, d.bias = true, true
	d.parallel, d.sharedNorm = true, true
	d.headBias = true
	d.mlp = MLP{FFN: c.dim("intermediate_size"), Act: c.act(GELUNew, "hidden_act"), Bias: true, Dropout: c.floatOr(0, "resid_pdrop")}
	d.names.o, d.names.up, d.names.down, d.names.final = "self_attn.dense", "mlp.fc1", "mlp.fc2", "model.final_layernorm"
	d.resDropout = c.floatOr(0, "resid_pdrop")
	d.embedDropout = c.floatOr(0, "embd_pdrop")
	d.attn.RopeDim = d.partialRotary(c, 0.5)
	if c.boolOr(false, "qk_layernorm") {
		d.attn.QKNorm = QKNormPerHead
		d.names.qNorm, d.names.kNorm = "self_attn.q_layernorm", "self_attn.k_layernorm"
	}
	return d.model(c)
}
