package model

// A Layer is one block of a stack: a mixer over the sequence (attention, a
// state-space model, or both) and a transformation of each token.
type Layer struct {
	Attention *Attention // nil: none
	Cross     *Attention // attention to the encoder, nil: none
	SSM       *SSM       // nil: none
	MLP       *MLP       // nil: none (a mixer alone, or MoE)
	MoE       *MoE       // nil: none

	Norm      Norm // of the layer's inputs
	Placement Placement
	// Parallel says that attention and MLP read the same residual and are
	// added together (GPT-J, NeoX, Falcon, Phi-2).
	Parallel bool
	// SharedNorm says that with Parallel one norm feeds both.
	SharedNorm bool
	// LayerScale says that what is added to the residual is multiplied by a vector.
	LayerScale bool
	// ResidualDropout is the dropout on what is added to the residual.
	ResidualDropout float64

	Modules []Module
}

// Module returns the module with a role, nil if the layer has none.
func (l *Layer) Module(role Role) *Module {
	for i := range l.Modules {
		if l.Modules[i].Role == role {
			return &l.Modules[i]
		}
	}
	return nil
}

// Params returns the number of parameters of the layer.
func (l *Layer) Params() int64 {
	var n int64
	for i := range l.Modules {
		n += l.Modules[i].Count()
	}
	return n
}

// A Position is how the model knows the order of tokens.
type Position string

// The position schemes.
const (
	NoPosition       Position = ""
	Rope             Position = "rope"
	Learned          Position = "learned"
	Alibi            Position = "alibi"
	Sinusoidal       Position = "sinusoidal"
	RelativeBias     Position = "relative_bias" // T5, MPNet: a learned bias on the scores
	DisentangledBias Position = "disentangled"  // DeBERTa
)

// A QKNorm is a norm on queries and keys.
type QKNorm string

// The norms of queries and keys.
const (
	NoQKNorm      QKNorm = ""
	QKNormPerHead QKNorm = "per_head" // over the head dimension (Qwen3, Gemma 3)
	QKNormFull    QKNorm = "full"     // over all heads at once (OLMo 2)
)

// Attention is multi-head attention in any of its forms. KVHeads equal to Heads
// is MHA, fewer is GQA, one is MQA; MLA is set for latent attention.
type Attention struct {
	Heads, KVHeads int64
	HeadDim        int64 // of queries and keys
	VHeadDim       int64 // of values: HeadDim, but for MLA
	MLA            *MLA

	FusedQKV bool // one matrix makes queries, keys and values
	QKNorm   QKNorm
	Position Position
	RopeDim  int64 // dimensions of a head that are rotated
	Window   int64 // sliding window, 0: none
	Softcap  float64
	Dropout  float64 // on the probabilities
	Causal   bool
	// Sinks says that each head has a learned sink logit (gpt-oss).
	Sinks bool
	// FloatRope says that queries and keys are rotated in float32 (Qwen's towers).
	FloatRope bool
	// KeyValueShared says that the layer reads another layer's keys and values.
	KeyValueShared bool
}

// MLA has the ranks of DeepSeek's latent attention.
type MLA struct {
	QRank   int64 // 0: queries are projected directly
	KVRank  int64
	NopeDim int64 // per head, without rotation
	RopeDim int64 // per head, rotated; shared by all heads on the key side
	// NoNorms says that the two compressed vectors are not normalised.
	NoNorms bool
}

// QWidth is the width of all queries together.
func (a *Attention) QWidth() int64 { return a.Heads * a.HeadDim }

// KVWidth is the width of all keys together.
func (a *Attention) KVWidth() int64 { return a.KVHeads * a.HeadDim }

// OutWidth is the width that enters the output projection.
func (a *Attention) OutWidth() int64 { return a.Heads * a.VHeadDim }

// An Act is an activation function, by the name transformers gives it. The name
// tells the implementation: "gelu" is one fused operation, "gelu_new" is written
// in Python and keeps its intermediate results.
type Act string

// The activations that occur.
const (
	SiLU         Act = "silu"
	GELU         Act = "gelu"
	GELUTanh     Act = "gelu_pytorch_tanh" // fused
	GELUNew      Act = "gelu_new"          // Python, tanh
	GELUFast     Act = "gelu_fast"         // Python, tanh
	GELUPython   Act = "gelu_python"       // Python, erf
	BloomGELU    Act = "bloom_gelu"        // an autograd function of its own
	QuickGELU    Act = "quick_gelu"        // Python, sigmoid
	ReLU         Act = "relu"
	SquaredReLU  Act = "relu2"
	Tanh         Act = "tanh"
	ClippedSwiGL Act = "swiglu_clipped" // gpt-oss
)

// An MLP transforms each token.
type MLP struct {
	FFN         int64
	Act         Act
	Gated       bool // down(act(gate(x)) * up(x))
	FusedGateUp bool
	Bias        bool
	Dropout     float64
	// ActDropout is the dropout between the activation and the last matrix.
	ActDropout float64
}

// MoE is a layer of routed experts.
type MoE struct {
	Experts, TopK int64
	FFN           int64 // of one expert
	Act           Act
	Gated         bool
	FusedGateUp   bool
	Bias          bool
	RouterBias    bool
	// ScoreBias says that the router has a bias that is moved by balance, not
	// by gradients (DeepSeek V3).
	ScoreBias bool
	// SharedFFN is the width of the experts that every token takes, together;
	// 0: none.
	SharedFFN int64
	// SharedSwitch says that the shared expert's output is scaled by a gate.
	SharedSwitch bool
	AuxLoss      bool // the router's balance loss is on by default
}

// SSM is a state-space mixer: Mamba 1 or 2.
type SSM struct {
	Version int   // 1 or 2
	Inner   int64 // expanded width
	State   int64
	Heads   int64 // Mamba 2
	HeadDim int64 // Mamba 2
	Groups  int64 // Mamba 2
	Conv    int64 // kernel of the depthwise convolution
	DTRank  int64 // Mamba 1
	Chunk   int64 // length of a chunk of the scan
	Norm    bool  // gated norm before the output projection
}

// ConvWidth is the number of channels of the depthwise convolution.
func (s *SSM) ConvWidth() int64 {
	if s.Version == 2 {
		return s.Inner + 2*s.Groups*s.State
	}
	return s.Inner
}

// A NormKind is the formula of a norm.
type NormKind string

// The norms.
const (
	RMSNorm   NormKind = "rms"
	LayerNorm NormKind = "layer"
)

// A Norm is a normalisation over the last dimension.
type Norm struct {
	Kind   NormKind
	Width  int64
	Affine bool // has a weight
	Bias   bool
	// Style tells implementations of the same formula apart where they keep
	// different tensors: "" is the plain one of transformers (Llama), "gemma"
	// multiplies by (1+weight) in float32, "cohere" is a LayerNorm written in Python, "t5"
	// is apex where it is installed.
	Style string
}

// A Placement is where the norms of a layer stand.
type Placement string

// The placements.
const (
	PreNorm  Placement = "pre"      // before attention and MLP
	PostNorm Placement = "post"     // after the residual addition (BERT)
	Sandwich Placement = "sandwich" // before and after each, inside the residual (Gemma 2)
	OutNorm  Placement = "out"      // only after each, inside the residual (OLMo 2)
)
