package graph

import "fmt"

// A Builder makes a graph, one operation after the other. What cannot be (a
// kernel larger than its map, channels that do not divide) is remembered and
// returned by Finish; until then the builder goes on with harmless shapes.
type Builder struct {
	g    Graph
	err  error
	path []string
	last []int32 // for each value, the last operation that uses it
	held map[Value]bool
}

// New returns an empty builder.
func New() *Builder { return &Builder{g: Graph{Loss: None}, held: map[Value]bool{}} }

// fail remembers the first error.
func (b *Builder) fail(name, format string, args ...any) {
	if b.err == nil {
		b.err = fmt.Errorf("%s: %s", b.full(name), fmt.Sprintf(format, args...))
	}
}

// full is the path of a module by its name within the current one.
func (b *Builder) full(name string) string {
	s := ""
	for _, p := range b.path {
		s += p + "."
	}
	return s + name
}

// In runs f within the module of a name.
func (b *Builder) In(name string, f func()) {
	b.path = append(b.path, name)
	f()
	b.path = b.path[:len(b.path)-1]
}

// Input adds an input tensor.
func (b *Builder) Input(c Class, shape ...int64) Value {
	v := b.value(Tensor{Shape: shape, Class: c})
	b.g.Inputs = append(b.g.Inputs, v)
	return v
}

// Shape returns the shape of a value.
func (b *Builder) Shape(v Value) []int64 { return b.g.Tensors[v].Shape }

// Hold keeps a value referred to until the end of the forward pass.
func (b *Builder) Hold(vs ...Value) {
	for _, v := range vs {
		b.held[v] = true
	}
}

// value adds a tensor with a storage of its own.
func (b *Builder) value(t Tensor) Value {
	v := Value(len(b.g.Tensors))
	t.Base = v
	for _, d := range t.Shape {
		if d < 1 {
			b.fail("", "a tensor would have the shape %v", t.Shape)
			t.Shape = []int64{1, 1, 1, 1}
			break
		}
	}
	b.g.Tensors = append(b.g.Tensors, t)
	b.last = append(b.last, int32(len(b.g.Nodes)))
	return v
}

// node adds an operation with one result.
func (b *Builder) node(n Node, class Class, shape ...int64) Value {
	grad := false
	for _, v := range n.In {
		if v != None {
			grad = grad || b.g.Tensors[v].Grad
			b.last[v] = int32(len(b.g.Nodes))
		}
	}
	for i := range n.Params {
		grad = grad || n.Trained(&n.Params[i])
	}
	if class == Int64 || class == Byte {
		grad = false
	}
	var out Value
	if n.InPlace || (n.Op == View || n.Op == Slice) && len(n.In) > 0 {
		out = b.value(Tensor{Shape: shape, Class: class, Grad: grad})
		b.g.Tensors[out].Base = b.g.Tensors[n.In[0]].Base
	} else {
		out = b.value(Tensor{Shape: shape, Class: class, Grad: grad})
	}
	n.Out = []Value{out}
	b.g.Nodes = append(b.g.Nodes, n)
	return out
}

// same adds an operation whose result has the shape of its first operand.
func (b *Builder) same(n Node) Value {
	t := &b.g.Tensors[n.In[0]]
	return b.node(n, t.Class, t.Shape...)
}

// Finish returns the graph.
func (b *Builder) Finish() (*Graph, error) {
	if b.err != nil {
		return nil, b.err
	}
	for v := range b.g.Tensors {
		b.g.Tensors[v].Until = b.last[v]
		if b.held[Value(v)] {
			b.g.Tensors[v].Until = int32(len(b.g.Nodes))
		}
	}
	return &b.g, nil
}

// maps returns the four sizes of an image tensor.
func (b *Builder) maps(v Value, name string) (n, c, h, w int64) {
	s := b.Shape(v)
	if len(s) != 4 {
		b.fail(name, "wants an image, has the shape %v", s)
		return 1, 1, 1, 1
	}
	return s[0], s[1], s[2], s[3]
}

// ConvOpt are the less usual settings of a convolution.
type ConvOpt struct {
	Stride, Padding, Dilation, Groups int64 // 0: 1, 0, 1, 1
	Bias                              bool
	KernelW, PadW                     int64 // where they differ from the height's; -1 for a padding of 0
	Frozen                            bool
	Standard                          bool // kernels are standardised and scaled by a gain
	Centred                           bool // kernels are standardised by plain arithmetic, without a gain
}

