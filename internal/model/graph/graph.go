// Package graph is a network written as the operations that PyTorch runs in one
// forward pass, with the shape of every tensor: the form in which networks that
// are no plain stack of transformer layers are known (convolutions, detection
// and segmentation heads, diffusion).
//
// A graph is made for one size of input. It says of every operation what
// autograd keeps for backward, and how long a Python variable refers to each
// result; what follows for memory is computed by its readers.
//
// Invariants: operations are in the order in which they run; an operand is an
// earlier result or an input; a value that is a view, or that was computed in
// place, names the value whose storage it shares.
package graph

import "fmt"

// A Value is a tensor of a graph, by its index.
type Value int32

// None is the absent operand.
const None Value = -1

// A Class is what a tensor's elements are. Floating-point tensors take the dtype
// in which the network computes.
type Class uint8

// The classes.
const (
	Float   Class = iota // the dtype of the computation
	Float32              // float32 whatever the computation is in (losses, statistics)
	Int64                // indices
	Byte                 // masks
)

// A Tensor is a value's shape and storage.
type Tensor struct {
	Shape []int64
	Class Class
	// Base is the value whose storage this one shares (itself if it has its own).
	Base Value
	// Grad says that it depends on a trained parameter.
	Grad bool
	// Until is the index of the last operation that runs while a variable refers
	// to the value: the last that uses it, or later where a name lives on.
	Until int32
}

// Elements returns the number of elements.
func (t *Tensor) Elements() int64 {
	n := int64(1)
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// A Param is a tensor of a module.
type Param struct {
	Name   string
	Shape  []int64
	Buffer bool // no gradient, no optimizer state
	Frozen bool // no gradient
}

// Elements returns the number of elements.
func (p *Param) Elements() int64 { return (&Tensor{Shape: p.Shape}).Elements() }

// A Node is one operation.
type Node struct {
	Op   Op
	Name string // path of the module that runs it, "" for a function
	In   []Value
	Out  []Value
	// Params are the tensors of the module, in the order of its registration.
	// They are trained unless the node or the parameter is frozen.
	Params []Param
	// Shared is 1 + the index of the node whose parameters these are, where a
	// module runs more than once; 0: its own.
	Shared  int32
	Conv    Window  // of convolutions and pools
	P       float64 // dropout probability
	InPlace bool    // writes into its first operand
	Frozen  bool    // parameters are not trained, and norms use their running statistics
	// Standard says that a convolution's kernels are standardised before each use.
	Standard bool
	// Centred says so of plain arithmetic: what is left of the mean is kept too.
	Centred bool
}

// A Window is the geometry of a convolution or a pool.
type Window struct {
	Kernel, Stride, Padding, Dilation [2]int64
	Groups                            int64
	Transposed                        bool
}

// A Graph is one forward pass, usually with its loss.
type Graph struct {
	Nodes   []Node
	Tensors []Tensor
	Inputs  []Value
	// Loss is the value from which backward starts, None if the graph has none.
	Loss Value
}

// Trained reports whether parameter p of the node has a gradient.
func (n *Node) Trained(p *Param) bool { return !n.Frozen && !p.Buffer && !p.Frozen }

// Params returns the number of parameters: buffers and shared modules do not
// count.
func (g *Graph) Params() int64 {
	var sum int64
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if n.Shared > 0 {
			continue
		}
		for k := range n.Params {
			if !n.Params[k].Buffer {
				sum += n.Params[k].Elements()
			}
		}
	}
	return sum
}

// Shape formats a tensor's shape.
func (t *Tensor) String() string { return fmt.Sprint(t.Shape) }
