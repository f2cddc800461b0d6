package model

// bertNames are those of BERT's layers.
func bertNames() names {
	return names{
		q: "attention.self.query", k: "attention.self.key", v: "attention.self.value", o: "attention.output.dense",
		up: "intermediate.dense", down: "output.dense",
		norm1: "attention.output.LayerNorm", norm2: "output.LayerNorm",
	}
}

// bertLike reads the keys that BERT's relatives share.
func bertLike(c *config) *decoder {
	return &decoder{
		bidirectional: true, placement: PostNorm, noFinalNorm: true,
		hidden: c.dim("hidden_size"), vocab: c.dim("vocab_size"), layers: c.dim("num_hidden_layers"),
		maxSeq:  c.dimOr(512, "max_position_embeddings"),
		norm:    layerNorm(),
		attn:    Attention{Heads: c.dim("num_attention_heads"), Position: Learned, Dropout: c.floatOr(0.1, "attention_probs_dropout_prob")},
		qkvBias: true, bias: true,
		mlp:          MLP{FFN: c.dim("intermediate_size"), Act: c.act(GELU, "hidden_act"), Bias: true, Dropout: c.floatOr(0.1, "hidden_dropout_prob")},
		resDropout:   c.floatOr(0.1, "hidden_dropout_prob"),
		embedDropout: c.floatOr(0.1, "hidden_dropout_prob"),
		names:        bertNames(),
	}
}

// encoderModel assembles an encoder: the embeddings (of a width that may differ
// from the layers'), the stack and no head.
func (d *decoder) encoderModel(prefix string, width, positions, types int64) *Model {
	s := d.stack("encoder")
	m := &Model{
		Family: Encoder, Vocab: d.vocab, MaxSeq: d.maxSeq, Hidden: d.hidden, Position: d.attn.Position,
		EmbedDropout: d.embedDropout, Stacks: []*Stack{s},
	}
	m.Embed = []Module{embedding(prefix+"embeddings.word_embeddings", RoleTokens, d.vocab, width, SplitVocab)}
	if positions > 0 {
		m.Embed = append(m.Embed, embedding(prefix+"embeddings.position_embeddings", RolePosition, positions, width, SplitNone))
	}
	if types > 0 {
		m.Embed = append(m.Embed, embedding(prefix+"embeddings.token_type_embeddings", RoleSegment, types, width, SplitNone))
	}
	n := d.norm
	n.Width = width
	m.EmbedNorm = &n
	m.Embed = append(m.Embed, n.module(prefix+"embeddings.LayerNorm", RoleEmbedLN))
	return m
}

// dense returns a square matrix with a bias, as poolers and head transforms
// have.
func dense(name string, role Role, in, out int64) Module {
	return linear(name, role, in, out, true, SplitNone)
}

// vocabHead adds a transform, a norm and the tied matrix with its own bias.
func (m *Model) vocabHead(norm Norm, from, width int64, transform, ln, out string) {
	m.HeadKind, m.TiedHead, m.HeadTransform = HeadMaskedLM, true, true
	norm.Width = width
	head := linear(out, RoleHead, width, m.Vocab, true, SplitOutputs)
	head.Params[0].Tied = true
	m.Head = append(m.Head, dense(transform, RoleHeadTransform, from, width), norm.module(ln, RoleHeadNorm), head)
}

func bert(c *config) *Model {
	d := bertLike(c)
	h := d.hidden
	m := d.encoderModel("", h, d.maxSeq, c.dimOr(2, "type_vocab_size"))
	pooler := dense("pooler.dense", RolePooler, h, h)
	switch m.HeadKind = c.head(HeadNone); m.HeadKind {
	case HeadClassify:
		m.Head = []Module{pooler, dense("classifier", RoleClassifier, h, c.labels())}
	case HeadMaskedLM, HeadLM:
		m.vocabHead(d.norm, h, h, "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.decoder")
	default:
		m.Head = []Module{pooler}
	}
	return m
}

func roberta(c *config) *Model {
	d := bertLike(c)
	h := d.hidden
	m := d.encoderModel("", h, d.maxSeq, c.dimOr(1, "type_vocab_size"))
	m.MaxSeq = max(1, d.maxSeq-2) // positions count from the padding index
	switch m.HeadKind = c.head(HeadNone); m.HeadKind {
	case HeadClassify:
		m.Head = []Module{dense("classifier.dense", RolePooler, h, h), dense("classifier.out_proj", RoleClassifier, h, c.labels())}
	case HeadMaskedLM, HeadLM:
		m.vocabHead(d.norm, h, h, "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder")
	default:
		m.Head = []Module{dense("pooler.dense", RolePooler, h, h)}
	}
	return m
}

