package model

// decoder is a stack of transformer layers before it is assembled: the facts
// that a family reads from its configuration, and the names of its modules.
// Encoders use it too.
type decoder struct {
	hidden, vocab, layers, maxSeq int64

	bidirectional bool // an encoder
	norm          Norm
	placement     Placement
	parallel      bool
	sharedNorm    bool
	resDropout    float64

	attn          Attention
	qkvBias, bias bool // of the projections: query/key/value, and output
	mlp           MLP
	moe           *MoE

	names        names
	tied         bool
	headBias     bool
	noFinalNorm  bool
	positions    int64 // rows of a learned position table, 0: none
	embedNorm    bool
	embedDropout float64
	embedWidth   int64 // width of the token table where it differs (OPT-350M)
	logitSoftcap float64
	logitScaled  bool

	ssm       *SSM
	ssmPrefix string
	// The functions say which layers differ; nil: none does.
	window func(i int64) int64
	isMoE  func(i int64) bool
	isSSM  func(i int64) bool
	noRope func(i int64) bool
	// pattern has one letter for each layer of a network whose layers are one
	// mixer or one MLP: M, *, - and E (Nemotron-H). "" for all others.
	pattern string
	// extra adds modules to a layer.
	extra func(l *Layer)
}

// names are what a family calls its modules.
type names struct {
	tokens, positions, final, head          string
	q, k, v, qkv, o                         string
	qNorm, kNorm                            string
	gate, up, gateUp, down                  string
	norm1, norm2, post1, post2              string
	router                                  string
	expGate, expUp, expGateUp, expDown      string
	shGate, shUp, shGateUp, shDown, switch_ string
}

// llamaNames are those of Llama and the many families that follow it.
func llamaNames() names {
	return names{
		tokens: "model.embed_tokens", positions: "model.embed_positions", final: "model.norm", head: "lm_head",
		q: "self_attn.q_proj", k: "self_attn.k_proj", v: "self_attn.v_proj", qkv: "self_attn.qkv_proj", o: "self_attn.o_proj",
		qNorm: "self_attn.q_norm", kNorm: "self_attn.k_norm",
		gate: "mlp.gate_proj", up: "mlp.up_proj", gateUp: "mlp.gate_up_proj", down: "mlp.down_proj",
		norm1: "input_layernorm", norm2: "post_attention_layernorm",
		router:  "mlp.gate",
		expGate: "mlp.experts.gate_proj", expUp: "mlp.experts.up_proj", expGateUp: "mlp.experts.gate_up_proj", expDown: "mlp.experts.down_proj",
		shGate: "mlp.shared_expert.gate_proj", shUp: "mlp.shared_expert.up_proj", shDown: "mlp.shared_expert.down_proj",
		switch_: "mlp.shared_expert_gate",
	}
}

// gptNames are those of GPT-2.
func gptNames() names {
	return names{
		tokens: "transformer.wte", positions: "transformer.wpe", final: "transformer.ln_f", head: "lm_head",
		q: "attn.q_proj", k: "attn.k_proj", v: "attn.v_proj", qkv: "attn.c_attn", o: "attn.c_proj",
		up: "mlp.c_fc", down: "mlp.c_proj", norm1: "ln_1", norm2: "ln_2",
	}
}

// variant is what makes one layer differ from another.
type variant struct {
	mixer  byte // 'a' attention, 'm' state space, 0 none
	ffn    byte // 'd' dense, 'e' experts, 0 none
	window int64
	noRope bool
}

// variant returns what layer i is.
func (d *decoder) variant(i int64) variant {
	v := variant{mixer: 'a'}
	if d.pattern != "" {
		v.mixer = 0
		switch d.pattern[i] {
		case 'M':
			v.mixer = 'm'
		case '*':
			v.mixer = 'a'
		case '-':
			v.ffn = 'd'
		case 'E':
			v.ffn = 'e'
		}
	} else {
		if d.isSSM != nil && d.isSSM(i) {
			v.mixer = 'm'
		}
		switch {
		case d.moe != nil && (d.isMoE == nil || d.isMoE(i)):
			v.ffn = 'e'
		case d.mlp.FFN > 0:
			v.ffn = 'd'
		}
	}
	if v.mixer == 'a' {
		v.window = d.attn.Window
		if d.window != nil {
			v.window = d.window(i)
		}
		v.noRope = d.noRope != nil && d.noRope(i)
	}
	return v
}

