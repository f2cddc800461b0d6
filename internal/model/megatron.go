package model

import (
	"fmt"
	"strconv"
	"strings"
)

// FromMegatron returns the network that the arguments of a Megatron-Core launch
// describe. flag returns an argument's value by its name without dashes, and
// whether it is given ("hidden-size" → "512", "swiglu" → "", true). vocab is
// the tokenizer's size before padding, which no argument states.
//
// The defaults are those of megatron/training/arguments.py and
// transformer_config.py.
func FromMegatron(name string, vocab int64, flag func(string) (string, bool)) (*Model, error) {
	a := &megatronArgs{config: &config{name: name}, flag: flag}
	if vocab < 1 || vocab > dimensionMost {
		a.fail("vocab", "%d is not a size a vocabulary can have", vocab)
		return nil, a.err()
	}
	vocab += a.num("vocab-extra-ids", 0)
	if unit := a.num("make-vocab-size-divisible-by", 128) * max(1, a.num("tensor-model-parallel-size", 1)); unit > 0 {
		vocab = (vocab + unit - 1) / unit * unit
	}
	d := a.decoder(vocab)
	if err := a.err(); err != nil {
		return nil, err
	}
	var m *Model
	switch {
	case a.has("encoder-num-layers") && a.has("decoder-num-layers"):
		m = a.t5(d)
	case a.has("bert"), a.has("bert-no-binary-head"), strings.Contains(strings.ToLower(name), "bert"):
		m = a.bert(d)
	default:
		m = d.model(a.config)
		a.multiToken(m, d)
	}
	m.Name, m.Type, m.DType = name, "megatron", Float32
	switch {
	case a.has("bf16"):
		m.DType = BFloat16
	case a.has("fp16"):
		m.DType = Float16
	}
	if err := a.err(); err != nil {
		return nil, err
	}
	return m, m.check()
}

// megatronArgs reads arguments and collects what is wrong with them.
type megatronArgs struct {
	*config
	flag func(string) (string, bool)
}

func (a *megatronArgs) has(name string) bool { _, ok := a.flag(name); return ok }

func (a *megatronArgs) text(name, def string) string {
	if v, ok := a.flag(name); ok {
		return v
	}
	return def
}

