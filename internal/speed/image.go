package speed

import (
	"unoom/internal/model"
	"unoom/internal/model/graph"
)

// A Product is an operation of an image network that is a matrix product: a
// convolution, seen as the product of patches by filters, a projection, or one
// half of attention.
type Product struct {
	Rows            float64 // for one sample
	In, Out, Groups float64 // of each group
	// Moved is how many elements of maps it reads and writes for one sample,
	// Weights those of its parameters.
	Moved, Weights float64
	Conv           bool
}

// FromGraph returns the work of an image network. The graph is that of one
// sample; the sequence length of a setting is then 1.
func FromGraph(g *graph.Graph) *Net {
	n := &Net{Params: g.Params(), Embed: g.Params(), Layers: 0}
	size := func(v graph.Value) float64 {
		if v == graph.None {
			return 0
		}
		return float64(g.Tensors[v].Elements())
	}
	for i := range g.Nodes {
		d := &g.Nodes[i]
		moved := size(d.Out[0])
		for _, v := range d.In {
			moved += size(v)
		}
		switch d.Op {
		case graph.View, graph.Slice:
			continue
		case graph.BatchNorm, graph.SyncNorm, graph.GroupNorm, graph.InstanceNorm, graph.LayerNorm:
			moved += size(d.In[0]) // statistics first
		}
		n.Kernels++
		ps := productsOf(g, d)
		if len(ps) == 0 {
			n.Moved += moved
			continue
		}
		for k := range ps {
			ps[k].Moved = moved / float64(len(ps))
			for j := range d.Params {
				ps[k].Weights += float64(d.Params[j].Elements()) / float64(len(ps))
			}
			n.Products = append(n.Products, ps[k])
		}
	}
	return n
}

// Named returns the work of an image network of the catalogue, or of a naming
// convention, for images of a size.
func Named(c model.Catalogue, name string, size int) (*Net, error) {
	m, err := c.Named(name, model.Options{})
	if err != nil {
		return nil, err
	}
	g, err := m.Graph(1, int64(size), int64(size))
	if err != nil {
		return nil, err
	}
	return FromGraph(g), nil
}

// productsOf returns the matrix products of an operation, nil if it has none.
func productsOf(g *graph.Graph, d *graph.Node) []Product {
	last := func(v graph.Value, from int) float64 {
		s := g.Tensors[v].Shape
		return float64(s[len(s)-from])
	}
	out := float64(g.Tensors[d.Out[0]].Elements())
	switch d.Op {
	case graph.Conv:
		w := &d.Conv
		groups := float64(max(w.Groups, 1))
		kernel := float64(w.Kernel[0] * w.Kernel[1])
		x, y := g.Tensors[d.In[0]].Shape, g.Tensors[d.Out[0]].Shape
		p := Product{Rows: float64(y[2] * y[3]), In: float64(x[1]) / groups * kernel, Out: float64(y[1]) / groups, Groups: groups, Conv: true}
		if w.Transposed {
			p.Rows, p.In, p.Out = float64(x[2]*x[3]), float64(x[1])/groups, float64(y[1])/groups*kernel
		}
		return []Product{p}
	case graph.Linear:
		n, k := last(d.Out[0], 1), last(d.In[0], 1)
		return []Product{{Rows: out / n, In: k, Out: n, Groups: 1}}
	case graph.MatMul, graph.CrissCross:
		n, k := last(d.Out[0], 1), last(d.In[0], 1)
		rows := last(d.Out[0], 2)
		return []Product{{Rows: rows, In: k, Out: n, Groups: out / (rows * n)}}
	case graph.Attention: // [batch, heads, tokens, width]
		heads, tokens, width := last(d.In[0], 3), last(d.In[0], 2), last(d.In[0], 1)
		windows := float64(g.Tensors[d.In[0]].Elements()) / (heads * tokens * width)
		keys := last(d.In[1], 2)
		return []Product{
			{Rows: tokens, In: width, Out: keys, Groups: heads * windows},
			{Rows: tokens, In: keys, Out: width, Groups: heads * windows},
		}
	}
	return nil
}

// flops is the work of a product for one sample.
func (p *Product) flops() float64 { return 2 * p.Rows * p.In * p.Out * p.Groups }

// sample is the forward pass of an image network over n samples.
func (m *machine) sample(net *Net, n float64, st *Setting) micro {
	width := 2.0
	if st.Compute == FP32 {
		width = 4
	}
	var r micro
	peak := m.peak(st.Compute)
	for i := range net.Products {
		p := &net.Products[i]
		use := m.use(p.Rows*n, p.In, p.Out, p.Groups)
		if !p.Conv {
			use = m.use(p.Rows, p.In, p.Out, p.Groups*n)
			if p.Groups == 1 {
				use = m.use(p.Rows*n, p.In, p.Out, 1)
			}
		}
		rate := peak * use
		switch {
		case p.Out == 1: // no tensor cores for filters of one channel
			rate = m.d.FP32 * 1e6 * m.c.Depthwise
		case p.Conv:
			rate *= m.c.Convolution
		}
		traffic := width * (n*p.Moved + p.Weights) / m.bandwidth
		r.matrix += max(n*p.flops()/rate, traffic)
		if p.Conv && !st.ChannelsLast && width == 2 {
			// Tensor cores want the channels last; cuDNN turns the maps around.
			r.memory += m.c.Turned * width * n * p.Moved / m.bandwidth
		}
	}
	r.memory += width * n * net.Moved * m.c.MapTraffic * m.c.pointwise(st.Kernels) / m.bandwidth
	r.host = net.Kernels * m.c.Launch
	return r
}
