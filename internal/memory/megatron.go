package memory

import (
	"strconv"
	"strings"

	"unoom/internal/model"
	"unoom/internal/workload"
)

// megatron plays a rank of Megatron-Core.
// Source: NVIDIA/Megatron-LM (d98e8a6): core/transformer, core/tensor_parallel,
// core/pipeline_parallel/schedules.py, core/distributed, core/optimizer;
// NVIDIA/TransformerEngine: pytorch/module, pytorch/attention.
type megatron struct {
	player
	w   *workload.Workload
	te  bool // Transformer Engine's modules, else "local" ones
	t   int64
	sp  bool
	c   int64
	p   int64 // pipeline stages
	v   int64 // model chunks on this rank
	rnk int64 // pipeline rank

	dropHidden, dropAttn bool
	unfused              bool // attention by stored scores
	recompute            bool // full, every layer
	modules              map[string]bool
	fuseWgrad            bool
	gradType             dtype
	distOpt              bool
	chunks               [][]*block // layers of each model chunk
	first, last          bool
	residual             dtype
	mpu                  map[string]int32 // global memory buffers by name
	dp                   int64
	fusedCE              bool
	mask                 bool
	params               int64
	teWork               int64
	teMade               bool
	flashPackage         bool // "auto" and "flash" below Hopper take the flash-attention package
	torchSoftmax         bool
	dummies              map[int64]int32
	deferLimit, deferred int
	waiting              []int32
	inputGrad            int32
	hybrid               bool  // layers of one part each
	optShards            int64 // ranks over which the distributed optimizer divides
}

func (m *megatron) tokens() int64 { return m.batch * m.seq }
func (m *megatron) localTokens() int64 { // of a tensor that sequence parallelism divides
	if m.sp {
		return m.tokens() / m.t
	}
	return m.tokens()
}

func (m *megatron) option(name string) string { return m.w.Options[name] }

// prepareMegatron reads the launch arguments that matter and loads the rank.
func prepareMegatron(x *machine, w *workload.Workload, lib library) (*megatron, error) {
	m := &megatron{w: w, mpu: map[string]int32{}, modules: map[string]bool{}}
	m.player = player{x: x, lib: lib, batch: w.MicroBatch, seq: w.Seq / w.Parallel.Context, accumulation: int(w.Accumulation)}
	m.t, m.c, m.p = w.Parallel.Tensor, w.Parallel.Context, w.Parallel.Pipeline
	m.sp = w.Parallel.Sequence && m.t > 1
	m.dp = w.Parallel.Data
	m.dummies, m.inputGrad = map[int64]int32{}, noStorage
	m.optShards = m.dp * m.c
	if n, err := strconv.ParseInt(m.option("num-distributed-optimizer-instances"), 10, 64); err == nil && n > 0 {
		m.optShards = max(m.dp/n, 1)
	}
	if w.Has("defer-embedding-wgrad-compute") {
		m.deferLimit = 1 << 30
		if n, err := strconv.Atoi(m.option("wgrad-deferral-limit")); err == nil && n > 0 {
			m.deferLimit = n
		}
	}
	m.flashPackage = w.GPU.Compute < 90
	m.torchSoftmax = w.Has("no-masked-softmax-fusion")
	m.te = m.option("transformer-impl") != "local" && m.option("spec") != "local"
	if err := m.readArguments(); err != nil {
		return nil, err
	}
	return m, m.load()
}