func (a *megatronArgs) num(name string, def int64) int64 {
	v, ok := a.flag(name)
	if !ok {
		return def
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 || n > dimensionMost {
		a.fail(name, "%q is not a size", v)
		return def
	}
	return n
}

func (a *megatronArgs) need(name string) int64 {
	if !a.has(name) {
		a.fail(name, "is missing")
		return 1
	}
	return max(1, a.num(name, 1))
}

func (a *megatronArgs) float(name string, def float64) float64 {
	v, ok := a.flag(name)
	if !ok {
		return def
	}
	f, err := strconv.ParseFloat(v, 64)
	if err != nil {
		a.fail(name, "%q is not a number", v)
		return def
	}
	return f
}

// megatronNames are those of Megatron-Core's transformer layer.
func megatronNames() names {
	return names{
		tokens: "embedding.word_embeddings", positions: "embedding.position_embeddings", final: "decoder.final_layernorm", head: "output_layer",
		qkv: "self_attention.linear_qkv", o: "self_attention.linear_proj",
		qNorm: "self_attention.q_layernorm", kNorm: "self_attention.k_layernorm",
		up: "mlp.linear_fc1", gateUp: "mlp.linear_fc1", down: "mlp.linear_fc2",
		norm1: "input_layernorm", norm2: "pre_mlp_layernorm", router: "mlp.router",
		expUp: "mlp.experts.linear_fc1", expGateUp: "mlp.experts.linear_fc1", expDown: "mlp.experts.linear_fc2",
		shUp: "mlp.shared_experts.linear_fc1", shGateUp: "mlp.shared_experts.linear_fc1", shDown: "mlp.shared_experts.linear_fc2",
	}
}

// decoder reads what the architectures share.
func (a *megatronArgs) decoder(vocab int64) *decoder {
	h, heads := a.need("hidden-size"), a.need("num-attention-heads")
	gated := a.has("swiglu")
	bias := !a.has("disable-bias-linear")
	d := &decoder{
		hidden: h, vocab: vocab, layers: a.num("num-layers", 0), maxSeq: a.num("max-position-embeddings", a.num("seq-length", 0)),
		norm:    layerNorm(),
		attn:    Attention{Heads: heads, HeadDim: a.num("kv-channels", h/heads), FusedQKV: true, Position: Learned, Dropout: a.float("attention-dropout", 0.1)},
		qkvBias: bias || a.has("add-qkv-bias"), bias: bias,
		mlp:        MLP{FFN: a.num("ffn-hidden-size", 0), Act: GELU, Gated: gated, FusedGateUp: gated, Bias: bias, Dropout: a.float("hidden-dropout", 0.1)},
		resDropout: a.float("hidden-dropout", 0.1), embedDropout: a.float("hidden-dropout", 0.1),
		tied: !a.has("untie-embeddings-and-output-weights"), names: megatronNames(),
	}
	if d.attn.HeadDim == 0 || h%heads != 0 && !a.has("kv-channels") {
		a.fail("num-attention-heads", "%d heads do not divide hidden-size %d", heads, h)
	}
	if a.text("normalization", "LayerNorm") == "RMSNorm" {
		d.norm = Norm{Kind: RMSNorm, Affine: true}
	}
	switch {
	case gated:
		d.mlp.Act = SiLU
	case a.has("squared-relu"):
		d.mlp.Act = SquaredReLU
	}
	if d.mlp.FFN == 0 {
		d.mlp.FFN = 4 * h
		if gated {
			d.mlp.FFN = 4 * h * 2 / 3 / 64 * 64
		}
	}
	switch p := a.text("position-embedding-type", "learned_absolute"); p {
	case "learned_absolute":
		d.positions = d.maxSeq
	case "rope", "yarn":
		d.attn.Position = Rope
	case "none":
		d.attn.Position = NoPosition
	default:
		a.fail("position-embedding-type", "%q is not modelled", p)
	}
	if a.has("group-query-attention") {
		d.attn.KVHeads = max(1, a.num("num-query-groups", 1))
	}
	if a.has("qk-layernorm") {
		d.attn.QKNorm = QKNormPerHead
	}
	if a.has("multi-latent-attention") {
		a.latent(d)
	}
	a.experts(d, gated, bias)
	a.hybrid(d)
	if d.layers == 0 && !a.has("encoder-num-layers") {
		a.fail("num-layers", "is missing")
	}
	return d
}

// latent reads MLA. Its two norms are there only with qk-layernorm.
func (a *megatronArgs) latent(d *decoder) {
	mla := &MLA{QRank: a.num("q-lora-rank", 0), KVRank: max(1, a.num("kv-lora-rank", 32)), NopeDim: a.num("qk-head-dim", 128),
		RopeDim: a.num("qk-pos-emb-head-dim", 64), NoNorms: !a.has("qk-layernorm")}
	d.attn.MLA, d.attn.QKNorm, d.attn.KVHeads = mla, NoQKNorm, d.attn.Heads
	d.attn.HeadDim, d.attn.VHeadDim, d.attn.RopeDim = mla.NopeDim+mla.RopeDim, a.num("v-head-dim", 128), mla.RopeDim
	d.qkvBias = false
}

// experts reads the mixture of experts.
func (a *megatronArgs) experts(d *decoder, gated, bias bool) {
	n := a.num("num-experts", 0)
	if n == 0 {
		return
	}
	d.moe = &MoE{Experts: n, TopK: max(1, a.num("moe-router-topk", 2)), FFN: a.num("moe-ffn-hidden-size", d.mlp.FFN), Act: d.mlp.Act,
		Gated: gated, FusedGateUp: gated, Bias: bias, ScoreBias: a.has("moe-router-enable-expert-bias"),
		SharedFFN: a.num("moe-shared-expert-intermediate-size", 0), AuxLoss: !a.has("moe-router-enable-expert-bias")}
	if !gated {
		d.names.shGateUp = ""
	}
	if latent := a.num("moe-latent-size", 0); latent > 0 {
		a.fail("moe-latent-size", "%d: experts in a latent space are not modelled", latent)
	}
	freq := a.text("moe-layer-freq", "1")
	if every, err := strconv.ParseInt(freq, 10, 64); err == nil && every > 0 {
		d.isMoE = func(i int64) bool { return i%every == 0 }
		return
	}
	pattern, err := layerPattern(freq)
	if err != nil || int64(len(pattern)) != d.layers {
		a.fail("moe-layer-freq", "%q is not a number, nor a pattern such as ([0]*3+[1]*13) for %d layers", freq, d.layers)
		return
	}
	d.isMoE = func(i int64) bool { return pattern[i] }
}

// layerPattern reads Megatron's ([0]*3+[1]*13): which layers have experts.
func layerPattern(text string) ([]bool, error) {
	text = strings.NewReplacer(" ", "", "(", "", ")", "").Replace(text)
	var out []bool
	for term := range strings.SplitSeq(text, "+") {
		list, times, repeated := strings.Cut(term, "]")
		n := int64(1)
		if repeated && times != "" {
			var err error
			if n, err = strconv.ParseInt(strings.TrimPrefix(times, "*"), 10, 32); err != nil || n < 0 || n > listMost {
				return nil, fmt.Errorf("%q is not a repetition", term)
			}
		}
		var unit []bool
		for bit := range strings.SplitSeq(strings.TrimPrefix(list, "["), ",") {
			switch bit {
			case "0", "1":
				unit = append(unit, bit == "1")
			default:
				return nil, fmt.Errorf("%q is neither 0 nor 1", bit)
			}
		}
		if int64(len(unit))*n+int64(len(out)) > listMost {
			return nil, fmt.Errorf("too many layers")
		}
		for range n {
			out = append(out, unit...)
		}
	}
	return out, nil
}

// hybrid reads a pattern of single-mixer layers. Bars divide pipeline stages;
// what follows a slash is the pattern of multi-token prediction.
func (a *megatronArgs) hybrid(d *decoder) {
	pattern := a.text("hybrid-layer-pattern", a.text("hybrid-override-pattern", ""))
	if pattern == "" {
		return
	}
	pattern, _, _ = strings.Cut(pattern, "/")
	pattern = strings.ReplaceAll(pattern, "|", "")
	d.layers = int64(min(len(pattern), listMost))
	dim := max(1, a.num("mamba-head-dim", 64))
	inner := 2 * d.hidden
	if n := a.num("mamba-num-heads", 0); n > 0 {
		inner = n * dim
	}
	d.ssm = &SSM{Version: 2, Inner: inner, State: a.num("mamba-state-dim", 128), Heads: inner / dim, HeadDim: dim, Groups: a.num("mamba-num-groups", 8),
		Conv: 4, Chunk: 256, Norm: true}
	d.ssmPrefix = "mixer."
	d.names.norm1, d.names.norm2 = "norm", ""
	if a.text("position-embedding-type", "") == "" { // hybrid models default to none
		d.attn.Position, d.positions = NoPosition, 0
	}
	d.setPattern(a.config, "hybrid-layer-pattern", pattern)
}

// multiToken adds the extra layers of multi-token prediction.
func (a *megatronArgs) multiToken(m *Model, d *decoder) {
	n := a.num("mtp-num-layers", 0)
	if n == 0 || len(m.Stacks) == 0 || len(m.Stacks[0].Layers) == 0 || m.HeadKind != HeadLM {
		return
	}
	if d.pattern != "" {
		a.fail("mtp-num-layers", "multi-token prediction is not modelled for hybrid patterns")
		return
	}
	s := &Stack{Name: "mtp", Hidden: d.hidden, Causal: true}
	last := *m.Stacks[0].Layers[len(m.Stacks[0].Layers)-1]
	last.Modules = append([]Module(nil), last.Modules...)
	last.Modules = append(last.Modules,
		d.norm.module("enorm", RoleNone), d.norm.module("hnorm", RoleNone),
		linear("eh_proj", RoleNone, 2*d.hidden, d.hidden, false, SplitOutputs),
		d.norm.module("final_layernorm", RoleNone))
	for range min(n, 16) {
		s.Layers = append(s.Layers, &last)
	}
	m.Stacks = append(m.Stacks, s)
}

// bert puts BERT's embeddings and heads around the stack, which Megatron builds
// with the norms first.
func (a *megatronArgs) bert(d *decoder) *Model {
	d.bidirectional = true
	d.attn.Dropout = a.float("attention-dropout", 0.1)
	s := d.stack("encoder")
	h := d.hidden
	m := &Model{Family: Encoder, Vocab: d.vocab, MaxSeq: d.maxSeq, Hidden: h, Position: d.attn.Position, EmbedDropout: d.embedDropout,
		Stacks: []*Stack{s}, HeadKind: HeadMaskedLM, TiedHead: d.tied, HeadTransform: true}
	m.Embed = []Module{embedding(d.names.tokens, RoleTokens, d.vocab, h, SplitVocab),
		embedding(d.names.positions, RolePosition, max(1, d.positions), h, SplitNone)}
	if !a.has("bert-no-binary-head") {
		m.Embed = append(m.Embed, embedding("embedding.tokentype_embeddings", RoleSegment, 2, h, SplitNone))
		m.Head = append(m.Head, dense("pooler.dense", RolePooler, h, h), dense("binary_head", RoleClassifier, h, 2))
	}
	m.Head = append(m.Head, dense("lm_head.dense", RoleHeadTransform, h, h), d.norm.module("lm_head.layer_norm", RoleHeadNorm), a.output(d))
	return m
}

// output is the vocabulary matrix with a bias of its own.
func (a *megatronArgs) output(d *decoder) Module {
	head := linear(d.names.head, RoleHead, d.hidden, d.vocab, true, SplitOutputs)
	head.Params[0].Tied = d.tied
	return head
}

// t5 makes an encoder and a decoder of the same blocks.
func (a *megatronArgs) t5(d *decoder) *Model {
	d.complete()
	enc, dec := *d, *d
	enc.layers, dec.layers = max(1, a.num("encoder-num-layers", 1)), max(1, a.num("decoder-num-layers", 1))
	enc.bidirectional = true
	enc.names.final = "encoder.final_layernorm"
	dec.extra = func(l *Layer) {
		x := *l.Attention
		x.Causal = false
		l.Cross = &x
		l.Modules = append(l.Modules,
			linear("cross_attention.linear_q", RoleCrossQ, d.hidden, x.QWidth(), d.bias, SplitOutputs),
			linear("cross_attention.linear_kv", RoleCrossKV, d.hidden, 2*x.KVWidth(), d.bias, SplitOutputs),
			linear("cross_attention.linear_proj", RoleCrossO, x.QWidth(), d.hidden, d.bias, SplitInputs),
			d.norm.module("pre_cross_attn_layernorm", RoleNormCross))
	}
	m := &Model{Family: EncoderDecoder, Vocab: d.vocab, MaxSeq: d.maxSeq, Hidden: d.hidden, Position: d.attn.Position, EmbedDropout: d.embedDropout,
		Stacks: []*Stack{enc.stack("encoder"), dec.stack("decoder")}, HeadKind: HeadLM, TiedHead: d.tied}
	m.Embed = []Module{embedding(d.names.tokens, RoleTokens, d.vocab, d.hidden, SplitVocab)}
	if d.positions > 0 {
		m.Embed = append(m.Embed, embedding(d.names.positions, RolePosition, d.positions, d.hidden, SplitNone))
	}
	m.Head = []Module{a.output(d)}
	return m
}
