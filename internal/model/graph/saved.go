package graph

// Saved returns the bytes that autograd keeps at the end of the forward pass,
// where floating-point elements take size bytes: every storage once, without
// parameters and their buffers. With old, the rules are those of torch before
// 1.11.
func (g *Graph) Saved(size int64, old bool) int64 {
	kept := make([]bool, len(g.Tensors))
	base := func(v Value) Value { return g.Tensors[v].Base }
	if size == 4 { // casts to float32 are the tensor itself
		same := map[Value]Value{}
		for i := range g.Nodes {
			if n := &g.Nodes[i]; n.Op == Cast && g.Tensors[n.Out[0]].Class == Float32 && g.Tensors[n.In[0]].Class == Float {
				same[n.Out[0]] = g.Tensors[n.In[0]].Base
			}
		}
		base = func(v Value) Value {
			v = g.Tensors[v].Base
			if o, ok := same[v]; ok {
				return o
			}
			return v
		}
	}
	var sum int64
	for i := range g.Nodes {
		n := &g.Nodes[i]
		k := g.Keeps(n, old)
		for _, op := range k.Operands {
			if op < len(n.In) && n.In[op] != None {
				kept[base(n.In[op])] = true
			}
		}
		if k.Result {
			kept[base(n.Out[0])] = true
		}
		for j := range k.Extra {
			sum += k.Extra[j].Bytes(size)
		}
	}
	for v := range kept {
		if kept[v] {
			sum += g.Tensors[v].Bytes(size)
		}
	}
	return sum
}

// Bytes returns the bytes of the tensor where floating-point elements of the
// computation take size bytes.
func (t *Tensor) Bytes(size int64) int64 {
	switch t.Class {
	case Float32:
		size = 4
	case Int64:
		size = 8
	case Byte:
		size = 1
	}
	return t.Elements() * size
}
