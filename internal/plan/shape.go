package plan

import (
	"slices"

	"unoom/internal/model"
)

// A shape is what of a network decides memory, prepared for the search.
type shape struct {
	runs   []run
	layers int
	hidden float64
	vocab  float64
	embed  float64 // parameters before the first layer
	head   float64 // parameters after the last one that are not tied to embed
	tied   bool
	params float64
	image  *imageShape // of a network without layers
	matmul float64     // parameters of dense matrices (what autocast copies, what NF4 packs)

	// Constraints on parallelism: a degree must divide these.
	heads, kvHeads, inner, experts int64
	maxSeq                         int64
}

// A run is a number of equal layers, in float64 because all of it is
// multiplied.
type run struct {
	count                 float64
	params, experts       float64 // parameters of a layer, and those of its routed experts
	matmul                float64
	h, q, k, v, heads     float64
	ffn                   float64 // dense, 0: none
	gated                 bool
	actTensors            float64 // tensors of width ffn that a plain MLP keeps
	norms                 float64 // norms over the residual stream
	layerNorm             bool    // fused in one kernel by PyTorch
	qkNorm                bool
	parallel, fusedQKV    bool
	nExperts, topK, expFF float64
	sharedFF              float64
	expGated              bool
	state                 float64 // of a state-space mixer, elements for each token
	window                float64
	causal                bool
	linears               float64 // sum over the adapted matrices of their input widths, what adapters keep
	linearSum             float64 // sum over them of input and output width: parameters of rank-1 adapters
}

// newShape prepares a network, an image network with what imageOf says of it, of which adapters stand beside the matrices that
// are named; none named: beside all.
func newShape(m *model.Model, image *imageShape, targets []string) *shape {
	s := &shape{image: image, hidden: float64(m.Hidden), vocab: float64(m.Vocab), params: float64(m.Params()), tied: m.TiedHead, layers: m.Layers(), maxSeq: m.MaxSeq}
	if m.HeadKind != model.HeadLM && m.HeadKind != model.HeadMaskedLM {
		s.vocab = 0
	}
	for i := range m.Embed {
		s.embed += float64(m.Embed[i].Count())
	}
	for i := range m.Head {
		s.head += float64(m.Head[i].Count())
	}
	if image != nil {
		for i := range m.Embed {
			if k := m.Embed[i].Kind; k == model.Linear || k == model.Convolution {
				s.matmul += float64(m.Embed[i].Count())
			}
		}
	}
	for _, st := range m.Stacks {
		for i := 0; i < len(st.Layers); {
			l, n := st.Layers[i], 1
			for i+n < len(st.Layers) && st.Layers[i+n] == l {
				n++
			}
			r := newRun(l, st, targets)
			r.count = float64(n)
			s.runs = append(s.runs, r)
			s.matmul += r.count * r.matmul
			s.limit(l)
			i += n
		}
	}
	return s
}

// limit notes what degrees of parallelism must divide.
func (s *shape) limit(l *model.Layer) {
	common := func(have *int64, n int64) {
		if n <= 0 {
			return
		}
		if *have == 0 {
			*have = n
		}
		*have = gcd(*have, n)
	}
	if a := l.Attention; a != nil {
		common(&s.heads, a.Heads)
		common(&s.kvHeads, a.KVHeads)
	}
	if p := l.MLP; p != nil {
		common(&s.inner, p.FFN)
	}
	if e := l.MoE; e != nil {
		common(&s.experts, e.Experts)
		common(&s.inner, e.FFN)
	}
}

// adapted reports whether a matrix has an adapter. Scripts shorten q_proj to q.
func adapted(targets []string, leaf string) bool {
	if len(targets) == 0 {
		return true
	}
	return slices.ContainsFunc(targets, func(t string) bool {
		return t == "all-linear" || t == leaf || t+"_proj" == leaf || t == leaf+"_proj"
	})
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

func newRun(l *model.Layer, st *model.Stack, targets []string) run {
	r := run{params: float64(l.Params()), h: float64(st.Hidden), layerNorm: l.Norm.Kind == model.LayerNorm, parallel: l.Parallel, causal: st.Causal}
	for i := range l.Modules {
		m := &l.Modules[i]
		if m.Role.Expert() {
			r.experts += float64(m.Count())
		}
		if m.Kind != model.Linear {
			if m.Kind == model.Normalize && m.In == st.Hidden {
				r.norms++
			}
			continue
		}
		r.matmul += float64(m.Count())
		if adapted(targets, m.Leaf()) {
			r.linears += float64(m.In)
			r.linearSum += float64(max(m.Copies, 1)) * float64(m.In+m.Out)
		}
	}
	if r.norms == 0 {
		r.norms = 2
	}
	if a := l.Attention; a != nil {
		r.q, r.k, r.v = float64(a.QWidth()), float64(a.KVWidth()), float64(a.OutWidth())
		r.heads = float64(a.Heads)
		r.qkNorm = a.QKNorm != model.NoQKNorm
		r.fusedQKV = a.FusedQKV
		r.window = float64(a.Window)
		r.causal = r.causal || a.Causal
	}
	if c := l.Cross; c != nil {
		r.q += float64(c.QWidth())
		r.k += float64(c.KVWidth())
		r.v += float64(c.OutWidth())
		r.heads += float64(c.Heads)
	}
	if p := l.MLP; p != nil {
		r.ffn, r.gated = float64(p.FFN), p.Gated
		switch p.Act {
		case model.GELUNew, model.GELUFast, model.GELUPython: // every step of the formula in Python is kept
			r.actTensors = 5
		case model.QuickGELU:
			r.actTensors = 3
		case model.ReLU:
			r.actTensors = 1
		default:
			r.actTensors = 2
		}
	}
	if e := l.MoE; e != nil {
		r.nExperts, r.topK, r.expFF, r.expGated = float64(e.Experts), float64(e.TopK), float64(e.FFN), e.Gated
		r.sharedFF = float64(e.SharedFFN)
	}
	if x := l.SSM; x != nil {
		r.state = float64(4*x.Inner + x.ConvWidth() + 2*x.State)
	}
	return r
}
