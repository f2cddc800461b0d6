package model

// crossModules returns the modules of an attention to the encoder.
func crossModules(a *Attention, hidden int64, bias, keyBias bool, prefix, out string, norm Norm, normName string) []Module {
	return []Module{
		linear(prefix+"q"+out, RoleCrossQ, hidden, a.QWidth(), bias, SplitOutputs),
		linear(prefix+"k"+out, RoleCrossK, hidden, a.KVWidth(), keyBias, SplitOutputs),
		linear(prefix+"v"+out, RoleCrossV, hidden, a.KVWidth(), bias, SplitOutputs),
		linear(prefix+map[string]string{"": "o", "_proj": "out_proj"}[out], RoleCrossO, a.QWidth(), hidden, bias, SplitInputs),
		norm.module(normName, RoleNormCross),
	}
}

func t5(c *config) *Model {
	h := c.dim("d_model")
	feed := c.textOr("relu", "feed_forward_proj")
	act, gated := ReLU, false
	switch feed {
	case "relu":
	case "gated-gelu", "gated-gelu_new":
		act, gated = GELUNew, true
	case "gated-silu":
		act, gated = SiLU, true
	case "gelu":
		act = GELU
	default:
		c.fail("feed_forward_proj", "%q is not known", feed)
	}
	dropout := c.floatOr(0.1, "dropout_rate")
	stack := func(name string, layers int64, cross bool) *Stack {
		d := &decoder{
			bidirectional: !cross, hidden: h, layers: layers,
			norm:       Norm{Kind: RMSNorm, Affine: true, Style: "t5"},
			attn:       Attention{Heads: c.dim("num_heads"), HeadDim: c.dim("d_kv"), Position: RelativeBias, Dropout: dropout},
			mlp:        MLP{FFN: c.dim("d_ff"), Act: act, Gated: gated, ActDropout: dropout, Dropout: dropout},
			resDropout: dropout,
			names: names{
				q: "SelfAttention.q", k: "SelfAttention.k", v: "SelfAttention.v", o: "SelfAttention.o",
				gate: "DenseReluDense.wi_0", up: "DenseReluDense.wi", down: "DenseReluDense.wo",
				norm1: "layer.0.layer_norm", norm2: "layer.ff.layer_norm", final: name + ".final_layer_norm",
			},
		}
		if gated {
			d.names.up = "DenseReluDense.wi_1"
		}
		if cross {
			d.extra = func(l *Layer) {
				a := *l.Attention
				a.Causal, a.Position = false, NoPosition
				l.Cross = &a
				l.Modules = append(l.Modules, crossModules(&a, h, false, false, "EncDecAttention.", "", l.Norm, "layer.1.layer_norm")...)
			}
		}
		s := d.stack(name)
		bias := embedding("SelfAttention.relative_attention_bias", RoleRelB, c.dimOr(32, "relative_attention_num_buckets"), d.attn.Heads, SplitNone)
		with := *s.Layers[0]
		with.Modules = append(append([]Module(nil), with.Modules...), bias)
		s.Layers[0] = &with
		if c.textOr("", "model_type") == "umt5" { // every layer has a bias of its own
			for i := range s.Layers {
				s.Layers[i] = &with
			}
		}
		return s
	}
	layers := c.dim("num_layers")
	m := &Model{
		Family: EncoderDecoder, Vocab: c.dim("vocab_size"), Hidden: h, Position: RelativeBias, EmbedDropout: dropout,
		TiedHead: c.boolOr(true, "tie_word_embeddings"),
		HeadKind: HeadLM,
		Stacks:   []*Stack{stack("encoder", layers, false), stack("decoder", c.dimOr(layers, "num_decoder_layers"), true)},
	}
	m.Embed = []Module{embedding("shared", RoleTokens, m.Vocab, h, SplitVocab)}
	head := linear("lm_head", RoleHead, h, m.Vocab, false, SplitOutputs)
	head.Params[0].Tied = m.TiedHead
	m.Head = []Module{head}
	return m
}

