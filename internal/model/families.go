package model

import (
	"maps"
	"slices"
)

// A builder reads one family's configuration. It reports what is wrong through
// the config and always returns a model.
type builder func(*config) *Model

// builders maps model_type to the family's reader. The types are those of
// transformers; where a family is published with its own code, its model_type
// is that of the published config.json.
func builders() map[string]builder {
	return map[string]builder{
		"llama": llama, "mistral": mistral, "qwen2": qwen2, "qwen3": qwen3,
		"gpt2": gpt2,
	}
}

func builderOf(kind string) builder { return builders()[kind] }

// KnownTypes lists the model_type values that Parse understands.
func KnownTypes() []string { return slices.Sorted(maps.Keys(builders())) }

// llamaLike reads the keys that Llama's many relatives share.
func llamaLike(c *config) *decoder {
	d := &decoder{
		hidden: c.dim("hidden_size"), vocab: c.dim("vocab_size"), layers: c.dim("num_hidden_layers"),
		maxSeq: c.dimOr(2048, "max_position_embeddings"),
		norm:   Norm{Kind: RMSNorm, Affine: true},
		names:  llamaNames(),
	}
	heads := c.dim("num_attention_heads")
	d.attn = Attention{
		Heads: heads, KVHeads: c.dimOr(heads, "num_key_value_heads"), HeadDim: c.dimOr(0, "head_dim"),
		Position: Rope, Dropout: c.floatOr(0, "attention_dropout"),
	}
	d.mlp = MLP{FFN: c.dim("intermediate_size"), Act: c.act(SiLU, "hidden_act", "hidden_activation"), Gated: true,
		Bias: c.boolOr(false, "mlp_bias")}
	d.qkvBias = c.boolOr(false, "attention_bias")
	d.bias = d.qkvBias
	d.tied = c.boolOr(false, "tie_word_embeddings")
	if d.attn.HeadDim == 0 && d.hidden%heads != 0 {
		c.fail("num_attention_heads", "%d heads do not divide hidden_size %d", heads, d.hidden)
	}
	return d
}

func llama(c *config) *Model { return llamaLike(c).model(c) }

func mistral(c *config) *Model {
	d := llamaLike(c)
	d.attn.KVHeads = c.dimOr(min(8, d.attn.Heads), "num_key_value_heads")
	d.attn.Window = c.intOr(0, "sliding_window")
	return d.model(c)
}

// slidingLayers reads which layers of Qwen2 and Qwen3 have a window.
func slidingLayers(c *config, d *decoder) {
	w := c.intOr(0, "sliding_window")
	if !c.boolOr(false, "use_sliding_window") || w == 0 {
		return
	}
	from := c.intOr(28, "max_window_layers")
	d.window = func(i int64) int64 {
		if i >= from {
			return w
		}
		return 0
	}
}

func qwen2(c *config) *Model {
	d := llamaLike(c)
	d.qkvBias, d.bias = true, false
	slidingLayers(c, d)
	return d.model(c)
}

func qwen3(c *config) *Model {
	d := llamaLike(c)
	d.attn.HeadDim = c.dimOr(128, "head_dim")
	d.attn.QKNorm = QKNormPerHead
	slidingLayers(c, d)
	return d.model(c)
}

func gpt2(c *config) *Model {
	h := c.dim("n_embd", "hidden_size")
	d := &decoder{
		hidden: h, vocab: c.dim("vocab_size"), layers: c.dim("n_layer", "num_hidden_layers"),
		maxSeq: c.dimOr(1024, "n_positions", "n_ctx"),
		norm:   Norm{Kind: LayerNorm, Affine: true, Bias: true},
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