// model assembles the decoder.
func (d *decoder) model(c *config) *Model {
	d.complete()
	m := &Model{
		Family: Decoder, Vocab: d.vocab, MaxSeq: d.maxSeq, Hidden: d.hidden,
		TiedHead: d.tied, EmbedDropout: d.embedDropout, LogitSoftcap: d.logitSoftcap, LogitScaled: d.logitScaled, Position: d.attn.Position,
	}
	width := d.hidden
	if d.embedWidth > 0 {
		width = d.embedWidth
	}
	m.Embed = append(m.Embed, embedding(d.names.tokens, RoleTokens, d.vocab, width, SplitVocab))
	if d.positions > 0 {
		m.Embed = append(m.Embed, embedding(d.names.positions, RolePosition, d.positions, d.hidden, SplitNone))
	}
	if width != d.hidden {
		m.Embed = append(m.Embed, linear("model.decoder.project_in", RoleNone, width, d.hidden, false, SplitNone))
	}
	if d.embedNorm {
		n := d.norm
		m.EmbedNorm = &n
		m.Embed = append(m.Embed, n.module("transformer.word_embeddings_layernorm", RoleEmbedLN))
	}

	s := d.stack("decoder")
	if width != d.hidden {
		s.Tail = append(s.Tail, linear("model.decoder.project_out", RoleNone, d.hidden, width, false, SplitNone))
	}
	m.Stacks = []*Stack{s}

	m.HeadKind = c.head(HeadLM)
	switch m.HeadKind {
	case HeadLM, HeadMaskedLM:
		head := linear(d.names.head, RoleHead, width, d.vocab, d.headBias, SplitOutputs)
		head.Params[0].Tied = d.tied
		m.HeadKind = HeadLM
		m.Head = []Module{head}
	case HeadClassify:
		m.Head = []Module{linear("score", RoleClassifier, d.hidden, c.labels(), false, SplitNone)}
	}
	return m
}

// stack assembles the layers and the final norm.
func (d *decoder) stack(name string) *Stack {
	d.complete()
	s := &Stack{Name: name, Hidden: d.hidden, Causal: d.attn.Causal}
	cache := map[variant]*Layer{}
	for i := range min(d.layers, listMost) {
		v := d.variant(i)
		l := cache[v]
		if l == nil {
			l = d.layer(v)
			cache[v] = l
		}
		s.Layers = append(s.Layers, l)
	}
	if !d.noFinalNorm {
		n := d.norm
		s.FinalNorm = &n
		s.Tail = append(s.Tail, n.module(d.names.final, RoleNormFinal))
	}
	return s
}

// complete fills in what follows from the rest.
func (d *decoder) complete() {
	d.norm.Width = d.hidden
	if d.placement == "" {
		d.placement = PreNorm
	}
	a := &d.attn
	a.Causal = !d.bidirectional
	if a.KVHeads == 0 {
		a.KVHeads = a.Heads
	}
	if a.HeadDim == 0 && a.Heads > 0 {
		a.HeadDim = d.hidden / a.Heads
	}
	if a.VHeadDim == 0 {
		a.VHeadDim = a.HeadDim
	}
	if a.RopeDim == 0 && a.Position == Rope {
		a.RopeDim = a.HeadDim
	}
}

// layer builds one layer.
func (d *decoder) layer(v variant) *Layer {
	l := &Layer{Norm: d.norm, Placement: d.placement, Parallel: d.parallel, SharedNorm: d.sharedNorm, ResidualDropout: d.resDropout}
	n := &d.names
	add := func(m ...Module) { l.Modules = append(l.Modules, m...) }
	if n.norm1 != "" {
		add(d.norm.module(n.norm1, RoleNorm1))
	}
	switch v.mixer {
	case 'm':
		l.SSM = d.ssm
		add(d.ssm.modules(d.ssmPrefix, d.hidden)...)
	case 'a':
		a := d.attn
		a.Window = v.window
		if v.noRope {
			a.Position, a.RopeDim = NoPosition, 0
		}
		l.Attention = &a
		add(d.attention(&a)...)
	}
	if n.post1 != "" {
		add(d.norm.module(n.post1, RoleNormPost1))
	}
	if !d.sharedNorm && n.norm2 != "" && v.ffn != 0 && v.mixer != 0 {
		add(d.norm.module(n.norm2, RoleNorm2))
	}
	switch v.ffn {
	case 'e':
		l.MoE = d.moe
		add(d.moeModules()...)
	case 'd':
		mlp := d.mlp
		l.MLP = &mlp
		add(mlpModules(&mlp, d.hidden, n)...)
	}
	if n.post2 != "" {
		add(d.norm.module(n.post2, RoleNormPost2))
	}
	if d.extra != nil {
		d.extra(l)
	}
	return l
}

