package memory

import (
	"strings"

	"unoom/internal/model"
	"unoom/internal/workload"
)

// prepareHF loads a model of transformers for its Trainer, or for a plain loop.
func (p *player) prepareHF(w *workload.Workload) error {
	if w.Objective == workload.Reward {
		w = w.Clone()
		w.Model = rewardModel(w.Model)
	}
	switch w.Model.Family {
	case model.Decoder:
	case model.Encoder:
		if l := w.Model.Stacks[0].Layers[0]; l.Placement != model.PostNorm || l.MLP == nil || l.MLP.Gated || l.Attention == nil || l.Attention.Position == model.DisentangledBias || l.Attention.Position == model.RelativeBias {
			return &NotModelled{"an encoder that is not built like BERT"}
		}
	default:
		return &NotModelled{"the family " + string(w.Model.Family)}
	}
	if what := lackingTransformers(w); what != "" {
		return &NotModelled{what}
	}
	if w.Parallel.Tensor*w.Parallel.Pipeline*w.Parallel.Context != 1 {
		return &NotModelled{"tensor, pipeline or context parallelism in this framework"}
	}
	if err := p.chooseKernels(w); err != nil {
		return err
	}
	ld := &plainLoader{train: func(pl place) bool { return !w.Method.Adapted() && !seen(w, pl) }}
	p.choosePrecision(w, ld)
	p.chooseBase(w, ld)
	if !w.ForwardOnly {
		if err := p.chooseOptimizer(w); err != nil {
			return err
		}
	}
	if err := p.loadSharded(w, ld); err != nil {
		return err
	}
	if p.compiled {
		for _, b := range p.net.text().blocks {
			if why := uncompilable(b); why != "" {
				return &NotModelled{"torch.compile with " + why}
			}
		}
	}
	if err := p.prepareView(w); err != nil {
		return err
	}
	return p.prepareObjective(w, ld)
}

// chooseCompile lets the whole forward pass be compiled, where it is known what
// the compiled graph keeps: with 16-bit weights that are trained and whole.
// TestCompiledLayersSaveWhatTorchSaves holds it to torch's own partitioner.
func (p *player) chooseCompile(w *workload.Workload) error {
	switch {
	case w.Precision != workload.BF16 && w.Precision != workload.FP16:
		return &NotModelled{"torch.compile with weights in float32 in this framework"}
	case w.Method != workload.Full:
		return &NotModelled{"torch.compile with the method " + string(w.Method) + " in this framework"}
	case w.Sharding.Sharded():
		return &NotModelled{"torch.compile with sharding " + string(w.Sharding) + " in this framework"}
	case w.Model.Family != model.Decoder || lacking(w) != "":
		return &NotModelled{"torch.compile with this network in this framework"}
	case p.lib.attn == attnEager:
		return &NotModelled{"torch.compile with eager attention"}
	case w.Loss != workload.LossDefault && w.Loss != workload.LossPlain || w.Kernels != (workload.Kernels{}) || w.FP8 != workload.NoFP8:
		return &NotModelled{"torch.compile with other kernels"}
	}
	p.compiled = true
	return nil
}

// chooseKernels maps the workload's attention, loss and kernels to operations.
func (p *player) chooseKernels(w *workload.Workload) error {
	switch w.Attention {
	case workload.Flash:
		p.lib.attn = attnFlash
	case workload.SDPA:
		p.lib.attn = sdpaKernel(w)
	case workload.MemEfficient:
		p.lib.attn = attnEfficient
	case workload.Eager, workload.MathSDPA, "":
		p.lib.attn = attnEager
	default:
		return &NotModelled{"attention " + string(w.Attention)}
	}
	switch w.Kernels.FusedNorm {
	case "unsloth":
		p.lib.norm = normInPlace
	case "liger":
		p.lib.norm = normLiger
	case "apex":
		p.lib.norm = normFused
	}
	switch w.Kernels.FusedRope {
	case "unsloth", "liger":
		p.lib.rope = ropeUnsloth
	}
	if w.Kernels.FusedMLP == "liger" {
		p.lib.mlp = mlpLiger
	}
	p.lib.fusedLoRA = w.Kernels.FusedLoRA != ""
	switch w.Loss {
	case workload.LossDefault, workload.LossPlain:
	case workload.LossLiger:
		p.lib.loss = lossFusedLinear
	case workload.LossInPlace:
		p.inPlaceCE = true
	default:
		return &NotModelled{"the loss " + string(w.Loss)}
	}
	switch {
	case w.Compile:
		return p.chooseCompile(w)
	case w.FP8 != workload.NoFP8:
		return &NotModelled{"fp8 in this framework"}
	}
	return nil
}