func distilbert(c *config) *Model {
	h := c.dim("dim", "hidden_size")
	d := &decoder{
		bidirectional: true, placement: PostNorm, noFinalNorm: true,
		hidden: h, vocab: c.dim("vocab_size"), layers: c.dim("n_layers", "num_hidden_layers"), maxSeq: c.dimOr(512, "max_position_embeddings"),
		norm:    layerNorm(),
		attn:    Attention{Heads: c.dim("n_heads", "num_attention_heads"), Position: Learned, Dropout: c.floatOr(0.1, "attention_dropout")},
		qkvBias: true, bias: true,
		mlp:          MLP{FFN: c.dim("hidden_dim"), Act: c.act(GELU, "activation"), Bias: true, Dropout: c.floatOr(0.1, "dropout")},
		embedDropout: c.floatOr(0.1, "dropout"),
		names: names{
			q: "attention.q_lin", k: "attention.k_lin", v: "attention.v_lin", o: "attention.out_lin", up: "ffn.lin1", down: "ffn.lin2",
			norm1: "sa_layer_norm", norm2: "output_layer_norm",
		},
	}
	m := d.encoderModel("", h, d.maxSeq, 0)
	switch m.HeadKind = c.head(HeadNone); m.HeadKind {
	case HeadClassify:
		m.Head = []Module{dense("pre_classifier", RolePooler, h, h), dense("classifier", RoleClassifier, h, c.labels())}
	case HeadMaskedLM, HeadLM:
		m.vocabHead(d.norm, h, h, "vocab_transform", "vocab_layer_norm", "vocab_projector")
	}
	return m
}

func electra(c *config) *Model {
	d := bertLike(c)
	h, width := d.hidden, c.dimOr(d.hidden, "embedding_size")
	m := d.encoderModel("", width, d.maxSeq, c.dimOr(2, "type_vocab_size"))
	if width != h {
		m.Embed = append(m.Embed, dense("embeddings_project", RoleNone, width, h))
	}
	switch m.HeadKind = c.head(HeadNone); m.HeadKind {
	case HeadClassify:
		m.Head = []Module{dense("classifier.dense", RolePooler, h, h), dense("classifier.out_proj", RoleClassifier, h, c.labels())}
	case HeadMaskedLM, HeadLM:
		m.vocabHead(d.norm, h, width, "generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head")
	}
	return m
}

// albert shares one layer's parameters among all layers.
func albert(c *config) *Model {
	d := bertLike(c)
	d.attn.Dropout = c.floatOr(0, "attention_probs_dropout_prob")
	d.resDropout = c.floatOr(0, "hidden_dropout_prob")
	d.mlp.Act = c.act(GELUNew, "hidden_act")
	h, width := d.hidden, c.dimOr(128, "embedding_size")
	if g := c.intOr(1, "num_hidden_groups"); g != 1 || c.intOr(1, "inner_group_num") != 1 {
		c.fail("num_hidden_groups", "more than one group is not modelled")
	}
	m := d.encoderModel("", width, d.maxSeq, c.dimOr(2, "type_vocab_size"))
	m.Embed = append(m.Embed, dense("encoder.embedding_hidden_mapping_in", RoleNone, width, h))
	if s := m.Stacks[0]; len(s.Layers) > 1 {
		shared := *s.Layers[0]
		shared.Modules = nil
		for _, mod := range s.Layers[0].Modules {
			mod.Params = append([]Param(nil), mod.Params...)
			for i := range mod.Params {
				mod.Params[i].Tied = true
			}
			shared.Modules = append(shared.Modules, mod)
		}
		for i := 1; i < len(s.Layers); i++ {
			s.Layers[i] = &shared
		}
	}
	switch m.HeadKind = c.head(HeadNone); m.HeadKind {
	case HeadClassify:
		m.Head = []Module{dense("pooler", RolePooler, h, h), dense("classifier", RoleClassifier, h, c.labels())}
	case HeadMaskedLM, HeadLM:
		m.vocabHead(d.norm, h, width, "predictions.dense", "predictions.LayerNorm", "predictions.decoder")
	default:
		m.Head = []Module{dense("pooler", RolePooler, h, h)}
	}
	return m
}