func (m *megatron) readArguments() error {
	w := m.w
	float := func(name string, def float64) float64 {
		if v, ok := w.Option(name); ok {
			if f, err := strconv.ParseFloat(v, 64); err == nil {
				return f
			}
		}
		return def
	}
	m.dropHidden, m.dropAttn = float("hidden-dropout", 0.1) > 0, float("attention-dropout", 0.1) > 0
	m.unfused = w.Attention == workload.Eager
	m.recompute = w.Checkpointing == workload.FullCheckpoint
	m.fuseWgrad = !w.Has("no-gradient-accumulation-fusion")
	m.distOpt = w.Sharding == workload.ZeRO1
	m.fusedCE = w.Has("cross-entropy-loss-fusion")
	m.residual = bf16
	m.gradType = f32
	switch {
	case w.Has("fp16"):
		m.residual = f16
		m.gradType = f16
		if w.Has("accumulate-allreduce-grads-in-fp32") {
			m.gradType = f32
		}
	case !w.Has("bf16"):
		m.residual = f32
	}
	m.v = 1
	layers := int64(len(w.Model.Stacks[0].Layers))
	if n, err := strconv.ParseInt(m.option("num-layers-per-virtual-pipeline-stage"), 10, 64); err == nil && n > 0 {
		m.v = layers / m.p / n
	}
	if n, err := strconv.ParseInt(m.option("num-virtual-stages-per-pipeline-rank"), 10, 64); err == nil && n > 0 {
		m.v = n
	}
	if n := int64(strings.Count(m.option("hybrid-layer-pattern"), "|")) + 1; n > m.p && n%m.p == 0 {
		m.v = n / m.p // bars divide the stages
	}
	m.rnk = m.p - 1
	if w.Parallel.Rank == "first" {
		m.rnk = 0
	}
	m.first, m.last = m.rnk == 0, m.rnk == m.p-1
	m.mask = !w.Has("no-create-attention-mask-in-dataloader")
	switch {
	case w.Model.Type != "megatron":
		return &NotModelled{"Megatron with a network that its own launch arguments do not describe"}
	case w.FP8 != workload.NoFP8:
		return &NotModelled{"fp8 in Megatron"}
	case w.Has("megatron-fsdp"):
		return &NotModelled{"Megatron-FSDP"}
	case w.Parallel.Expert > 1 || w.Has("num-experts"):
		return &NotModelled{"a mixture of experts in Megatron"}
	case w.Model.Family == model.EncoderDecoder && w.Parallel.Pipeline > 1:
		return &NotModelled{"pipeline parallelism of an encoder-decoder in Megatron"}
	case w.Model.Family != model.Decoder && w.Model.Family != model.Encoder && w.Model.Family != model.EncoderDecoder:
		return &NotModelled{"the family " + string(w.Model.Family) + " in Megatron"}
	case w.Checkpointing == workload.Selective:
		return &NotModelled{"selective recomputation in Megatron"}
	case w.Offload != workload.NoOffload:
		return &NotModelled{"offload in Megatron"}
	}
	for _, l := range w.Model.Stacks[0].Layers {
		m.hybrid = m.hybrid || l.Attention == nil || l.MLP == nil && l.MoE == nil
		switch {
		case l.MoE != nil:
			return &NotModelled{"a mixture of experts in Megatron"}
		}
		if l.Attention != nil && l.Attention.MLA != nil {
			return &NotModelled{"latent attention in Megatron"}
		}
	}
	m.cublas = cublasWorkspace(w.GPU)
	if w.Has("deterministic-mode") {
		// deterministic mode requires CUBLAS_WORKSPACE_CONFIG=:4096:8
		// (megatron/training/arguments.py).
		m.cublas = 8 * 4096 * 1024
	}
	m.teWork = 4194304
	if w.GPU.Compute >= 90 {
		m.teWork = 32<<20 + 1024
	}
	return nil
}

// layersOf returns the indices of the layers on a pipeline rank, chunk by chunk.
func (m *megatron) layersOf(total int64) [][]int {
	out := make([][]int, m.v)
	firstN, errF := strconv.ParseInt(m.option("decoder-first-pipeline-num-layers"), 10, 64)
	lastN, errL := strconv.ParseInt(m.option("decoder-last-pipeline-num-layers"), 10, 64)
	if errF == nil || errL == nil {
		rest, ranks := total, m.p
		if errF == nil {
			rest, ranks = rest-firstN, ranks-1
		}
		if errL == nil {
			rest, ranks = rest-lastN, ranks-1
		}
		per := rest / max(ranks, 1)
		from := int64(0)
		for r := range m.p {
			n := per
			if r == 0 && errF == nil {
				n = firstN
			}
			if r == m.p-1 && errL == nil {
				n = lastN
			}
			if r == m.rnk {
				for i := range n {
					out[0] = append(out[0], int(from+i))
				}
			}
			from += n
		}
		return out
	}
	// Virtual stages go round the ranks. Where the layers do not divide, the
	// embedding and the loss count as one each
	// (account-for-embedding-in-pipeline-split).
	stages := m.p * m.v
	all, shift := total, int64(0)
	if total%stages != 0 && (total+2)%stages == 0 {
		all, shift = total+2, 1
	}
	per := all / stages
	for k := range m.v {
		stage := k*m.p + m.rnk
		for i := range per {
			if l := stage*per + i - shift; l >= 0 && l < total {
				out[k] = append(out[k], int(l))
			}
		}
	}
	return out
}

// load makes weights, gradient buffers and optimizer state of the rank.
func (m *megatron) load() error {
	x, w := m.x, m.w
	stack := w.Model.Stacks[0]
	layers := m.layersOf(int64(len(stack.Layers)))
	wanted := map[int]int{}
	for k, ls := range layers {
		for _, l := range ls {
			wanted[l] = k
		}
	}
	ld := &megatronLoader{m: m}
	tiedCopy := m.last && !m.first && w.Model.TiedHead
	n := x.load(w.Model, ld, func(s, l int) bool {
		_, ok := wanted[l]
		return s == 0 && ok || s > 0 && w.Model.Family == model.EncoderDecoder
	},
		func(part string) bool {
			switch part {
			case "embed":
				return m.first || tiedCopy
			case "head":
				return m.last
			}
			return m.last
		},
		func(mod *model.Module) int64 {
			if mod.Split == model.SplitNone {
				return 1
			}
			return m.t
		})
	m.net = n
	m.chunks = make([][]*block, m.v)
	i := 0
	for l := range stack.Layers {
		if k, ok := wanted[l]; ok {
			m.chunks[k] = append(m.chunks[k], n.stacks[0].blocks[i])
			i++
		}
	}
	ld.finish()
	return nil
}