// sdpaKernel is the kernel that torch's scaled_dot_product_attention takes for
// training without a mask.
// Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (2.4): flash for
// 16-bit inputs on sm_80 and later, else memory-efficient.
func sdpaKernel(w *workload.Workload) attnStyle {
	low := w.Precision != workload.FP32
	if low && !w.Padded && (w.GPU.Compute == 0 || w.GPU.Compute >= 80) {
		return attnFlash
	}
	return attnEfficient
}

// choosePrecision sets the dtype of weights and of the autocast region.
func (p *player) choosePrecision(w *workload.Workload, ld *plainLoader) {
	switch w.Precision {
	case workload.FP32:
		ld.dt = f32
	case workload.AMPBF16:
		ld.dt, p.amp = f32, bf16
	case workload.AMPFP16:
		ld.dt, p.amp = f32, f16
	case workload.BF16:
		ld.dt = bf16
	case workload.FP16:
		ld.dt = f16
	}
	// FSDP with autocast turns what is trained into float32, so that 16-bit weights
	// that stay so exclude it.
	whole := w.Sharding == workload.FSDP && !w.Method.Adapted() && !p.upcast(w, ld.dt)
	if ld.dt.low() && (w.Base != workload.NotQuantised || p.lib.autocast && !whole) {
		p.amp = ld.dt
	}
	if zeroSharded(w) {
		// DeepSpeed's engine casts the module itself; there is no autocast.
		// Source: DeepSpeed runtime/engine.py, _configure_distributed_model.
		if p.amp != f32 {
			ld.dt, p.amp = p.amp, f32
		}
	}
	ld.compute, ld.other, ld.norms = ld.dt, ld.dt, ld.dt
}

func zeroSharded(w *workload.Workload) bool {
	switch w.Sharding {
	case workload.ZeRO1, workload.ZeRO2, workload.ZeRO3:
		return true
	}
	return false
}

// upcast reports whether FSDP holds trained 16-bit weights in float32.
func (p *player) upcast(w *workload.Workload, d dtype) bool {
	return w.Options["upcast"] == "fp32" || p.lib.fsdpUpcast && d.low() && !w.Method.Adapted()
}

// chooseBase sets how a frozen base is stored, and the adapters.
func (p *player) chooseBase(w *workload.Workload, ld *plainLoader) {
	switch w.Base {
	case workload.NF4:
		ld.quant, ld.style = quantNF4, adapterBnb4
		if p.lib.nf4Double {
			ld.quant = quantNF4Double
		}
	case workload.NF4Double:
		ld.quant, ld.style = quantNF4Double, adapterBnb4
	case workload.GPTQ4:
		ld.quant, ld.style = quantGPTQ, adapterGPTQ
	case workload.Int8:
		ld.quant, ld.style = quantInt8, adapterInt8
	}
	if w.Adapter.KBit && w.Base != workload.GPTQ4 && w.Sharding != workload.FSDP {
		ld.norms = f32
		if !p.lib.kbitNormsOnly {
			ld.other = f32
		}
	}
	if !w.Method.Adapted() {
		return
	}
	ld.rank, ld.dropout, ld.adt = w.Adapter.Rank, w.Adapter.Dropout, f32
	ld.dora = w.Method == workload.DoRA || w.Method == workload.QDoRA
	if ld.dropout == 0 && p.lib.loraDropout {
		ld.dropout = defaultLoRADropout
	}
	if p.lib.adapterBase {
		ld.adt = ld.compute
	}
	if d := w.Adapter.DType; d != "" {
		ld.adt = dtypeOf(d)
	}
	ld.adapt = func(p place) bool { return p.layer >= 0 && targeted(w.Adapter.Targets, p.mod) && !seen(w, p) }
	p.inputsNeedGrad = true
}

// defaultLoRADropout is any probability that is not zero: only that there is a
// mask matters.
const defaultLoRADropout = 0.05

func dtypeOf(d model.DType) dtype {
	switch d {
	case model.Float16:
		return f16
	case model.BFloat16:
		return bf16
	}
	return f32
}

// chooseOptimizer maps the optimizer's name.
func (p *player) chooseOptimizer(w *workload.Workload) error {
	o, err := optimizerOf(w, p.lib.adam)
	if err != nil {
		return err
	}
	p.opt = o
	return nil
}

