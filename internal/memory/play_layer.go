package memory

import (
	"unoom/internal/model"
	"unoom/internal/workload"
)

// library is what a framework, in a version, does differently from others where
// it shows in memory. The rows of catalog/variants fill it.
type library struct {
	norm normStyle
	rope ropeStyle
	mlp  mlpStyle
	loss lossStyle
	attn attnStyle
	// repeatKV: keys and values are copied for every query head before the
	// kernel. contiguous: queries, keys and values are copied into their own
	// layout, and so is the output.
	repeatKV   bool
	contiguous bool
	// positions: the rotary tables are made once for all layers (else in each).
	sharedRope bool
	reentrant  bool
	fusedLoRA  bool
	// copyOutput: the output of the kernel is made contiguous.
	copyOutput bool
	// outputsFloat: what the model returns under autocast is cast to float32.
	outputsFloat bool
	// autocast: 16-bit weights are used inside an autocast region.
	autocast bool
	// loraDropout: adapters have a dropout where nobody said.
	loraDropout bool
	// nf4Double: the scales of NF4 are quantised too, where nobody said.
	nf4Double bool
	// kbitNormsOnly: of what k-bit preparation turned into float32, only norms
	// stay so.
	kbitNormsOnly bool
	adam          optimizerImpl
	// logProbs is how preference objectives read logits; answersFloat: they are cast
	// to float32 for it; holdsAnswers: the loop's variables refer to them until the
	// next iteration.
	logProbs                   logProbStyle
	answersFloat, holdsAnswers bool
	// fsdp2FrozenFloat: under mixed precision FSDP2 turns frozen weights into
	// float32 too.
	fsdp2FrozenFloat bool
	// fsdpUpcast: FSDP turns trained 16-bit weights into float32.
	fsdpUpcast bool
	// zeroOverlap: DeepSpeed reduces gradients beside backward, in two buckets;
	// reduceBucket is their size in elements, 0: the library's; zeroCopyBack: masters
	// that were updated on the host come back in float32.
	zeroOverlap  bool
	reduceBucket int64
	zeroCopyBack bool
	zeroApart    bool // each parameter has a master of its own
	// pythonNorm and pythonGELU: LayerNorm and GELU are written in Python.
	pythonNorm, pythonGELU bool
	// lowNorm: LayerNorm runs in the dtype of autocast.
	lowNorm bool
	// adapterBase: adapters have the dtype of the base's computation.
	adapterBase bool
	// inputs counts the integer tensors of a batch for each token.
	inputs int
	// eagerModules: CUDA loads every kernel of the libraries at the start.
	eagerModules bool

	images imageLibrary
	// groupedEnds: the embedding, and the head with the last norm, are FSDP2
	// groups of their own; else they belong to the root.
	groupedEnds bool
	// shardOutside: FSDP wraps the checkpoint (else the checkpoint wraps FSDP, and
	// recomputes its hooks).
	shardOutside bool
	// keepGrads: zero_grad fills zeros, so that gradients stay allocated.
	keepGrads bool
	// keepLogits: the training loop refers to the logits during backward.
	keepLogits bool
	// chunkedHead: the head runs with the loss on pieces of the sequence, each
	// with its backward.
	chunkedHead bool
	// compiledLoss: torch.compile covers the loss too.
	compiledLoss bool
	// floatInModel: the model returns float32 logits (else the loss casts them).
	floatInModel bool
	// evalCache: a forward pass of an evaluation keeps keys and values, as if it
	// were to generate; skipLogits: where only the loss is wanted of it, Liger's
	// kernel makes no logits there either; allLogits: generate() makes the logits of
	// every position of the prompt.
	evalCache, skipLogits, allLogits bool
	// deepCopies: an optimizer copies the state that it loads.
	deepCopies bool
	// allocConf is PYTORCH_CUDA_ALLOC_CONF as the launcher sets it.
	allocConf string
}

type normStyle uint8

const (
	normEager   normStyle = iota // written in Python
	normFused                    // one kernel that keeps its input
	normInPlace                  // unsloth
	normLiger
)

type ropeStyle uint8

const (
	ropePython ropeStyle = iota
	ropeUnsloth
	ropeKernel
	ropeMeta
	ropeTune
)

type mlpStyle uint8

const (
	mlpPython mlpStyle = iota
	mlpLiger
)

type attnStyle uint8

const (
	attnEager attnStyle = iota
	attnFlash           // the package, or torch's flash kernel
	attnEfficient
	attnMath
)

type lossStyle uint8