// megatronLoader stores parameters, and DDP's and the optimizer's buffers.
type megatronLoader struct {
	m   *megatron
	ids []int32
	ws  []*tensor // where the modules keep their weights
}

func (ld *megatronLoader) param(to *tensor, name string, n, rows, cols int64) {
	x := ld.m.x
	undo := x.as(Weights, "weights")
	t := x.newParam(name, n, rows, cols, ld.m.residual, true)
	undo()
	p := &x.params[t.leaf-1]
	// DDP's hook adds the gradient to main_grad and drops it; with gradient
	// accumulation fusion there is none.
	p.sink = func(x *machine, _ *parameter, g gradient) { x.release(g.st) }
	ld.ids = append(ld.ids, t.leaf-1)
	ld.ws = append(ld.ws, to)
	ld.m.params += n
	*to = t
}

func (ld *megatronLoader) matrix(_ *machine, p place, copies int64) *matrix {
	mod := p.mod
	in, out := mod.In, mod.Out
	switch mod.Split {
	case model.SplitOutputs:
		out = ceilDiv(out, p.split)
	case model.SplitInputs:
		in = ceilDiv(in, p.split)
	case model.SplitVocab:
		in = ceilDiv(in, p.split)
	}
	m := &matrix{w: none(), bias: none(), in: in, out: out}
	if p.part == "embed" && mod.Role != model.RoleTokens && !ld.m.first {
		return m // the last stage has only a copy of the tied table
	}
	ld.param(&m.w, mod.Name, in*out, out, in)
	if mod.Bias() {
		n := out
		if mod.Split == model.SplitInputs {
			n = mod.Out
		}
		m.biased = true
		ld.param(&m.bias, mod.Name+".bias", n, 1, n)
	}
	return m
}

func (ld *megatronLoader) vector(_ *machine, p place) *vector {
	v := &vector{w: none(), b: none(), width: p.mod.Out}
	if p.part == "embed" && !ld.m.first {
		return v
	}
	for i := range p.mod.Params {
		q := &p.mod.Params[i]
		if q.Tied {
			continue
		}
		w := &v.w
		if i > 0 {
			w = &v.b
		}
		n := q.Elements()
		switch p.mod.Role {
		case model.RoleSSMConv, model.RoleSSMNorm, model.RoleSSMParams:
			n /= ld.m.t // heads and groups are divided
		}
		ld.param(w, p.mod.Name, n, 1, n)
	}
	return v
}

// finish makes the gradient buffer, and with the distributed optimizer the
// parameter buffer, then the float32 parameters.
func (ld *megatronLoader) finish() {
	m := ld.m
	x := m.x
	n := m.params
	if m.distOpt {
		// Each parameter starts on a multiple of 64 elements, buckets end on
		// multiples of the ranks (and 128): a fraction of a percent.
		n = roundUp(n, 128*m.dp)
		undo := x.as(Weights, "weights")
		buffer := x.alloc(m.residual.size(n))
		undo()
		for i, id := range ld.ids {
			x.release(x.params[id].t.st)
			x.params[id].t.st, ld.ws[i].st = buffer, buffer
		}
	}
	undo := x.as(Gradients, "gradient buffer")
	x.alloc(m.gradType.size(n))
	undo()
	defer x.as(OptimizerState, "float32 parameters")()
	if m.distOpt {
		x.alloc(f32.size(n / m.optShards))
		return
	}
	if m.residual == f32 {
		return
	}
	for _, id := range ld.ids {
		c := x.alloc(m.residual.size(x.params[id].t.n))
		x.alloc(f32.size(x.params[id].t.n))
		x.release(c)
	}
}

// makeState makes Adam's two moments.
func (m *megatron) makeState(ids int) {
	x := m.x
	defer x.as(OptimizerState, "optimizer state")()
	if m.distOpt {
		n := roundUp(m.params, 128*m.dp) / m.optShards
		x.alloc(f32.size(n))
		x.alloc(f32.size(n))
		return
	}
	for i := range ids {
		n := x.params[i].t.n
		x.alloc(f32.size(n))
		x.alloc(f32.size(n))
	}
}

// memoryBuffer is get_global_memory_buffer: a buffer that grows and stays.
func (m *megatron) memoryBuffer(name string, bytes int64) {
	if st, ok := m.mpu[name]; ok {
		if m.x.sts[st].bytes >= bytes {
			return
		}
		m.x.release(st)
	}
	undo := m.x.as(Buffers, "global memory buffer")
	m.mpu[name] = m.x.alloc(bytes)
	undo()
}

// teWorkspace is Transformer Engine's cuBLAS workspace, made once.
func (m *megatron) teWorkspace() {
	if m.te && !m.teMade {
		m.teMade = true
		undo := m.x.as(Workspace, "Transformer Engine workspace")
		m.x.alloc(m.teWork)
		undo()
	}
}