// Conv adds a two-dimensional convolution to out channels with a square kernel.
func (b *Builder) Conv(x Value, name string, out, kernel int64, o ConvOpt) Value {
	n, c, h, w := b.maps(x, name)
	win := o.window(kernel)
	g := win.Groups
	if c%g != 0 || out%g != 0 {
		b.fail(name, "%d groups do not divide %d and %d channels", g, c, out)
		g = 1
	}
	oh, ow := win.out(h, 0), win.out(w, 1)
	if oh < 1 || ow < 1 {
		b.fail(name, "a kernel of %d×%d does not fit into %d×%d", win.Kernel[0], win.Kernel[1], h, w)
		oh, ow = 1, 1
	}
	nd := Node{Op: Conv, Name: b.full(name), In: []Value{x}, Conv: win, Frozen: o.Frozen, Standard: o.Standard, Centred: o.Centred,
		Params: []Param{{Name: "weight", Shape: []int64{out, c / g, win.Kernel[0], win.Kernel[1]}}}}
	if o.Bias {
		nd.Params = append(nd.Params, Param{Name: "bias", Shape: []int64{out}})
	}
	if o.Standard {
		nd.Params = append(nd.Params, Param{Name: "gain", Shape: []int64{out, 1, 1, 1}})
	}
	return b.node(nd, Float, n, out, oh, ow)
}

func (o *ConvOpt) window(kernel int64) Window {
	pick := func(v, def int64) int64 {
		if v == 0 {
			return def
		}
		return v
	}
	kw := pick(o.KernelW, kernel)
	pw := o.Padding
	switch {
	case o.PadW < 0:
		pw = 0
	case o.PadW > 0:
		pw = o.PadW
	}
	s, d := pick(o.Stride, 1), pick(o.Dilation, 1)
	return Window{Kernel: [2]int64{kernel, kw}, Stride: [2]int64{s, s}, Padding: [2]int64{o.Padding, pw}, Dilation: [2]int64{d, d}, Groups: pick(o.Groups, 1)}
}

// out is the size of a result along a dimension.
func (w *Window) out(size int64, dim int) int64 {
	return (size+2*w.Padding[dim]-w.Dilation[dim]*(w.Kernel[dim]-1)-1)/w.Stride[dim] + 1
}

// ConvTranspose adds a transposed convolution.
func (b *Builder) ConvTranspose(x Value, name string, out, kernel int64, o ConvOpt) Value {
	n, c, h, w := b.maps(x, name)
	win := o.window(kernel)
	win.Transposed = true
	size := func(s int64) int64 { return (s-1)*win.Stride[0] - 2*win.Padding[0] + win.Dilation[0]*(kernel-1) + 1 }
	nd := Node{Op: Conv, Name: b.full(name), In: []Value{x}, Conv: win,
		Params: []Param{{Name: "weight", Shape: []int64{c, out / win.Groups, kernel, kernel}}}}
	if o.Bias {
		nd.Params = append(nd.Params, Param{Name: "bias", Shape: []int64{out}})
	}
	return b.node(nd, Float, n, out, size(h), size(w))
}

// Linear adds a dense layer over the last dimension.
func (b *Builder) Linear(x Value, name string, out int64, bias bool) Value {
	s := append([]int64(nil), b.Shape(x)...)
	in := s[len(s)-1]
	s[len(s)-1] = out
	nd := Node{Op: Linear, Name: b.full(name), In: []Value{x}, Params: []Param{{Name: "weight", Shape: []int64{out, in}}}}
	if bias {
		nd.Params = append(nd.Params, Param{Name: "bias", Shape: []int64{out}})
	}
	return b.node(nd, Float, s...)
}

// LinearBiased is Linear with a bias that only some of the results have.
func (b *Builder) LinearBiased(x Value, name string, out, bias int64) Value {
	s := append([]int64(nil), b.Shape(x)...)
	in := s[len(s)-1]
	s[len(s)-1] = out
	nd := Node{Op: Linear, Name: b.full(name), In: []Value{x}, Params: []Param{{Name: "weight", Shape: []int64{out, in}}, {Name: "bias", Shape: []int64{bias}}}}
	return b.node(nd, Float, s...)
}

