package model

import "strings"

// A DType is the type of a tensor's elements, by torch's name.
type DType string

// The element types.
const (
	Float32  DType = "float32"
	Float16  DType = "float16"
	BFloat16 DType = "bfloat16"
	Float64  DType = "float64"
	Float8   DType = "float8" // e4m3fn or e5m2
	Int64    DType = "int64"
	Int32    DType = "int32"
	Int16    DType = "int16"
	Int8     DType = "int8"
	UInt8    DType = "uint8"
	Bool     DType = "bool"
)

// Size returns the bytes of one element, 0 for an unknown type.
func (d DType) Size() int64 {
	switch d {
	case Float64, Int64:
		return 8
	case Float32, Int32:
		return 4
	case Float16, BFloat16, Int16:
		return 2
	case Float8, Int8, UInt8, Bool:
		return 1
	}
	return 0
}

// A Param is one tensor of a module.
type Param struct {
	Name  string // within the module: "weight", "bias"
	Shape []int64
	// Tied says that the tensor is another one's storage: it is not counted.
	Tied bool
	// Buffer says that it is no parameter: it has no gradient and no state.
	Buffer bool
	// Frozen says that the model itself does not train it (sinusoids).
	Frozen bool
	// DType is the stored type where it is known (safetensors), else "".
	DType DType
}

// Elements returns the number of elements.
func (p *Param) Elements() int64 {
	n := int64(1)
	for _, d := range p.Shape {
		n *= d
	}
	return n
}

// A Kind is what a module computes.
type Kind string

// The kinds of modules.
const (
	Linear       Kind = "linear" // nn.Linear, or Conv1D of GPT-2
	Embedding    Kind = "embedding"
	Normalize    Kind = "norm"
	Convolution  Kind = "conv"
	ParamsAlone  Kind = "params" // parameters used directly: biases, gates, A and D of an SSM
	Quantization Kind = "quant"  // scales and zero points of a quantised matrix
)

// A Role is the part that a module plays in its layer. An engine looks modules
// up by role, so that it need not know the names of a family.
type Role string

// The roles. A fused projection has one module with the fused role instead of
// its parts.
const (
	RoleNone     Role = ""
	RoleTokens   Role = "tokens"    // token embedding
	RolePosition Role = "positions" // learned position embedding
	RoleSegment  Role = "segments"  // token type embedding
	RolePatch    Role = "patches"   // patch embedding of a ViT
	RoleEmbedLN  Role = "embed_norm"

	RoleQ    Role = "q"
	RoleK    Role = "k"
	RoleV    Role = "v"
	RoleQKV  Role = "qkv"
	RoleO    Role = "o"
	RoleQA   Role = "q_a" // MLA: down and up projections
	RoleQB   Role = "q_b"
	RoleKVA  Role = "kv_a"
	RoleKVB  Role = "kv_b"
	RoleRelB Role = "relative_bias" // T5's bucket table, DeBERTa's embeddings

	RoleCrossQ  Role = "cross_q"
	RoleCrossK  Role = "cross_k"
	RoleCrossV  Role = "cross_v"
	RoleCrossKV Role = "cross_kv" // keys and values in one matrix
	RoleCrossO  Role = "cross_o"

	RoleGate   Role = "gate"
	RoleUp     Role = "up"
	RoleGateUp Role = "gate_up"
	RoleDown   Role = "down"

	RoleRouter       Role = "router"
	RoleExpertGate   Role = "expert_gate"
	RoleExpertUp     Role = "expert_up"
	RoleExpertGateUp Role = "expert_gate_up"
	RoleExpertDown   Role = "expert_down"
	RoleSharedGate   Role = "shared_gate"
	RoleSharedUp     Role = "shared_up"
	RoleSharedGateUp Role = "shared_gate_up"
	RoleSharedDown   Role = "shared_down"
	RoleSharedSwitch Role = "shared_switch" // Qwen2-MoE's sigmoid gate of the shared expert

	RoleSSMIn     Role = "ssm_in"
	RoleSSMConv   Role = "ssm_conv"
	RoleSSMX      Role = "ssm_x" // Mamba 1: x_proj
	RoleSSMDT     Role = "ssm_dt"
	RoleSSMParams Role = "ssm_params" // A_log, D, dt_bias
	RoleSSMNorm   Role = "ssm_norm"
	RoleSSMOut    Role = "ssm_out"

	RoleNorm1     Role = "norm1" // before (or, post-norm, after) attention
	RoleNorm2     Role = "norm2" // before (or after) the MLP
	RoleNormPost1 Role = "norm_post1"
	RoleNormPost2 Role = "norm_post2"
	RoleNormCross Role = "norm_cross"
	RoleNormQ     Role = "norm_q"
	RoleNormK     Role = "norm_k"
	RoleNormQA    Role = "norm_q_a" // MLA
	RoleNormKVA   Role = "norm_kv_a"
	RoleNormFinal Role = "norm_final"

	RoleLayerScale Role = "layer_scale" // of what attention and MLP add

	RoleSight     Role = "sight"     // before an image tower: patches, positions, a norm
	RoleProjector Role = "projector" // from an image tower to the text

	RoleHead          Role = "lm_head"
	RoleHeadTransform Role = "head_transform"
	RoleHeadNorm      Role = "head_norm"
	RolePooler        Role = "pooler"
	RoleClassifier    Role = "classifier"
)