// attention returns the modules of an attention.
func (d *decoder) attention(a *Attention) []Module {
	n, h := &d.names, d.hidden
	var mods []Module
	add := func(m ...Module) { mods = append(mods, m...) }
	if a.MLA != nil {
		return d.latentAttention(a)
	}
	if a.FusedQKV {
		add(linear(n.qkv, RoleQKV, h, a.QWidth()+2*a.KVWidth(), d.qkvBias, SplitOutputs))
	} else {
		add(linear(n.q, RoleQ, h, a.QWidth(), d.qkvBias, SplitOutputs),
			linear(n.k, RoleK, h, a.KVWidth(), d.qkvBias, SplitOutputs),
			linear(n.v, RoleV, h, a.KVHeads*a.VHeadDim, d.qkvBias, SplitOutputs))
	}
	add(linear(n.o, RoleO, a.OutWidth(), h, d.bias, SplitInputs))
	switch a.QKNorm {
	case QKNormPerHead:
		nq := d.norm
		nq.Width = a.HeadDim
		add(nq.module(n.qNorm, RoleNormQ), nq.module(n.kNorm, RoleNormK))
	case QKNormFull:
		nq, nk := d.norm, d.norm
		nq.Width, nk.Width = a.QWidth(), a.KVWidth()
		add(nq.module(n.qNorm, RoleNormQ), nk.module(n.kNorm, RoleNormK))
	}
	if a.Sinks {
		add(Module{Name: "self_attn.sinks", Kind: ParamsAlone, Params: []Param{{Name: "", Shape: []int64{a.Heads}}}})
	}
	return mods
}

// latentAttention returns the modules of MLA.
func (d *decoder) latentAttention(a *Attention) []Module {
	h, mla := d.hidden, a.MLA
	norm := func(width int64) *Norm { n := d.norm; n.Width = width; return &n }
	var mods []Module
	add := func(m ...Module) { mods = append(mods, m...) }
	if mla.QRank > 0 {
		add(linear("self_attn.q_a_proj", RoleQA, h, mla.QRank, d.qkvBias, SplitNone))
		if !mla.NoNorms {
			add(norm(mla.QRank).module("self_attn.q_a_layernorm", RoleNormQA))
		}
		add(linear("self_attn.q_b_proj", RoleQB, mla.QRank, a.QWidth(), false, SplitOutputs))
	} else {
		add(linear("self_attn.q_proj", RoleQ, h, a.QWidth(), false, SplitOutputs))
	}
	add(linear("self_attn.kv_a_proj_with_mqa", RoleKVA, h, mla.KVRank+mla.RopeDim, d.qkvBias, SplitNone))
	if !mla.NoNorms {
		add(norm(mla.KVRank).module("self_attn.kv_a_layernorm", RoleNormKVA))
	}
	add(linear("self_attn.kv_b_proj", RoleKVB, mla.KVRank, a.Heads*(mla.NopeDim+a.VHeadDim), false, SplitOutputs),
		linear("self_attn.o_proj", RoleO, a.OutWidth(), h, d.bias, SplitInputs))
	return mods
}

// mlpModules returns the modules of a plain MLP.
func mlpModules(m *MLP, hidden int64, n *names) []Module {
	down := linear(n.down, RoleDown, m.FFN, hidden, m.Bias, SplitInputs)
	up := linear(n.up, RoleUp, hidden, m.FFN, m.Bias, SplitOutputs)
	switch {
	case m.FusedGateUp:
		return []Module{linear(n.gateUp, RoleGateUp, hidden, 2*m.FFN, m.Bias, SplitOutputs), down}
	case m.Gated:
		return []Module{linear(n.gate, RoleGate, hidden, m.FFN, m.Bias, SplitOutputs), up, down}
	}
	return []Module{up, down}
}