// Norm adds a batch norm (BatchNorm, SyncNorm, InstanceNorm) over channels. In
// place is only for norms that are written so.
func (b *Builder) Norm(op Op, x Value, name string, frozen bool) Value {
	c := b.Shape(x)[1]
	return b.same(Node{Op: op, Name: b.full(name), In: []Value{x}, Frozen: frozen, Params: []Param{
		{Name: "weight", Shape: []int64{c}}, {Name: "bias", Shape: []int64{c}},
		{Name: "running_mean", Shape: []int64{c}, Buffer: true}, {Name: "running_var", Shape: []int64{c}, Buffer: true},
		{Name: "num_batches_tracked", Shape: []int64{1}, Buffer: true},
	}})
}

// LayerNorm adds a layer norm over the last dimension.
func (b *Builder) LayerNorm(x Value, name string) Value {
	s := b.Shape(x)
	c := s[len(s)-1]
	return b.same(Node{Op: LayerNorm, Name: b.full(name), In: []Value{x}, Params: []Param{{Name: "weight", Shape: []int64{c}}, {Name: "bias", Shape: []int64{c}}}})
}

// GroupNorm adds a group norm.
func (b *Builder) GroupNorm(x Value, name string, groups int64) Value {
	c := b.Shape(x)[1]
	if groups < 1 || c%groups != 0 {
		b.fail(name, "%d groups do not divide %d channels", groups, c)
		groups = 1
	}
	return b.same(Node{Op: GroupNorm, Name: b.full(name), In: []Value{x}, Conv: Window{Groups: groups},
		Params: []Param{{Name: "weight", Shape: []int64{c}}, {Name: "bias", Shape: []int64{c}}}})
}

// Freeze says that the parameters of the operation that made x, the last, are not
// trained.
func (b *Builder) Freeze(x Value) {
	n := &b.g.Nodes[len(b.g.Nodes)-1]
	n.Frozen = true
	grad := false
	for _, v := range n.In {
		grad = grad || v != None && b.g.Tensors[v].Grad
	}
	b.g.Tensors[x].Grad = grad
}

// Act adds a function of one operand.
func (b *Builder) Act(op Op, x Value, inPlace bool) Value {
	return b.same(Node{Op: op, In: []Value{x}, InPlace: inPlace})
}

// PReLU adds a leaky ReLU with a slope for each channel.
func (b *Builder) PReLU(x Value, name string) Value {
	c := b.Shape(x)[1]
	return b.same(Node{Op: PReLU, Name: b.full(name), In: []Value{x}, Params: []Param{{Name: "weight", Shape: []int64{c}}}})
}

// Binary adds arithmetic of two operands; the second may be smaller and is
// broadcast.
func (b *Builder) Binary(op Op, x, y Value) Value {
	if b.g.Tensors[y].Elements() > b.g.Tensors[x].Elements() {
		t := &b.g.Tensors[y]
		return b.node(Node{Op: op, In: []Value{x, y}}, t.Class, t.Shape...)
	}
	return b.same(Node{Op: op, In: []Value{x, y}})
}

// Add adds two tensors.
func (b *Builder) Add(x, y Value) Value { return b.Binary(Add, x, y) }

// AddTo adds y to x in place.
func (b *Builder) AddTo(x, y Value) Value {
	return b.same(Node{Op: Add, In: []Value{x, y}, InPlace: true})
}

// Scaled multiplies by a parameter of a shape (layer scale).
func (b *Builder) Scaled(x Value, name string, shape ...int64) Value {
	return b.same(Node{Op: Mul, Name: b.full(name), In: []Value{x}, Params: []Param{{Shape: shape}}})
}

// Plus adds a parameter of a shape (positions).
func (b *Builder) Plus(x Value, name string, shape ...int64) Value {
	return b.same(Node{Op: Add, Name: b.full(name), In: []Value{x}, Params: []Param{{Shape: shape}}})
}

// MatMul multiplies the last two dimensions; transpose is for the second.
func (b *Builder) MatMul(x, y Value, transpose bool) Value {
	s := append([]int64(nil), b.Shape(x)...)
	t := b.Shape(y)
	k, cols := t[len(t)-2], t[len(t)-1]
	if transpose {
		k, cols = cols, k
	}
	if s[len(s)-1] != k {
		b.fail("", "a product of %v and %v", s, t)
	}
	s[len(s)-1] = cols
	return b.node(Node{Op: MatMul, In: []Value{x, y}}, Float, s...)
}

