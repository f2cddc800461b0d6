package graph

// An Op is an operation, by the name of its autograd formula where it has one.
type Op string

// The operations.
const (
	// Products: both operands are kept, each only if the other needs a gradient.
	Conv   Op = "convolution"
	Linear Op = "linear"
	MatMul Op = "matmul"

	// Norms.
	BatchNorm    Op = "batch_norm"
	SyncNorm     Op = "sync_batch_norm"
	LayerNorm    Op = "layer_norm"
	GroupNorm    Op = "group_norm"
	InstanceNorm Op = "instance_norm"

	// Functions of one operand whose derivative uses the result. ReLU, unless it
	// works in place, kept its operand before torch 1.11.
	ReLU    Op = "relu"
	Sigmoid Op = "sigmoid"
	Tanh    Op = "tanh"
	Exp     Op = "exp"
	Sqrt    Op = "sqrt"
	// The softmaxes keep their result; before torch 1.11 their operand too.
	Softmax    Op = "softmax"
	LogSoftmax Op = "log_softmax"

	// Functions of one operand whose derivative uses the operand.
	GELU        Op = "gelu"
	SiLU        Op = "silu"
	Mish        Op = "mish"
	LeakyReLU   Op = "leaky_relu"
	HardTanh    Op = "hardtanh" // ReLU6
	HardSwish   Op = "hardswish"
	HardSigmoid Op = "hardsigmoid"
	PReLU       Op = "prelu"
	Pow         Op = "pow"
	Log         Op = "log"
	Abs         Op = "abs"
	Max         Op = "max" // over a dimension: indices
	SoftPlus    Op = "softplus"
	BCELogits   Op = "binary_cross_entropy_with_logits"

	// Arithmetic of two operands.
	Add   Op = "add"
	Sub   Op = "sub"
	Mul   Op = "mul"
	Div   Op = "div"
	Scale Op = "scale" // by a number

	// Shapes.
	View       Op = "view"       // reshape, permute, expand, chunk: no memory
	Slice      Op = "slice"      // a view whose backward fills zeros
	Contiguous Op = "contiguous" // a copy
	Cat        Op = "cat"
	Pad        Op = "pad"
	Roll       Op = "roll"
	Gather     Op = "gather"
	Upsample   Op = "upsample"
	Unfold     Op = "unfold"
	Repeat     Op = "repeat"

	// Reductions.
	MaxPool      Op = "max_pool2d"
	AvgPool      Op = "avg_pool2d"
	AdaptivePool Op = "adaptive_avg_pool2d"
	Mean         Op = "mean"
	Sum          Op = "sum"

	TopK Op = "topk" // values and indices

	Dropout   Op = "dropout"   // a mask for each element
	Dropout2d Op = "dropout2d" // noise for each map, multiplied
	DropPath  Op = "drop_path" // noise for each sample, multiplied

	NLL Op = "nll_loss"
	MSE Op = "mse_loss"
	// CrissCross is a product along rows and columns; it keeps both operands.
	CrissCross Op = "criss_cross"
	Attention  Op = "scaled_dot_product_attention" // fused
	Embedding  Op = "embedding"
	Cast       Op = "to"
)

// Keeps says what autograd keeps of an operation.
//
// Source: pytorch tools/autograd/derivatives.yaml.
type Keeps struct {
	// Operands and Result are kept as they are. Of an operand that a function
	// changed in place nothing is left: the result is kept instead.
	Operands []int
	Result   bool
	// Extra are tensors that only autograd refers to: masks, indices, statistics.
	Extra []Tensor
}