// moeModules returns the router, the experts and the shared expert.
func (d *decoder) moeModules() []Module {
	e, n, h := d.moe, &d.names, d.hidden
	mods := []Module{linear(n.router, RoleRouter, h, e.Experts, e.RouterBias, SplitNone)}
	switch {
	case e.FusedGateUp:
		mods = append(mods, experts(n.expGateUp, RoleExpertGateUp, e.Experts, h, 2*e.FFN, e.Bias, SplitOutputs))
	case e.Gated:
		mods = append(mods,
			experts(n.expGate, RoleExpertGate, e.Experts, h, e.FFN, e.Bias, SplitOutputs),
			experts(n.expUp, RoleExpertUp, e.Experts, h, e.FFN, e.Bias, SplitOutputs))
	default:
		mods = append(mods, experts(n.expUp, RoleExpertUp, e.Experts, h, e.FFN, e.Bias, SplitOutputs))
	}
	if e.ScoreBias {
		mods = append(mods, Module{Name: n.router + ".e_score_correction_bias", Kind: ParamsAlone,
			Params: []Param{{Shape: []int64{e.Experts}, Buffer: true}}})
	}
	mods = append(mods, experts(n.expDown, RoleExpertDown, e.Experts, e.FFN, h, e.Bias, SplitInputs))
	if e.SharedFFN > 0 {
		if n.shGateUp != "" {
			return append(mods,
				linear(n.shGateUp, RoleSharedGateUp, h, 2*e.SharedFFN, false, SplitOutputs),
				linear(n.shDown, RoleSharedDown, e.SharedFFN, h, false, SplitInputs))
		}
		if e.Gated {
			mods = append(mods, linear(n.shGate, RoleSharedGate, h, e.SharedFFN, false, SplitOutputs))
		}
		mods = append(mods,
			linear(n.shUp, RoleSharedUp, h, e.SharedFFN, false, SplitOutputs),
			linear(n.shDown, RoleSharedDown, e.SharedFFN, h, false, SplitInputs))
		if e.SharedSwitch {
			mods = append(mods, linear(n.switch_, RoleSharedSwitch, h, 1, false, SplitNone))
		}
	}
	return mods
}

// modules returns the modules of a state-space mixer.
func (s *SSM) modules(prefix string, hidden int64) []Module {
	params := func(name string, n ...int64) Param { return Param{Name: name, Shape: n} }
	conv := Module{Name: prefix + "conv1d", Kind: Convolution, Role: RoleSSMConv, In: s.ConvWidth(), Out: s.ConvWidth(),
		Params: []Param{params("weight", s.ConvWidth(), 1, s.Conv), params("bias", s.ConvWidth())}}
	out := linear(prefix+"out_proj", RoleSSMOut, s.Inner, hidden, false, SplitInputs)
	if s.Version == 2 {
		mods := []Module{
			linear(prefix+"in_proj", RoleSSMIn, hidden, 2*s.Inner+2*s.Groups*s.State+s.Heads, false, SplitOutputs),
			conv,
			{Name: prefix + "ssm", Kind: ParamsAlone, Role: RoleSSMParams, Params: []Param{
				params("dt_bias", s.Heads), params("A_log", s.Heads), params("D", s.Heads)}},
		}
		if s.Norm {
			n := Norm{Kind: RMSNorm, Width: s.Inner, Affine: true}
			mods = append(mods, n.module(prefix+"norm", RoleSSMNorm))
		}
		return append(mods, out)
	}
	return []Module{
		linear(prefix+"in_proj", RoleSSMIn, hidden, 2*s.Inner, false, SplitOutputs),
		conv,
		linear(prefix+"x_proj", RoleSSMX, s.Inner, s.DTRank+2*s.State, false, SplitInputs),
		linear(prefix+"dt_proj", RoleSSMDT, s.DTRank, s.Inner, true, SplitOutputs),
		{Name: prefix + "ssm", Kind: ParamsAlone, Role: RoleSSMParams, Params: []Param{
			params("A_log", s.Inner, s.State), params("D", s.Inner)}},
		out,
	}
}