const (
	lossShiftCopy   lossStyle = iota // float32 logits, shifted copy (transformers 4.46 to 4.4x)
	lossForwardCopy                  // float32 in the model's forward, shifted copy (before 4.46)
	lossShiftLabels                  // float32 logits, labels shifted instead (later)
	lossFusedLinear                  // Liger
	lossKernel                       // one kernel over 16-bit logits, labels rolled
)

// player plays the training step of one model.
type player struct {
	x   *machine
	net *network
	lib library

	ref *network // the frozen model that preferences are measured against; nil: none
	// objective is a preference, "": the next token. The logits of the models that
	// it runs are what a loop may refer to.
	objective                                  workload.Objective
	answered, referred, klAnswered, klReferred tensor

	batch, seq int64
	view       *view // what is seen beside the text, nil: nothing
	cos, sin   tensor
	opt        optimizer
	inPlaceCE  bool // with lossShiftCopy or lossForwardCopy: unsloth's kernel

	// inputsNeedGrad: embeddings' output is made to need a gradient.
	inputsNeedGrad bool
	inputLeaf      int32
	iteration      int

	fsdp     *fsdp1 // nil: none
	units    []*unit
	rootUnit *unit
	shards   *fsdp2 // nil: none
	groups   *groupLoader
	zero     stateSharder // nil: none
	zero3    *zero3       // where it gathers weights

	accumulation   int
	lastMicro      bool // the running micro-batch is the last of its step
	inputsPerToken int
	checkpointed   bool
	amp            dtype
	cublas         int64
	workspaces     int
	ends           []int64 // allocated after each iteration
	forwardOnly    bool    // nothing follows the forward pass
	compiled       bool    // layers and the loss are in a compiled region
	gathersRope    bool    // rotary tables are gathered by position, for packed samples

	noGrad    bool       // the forward pass is not recorded
	lossAlone bool       // nothing else is wanted of it
	cache     *keyValues // that attention appends to, nil: none
}

func (p *player) tokens() int64 { return p.batch * p.seq }

// norm applies a norm the way the library does.
func (p *player) norm(t tensor, v *vector) tensor {
	x := p.x
	defer x.as("", "norms")()
	if v.kind == model.LayerNorm {
		return p.layerNorm(t, v)
	}
	switch {
	case p.lib.norm == normInPlace:
		return x.rmsInPlace(t, v.w, v.width)
	case p.lib.norm == normLiger:
		return x.rmsLiger(t, v.w, v.width)
	case p.lib.norm == normFused:
		return x.fusedNorm(t, v.w, none(), v.width, 1)
	case v.style == "gemma":
		return x.rmsGemma(t, v.w, v.width)
	}
	return x.rmsEager(t, v.w, v.width)
}

// layerNorm is nn.LayerNorm. Under autocast it runs in float32.
func (p *player) layerNorm(t tensor, v *vector) tensor {
	x := p.x
	if p.lib.pythonNorm {
		return x.layerNormPython(t, v.w, v.b, v.width)
	}
	if v.style == "cohere" {
		up := x.cast(t, f32)
		w := x.cast(v.w, f32)
		n := x.layerNormPython(up, w, v.b, v.width)
		out := x.cast(n, t.dt)
		x.drop(up, w, n)
		return out
	}
	if x.amp != f32 && t.dt.low() && !p.lib.lowNorm {
		up := x.cast(t, f32)
		out := x.layerNorm(up, v.w, v.b, v.width)
		x.drop(up)
		return out
	}
	return x.layerNorm(t, v.w, v.b, v.width)
}

// decoderLayer is one pre-norm block as transformers writes it.
func (p *player) decoderLayer(b *block, in tensor) tensor {
	x := p.x
	normed := p.norm(in, b.norm1)
	att := p.attention(b, normed)
	if b.l.Parallel {
		second := normed
		if b.norm2 != nil {
			second = p.norm(in, b.norm2)
			x.drop(normed)
		}
		ff := p.feedForward(b, second)
		x.drop(second)
		sum := x.add(ff, att)
		x.drop(ff, att)
		out := x.add(sum, in)
		x.drop(sum)
		return out
	}
	x.drop(normed)
	if b.post1 != nil {
		n := p.norm(att, b.post1)
		x.drop(att)
		att = n
	}
	att = p.layerScale(b, 0, p.residualDropout(b, att))
	undo := x.as("", "residual stream")
	mid := x.add(in, att)
	undo()
	x.drop(att)
	normed = p.norm(mid, b.norm2)
	ff := p.feedForward(b, normed)
	x.drop(normed)
	if b.post2 != nil {
		n := p.norm(ff, b.post2)
		x.drop(ff)
		ff = n
	}
	ff = p.layerScale(b, 1, p.residualDropout(b, ff))
	undo = x.as("", "residual stream")
	out := x.add(mid, ff)
	undo()
	x.drop(mid, ff)
	return out
}

