package plan

import (
	"unoom/internal/model/graph"
	"unoom/internal/speed"
	"unoom/internal/workload"
)

// An imageShape is what of an image network decides memory. It has no layers of
// one kind, so its activations are summed from its operations.
type imageShape struct {
	// Bytes of one sample: what autograd keeps, and what is there at the worst
	// moment of the backward pass, gradients of maps included.
	kept16, kept32 float64
	peak16, peak32 float64
	// batchNorm says that it normalises over the micro-batch, so that another
	// micro-batch is another computation.
	batchNorm bool
}

// imageOf prepares an image network, nil for any other model.
func imageOf(w *workload.Workload) (*imageShape, *speed.Net, error) {
	m := w.Model
	if m.Image == nil {
		return nil, nil, nil
	}
	height, width := m.Image.Size()
	if w.Image[0] > 0 && w.Image[1] > 0 {
		height, width = w.Image[0], w.Image[1]
	}
	g, err := m.Graph(1, height, width)
	if err != nil {
		return nil, nil, err
	}
	s := &imageShape{kept16: float64(g.Saved(2, false)), kept32: float64(g.Saved(4, false))}
	s.peak16, s.peak32 = backwardPeak(g, 2), backwardPeak(g, 4)
	for i := range g.Nodes {
		if n := &g.Nodes[i]; n.Op == graph.BatchNorm && !n.Frozen {
			s.batchNorm = true
		}
	}
	return s, speed.FromGraph(g), nil
}

// backwardPeak is the most that is alive in the backward pass: what the
// operations that are still to come kept, with the gradients of the present
// one's result and operands.
func backwardPeak(g *graph.Graph, size int64) float64 {
	worst := int64(0)
	const looks = 100 // a look costs a pass over the graph
	step := max(1, len(g.Nodes)/looks)
	for end := len(g.Nodes); end > 0; end -= step {
		still := *g
		still.Nodes = g.Nodes[:end]
		var grads int64
		for i := max(0, end-step); i < end; i++ {
			n := &g.Nodes[i]
			at := g.Tensors[n.Out[0]].Bytes(size)
			for _, v := range n.In {
				if v != graph.None && g.Tensors[v].Grad {
					at += g.Tensors[v].Bytes(size)
				}
			}
			grads = max(grads, at)
		}
		worst = max(worst, still.Saved(size, false)+grads)
	}
	return float64(worst)
}

// activations is what one sample takes at the end of the forward pass, and at the
// peak of the backward pass.
func (s *imageShape) activations(compute float64) (loss, backward float64) {
	if compute == 4 {
		return s.kept32, s.peak32
	}
	return s.kept16, s.peak16
}

// convWorkspace is what cuDNN's algorithms take beside the maps.
//
// Source: PyTorch's aten/src/ATen/native/cudnn/Conv_v8.cpp takes an algorithm
// that fits into what is free; those it prefers on training shapes take some
// hundred MiB.
const convWorkspace = 256 << 20

// batchNorm reports whether another micro-batch is another computation.
func (s *space) batchNorm() bool { return s.shape.image != nil && s.shape.image.batchNorm }

// Tokens reports whether the samples of the request are made of tokens; else they
// are images.
func (r *Result) Tokens() bool { return r.planner.space.shape.image == nil }