// Expert reports whether there is one such module for each routed expert.
func (r Role) Expert() bool {
	switch r {
	case RoleExpertGate, RoleExpertUp, RoleExpertGateUp, RoleExpertDown:
		return true
	}
	return false
}

// A Split is how tensor parallelism divides a matrix.
type Split string

// The splits. A column-parallel matrix is divided by its outputs, a row-parallel
// one by its inputs, an embedding by its vocabulary.
const (
	SplitNone    Split = ""
	SplitOutputs Split = "outputs"
	SplitInputs  Split = "inputs"
	SplitVocab   Split = "vocab"
)

// A Module is a leaf of the network: what computes, with its tensors.
type Module struct {
	Name string // within its layer, as transformers names it: "self_attn.q_proj"
	Kind Kind
	Role Role
	// In and Out are the widths of a linear module and of an embedding (rows,
	// width), and the channels of a convolution.
	In, Out int64
	Params  []Param
	// Copies is the number of such modules (experts); 0 is 1.
	Copies int64
	Split  Split
}

// Count returns the parameters of the module, over all its copies.
func (m *Module) Count() int64 {
	var n int64
	for i := range m.Params {
		if p := &m.Params[i]; !p.Tied && !p.Buffer {
			n += p.Elements()
		}
	}
	return n * max(m.Copies, 1)
}

// Leaf returns the last element of the name, by which LoRA's target_modules
// and most configuration files name a module: "q_proj".
func (m *Module) Leaf() string {
	return m.Name[strings.LastIndexByte(m.Name, '.')+1:]
}

// Bias reports whether the module has a bias.
func (m *Module) Bias() bool {
	for i := range m.Params {
		if m.Params[i].Name == "bias" {
			return true
		}
	}
	return false
}

// linear returns a dense matrix from in to out, as nn.Linear stores it.
func linear(name string, role Role, in, out int64, bias bool, split Split) Module {
	m := Module{Name: name, Kind: Linear, Role: role, In: in, Out: out, Split: split,
		Params: []Param{{Name: "weight", Shape: []int64{out, in}}}}
	if bias {
		m.Params = append(m.Params, Param{Name: "bias", Shape: []int64{out}})
	}
	return m
}

// experts returns n equal dense matrices, one for each expert.
func experts(name string, role Role, n, in, out int64, bias bool, split Split) Module {
	m := linear(name, role, in, out, bias, split)
	m.Copies = n
	return m
}

// embedding returns a table of rows vectors of a width.
func embedding(name string, role Role, rows, width int64, split Split) Module {
	return Module{Name: name, Kind: Embedding, Role: role, In: rows, Out: width, Split: split,
		Params: []Param{{Name: "weight", Shape: []int64{rows, width}}}}
}

// module returns the module of a norm.
func (n *Norm) module(name string, role Role) Module {
	m := Module{Name: name, Kind: Normalize, Role: role, In: n.Width, Out: n.Width}
	if n.Affine {
		m.Params = append(m.Params, Param{Name: "weight", Shape: []int64{n.Width}})
	}
	if n.Affine && n.Bias {
		m.Params = append(m.Params, Param{Name: "bias", Shape: []int64{n.Width}})
	}
	return m
}