// Keeps returns what backward needs of node n. With old, the rules are those of
// torch before 1.11.
func (g *Graph) Keeps(n *Node, old bool) Keeps {
	in := func(i int) *Tensor {
		if i < len(n.In) && n.In[i] != None {
			return &g.Tensors[n.In[i]]
		}
		return &Tensor{}
	}
	trained := func() bool {
		for i := range n.Params {
			if n.Trained(&n.Params[i]) {
				return true
			}
		}
		return false
	}
	var k Keeps
	if len(n.Out) == 0 || !g.Tensors[n.Out[0]].Grad {
		return k
	}
	out := &g.Tensors[n.Out[0]]
	extra := func(c Class, shape ...int64) { k.Extra = append(k.Extra, Tensor{Shape: shape, Class: c}) }
	switch n.Op {
	case Conv, Linear:
		if trained() || len(n.In) > 1 && in(1).Grad { // an operand as weight
			k.Operands = append(k.Operands, 0)
		}
		if len(n.In) > 1 && in(0).Grad {
			k.Operands = append(k.Operands, 1)
		}
		if n.Standard { // what the kernels became
			extra(Float, n.Params[0].Shape...)
		}
		if n.Centred && trained() {
			extra(Float, n.Params[0].Shape...)
			extra(Float, n.Params[0].Shape...)
		}
	case CrissCross:
		k.Operands = []int{0, 1}
	case MatMul, Mul, Div:
		if in(1).Grad {
			k.Operands = append(k.Operands, 0)
		}
		if in(0).Grad || n.Op == Div && in(1).Grad {
			k.Operands = append(k.Operands, 1)
		}
		if len(n.In) == 1 && trained() { // by a parameter
			k.Operands = []int{0}
		}
	case BatchNorm, SyncNorm, InstanceNorm:
		if !n.Frozen || in(0).Grad {
			k.Operands = []int{0}
		}
		if !n.Frozen {
			c := in(0).Shape[1]
			if n.Op == InstanceNorm {
				c *= in(0).Shape[0]
			}
			extra(Float32, c)
			extra(Float32, c)
		}
		if n.InPlace {
			k.Operands, k.Result = nil, true
		}
	case LayerNorm:
		k.Operands = []int{0}
		rows := in(0).Elements() / in(0).Shape[len(in(0).Shape)-1]
		extra(Float32, rows)
		extra(Float32, rows)
	case GroupNorm:
		k.Operands = []int{0}
		extra(Float32, in(0).Shape[0], n.Conv.Groups)
		extra(Float32, in(0).Shape[0], n.Conv.Groups)
	case ReLU:
		k.Result = true
		if old && !n.InPlace {
			k.Operands, k.Result = []int{0}, false
		}
	case Sigmoid, Tanh, Exp, Sqrt:
		k.Result = true
	case Softmax, LogSoftmax:
		k.Result = true
		if old {
			k.Operands = []int{0}
		}
	case GELU, SiLU, Mish, HardSwish, HardSigmoid, Pow, Log, Abs, PReLU, HardTanh, LeakyReLU, SoftPlus:
		k.Operands = []int{0}
		if n.InPlace {
			// Before torch 1.11 ReLU6 in place had a formula on its result.
			k.Result = n.Op == LeakyReLU || old && n.Op == HardTanh
			k.Operands = nil
			if !k.Result { // the input is cloned before it is overwritten
				extra(in(0).Class, in(0).Shape...)
			}
		}
	case BCELogits, MSE:
		k.Operands = []int{0, 1}
	case MaxPool:
		k.Operands = []int{0}
		extra(Int64, out.Shape...)
	case Max:
		extra(Int64, out.Shape...)
	case AvgPool, AdaptivePool:
		k.Operands = []int{0}
	case Dropout:
		if n.P > 0 {
			extra(Byte, out.Shape...)
		}
	case Dropout2d:
		if n.P > 0 {
			extra(Float, out.Shape[0], out.Shape[1])
		}
	case DropPath:
		if n.P > 0 {
			extra(Float, out.Shape[0])
		}
	case NLL:
		k.Operands = []int{0, 1}
		if len(in(0).Shape) == 4 {
			extra(Float32, 1) // the total weight
		}
	case Embedding:
		k.Operands = []int{0}
	case Gather:
		if len(n.In) > 1 {
			k.Operands = []int{1}
		}
	case Attention:
		k.Operands = []int{0, 1, 2}
		if len(n.In) > 3 {
			k.Operands = append(k.Operands, 3)
		}
		k.Result = true
		q := in(0).Shape
		extra(Float32, q[0], q[1], q[2])
	}
	return k
}