// layerScale multiplies what a layer adds by a vector of its own.
func (p *player) layerScale(b *block, i int, t tensor) tensor {
	if !b.l.LayerScale {
		return t
	}
	out := p.x.mulWeight(t, b.scale[i], b.scale[i].n)
	p.x.drop(t)
	return out
}

func (p *player) residualDropout(b *block, t tensor) tensor {
	if b.l.ResidualDropout == 0 {
		return t
	}
	defer p.x.as("", "residual stream")()
	d := p.x.dropout(t, b.l.ResidualDropout)
	p.x.drop(t)
	return d
}

// feedForward is the layer's transformation of tokens.
func (p *player) feedForward(b *block, in tensor) tensor {
	x := p.x
	defer x.as("", "MLP")()
	if b.l.MoE != nil {
		return p.routedExperts(b, in)
	}
	m := b.l.MLP
	if !m.Gated {
		up := x.project(in, b.up)
		act := p.activate(up, m.Act)
		x.drop(up)
		out := x.project(act, b.down)
		x.drop(act)
		return out
	}
	var gate, up tensor
	if b.gateUp != nil {
		f := x.project(in, b.gateUp)
		parts := x.split(f, f.n/2, f.n/2)
		x.drop(f)
		gate, up = parts[0], parts[1]
	} else {
		gate = x.project(in, b.gate)
	}
	var prod tensor
	if p.lib.mlp == mlpLiger {
		if b.gateUp == nil {
			up = x.project(in, b.up)
		}
		prod = x.gatedInPlace(gate, up)
		x.drop(gate, up)
	} else {
		act := p.activate(gate, m.Act)
		x.drop(gate)
		if b.gateUp == nil {
			up = x.project(in, b.up)
		}
		prod = x.mul(act, up)
		x.drop(act, up)
	}
	out := x.project(prod, b.down)
	x.drop(prod)
	return out
}

// activate is the activation function, with what its implementation keeps.
func (p *player) activate(t tensor, a model.Act) tensor {
	x := p.x
	if a == model.GELU && p.lib.pythonGELU {
		return x.geluErf(t)
	}
	switch a {
	case model.ReLU, model.Tanh:
		return x.unaryOut(t)
	case model.SquaredReLU:
		r := x.unaryOut(t)
		s := x.unaryIn(r)
		x.drop(r)
		return s
	case model.GELUNew, model.GELUFast:
		return x.geluPython(t)
	case model.QuickGELU:
		s := x.scale(t)
		g := x.unaryOut(s)
		x.drop(s)
		out := x.mul(t, g)
		x.drop(g)
		return out
	}
	return x.unaryIn(t)
}

// geluPython is 0.5·x·(1+tanh(√(2/π)·(x+0.044715·x³))) operation by operation.
// Source: transformers activations.py, NewGELUActivation.
func (x *machine) geluPython(t tensor) tensor {
	half := x.scale(t)
	cube := x.unaryIn(t)
	c := x.scale(cube)
	x.drop(cube)
	sum := x.add(t, c)
	x.drop(c)
	inner := x.scale(sum)
	x.drop(sum)
	th := x.unaryOut(inner)
	x.drop(inner)
	one := x.shift(th)
	x.drop(th)
	out := x.mul(half, one)
	x.drop(half, one)
	return out
}

// geluErf is x·0.5·(1+erf(x/√2)) operation by operation.
func (x *machine) geluErf(t tensor) tensor {
	half := x.scale(t)
	inner := x.scale(t)
	e := x.unaryIn(inner)
	x.drop(inner)
	one := x.shift(e)
	x.drop(e)
	out := x.mul(half, one)
	x.drop(half, one)
	return out
}

// shift is t + c for a Python number.
func (x *machine) shift(t tensor) tensor {
	return x.op(t.n, t.dt, []tensor{t}, nil, false, func(f *frame) { f.pass(0) })
}

// gatedInPlace is Liger's fused act(gate)·up: both are saved, and backward
// writes their gradients into them.
// Source: Liger-Kernel ops/swiglu.py.
func (x *machine) gatedInPlace(gate, up tensor) tensor {
	return x.op(gate.n, gate.dt, []tensor{gate, up}, []tensor{gate, up}, false, func(f *frame) {
		for i := range 2 {
			st := f.kept[i]
			f.x.hold(st)
			f.send(i, gradient{st: st, n: f.g[0].n, dt: f.g[0].dt, ok: true})
		}
	})
}