// View gives a tensor another shape without moving it.
func (b *Builder) View(x Value, shape ...int64) Value {
	return b.node(Node{Op: View, In: []Value{x}}, b.g.Tensors[x].Class, shape...)
}

// Part is a view of a part of a tensor, such as one chunk of it.
func (b *Builder) Part(x Value, shape ...int64) Value {
	return b.node(Node{Op: Slice, In: []Value{x}}, b.g.Tensors[x].Class, shape...)
}

// Copy moves a tensor into a new one of a shape.
func (b *Builder) Copy(x Value, shape ...int64) Value {
	if len(shape) == 0 {
		shape = b.Shape(x)
	}
	return b.node(Node{Op: Contiguous, In: []Value{x}}, b.g.Tensors[x].Class, shape...)
}

// Moved adds an operation that moves elements into a new shape and keeps at most
// indices (pad, roll, upsample, unfold, repeat).
func (b *Builder) Moved(op Op, x Value, shape ...int64) Value {
	return b.node(Node{Op: op, In: []Value{x}}, b.g.Tensors[x].Class, shape...)
}

// Cat joins tensors along a dimension.
func (b *Builder) Cat(dim int, xs ...Value) Value {
	s := append([]int64(nil), b.Shape(xs[0])...)
	if dim < 0 {
		dim += len(s)
	}
	for _, x := range xs[1:] {
		t := b.Shape(x)
		for i := range s {
			if len(t) != len(s) || i != dim && t[i] != s[i] {
				b.fail("", "cannot join %v and %v", s, t)
				return xs[0]
			}
		}
		s[dim] += t[dim]
	}
	return b.node(Node{Op: Cat, In: append([]Value(nil), xs...)}, b.g.Tensors[xs[0]].Class, s...)
}

// MaxPool adds a max pool.
func (b *Builder) MaxPool(x Value, kernel, stride, padding int64, ceil bool) Value {
	return b.pool(MaxPool, x, kernel, stride, padding, ceil)
}

// AvgPool adds an average pool.
func (b *Builder) AvgPool(x Value, kernel, stride, padding int64, ceil bool) Value {
	return b.pool(AvgPool, x, kernel, stride, padding, ceil)
}

func (b *Builder) pool(op Op, x Value, kernel, stride, padding int64, ceil bool) Value {
	n, c, h, w := b.maps(x, string(op))
	size := func(s int64) int64 {
		if ceil {
			o := (s+2*padding-kernel+stride-1)/stride + 1
			if (o-1)*stride >= s+padding {
				o--
			}
			return o
		}
		return (s+2*padding-kernel)/stride + 1
	}
	return b.node(Node{Op: op, In: []Value{x}, Conv: Window{Kernel: [2]int64{kernel, kernel}, Stride: [2]int64{stride, stride}, Padding: [2]int64{padding, padding}, Groups: 1}},
		Float, n, c, size(h), size(w))
}

// AdaptivePool averages to a size; to one value it is a mean.
func (b *Builder) AdaptivePool(x Value, h, w int64) Value {
	n, c, _, _ := b.maps(x, "adaptive pool")
	op := AdaptivePool
	if h == 1 && w == 1 {
		op = Mean // Source: pytorch aten/src/ATen/native/AdaptiveAveragePooling.cpp
	}
	return b.node(Node{Op: op, In: []Value{x}}, Float, n, c, h, w)
}

// Reduce adds a mean or a sum to a shape.
func (b *Builder) Reduce(op Op, x Value, shape ...int64) Value {
	return b.node(Node{Op: op, In: []Value{x}}, b.g.Tensors[x].Class, shape...)
}

// Resize interpolates to a size; nothing happens where it is the size already
// and the caller's library returns the input then.
func (b *Builder) Resize(x Value, h, w int64) Value {
	n, c, _, _ := b.maps(x, "resize")
	return b.node(Node{Op: Upsample, In: []Value{x}}, b.g.Tensors[x].Class, n, c, h, w)
}

// Dropout adds a dropout of a kind; with p = 0 it is the identity.
func (b *Builder) Dropout(op Op, x Value, p float64) Value {
	if p <= 0 {
		return x
	}
	return b.same(Node{Op: op, In: []Value{x}, P: p})
}