// loadSharded builds the weights under the workload's sharding.
func (p *player) loadSharded(w *workload.Workload, ld *plainLoader) error {
	x := p.x
	one := func(*model.Module) int64 { return 1 }
	all := func(int, int) bool { return true }
	ends := func(string) bool { return true }
	sharding := w.Sharding
	if w.Has("fsdp-no-shard") {
		// FSDP that shards nothing: parameters stay where they are.
		sharding = workload.NoSharding
	}
	switch sharding {
	case workload.DDP:
		p.net = x.load(w.Model, ld, all, ends, one)
		return x.ddpBuckets(w)
	case workload.NoSharding:
		if w.Parallel.World > 1 && sharding == w.Sharding {
			return &NotModelled{"several GPUs without a sharding"}
		}
		p.net = x.load(w.Model, ld, all, ends, one)
	case workload.ZeRO1, workload.ZeRO2, workload.ZeRO3:
		return p.loadZero(w, ld)
	case workload.FSDP2:
		return p.loadFSDP2(w, ld)
	case workload.FSDP:
		s := &fsdp1{x: x, ranks: w.Parallel.Data, reduce: ld.dt, reshard: w.ReshardAfterForward != "never", prefetch: true, defers: w.Framework == workload.HFTrainer}
		local := ld.dt
		switch {
		case p.upcast(w, ld.dt):
			local, s.mixed, p.amp = f32, true, ld.dt
		case p.amp != f32 && ld.dt == f32 && ld.quant == 0:
			// float32 shards, gathered in 16 bits
			ld.dt, s.mixed, s.reduce = p.amp, true, p.amp
		}
		if w.Offload == workload.OffloadParams {
			s.hostParams = true
		}
		fl := newFlatLoader(s, *ld, local)
		fl.replicate = ld.quant == quantGPTQ
		fl.trained = !w.Method.Adapted()
		p.net = x.load(w.Model, fl, all, ends, one)
		fl.seal()
		p.fsdp, p.units, p.rootUnit = s, fl.layers, fl.root
		x.detached = s.holdInput
	default:
		return &NotModelled{"sharding " + string(w.Sharding) + " in this framework"}
	}
	return nil
}

// loadZero builds the weights under DeepSpeed's ZeRO, or what works like it.
func (p *player) loadZero(w *workload.Workload, ld *plainLoader) error {
	x := p.x
	one := func(*model.Module) int64 { return 1 }
	all := func(int, int) bool { return true }
	ends := func(string) bool { return true }
	host := w.Offload == workload.OffloadOptimizer || w.Offload == workload.OffloadParams || w.Offload == workload.OffloadOptimizerAct
	set, states := zeroSettingsOf(w, p.lib), zeroStates{x: x, opt: &p.opt, host: host}
	if w.Sharding != workload.ZeRO3 {
		p.net = x.load(w.Model, ld, all, ends, one)
		z := &zero12{zeroSettings: set, zeroStates: states, stage: 2, dt: ld.dt, copyBack: p.lib.zeroCopyBack, apart: p.lib.zeroApart}
		if w.Sharding == workload.ZeRO1 {
			z.stage = 1
		}
		x.shardStates(z, w.Parallel.Data)
		p.zero = z
		return nil
	}
	switch {
	case ld.quant != 0:
		return &NotModelled{"a quantised base under ZeRO-3"}
	case w.Model.Family != model.Decoder:
		return &NotModelled{"the family " + string(w.Model.Family) + " under ZeRO-3"}
	}
	z := &zero3{zeroSettings: set, zeroStates: states, dt: ld.dt, hostWeights: w.Offload == workload.OffloadParams, uses: 2}
	if p.checkpointed {
		z.uses = 3 // forward again, and backward
	}
	l := &zero3Loader{plainLoader: *ld, z: z, index: map[[2]int]*gathered{}}
	p.net = x.load(w.Model, l, all, ends, one)
	z.settle(w.Parallel.Data)
	p.zero, p.zero3 = z, z
	return nil
}

// targeted reports whether a module is among LoRA's targets: by its name, or by
// the part it plays, since tables and scripts abbreviate q_proj to q and write
// "mlp" for all of a layer's MLP.
func targeted(targets []string, mod *model.Module) bool {
	leaf := mod.Leaf()
	for _, t := range targets {
		if t == leaf || t == "all-linear" || t+"_proj" == leaf {
			return true
		}
		t = strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(t, "all "), "_proj"))
		switch mod.Role {
		case model.RoleGate, model.RoleUp, model.RoleDown, model.RoleGateUp:
			if t == "mlp" || t == "ffn" {
				return true
			}
		case model.RoleQ, model.RoleK, model.RoleV, model.RoleO:
			if t == "attn" || t == "attention" {
				return true
			}
		case model.RoleQKV:
			// q, k and v are one matrix in this network.
			if t == "q" || t == "k" || t == "v" || t == "attn" || t == "attention" {
				return true
			}
		}
	}
	return false
}