// deberta is DeBERTa in its second and third version; the first has biases of
// its own on queries and values only.
func deberta(c *config) *Model {
	d := bertLike(c)
	h := d.hidden
	d.attn.Position = DisentangledBias
	d.names.q, d.names.k, d.names.v = "attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj"
	first := c.textOr("", "model_type") == "deberta"
	positions := d.maxSeq
	if !c.boolOr(true, "position_biased_input") {
		positions = 0
	}
	relative := c.boolOr(false, "relative_attention")
	buckets := c.intOr(-1, "position_buckets")
	if buckets < 1 {
		buckets = c.intOr(-1, "max_relative_positions")
	}
	if buckets < 1 {
		buckets = d.maxSeq
	}
	share := c.boolOr(false, "share_att_key")
	if first {
		share = false
		d.attn.FusedQKV, d.qkvBias = true, false
		d.names.qkv = "attention.self.in_proj"
	}
	if relative && !share {
		d.extra = func(l *Layer) {
			if first {
				l.Modules = append(l.Modules,
					Module{Name: "attention.self", Kind: ParamsAlone, Params: []Param{{Name: "q_bias", Shape: []int64{h}}, {Name: "v_bias", Shape: []int64{h}}}},
					linear("attention.self.pos_proj", RoleRelB, h, h, false, SplitOutputs),
					linear("attention.self.pos_q_proj", RoleRelB, h, h, true, SplitOutputs))
				return
			}
			l.Modules = append(l.Modules,
				linear("attention.self.pos_key_proj", RoleRelB, h, h, true, SplitOutputs),
				linear("attention.self.pos_query_proj", RoleRelB, h, h, true, SplitOutputs))
		}
	}
	m := d.encoderModel("", c.dimOr(h, "embedding_size"), positions, c.intOr(0, "type_vocab_size"))
	s := m.Stacks[0]
	if relative {
		s.Tail = append(s.Tail, embedding("encoder.rel_embeddings", RoleRelB, 2*min(buckets, dimensionMost), h, SplitNone))
		if c.textOr("none", "norm_rel_ebd") == "layer_norm" {
			n := d.norm
			s.Tail = append(s.Tail, n.module("encoder.LayerNorm", RoleNone))
		}
	}
	if k := c.intOr(0, "conv_kernel_size"); k > 0 && k < 1024 {
		n := d.norm
		s.Tail = append(s.Tail, Module{Name: "encoder.conv.conv", Kind: Convolution, In: h, Out: h, Params: []Param{
			{Name: "weight", Shape: []int64{h, h / max(1, c.intOr(1, "conv_groups")), k}}, {Name: "bias", Shape: []int64{h}}}}, n.module("encoder.conv.LayerNorm", RoleNone))
	}
	switch m.HeadKind = c.head(HeadNone); m.HeadKind {
	case HeadClassify:
		m.Head = []Module{dense("pooler.dense", RolePooler, h, h), dense("classifier", RoleClassifier, h, c.labels())}
	case HeadMaskedLM, HeadLM:
		m.vocabHead(d.norm, h, h, "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.decoder")
	}
	return m
}

func mpnet(c *config) *Model {
	d := bertLike(c)
	h := d.hidden
	d.names.q, d.names.k, d.names.v, d.names.o = "attention.attn.q", "attention.attn.k", "attention.attn.v", "attention.attn.o"
	d.names.norm1 = "attention.LayerNorm"
	m := d.encoderModel("", h, d.maxSeq, 0)
	m.MaxSeq = max(1, d.maxSeq-2)
	m.Stacks[0].Tail = append(m.Stacks[0].Tail,
		embedding("encoder.relative_attention_bias", RoleRelB, c.dimOr(32, "relative_attention_num_buckets"), d.attn.Heads, SplitNone))
	switch m.HeadKind = c.head(HeadNone); m.HeadKind {
	case HeadClassify:
		m.Head = []Module{dense("classifier.dense", RolePooler, h, h), dense("classifier.out_proj", RoleClassifier, h, c.labels())}
	case HeadMaskedLM, HeadLM:
		m.vocabHead(d.norm, h, h, "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder")
	default:
		m.Head = []Module{dense("pooler.dense", RolePooler, h, h)}
	}
	return m
}

