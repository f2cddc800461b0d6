package memory

import (
	"fmt"
	"slices"
	"strconv"

	"unoom/internal/model/graph"
	"unoom/internal/model/vision"
	"unoom/internal/workload"
)

// imagePlayer plays the training of a network that is given as operations.
type imagePlayer struct {
	x       *machine
	g       *graph.Graph
	vals    []tensor   // by value
	weights [][]tensor // parameters and buffers, by node
	opt     optimizer
	amp     dtype
	old     bool // autograd's rules are those of torch before 1.11
	cudnn   convWorkspace

	accumulation int
	keepGrads    bool // zero_grad fills zeros, gradients stay
	cublas       int64
	threads      int
	ends         []int64
}

// prepareImages loads a network of operations for the workload.
func prepareImages(x *machine, w *workload.Workload, lib library) (*imagePlayer, error) {
	h, wd := w.Image[0], w.Image[1]
	if h == 0 || wd == 0 {
		h, wd = w.Model.Image.Size()
	}
	if m := w.Model.Image; m.Largest > 0 {
		if ph, pw := m.Size(); h == ph && wd == pw {
			h, wd = m.Largest, m.Largest
		}
	}
	switch {
	case w.Method != workload.Full:
		return nil, &NotModelled{"the method " + string(w.Method) + " on an image network"}
	case w.Checkpointing != workload.NoCheckpointing && w.Checkpointing != "":
		return nil, &NotModelled{"checkpointing of an image network"}
	}
	spec := *w.Model.Image
	if lib.images.boxes > 0 {
		spec.Boxes = lib.images.boxes
	}
	spec.SplitNorm = lib.images.splitGroupNorm
	switch w.Attention {
	case workload.Eager:
		spec.Eager = true
	case workload.SDPA, workload.Flash:
	default:
		spec.Eager = spec.Eager || lib.images.eagerAttention
	}
	g, err := spec.Build(vision.Input{Batch: w.MicroBatch, Height: h, Width: wd})
	if err != nil {
		return nil, err
	}
	p := &imagePlayer{x: x, g: g, accumulation: max(1, int(w.Accumulation)), old: lib.images.saveInputs, keepGrads: lib.images.keepGrads}
	switch w.Precision {
	case workload.FP32:
	case workload.AMPFP16:
		p.amp = f16
	case workload.AMPBF16:
		p.amp = bf16
	default:
		return nil, &NotModelled{"an image network in " + string(w.Precision)}
	}
	p.cudnn = convWorkspace{d: p.amp, none: lib.images.noWorkspace}
	if p.opt, err = optimizerOf(w, lib.adam); err != nil {
		return nil, err
	}
	if !lib.images.cublasOwn {
		p.cublas = cublasWorkspace(w.GPU)
	}
	p.load()
	params := x.cur
	if w.EMA {
		defer x.as(Weights, "EMA copy")()
		x.alloc(params)
	}
	if w.Parallel.World > 1 {
		// DistributedDataParallel's buckets hold every gradient once more.
		// Source: torch/csrc/distributed/c10d/reducer.cpp, initialize_buckets.
		var n int64
		for i := range x.params {
			n += x.params[i].t.n
		}
		undo := x.as(Buffers, "DDP buckets")
		x.alloc(f32.size(n))
		undo()
	}
	return p, nil
}

// asImages is the workload of a model that is a stack of layers, with the model
// as operations where it has that form and nothing is asked of its layers.
func asImages(w *workload.Workload) *workload.Workload {
	if w.Model.Tower == nil || w.Method != workload.Full || w.Checkpointing != workload.NoCheckpointing && w.Checkpointing != "" {
		return w
	}
	switch w.Precision {
	case workload.FP32, workload.AMPFP16, workload.AMPBF16:
	default:
		return w
	}
	c, m := w.Clone(), *w.Model
	m.Image, c.Model = m.Tower, &m
	return c
}

// smallBatch is the workload with a small batch of images, where batches of its
// network differ in size; nil where they do not.
func smallBatch(w *workload.Workload) *workload.Workload {
	if w.Model.Image == nil || len(w.Model.Image.Least) != 2 {
		return nil
	}
	c, m, spec := w.Clone(), *w.Model, *w.Model.Image
	c.Image = [2]int64{spec.Least[0], spec.Least[1]}
	spec.Largest = 0
	m.Image, c.Model = &spec, &m
	return c
}

// load makes the parameters and buffers, module by module.
func (p *imagePlayer) load() {
	x := p.x
	defer x.as(Weights, "weights")()
	p.weights = make([][]tensor, len(p.g.Nodes))
	for i := range p.g.Nodes {
		n := &p.g.Nodes[i]
		if n.Shared > 0 {
			p.weights[i] = p.weights[n.Shared-1]
			continue
		}
		for k := range n.Params {
			q := &n.Params[k]
			size := q.Elements()
			if q.Buffer {
				d := f32
				if q.Name == "num_batches_tracked" {
					d = i64
				}
				p.weights[i] = append(p.weights[i], x.tensor(size, d))
				continue
			}
			rows := q.Shape[0]
			p.weights[i] = append(p.weights[i], x.newParam(n.Name+"."+q.Name, size, rows, size/max(1, rows), f32, n.Trained(q)))
		}
	}
}

