package speed

import (
	"unoom/internal/model"
)

// A GEMM is a dense projection of every token, or of the tokens that are routed
// to an expert.
type GEMM struct {
	In, Out int64
	// Experts and TopK are set for a projection that exists once for each
	// expert, of which a token takes TopK. 0: an ordinary projection.
	Experts, TopK int64
	// Rows says that tensor parallelism divides the inputs; else the outputs.
	Rows bool
}

// A Block is a run of equal layers, seen as work: what one token costs.
type Block struct {
	Count int
	GEMMs []GEMM
	// Query and Value are the widths of all queries and of all values together,
	// Key that of all keys; all 0 where the layer has no attention.
	Query, Key, Value int64
	Window            int64 // of sliding attention, 0: none
	Causal            bool
	// Norms and Inner are the widths that pointwise operations stream over for
	// each token: the residual stream (norms, additions, rotary) and the inside
	// of the transformation (activation, product).
	Norms, Inner int64
	// State is the work of a scan (state-space models) for a token: its width
	// times its state.
	State   int64
	Routed  bool  // tokens are sent to experts and back
	Params  int64 // all of the layer
	Experts int64 // those of its routed experts
	// KernelScale multiplies the number of kernels a layer launches; 1 for a
	// plain transformer block.
	KernelScale float64
}

// A Net is a network seen as work.
type Net struct {
	Blocks []Block
	Hidden int64
	Vocab  int64 // of the head's matrix; 0: no language head
	Params int64
	Embed  int64 // parameters outside of the blocks
	Layers int
	// Products, Moved and Kernels describe an image network, which has no layers
	// of one kind: its matrix products, the elements that its other operations
	// read and write, and how many operations it has, for one sample, forward.
	Products       []Product
	Moved, Kernels float64
}

// FromModel returns the work of a model that has stacks of layers; FromGraph is
// for image networks.
func FromModel(m *model.Model) *Net {
	n := &Net{Hidden: m.Hidden, Params: m.Params(), Layers: m.Layers()}
	if m.HeadKind == model.HeadLM || m.HeadKind == model.HeadMaskedLM {
		n.Vocab = m.Vocab
	}
	var inBlocks int64
	for _, s := range m.Stacks {
		for i := 0; i < len(s.Layers); {
			l, run := s.Layers[i], 1
			for i+run < len(s.Layers) && s.Layers[i+run] == l {
				run++
			}
			b := block(l, s)
			b.Count = run
			n.Blocks = append(n.Blocks, b)
			inBlocks += int64(run) * b.Params
			i += run
		}
	}
	n.Embed = n.Params - inBlocks
	return n
}

func block(l *model.Layer, s *model.Stack) Block {
	b := Block{Norms: s.Hidden, KernelScale: 1, Params: l.Params()}
	for i := range l.Modules {
		m := &l.Modules[i]
		if m.Role.Expert() {
			b.Experts += m.Count()
		}
		if m.Kind != model.Linear || m.In <= 0 || m.Out <= 0 {
			continue
		}
		g := GEMM{In: m.In, Out: m.Out, Rows: m.Split == model.SplitInputs}
		if m.Role.Expert() {
			g.Experts, g.TopK = max(m.Copies, 1), 1
			if l.MoE != nil {
				g.TopK = l.MoE.TopK
			}
		}
		b.GEMMs = append(b.GEMMs, g)
	}
	if a := l.Attention; a != nil {
		b.Query, b.Key, b.Value = a.QWidth(), a.KVWidth(), a.OutWidth()
		b.Window, b.Causal = a.Window, a.Causal || s.Causal
	}
	if l.Cross != nil {
		b.Query += l.Cross.QWidth()
		b.Key += l.Cross.KVWidth()
		b.Value += l.Cross.OutWidth()
		b.KernelScale += 0.5
	}
	if p := l.MLP; p != nil {
		b.Inner = inner(p.FFN, p.Gated)
	}
	if e := l.MoE; e != nil {
		b.Routed = true
		b.Inner += inner(e.FFN*e.TopK+e.SharedFFN, e.Gated)
		b.KernelScale += 0.5
	}
	if x := l.SSM; x != nil {
		b.State = x.Inner * x.State
		b.Inner += 2 * x.Inner
	}
	return b
}

// inner is the width that the pointwise part of a transformation streams over:
// a gated one reads two halves and writes one, a plain one reads and writes one.
func inner(ffn int64, gated bool) int64 {
	if gated {
		return 3 * ffn / 2
	}
	return ffn
}

// ForwardFLOPs returns the floating-point operations of the forward pass of one
// sequence of s tokens, a multiply-add counted as two, attention over the
// causal half only where the layer is causal.
func (n *Net) ForwardFLOPs(s int64) float64 {
	var f float64
	for i := range n.Products {
		f += n.Products[i].flops()
	}
	for i := range n.Blocks {
		b := &n.Blocks[i]
		f += float64(b.Count) * float64(s) * (b.denseFLOPs() + b.scoreFLOPs(s))
	}
	return f + 2*float64(s)*float64(n.Vocab)*float64(n.Hidden)
}

// denseFLOPs is the work of the projections for one token.
func (b *Block) denseFLOPs() float64 {
	var f float64
	for _, g := range b.GEMMs {
		w := 2 * float64(g.In) * float64(g.Out)
		if g.Experts > 0 {
			w *= float64(g.TopK)
		}
		f += w
	}
	return f + 6*float64(b.State)
}

// scoreFLOPs is the work of the two attention products for one token among s.
func (b *Block) scoreFLOPs(s int64) float64 {
	if b.Query == 0 {
		return 0
	}
	seen := float64(s)
	if b.Window > 0 {
		seen = min(seen, float64(b.Window))
	}
	if b.Causal && (b.Window == 0 || b.Window >= s) {
		seen /= 2
	}
	return 2 * seen * float64(b.Query+b.Value)
}