// modernbert is pre-norm, gated and rotary, with a window in two of three
// layers.
func modernbert(c *config) *Model {
	h := c.dim("hidden_size")
	attnBias, mlpBias := c.boolOr(false, "attention_bias"), c.boolOr(false, "mlp_bias")
	d := &decoder{
		bidirectional: true, hidden: h, vocab: c.dim("vocab_size"), layers: c.dim("num_hidden_layers"), maxSeq: c.dimOr(8192, "max_position_embeddings"),
		norm:    Norm{Kind: LayerNorm, Affine: true, Bias: c.boolOr(false, "norm_bias")},
		attn:    Attention{Heads: c.dim("num_attention_heads"), FusedQKV: true, Position: Rope, Dropout: c.floatOr(0, "attention_dropout")},
		qkvBias: attnBias, bias: attnBias,
		mlp:          MLP{FFN: c.dim("intermediate_size"), Act: c.act(GELU, "hidden_activation"), Gated: true, FusedGateUp: true, Bias: mlpBias, Dropout: c.floatOr(0, "mlp_dropout")},
		embedDropout: c.floatOr(0, "embedding_dropout"),
		names:        names{qkv: "attn.Wqkv", o: "attn.Wo", gateUp: "mlp.Wi", down: "mlp.Wo", norm1: "attn_norm", norm2: "mlp_norm", final: "final_norm"},
	}
	every, window := c.intOr(3, "global_attn_every_n_layers"), c.intOr(128, "local_attention")
	d.window = func(i int64) int64 {
		if every > 0 && i%every != 0 {
			return window
		}
		return 0
	}
	m := d.encoderModel("", h, 0, 0)
	s := m.Stacks[0]
	first := *s.Layers[0] // has no norm before its attention
	first.Modules = first.Modules[1:]
	s.Layers[0] = &first
	switch m.HeadKind = c.head(HeadNone); m.HeadKind {
	case HeadClassify:
		n := d.norm
		m.Head = []Module{linear("head.dense", RolePooler, h, h, false, SplitNone), n.module("head.norm", RoleHeadNorm), dense("classifier", RoleClassifier, h, c.labels())}
	case HeadMaskedLM, HeadLM:
		m.vocabHead(d.norm, h, h, "head.dense", "head.norm", "decoder")
		m.Head[0].Params = m.Head[0].Params[:1] // classifier_bias is false
	}
	return m
}

// xlnet attends with a second projection for relative positions.
func xlnet(c *config) *Model {
	h, heads := c.dim("d_model"), c.dim("n_head")
	d := &decoder{
		bidirectional: true, placement: PostNorm, noFinalNorm: true,
		hidden: h, vocab: c.dim("vocab_size"), layers: c.dim("n_layer"),
		norm:         layerNorm(),
		attn:         Attention{Heads: heads, Position: RelativeBias, Dropout: c.floatOr(0.1, "dropout")},
		mlp:          MLP{FFN: c.dim("d_inner"), Act: c.act(GELU, "ff_activation"), Bias: true, Dropout: c.floatOr(0.1, "dropout")},
		resDropout:   c.floatOr(0.1, "dropout"),
		embedDropout: c.floatOr(0.1, "dropout"),
		names: names{q: "rel_attn.q", k: "rel_attn.k", v: "rel_attn.v", o: "rel_attn.o", up: "ff.layer_1", down: "ff.layer_2",
			norm1: "rel_attn.layer_norm", norm2: "ff.layer_norm"},
	}
	d.extra = func(l *Layer) {
		bias := func(name string) Param { return Param{Name: name, Shape: []int64{h}} }
		l.Modules = append(l.Modules, linear("rel_attn.r", RoleRelB, h, h, false, SplitOutputs),
			Module{Name: "rel_attn", Kind: ParamsAlone, Params: []Param{bias("r_w_bias"), bias("r_r_bias"), bias("r_s_bias"),
				{Name: "seg_embed", Shape: []int64{2, h}}}})
	}
	s := d.stack("encoder")
	m := &Model{Family: Encoder, Vocab: d.vocab, Hidden: h, Position: RelativeBias, EmbedDropout: d.embedDropout, Stacks: []*Stack{s}}
	m.Embed = []Module{embedding("word_embedding", RoleTokens, d.vocab, h, SplitVocab),
		{Name: "mask_emb", Kind: ParamsAlone, Params: []Param{{Shape: []int64{1, 1, h}}}}}
	switch m.HeadKind = c.head(HeadNone); m.HeadKind {
	case HeadClassify:
		m.Head = []Module{dense("sequence_summary.summary", RolePooler, h, h), dense("logits_proj", RoleClassifier, h, c.labels())}
	case HeadLM, HeadMaskedLM:
		m.HeadKind, m.TiedHead = HeadLM, true
		head := linear("lm_loss", RoleHead, h, d.vocab, true, SplitOutputs)
		head.Params[0].Tied = true
		m.Head = []Module{head}
	}
	return m
}