// train plays iterations of a plain loop: forward, zero_grad, backward, step.
func (p *imagePlayer) train(iterations int) {
	x := p.x
	for it := range iterations {
		x.microBatches(p.accumulation, func() int64 { return 0 }, func(micro int) {
			label := fmt.Sprintf("micro-batch %d", micro)
			x.begin(Forward, label, it)
			outer := x.newTape()
			x.grad = true
			p.workspace(mainThread)
			var loss tensor
			if p.amp != f32 {
				x.autocast(p.amp, func() { loss = p.forward() })
			} else {
				loss = p.forward()
			}
			x.begin(Backward, label, it)
			p.workspace(autogradThread)
			x.backward(loss, x.make(1, loss.dt))
			x.drop(loss)
			x.grad = false
			x.endTape(outer)
		})
		x.begin(Step, "optimizer step", it)
		var ps []*parameter
		for i := range x.params {
			if x.params[i].grad >= 0 {
				ps = append(ps, &x.params[i])
			}
		}
		x.step(&p.opt, ps, it == 0)
		if !p.keepGrads {
			for _, q := range ps {
				x.dropGrad(q)
			}
		}
		p.ends = append(p.ends, x.cur)
	}
}

// workspace makes the cuBLAS workspace of a thread at its first product.
func (p *imagePlayer) workspace(thread int) {
	if p.cublas == 0 || p.threads&(1<<thread) != 0 || !slices.ContainsFunc(p.g.Nodes, func(n graph.Node) bool { return n.Op == graph.Linear || n.Op == graph.MatMul }) {
		return
	}
	p.threads |= 1 << thread
	undo := p.x.as(Workspace, "cuBLAS workspaces")
	p.x.alloc(p.cublas)
	undo()
}

// forward runs every operation and returns the loss.
func (p *imagePlayer) forward() tensor {
	x := p.x
	p.vals = make([]tensor, len(p.g.Tensors))
	for i := range p.vals {
		p.vals[i] = none()
	}
	undo := x.as("", "input batch")
	for _, v := range p.g.Inputs {
		t := &p.g.Tensors[v]
		p.vals[v] = x.tensor(t.Elements(), p.class(t.Class))
	}
	undo()
	p.release(-1)
	for i := range p.g.Nodes {
		p.node(i)
		p.release(int32(i))
	}
	loss := none()
	if p.g.Loss != graph.None {
		loss = x.keep(p.vals[p.g.Loss])
	}
	for v := range p.vals {
		x.drop(p.vals[v])
		p.vals[v] = none()
	}
	return loss
}

// release ends the variables that operation i was the last to use.
func (p *imagePlayer) release(i int32) {
	drop := func(v graph.Value) {
		if t := &p.g.Tensors[v]; t.Until <= i && v != p.g.Loss && p.vals[v].st >= 0 {
			p.x.drop(p.vals[v])
			p.vals[v].st = noStorage
		}
	}
	if i < 0 {
		return
	}
	n := &p.g.Nodes[i]
	for _, v := range n.In {
		if v != graph.None {
			drop(v)
		}
	}
	for _, v := range n.Out {
		drop(v)
	}
}

// class returns the dtype of a class of tensors where nothing else decides.
func (p *imagePlayer) class(c graph.Class) dtype {
	switch c {
	case graph.Int64:
		return i64
	case graph.Byte:
		return u8
	}
	return f32
}

// imageLibrary is what torch and cuDNN, in a version, do differently from others
// where it shows in the memory of an image network. The rows of
// catalog/variants/images.yaml fill it.
type imageLibrary struct {
	// saveInputs: autograd's formulas of softmax and ReLU keep their operands.
	saveInputs bool
	// keepGrads: zero_grad fills zeros, so that gradients stay allocated.
	keepGrads bool
	// noWorkspace: cuDNN's convolutions take none.
	noWorkspace bool
	// cublasOwn: cuBLAS keeps its workspace outside torch's allocator.
	cublasOwn bool
	// eagerAttention: attention of image transformers runs operation by operation.
	eagerAttention bool
	// splitGroupNorm: group norm is a batch norm, then addcmul.
	splitGroupNorm bool
	boxes          int64 // objects of an image in the fullest batch, 0: the network's own
}

// set changes one setting, by the names that the catalogue uses.
func (l *imageLibrary) set(key, value string) error {
	pick := func(to *bool, yes, no string) error {
		if value != yes && value != no {
			return fmt.Errorf("%s: %q is neither %s nor %s", key, value, yes, no)
		}
		*to = value == yes
		return nil
	}
	switch key {
	case "autograd_inputs":
		return pick(&l.saveInputs, "kept", "dropped")
	case "zero_grad":
		return pick(&l.keepGrads, "zeros", "none")
	case "conv_workspace":
		return pick(&l.noWorkspace, "none", "winograd")
	case "cublas_workspace":
		return pick(&l.cublasOwn, "own", "allocator")
	case "group_norm":
		return pick(&l.splitGroupNorm, "addcmul", "native")
	case "attention":
		return pick(&l.eagerAttention, "eager", "fused")
	case "boxes":
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < 1 || n > 10000 {
			return fmt.Errorf("boxes: %q is not a number of objects", value)
		}
		l.boxes = n
		return nil
	}
	return fmt.Errorf("%q is not a setting of the engine", key)
}
