package model

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
)

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
	d.mlp = MLP{FFN: c.dim("intermediate_size"), Act: c.act(SiLU, "hidden_activation", "hidden_act"), Gated: true,
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

// granite is Llama whose logits, and more that takes no memory, are scaled.
func granite(c *config) *Model {
	d := llamaLike(c)
	d.logitScaled = true
	return d.model(c)
}

func mistral(c *config) *Model {
	d := llamaLike(c)
	d.attn.KVHeads = c.dimOr(min(8, d.attn.Heads), "num_key_value_heads") // MistralConfig's default
	d.attn.Window = c.intOr(0, "sliding_window")
	return d.model(c)
}

// slidingLayers reads which layers have a window: by name for each layer in new
// configurations, by a pattern or a first layer in older ones.
func slidingLayers(c *config, d *decoder, fallback func(i int64) bool) {
	w := c.intOr(0, "sliding_window")
	if w <= 0 {
		return
	}
	sliding := fallback
	if kinds := c.texts("layer_types"); len(kinds) > 0 {
		if int64(len(kinds)) != d.layers {
			c.fail("layer_types", "has %d entries for %d layers", len(kinds), d.layers)
			return
		}
		sliding = func(i int64) bool { return kinds[i] == "sliding_attention" }
	}
	if sliding == nil {
		return
	}
	d.window = func(i int64) int64 {
		if sliding(i) {
			return w
		}
		return 0
	}
}

// qwenWindow is how Qwen2 and Qwen3 say which layers have a window.
func qwenWindow(c *config, d *decoder) {
	if !c.boolOr(false, "use_sliding_window") {
		return
	}
	from := c.intOr(28, "max_window_layers")
	slidingLayers(c, d, func(i int64) bool { return i >= from })
}

func qwen2(c *config) *Model {
	d := llamaLike(c)
	d.qkvBias, d.bias = true, false
	qwenWindow(c, d)
	return d.model(c)
}

func qwen3(c *config) *Model {
	d := llamaLike(c)
	d.attn.HeadDim = c.dimOr(128, "head_dim")
	d.attn.QKNorm = QKNormPerHead
	qwenWindow(c, d)
	return d.model(c)
}

// qwen1 is the first Qwen, published with its own code: the two halves of
// intermediate_size are the gate and the up projection.
func qwen1(c *config) *Model {
	h := c.dim("hidden_size")
	d := &decoder{
		hidden: h, vocab: c.dim("vocab_size"), layers: c.dim("num_hidden_layers"), maxSeq: c.dimOr(8192, "seq_length"),
		norm: Norm{Kind: RMSNorm, Affine: true},
		attn: Attention{Heads: c.dim("num_attention_heads"), HeadDim: c.dimOr(0, "kv_channels"), Position: Rope,
			FusedQKV: true, Dropout: c.floatOr(0, "attn_dropout_prob")},
		qkvBias: true, bias: !c.boolOr(true, "no_bias"),
		mlp:   MLP{FFN: max(1, c.dim("intermediate_size")/2), Act: SiLU, Gated: true},
		tied:  c.boolOr(false, "tie_word_embeddings"),
		names: gptNames(),
	}
	d.names.gate, d.names.up = "mlp.w2", "mlp.w1"
	return d.model(c)
}

// gemmaLike reads what the Gemma generations share: a head dimension of its own,
// tanh GELU, tied embeddings and a norm that multiplies in float32.
func gemmaLike(c *config) *decoder {
	d := llamaLike(c)
	d.attn.HeadDim = c.dimOr(256, "head_dim")
	d.tied = c.boolOr(true, "tie_word_embeddings")
	d.norm.Style = "gemma"
	d.mlp.Act = c.act(GELUTanh, "hidden_activation")
	return d
}

func gemma(c *config) *Model { return gemmaLike(c).model(c) }

// sandwich adds the norms after attention and MLP that Gemma 2 introduced.
func (d *decoder) sandwich() {
	d.placement = Sandwich
	d.names.post1 = "post_attention_layernorm"
	d.names.norm2 = "pre_feedforward_layernorm"
	d.names.post2 = "post_feedforward_layernorm"
}

func gemma2(c *config) *Model {
	d := gemmaLike(c)
	d.sandwich()
	d.attn.Softcap = c.floatOr(50, "attn_logit_softcapping")
	d.logitSoftcap = c.floatOr(30, "final_logit_softcapping")
	slidingLayers(c, d, func(i int64) bool { return i%2 == 0 })
	return d.model(c)
}

func gemma3(outer *config) *Model {
	c := outer.object("text_config")
	if c != outer { // the multimodal file leaves the text model's defaults out
		c = c.withDefaults(map[string]int64{"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256})
	}
	d := gemmaLike(c)
	d.sandwich()
	d.attn.QKNorm = QKNormPerHead
	every := c.intOr(6, "sliding_window_pattern", "_sliding_window_pattern")
	slidingLayers(c, d, func(i int64) bool { return every > 0 && (i+1)%every != 0 })
	m := d.model(c)
	if outer != c && outer.has("vision_config") {
		return gemma3Sees(outer, m)
	}
	return m
}

func phi3(c *config) *Model {
	d := llamaLike(c)
	d.attn.FusedQKV, d.mlp.FusedGateUp = true, true
	d.resDropout = c.floatOr(0, "resid_pdrop")
	d.embedDropout = c.floatOr(0, "embd_pdrop")
	d.attn.Window = c.intOr(0, "sliding_window")
	return d.model(c)
}

func stablelm(c *config) *Model {
	d := llamaLike(c)
	d.norm = Norm{Kind: LayerNorm, Affine: true, Bias: true}
	d.qkvBias, d.bias = c.boolOr(false, "use_qkv_bias"), false
	d.attn.RopeDim = d.partialRotary(c, 0.25)
	d.parallel = c.boolOr(false, "use_parallel_residual")
	d.sharedNorm = d.parallel
	d.resDropout = c.floatOr(0, "hidden_dropout")
	if c.boolOr(false, "qk_layernorm") {
		c.fail("qk_layernorm", "is not modelled for stablelm")
	}
	return d.model(c)
}

// partialRotary returns the dimensions of a head that are rotated.
func (d *decoder) partialRotary(c *config, def float64) int64 {
	dim := d.attn.HeadDim
	if dim == 0 && d.attn.Heads > 0 {
		dim = d.hidden / d.attn.Heads
	}
	if c.has("rope_parameters") { // where transformers 5 writes it
		def = c.object("rope_parameters").floatOr(def, "partial_rotary_factor")
	}
	return int64(float64(dim) * min(max(c.floatOr(def, "partial_rotary_factor", "rotary_pct"), 0), 1))
}

func cohere(c *config) *Model {
	d := llamaLike(c)
	d.norm = Norm{Kind: LayerNorm, Affine: true, Style: "cohere"}
	d.logitScaled = true
	d.tied = c.boolOr(true, "tie_word_embeddings")
	d.parallel, d.sharedNorm = true, true
	if c.boolOr(false, "use_qk_norm") {
		d.attn.QKNorm = QKNormFull // one weight for each head and dimension
	}
	every := c.intOr(4, "sliding_window_pattern")
	slidingLayers(c, d, func(i int64) bool { return every > 0 && (i+1)%every != 0 })
	return d.model(c)
}

func olmo(c *config) *Model {
	d := llamaLike(c)
	d.norm = Norm{Kind: LayerNorm} // without weights
	return d.model(c)
}

func olmo2(c *config) *Model {
	d := llamaLike(c)
	d.placement = OutNorm
	d.attn.QKNorm = QKNormFull
	d.names.norm1, d.names.norm2 = "post_attention_layernorm", "post_feedforward_layernorm"
	slidingLayers(c, d, nil)
	return d.model(c)
}

func nemotron(c *config) *Model {
	d := llamaLike(c)
	d.norm = Norm{Kind: LayerNorm, Affine: true, Bias: true}
	d.mlp.Gated = false
	d.mlp.Act = c.act(SquaredReLU, "hidden_act")
	d.attn.RopeDim = d.partialRotary(c, 0.5)
	return d.model(c)
}

func arcee(c *config) *Model {
	d := llamaLike(c)
	d.mlp.Gated = false
	d.mlp.Act = c.act(SquaredReLU, "hidden_act")
	return d.model(c)
}

func minicpm(c *config) *Model {
	d := llamaLike(c)
	d.tied = c.boolOr(true, "tie_word_embeddings")
	return d.model(c)
}

func smollm3(c *config) *Model {
	d := llamaLike(c)
	d.tied = c.boolOr(true, "tie_word_embeddings")
	rope := c.ints("no_rope_layers") // 1: with rotation
	every := c.intOr(4, "no_rope_layer_interval")
	d.noRope = func(i int64) bool {
		if int64(len(rope)) == d.layers {
			return rope[i] == 0
		}
		return every > 0 && (i+1)%every == 0
	}
	return d.model(c)
}

func internlm(c *config) *Model {
	d := llamaLike(c)
	d.qkvBias = c.boolOr(true, "bias")
	d.bias = d.qkvBias
	return d.model(c)
}

func internlm2(c *config) *Model {
	d := llamaLike(c)
	d.attn.FusedQKV = true
	d.qkvBias = c.boolOr(false, "bias")
	d.bias = d.qkvBias
	n := &d.names
	n.tokens, n.head = "model.tok_embeddings", "output"
	n.qkv, n.o = "attention.wqkv", "attention.wo"
	n.gate, n.up, n.down = "feed_forward.w1", "feed_forward.w3", "feed_forward.w2"
	n.norm1, n.norm2 = "attention_norm", "ffn_norm"
	return d.model(c)
}

func internlm3(c *config) *Model {
	d := llamaLike(c)
	d.qkvBias = c.boolOr(false, "qkv_bias")
	d.bias = c.boolOr(false, "bias")
	d.mlp.Bias = d.bias
	return d.model(c)
}

func baichuan(c *config) *Model {
	d := llamaLike(c)
	d.attn.FusedQKV = true
	d.names.qkv = "self_attn.W_pack"
	if !c.has("max_position_embeddings") { // the 13B models: ALiBi
		d.attn.Position = Alibi
		d.maxSeq = c.dimOr(4096, "model_max_length")
	}
	return d.model(c)
}

func chatglm(c *config) *Model {
	h := c.dim("hidden_size")
	d := &decoder{
		hidden: h, vocab: c.dim("padded_vocab_size", "vocab_size"), layers: c.dim("num_layers"), maxSeq: c.dimOr(8192, "seq_length"),
		norm: Norm{Kind: RMSNorm, Affine: true},
		attn: Attention{Heads: c.dim("num_attention_heads"), HeadDim: c.dimOr(0, "kv_channels"), Position: Rope,
			FusedQKV: true, Dropout: c.floatOr(0, "attention_dropout")},
		qkvBias: c.boolOr(false, "add_qkv_bias") || c.boolOr(false, "add_bias_linear"),
		bias:    c.boolOr(false, "add_bias_linear"),
		mlp:     MLP{FFN: c.dim("ffn_hidden_size"), Act: SiLU, Gated: true, FusedGateUp: true, Bias: c.boolOr(false, "add_bias_linear")},
		tied:    c.boolOr(false, "tie_word_embeddings"),
		names: names{
			tokens: "transformer.embedding.word_embeddings", final: "transformer.encoder.final_layernorm", head: "transformer.output_layer",
			qkv: "self_attention.query_key_value", o: "self_attention.dense",
			gateUp: "mlp.dense_h_to_4h", down: "mlp.dense_4h_to_h", norm1: "input_layernorm", norm2: "post_attention_layernorm",
		},
	}
	if c.boolOr(false, "multi_query_attention") {
		d.attn.KVHeads = c.dim("multi_query_group_num")
	}
	if !c.boolOr(true, "rmsnorm") {
		d.norm = Norm{Kind: LayerNorm, Affine: true, Bias: true}
	}
	if d.attn.HeadDim > 0 {
		d.attn.RopeDim = d.attn.HeadDim / 2
	}
	return d.model(c)
}

// glm is GLM-4 in transformers' own code; the later glm4 has a norm after
// attention and MLP as well.
func glm(c *config) *Model {
	d := llamaLike(c)
	d.attn.HeadDim = c.dimOr(128, "head_dim")
	d.bias = false
	d.mlp.FusedGateUp = true
	d.attn.RopeDim = d.partialRotary(c, 0.5)
	if c.textOr("", "model_type") == "glm4" {
		d.placement = Sandwich
		d.names.post1, d.names.post2 = "post_self_attn_layernorm", "post_mlp_layernorm"
	}
	return d.model(c)
}

func seedOSS(c *config) *Model {
	d := llamaLike(c)
	d.qkvBias = c.boolOr(true, "attention_bias")
	d.bias = c.boolOr(false, "attention_out_bias")
	return d.model(c)
}

// exaone is EXAONE 3: Llama in transformers, with names like GPT-2's in the code
// that it was published with.
func exaone(c *config) *Model {
	d := llamaLike(c.renamed(map[string]string{"num_layers": "num_hidden_layers", "activation_function": "hidden_act"}))
	if c.has("num_layers") {
		d.names = names{
			tokens: "transformer.wte", final: "transformer.ln_f", head: "lm_head",
			q: "attn.attention.q_proj", k: "attn.attention.k_proj", v: "attn.attention.v_proj", o: "attn.attention.out_proj",
			gate: "mlp.c_fc_0", up: "mlp.c_fc_1", down: "mlp.c_proj", norm1: "ln_1", norm2: "ln_2",
		}
	}
	return d.model(c)
}

// exaone4 normalises what a block adds, as OLMo 2 does; where some layers have a
// window, those without it do not rotate.
func exaone4(c *config) *Model {
	d := llamaLike(c)
	d.placement = OutNorm
	d.attn.QKNorm = QKNormPerHead
	d.names.norm1, d.names.norm2 = "post_attention_layernorm", "post_feedforward_layernorm"
	slidingLayers(c, d, nil)
	if window := d.window; window != nil {
		d.noRope = func(i int64) bool { return window(i) == 0 }
	}
	return d.model(c)
}

// ernie is the dense ERNIE 4.5.
func ernie(c *config) *Model {
	d := llamaLike(c)
	d.qkvBias = c.boolOr(false, "use_bias")
	d.bias, d.mlp.Bias = d.qkvBias, d.qkvBias
	d.tied = c.boolOr(true, "tie_word_embeddings")
	return d.model(c)
}

func hunyuan(c *config) *Model {
	d := llamaLike(c)
	d.attn.QKNorm = QKNormPerHead
	d.names.qNorm, d.names.kNorm = "self_attn.query_layernorm", "self_attn.key_layernorm"
	return d.model(c)
}

func hyperclovax(c *config) *Model {
	d := llamaLike(c)
	d.logitScaled = true
	if c.boolOr(true, "use_post_norm") {
		d.placement = Sandwich
		d.names.post1, d.names.post2 = "post_norm1", "post_norm2"
	}
	return d.model(c)
}

// vaultgemma is Gemma 2 without the norms after attention and MLP.
func vaultgemma(c *config) *Model {
	d := gemmaLike(c)
	d.names.norm2 = "pre_feedforward_layernorm"
	d.attn.Softcap = c.floatOr(50, "attn_logit_softcapping")
	d.logitSoftcap = c.floatOr(30, "final_logit_softcapping")
	slidingLayers(c, d, func(i int64) bool { return i%2 == 0 })
	return d.model(c)
}

// withDefaults returns c with integers for keys that are not there.
func (c *config) withDefaults(defaults map[string]int64) *config {
	o := &config{name: c.name, path: c.path, opt: c.opt, outer: c, raw: maps.Clone(c.raw)}
	for k, v := range defaults {
		if !c.has(k) {
			o.raw[k] = json.RawMessage(strconv.FormatInt(v, 10))
		}
	}
	return o
}

// renamed returns c with keys under other names as well.
func (c *config) renamed(names map[string]string) *config {
	o := &config{name: c.name, path: c.path, opt: c.opt, outer: c, raw: maps.Clone(c.raw)}
	for from, to := range names {
		if c.has(from) {
			o.raw[to] = c.raw[from]
		}
	}
	return o
}

// listed returns a test for membership in a list of layers.
func listed(l []int64) func(int64) bool {
	return func(i int64) bool { return slices.Contains(l, i) }
}
