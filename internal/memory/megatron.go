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
	w *workload.Workload
	// deepspeed: DeepSpeed's pipeline engine and optimizer train it.
	deepspeed bool
	te        bool // Transformer Engine's modules, else "local" ones
	t         int64
	sp        bool
	c         int64
	p         int64 // pipeline stages
	v         int64 // model chunks on this rank
	rnk       int64 // pipeline rank

	dropHidden, dropAttn bool
	unfused              bool // attention by stored scores
	again                recomputation
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
	teMade, groupedMade  bool
	flashPackage         bool // "auto" and "flash" below Hopper take the flash-attention package
	torchSoftmax         bool
	dummies              map[int64]int32
	deferLimit, deferred int
	waiting              []int32
	inputGrad            int32
	hybrid               bool     // layers of one part each
	optShards            int64    // ranks over which the distributed optimizer divides
	layout               []string // the letters of each stage, nil: even
	instances            int64    // of the distributed optimizer
	expertParams         int64    // beside params
	experts              expertSetup
	eight                eightBit
	fsdp                 *megatronFSDP // nil: DDP
	eightMade            map[*matrix]bool
	eightParams          [2]int64              // of dense and of expert parameters, those in eight bits
	copies               map[*matrix][]*matrix // the matrices of experts that run one by one
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
	return newMegatron(x, w, lib, false)
}

func newMegatron(x *machine, w *workload.Workload, lib library, deepspeed bool) (*megatron, error) {
	m := &megatron{w: w, deepspeed: deepspeed, mpu: map[string]int32{}, copies: map[*matrix][]*matrix{}, eightMade: map[*matrix]bool{}}
	m.player = player{x: x, lib: lib, batch: w.MicroBatch, seq: w.Seq / w.Parallel.Context, accumulation: int(w.Accumulation)}
	m.t, m.c, m.p = w.Parallel.Tensor, w.Parallel.Context, w.Parallel.Pipeline
	m.sp = w.Parallel.Sequence && m.t > 1
	m.dp = w.Parallel.Data
	m.dummies, m.inputGrad = map[int64]int32{}, noStorage
	m.instances = 1
	if n, err := strconv.ParseInt(m.option("num-distributed-optimizer-instances"), 10, 64); err == nil && n > 0 {
		m.instances = n
	}
	m.optShards = max(m.dp*m.c/m.instances, 1)
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
	if err := m.readRecomputation(w.Checkpointing == workload.FullCheckpoint, w.Checkpointing == workload.Selective); err != nil {
		return err
	}
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
	if text := m.option("pipeline-model-parallel-layout"); text != "" {
		stages, err := pipelineLayout(text)
		if err != nil {
			return err
		}
		if int64(len(stages))%m.p != 0 {
			return &NotModelled{"a pipeline layout of " + strconv.Itoa(len(stages)) + " stages on " + strconv.FormatInt(m.p, 10) + " ranks"}
		}
		m.layout, m.v = stages, int64(len(stages))/m.p
	}
	m.rnk = m.p - 1
	if w.Parallel.Rank == "first" {
		m.rnk = 0
	} else if n, err := strconv.ParseInt(w.Parallel.Rank, 10, 64); err == nil && n >= 0 && n < m.p {
		m.rnk = n
	}
	m.first, m.last = m.rnk == 0, m.rnk == m.p-1
	m.mask = !w.Has("no-create-attention-mask-in-dataloader")
	switch {
	case w.Model.Type != "megatron":
		return &NotModelled{"Megatron with a network that its own launch arguments do not describe"}
	case w.Model.Family == model.EncoderDecoder && w.Parallel.Pipeline > 1:
		return &NotModelled{"pipeline parallelism of an encoder-decoder in Megatron"}
	case w.Model.Family != model.Decoder && w.Model.Family != model.Encoder && w.Model.Family != model.EncoderDecoder:
		return &NotModelled{"the family " + string(w.Model.Family) + " in Megatron"}
	case w.Offload != workload.NoOffload && w.Offload != "":
		return &NotModelled{"offload in Megatron"}
	}
	if len(w.Model.Stacks) > 1 && w.Model.Stacks[1].Name == "mtp" && w.Model.TiedHead {
		return &NotModelled{"multi-token prediction with a tied head in Megatron"}
	}
	for _, l := range w.Model.Stacks[0].Layers {
		m.hybrid = m.hybrid || l.Attention == nil || l.MLP == nil && l.MoE == nil
		if l.Attention != nil && l.Attention.MLA != nil && !m.te {
			return &NotModelled{"latent attention without Transformer Engine in Megatron"}
		}
	}
	if err := m.readExperts(); err != nil {
		return err
	}
	if err := m.readEightBit(); err != nil {
		return err
	}
	if err := m.readFSDP(); err != nil {
		return err
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