// Attention adds fused attention over (batch, heads, length, width); bias is
// added to the scores, None for none.
func (b *Builder) Attention(q, k, v, bias Value) Value {
	s := append([]int64(nil), b.Shape(q)...)
	t := b.Shape(v)
	s[len(s)-1] = t[len(t)-1]
	in := []Value{q, k, v}
	if bias != None {
		in = append(in, bias)
	}
	return b.node(Node{Op: Attention, In: in}, Float, s...)
}

// Constant adds a tensor made on the device, such as anchors or coordinates.
func (b *Builder) Constant(c Class, shape ...int64) Value {
	return b.node(Node{Op: Repeat}, c, shape...)
}

// Loss adds an operation whose result backward may start from.
func (b *Builder) Loss(op Op, class Class, in []Value, shape ...int64) Value {
	return b.node(Node{Op: op, In: in}, class, shape...)
}

// Start says where backward starts.
func (b *Builder) Start(loss Value) { b.g.Loss = loss }

// Again runs f, whose modules have all run before: each shares the parameters of
// the first of its name.
func (b *Builder) Again(f func()) {
	from := len(b.g.Nodes)
	f()
	for i := from; i < len(b.g.Nodes); i++ {
		n := &b.g.Nodes[i]
		if len(n.Params) == 0 {
			continue
		}
		for k := range b.g.Nodes[:from] {
			if o := &b.g.Nodes[k]; o.Name == n.Name && o.Shared == 0 && len(o.Params) == len(n.Params) {
				n.Shared = int32(k) + 1
				break
			}
		}
		if n.Shared == 0 {
			b.fail(n.Name, "has not run before")
		}
	}
}

// Parameter is a parameter repeated over the batch (class tokens).
func (b *Builder) Parameter(name string, shape ...int64) Value {
	one := append([]int64{1}, shape[1:]...)
	return b.node(Node{Op: View, Name: b.full(name), Params: []Param{{Shape: one}}}, Float, shape...)
}

// Gathered looks rows of a table up by fixed indices (relative position biases).
func (b *Builder) Gathered(name string, table []int64, shape ...int64) Value {
	return b.node(Node{Op: Gather, Name: b.full(name), Params: []Param{{Shape: table}}}, Float, shape...)
}

// Broadcast adds arithmetic whose result has a shape larger than both operands.
func (b *Builder) Broadcast(op Op, x, y Value, shape ...int64) Value {
	return b.node(Node{Op: op, In: []Value{x, y}}, b.g.Tensors[x].Class, shape...)
}

// DynamicConv convolves each of the maps with a kernel that is itself computed.
func (b *Builder) DynamicConv(x, kernels Value, size, padding int64) Value {
	s := b.Shape(x)
	w := Window{Kernel: [2]int64{size, size}, Stride: [2]int64{1, 1}, Padding: [2]int64{padding, padding}, Dilation: [2]int64{1, 1}, Groups: s[1]}
	return b.node(Node{Op: Conv, In: []Value{x, kernels}, Conv: w}, Float, s[0], s[1], w.out(s[2], 0), w.out(s[3], 1))
}

// NoGrad runs f without recording: what it makes has no gradient.
func (b *Builder) NoGrad(f func()) {
	from := len(b.g.Tensors)
	f()
	for i := from; i < len(b.g.Tensors); i++ {
		b.g.Tensors[i].Grad = false
	}
}

// Float brings a tensor to float32 where the computation is in another type.
func (b *Builder) Float(x Value) Value {
	return b.node(Node{Op: Cast, In: []Value{x}}, Float32, b.Shape(x)...)
}

// ActIn adds a function of one operand that overwrites it.
func (b *Builder) ActIn(op Op, x Value) Value { return b.Act(op, x, true) }

// Into adds arithmetic that overwrites its first operand.
func (b *Builder) Into(op Op, x, y Value) Value {
	return b.same(Node{Op: op, In: []Value{x, y}, InPlace: true})
}

// Plain adds a norm over the last dimension without parameters.
func (b *Builder) Plain(op Op, x Value, name string) Value {
	return b.same(Node{Op: op, Name: b.full(name), In: []Value{x}})
}

// Looked looks rows of a trained table up by indices.
func (b *Builder) Looked(name string, indices Value, rows int64, shape ...int64) Value {
	width := shape[len(shape)-1]
	return b.node(Node{Op: Embedding, Name: b.full(name), In: []Value{indices}, Params: []Param{{Name: "weight", Shape: []int64{rows, width}}}}, Float, shape...)
}
