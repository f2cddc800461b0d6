package model

// A Part is a share of a model's parameters, by what they do.
type Part struct {
	Name   string `json:"part"`
	Params int64  `json:"params"`
	// Tensors is the number of tensors that have their own storage.
	Tensors int64 `json:"tensors"`
}

// The parts of a model, in the order in which Parts lists them.
const (
	PartEmbedding   = "embedding"
	PartAttention   = "attention"
	PartMLP         = "mlp"
	PartExperts     = "experts"
	PartStateSpace  = "state_space"
	PartConvolution = "convolution"
	PartLinear      = "linear"
	PartNorms       = "norms"
	PartHead        = "head"
	PartOther       = "other"
)

// Parts divides the parameters; the parts sum to Params. Empty parts are left
// out.
func (m *Model) Parts() []Part {
	order := []string{PartEmbedding, PartAttention, PartMLP, PartExperts, PartStateSpace, PartConvolution, PartLinear, PartNorms, PartHead, PartOther}
	sums := map[string]*Part{}
	for _, name := range order {
		sums[name] = &Part{Name: name}
	}
	for place, mod := range m.Modules() {
		p := sums[m.partOf(place, mod)]
		p.Params += place.Times * mod.Count()
		for i := range mod.Params {
			if !mod.Params[i].Tied && !mod.Params[i].Buffer {
				p.Tensors += place.Times * max(mod.Copies, 1)
			}
		}
	}
	var out []Part
	for _, name := range order {
		if sums[name].Params > 0 {
			out = append(out, *sums[name])
		}
	}
	return out
}

// partOf says to which part a module belongs.
func (m *Model) partOf(place Place, mod *Module) string {
	if mod.Kind == Normalize {
		return PartNorms
	}
	switch place.Part {
	case "head":
		return PartHead
	case "embed":
		if m.Image == nil && m.Type != "safetensors" {
			return PartEmbedding
		}
	}
	switch mod.Role {
	case RoleQ, RoleK, RoleV, RoleQKV, RoleO, RoleQA, RoleQB, RoleKVA, RoleKVB, RoleRelB,
		RoleCrossQ, RoleCrossK, RoleCrossV, RoleCrossKV, RoleCrossO:
		return PartAttention
	case RoleGate, RoleUp, RoleGateUp, RoleDown:
		return PartMLP
	case RoleRouter, RoleExpertGate, RoleExpertUp, RoleExpertGateUp, RoleExpertDown,
		RoleSharedGate, RoleSharedUp, RoleSharedGateUp, RoleSharedDown, RoleSharedSwitch:
		return PartExperts
	case RoleSSMIn, RoleSSMConv, RoleSSMX, RoleSSMDT, RoleSSMParams, RoleSSMNorm, RoleSSMOut:
		return PartStateSpace
	}
	switch mod.Kind {
	case Convolution:
		return PartConvolution
	case Linear:
		return PartLinear
	case Embedding:
		return PartEmbedding
	}
	return PartOther
}