// bartStack returns one side of BART and its relatives.
func bartStack(c *config, side string, positions int64, sinusoids bool) (*Stack, []Module, *decoder) {
	h := c.dim("d_model")
	cross := side == "decoder"
	dropout := c.floatOr(0.1, "dropout")
	kind := c.textOr("", "model_type")
	pre := kind != "bart" && kind != "marian"
	d := &decoder{
		bidirectional: !cross, hidden: h, layers: c.dim(side + "_layers"),
		norm:    layerNorm(),
		attn:    Attention{Heads: c.dim(side + "_attention_heads"), Position: Learned, Dropout: c.floatOr(0, "attention_dropout")},
		qkvBias: true, bias: true,
		mlp:        MLP{FFN: c.dim(side + "_ffn_dim"), Act: c.act(GELU, "activation_function"), Bias: true, Dropout: dropout, ActDropout: c.floatOr(0, "activation_dropout")},
		resDropout: dropout, embedDropout: dropout,
		noFinalNorm: !pre,
		names: names{
			q: "self_attn.q_proj", k: "self_attn.k_proj", v: "self_attn.v_proj", o: "self_attn.out_proj", up: "fc1", down: "fc2",
			norm1: "self_attn_layer_norm", norm2: "final_layer_norm", final: side + ".layer_norm",
		},
	}
	if !pre {
		d.placement = PostNorm
	}
	keyBias := kind != "whisper"
	d.extra = func(l *Layer) {
		if !keyBias {
			k := l.Module(RoleK)
			k.Params = k.Params[:1]
		}
		if cross {
			a := *l.Attention
			a.Causal = false
			l.Cross = &a
			l.Modules = append(l.Modules, crossModules(&a, h, true, keyBias, "encoder_attn.", "_proj", l.Norm, "encoder_attn_layer_norm")...)
		}
	}
	s := d.stack(side)
	var embed []Module
	if positions > 0 {
		p := embedding(side+".embed_positions", RolePosition, positions, h, SplitNone)
		p.Params[0].Frozen = sinusoids
		embed = append(embed, p)
	}
	if kind == "bart" || kind == "mbart" {
		n := d.norm
		embed = append(embed, n.module(side+".layernorm_embedding", RoleEmbedLN))
	}
	return s, embed, d
}

// bart is BART, mBART, Pegasus, Marian and M2M-100.
func bart(c *config) *Model {
	positions := c.dimOr(1024, "max_position_embeddings")
	kind := c.textOr("", "model_type")
	rows, sinusoids := positions, true
	switch kind {
	case "bart", "mbart":
		rows, sinusoids = positions+2, false
	case "m2m_100":
		rows = 0 // sinusoids that are not kept in the checkpoint
	}
	enc, embedEnc, d := bartStack(c, "encoder", rows, sinusoids)
	dec, embedDec, _ := bartStack(c, "decoder", rows, sinusoids)
	m := &Model{
		Family: EncoderDecoder, Vocab: c.dim("vocab_size"), Hidden: d.hidden, MaxSeq: positions, Position: Learned,
		EmbedDropout: d.embedDropout, TiedHead: c.boolOr(true, "tie_word_embeddings"), HeadKind: HeadLM, Stacks: []*Stack{enc, dec},
	}
	if kind == "bart" || kind == "mbart" {
		n := d.norm
		m.EmbedNorm = &n
	}
	m.Embed = append([]Module{embedding("shared", RoleTokens, m.Vocab, d.hidden, SplitVocab)}, append(embedEnc, embedDec...)...)
	head := linear("lm_head", RoleHead, d.hidden, m.Vocab, false, SplitOutputs)
	head.Params[0].Tied = m.TiedHead
	m.Head = []Module{head}
	return m
}

func whisper(c *config) *Model {
	h, frames := c.dim("d_model"), c.dimOr(1500, "max_source_positions")
	enc, embedEnc, d := bartStack(c, "encoder", frames, true)
	dec, embedDec, _ := bartStack(c, "decoder", c.dimOr(448, "max_target_positions"), false)
	m := &Model{
		Family: EncoderDecoder, Vocab: c.dim("vocab_size"), Hidden: h, MaxSeq: c.dimOr(448, "max_target_positions"), Position: Learned,
		EmbedDropout: d.embedDropout, TiedHead: true, HeadKind: HeadLM, Stacks: []*Stack{enc, dec},
	}
	mel := c.dimOr(80, "num_mel_bins")
	conv := func(name string, in int64) Module {
		return Module{Name: name, Kind: Convolution, Role: RolePatch, In: in, Out: h,
			Params: []Param{{Name: "weight", Shape: []int64{h, in, 3}}, {Name: "bias", Shape: []int64{h}}}}
	}
	m.Embed = append([]Module{embedding("decoder.embed_tokens", RoleTokens, m.Vocab, h, SplitVocab), conv("encoder.conv1", mel), conv("encoder.conv2", h)},
		append(embedEnc, embedDec...)...)
	head := linear("proj_out", RoleHead, h, m.Vocab, false, SplitOutputs)
	head.Params[0].Tied = true
	m.Head = []Module{head}
	return m
}
