package memory

import (
	"strings"

	"unoom/internal/workload"
)

// optimizerRules says what each name of workload.Optimizers is. A rule that does
// not set the implementation has that of the framework's Adam.
var optimizerRules = map[string]optimizer{
	// torch/optim
	"adamw": {kind: optAdam, moments: 2}, "adam": {kind: optAdam, moments: 2}, "decoupled_adamw": {kind: optAdam, moments: 2},
	"nadam": {kind: optAdam, moments: 2}, "radam": {kind: optAdam, moments: 2}, "adamax": {kind: optAdam, moments: 2}, "adadelta": {kind: optAdam, moments: 2},
	"adagrad": {kind: optAdam, moments: 1}, "rmsprop": {kind: optAdam, moments: 1}, "rprop": {kind: optPlain, moments: 2}, "asgd": {kind: optSGD, moments: 1},
	"sgd": {kind: optSGD}, "sgd_momentum": {kind: optSGD, moments: 1}, "momentum": {kind: optSGD, moments: 1}, "nesterov": {kind: optSGD, moments: 1},
	"muon":        {kind: optMuon},
	"adamw_torch": {kind: optAdam, moments: 2}, "adamw_torch_fused": fused(2, asParameter), "adamw_apex_fused": fused(2, asParameter),

	// transformers optimization.py
	"adamw_hf": loop(optAdamHF, 2, asParameter), "adafactor": loop(optAdafactor, 0, inFloat32),
	// torchdistx AnyPrecisionAdamW, whose momentum_dtype and variance_dtype are float32 in the Trainer
	"adamw_anyprecision": loop(optAdam, 2, inFloat32),

	// bitsandbytes optim: AdEMAMix keeps two first moments
	"adamw_bnb_8bit": fused(2, inEightBits), "adamw_8bit": fused(2, inEightBits), "adam_8bit": fused(2, inEightBits), "adam8bit": fused(2, inEightBits), "adamw8bit": fused(2, inEightBits),
	"paged_adamw_32bit": fused(2, inFloat32), "paged_adamw": fused(2, inFloat32), "paged_adamw_8bit": fused(2, inEightBits),
	"ademamix": fused(3, inFloat32), "ademamix_8bit": fused(3, inEightBits), "paged_ademamix_32bit": fused(3, inFloat32), "paged_ademamix_8bit": fused(3, inEightBits),
	"lion_32bit": fused(1, inFloat32), "lion_8bit": fused(1, inEightBits), "paged_lion_32bit": fused(1, inFloat32), "paged_lion_8bit": fused(1, inEightBits),
	"rmsprop_bnb": fused(1, inFloat32), "rmsprop_bnb_32bit": fused(1, inFloat32), "rmsprop_bnb_8bit": fused(1, inEightBits),

	// torchao optim, whose step is compiled
	"adamw_torch_4bit": fused(2, inFourBits), "adamw_4bit": fused(2, inFourBits), "ao_adamw_4bit": fused(2, inFourBits),
	"adamw_torch_8bit": fused(2, inEightBits), "ao_adamw_8bit": fused(2, inEightBits), "adamw_fp8": fused(2, inEightBits), "ao_adamw_fp8": fused(2, inEightBits),

	// galore_torch, apollo_torch; layerwise variants step as gradients come
	"galore_adamw": loop(optLowRank, 2, asParameter), "galore_adamw_8bit": loop(optLowRank, 2, inEightBits), "galore_adafactor": loop(optLowRank, 0, inFloat32),
	"galore_adamw_layerwise": hooked(loop(optLowRank, 2, asParameter)), "galore_adamw_8bit_layerwise": hooked(loop(optLowRank, 2, inEightBits)),
	"galore_adafactor_layerwise": hooked(loop(optLowRank, 0, inFloat32)),
	"apollo_adamw":               loop(optLowRank, 2, asParameter), "apollo_adamw_layerwise": hooked(loop(optLowRank, 2, asParameter)),

	// lomo_optim: nothing of a gradient outlives its own step
	"lomo": hooked(optimizer{kind: optPlain}), "adalomo": hooked(optimizer{kind: optAdafactor}),

	// grokadamw: both moments and the slow gradient; schedulefree: z, and the second moment of Adam
	"grokadamw":           loop(optAdam, 3, asParameter),
	"schedule_free_adamw": {kind: optAdam, moments: 2}, "schedule_free_radam": {kind: optAdam, moments: 2}, "schedule_free": {kind: optAdam, moments: 2}, "schedule_free_sgd": {kind: optSGD, moments: 1},
	// optimi: Kahan sums beside the moments of 16-bit weights
	"stable_adamw": {kind: optAdam, moments: 2}, "optimi_adamw": {kind: optAdam, moments: 2},

	// the papers' own code
	"lion": loop(optLion, 1, asParameter), "signum": loop(optLion, 1, asParameter),
	"adam_mini": loop(optAdamMini, 0, asParameter), "soap": loop(optShampoo, 0, asParameter), "shampoo": loop(optShampoo, 0, asParameter),
	"prodigy": loop(optPlain, 4, asParameter), "sophia": loop(optAdam, 2, asParameter),
	"lamb": loop(optAdam, 2, asParameter), "fusedlamb": fused(2, inFloat32), "lars": loop(optPlain, 1, asParameter),
}

func fused(moments int, f stateFormat) optimizer {
	return optimizer{kind: optPlain, impl: implFused, moments: moments, format: f}
}

func loop(k optimizerKind, moments int, f stateFormat) optimizer {
	return optimizer{kind: k, impl: implLoop, moments: moments, format: f}
}

// hooked is an optimizer that steps each parameter as its gradient comes.
func hooked(o optimizer) optimizer { o.inBackward = true; return o }

// projectorRank is the rank of GaLore's and APOLLO's projections where nobody
// said. Source: transformers trainer_optimizer.py.
const projectorRank = 128

// optimizerOf is the optimizer of a workload; adam is how the framework computes
// an update where the name leaves it open.
func optimizerOf(w *workload.Workload, adam optimizerImpl) (optimizer, error) {
	name := workload.OptimizerName(w.Optimizer.Name)
	o, ok := optimizerRules[name]
	if !ok {
		return o, &NotModelled{"the optimizer " + w.Optimizer.Name}
	}
	if o.impl == implOpen {
		o.impl = adam
		if adam == implOpen {
			o.impl = implForeach
		}
		switch w.Optimizer.Impl {
		case "foreach":
			o.impl = implForeach
		case "loop":
			o.impl = implLoop
		case "fused":
			o.impl = implFused
		}
	}
	switch w.Offload {
	case workload.OffloadOptimizer, workload.OffloadParams, workload.OffloadOptimizerAct:
		o.cpu = true
	}
	o.paged = w.Optimizer.Paged || strings.HasPrefix(name, "paged")
	o.inBackward = o.inBackward || w.Optimizer.InBackward
	o.weightDecay = !w.Optimizer.NoDecay
	if o.kind == optLowRank {
		o.rank = w.Optimizer.Rank
		if o.rank == 0 {
			o.rank = projectorRank
		}
	}
	if (name == "stable_adamw" || name == "optimi_adamw") && (w.Precision == workload.BF16 || w.Precision == workload.FP16) {
		o.moments++ // a Kahan sum. Source: optimi's kahan_sum, on for 16-bit parameters
	}
	return o, nil
}
