package emit

import (
	"fmt"
	"strings"

	"unoom/internal/workload"
)

// writeMegatron writes the flags of Megatron-LM's pretrain_gpt.py that a plan
// decides, as a shell array; the network's own flags stay with the user's
// script.
//
// Source: Megatron-LM megatron/training/arguments.py,
// core/transformer/transformer_config.py, core/model_parallel_config.py, read at
// commit d98e8a64.
func writeMegatron(s *sheet) ([]File, error) {
	w := s.w
	p := &w.Parallel
	if w.Method != workload.Full {
		return nil, s.cannot("method")
	}
	if err := s.refuse("optimizer-in-backward", "image", "target-seq", "paged"); err != nil {
		return nil, err
	}
	s.say("method")
	var flags []string
	add := func(words ...string) { flags = append(flags, strings.Join(words, " ")) }
	num := func(name string, n int64) { add(name, fmt.Sprint(n)) }
	num("--micro-batch-size", w.MicroBatch)
	num("--global-batch-size", w.GlobalBatch())
	num("--seq-length", w.Seq)
	s.say("micro-batch", "accum", "seq", "gpus")
	num("--tensor-model-parallel-size", max(p.Tensor, 1))
	num("--pipeline-model-parallel-size", max(p.Pipeline, 1))
	num("--context-parallel-size", max(p.Context, 1))
	num("--expert-model-parallel-size", max(p.Expert, 1))
	s.say("tp", "pp", "cp", "ep")
	if p.Sequence && p.Tensor > 1 {
		add("--sequence-parallel")
		s.say("sequence-parallel")
	}
	if p.Virtual > 1 && p.Pipeline > 1 {
		layers := int64(0)
		if w.Model != nil {
			layers = int64(w.Model.Layers())
		}
		if chunks := p.Pipeline * p.Virtual; layers == 0 || layers%chunks != 0 {
			return nil, s.cannot("vpp")
		}
		num("--num-layers-per-virtual-pipeline-stage", layers/(p.Pipeline*p.Virtual))
	} else if p.Pipeline > 1 && w.Model != nil && int64(w.Model.Layers())%p.Pipeline != 0 {
		return nil, s.cannot("pp")
	}
	s.say("vpp")
	if err := megatronStates(s, add); err != nil {
		return nil, err
	}
	switch w.Precision {
	case workload.BF16, workload.AMPBF16:
		add("--bf16") // with float32 copies in the optimizer
	case workload.FP16, workload.AMPFP16:
		add("--fp16")
	}
	s.say("dtype")
	switch w.FP8 {
	case workload.NoFP8:
	case workload.FP8Delayed, workload.FP8Tensorwise, workload.MXFP8:
		add("--fp8-format", "hybrid")
		add("--fp8-recipe", string(w.FP8))
		s.say("fp8")
	default:
		return nil, s.cannot("fp8")
	}
	switch w.Checkpointing {
	case workload.Selective:
		add("--recompute-granularity", "selective")
	case workload.FullCheckpoint:
		add("--recompute-granularity", "full")
		if some := s.value("checkpointed-layers"); some != "" {
			add("--recompute-method", "block") // the first layers of each stage
			add("--recompute-num-layers", some)
			s.say("checkpointed-layers")
		} else {
			add("--recompute-method", "uniform")
			num("--recompute-num-layers", 1)
		}
	}
	s.say("checkpointing", "reentrant")
	switch w.Attention {
	case workload.Flash:
		add("--attention-backend", "flash")
		s.say("attention")
	case workload.Eager:
		add("--attention-backend", "unfused")
		s.say("attention")
	case workload.MathSDPA:
		add("--attention-backend", "unfused")
	case workload.SDPA:
		add("--attention-backend", "auto")
		s.say("attention")
	}
	s.omit("attention", "emit_note_megatron_attention")
	switch w.Loss {
	case workload.LossMegatron:
		add("--cross-entropy-loss-fusion")
		s.say("loss")
	case workload.LossPlain, workload.LossDefault:
		s.say("loss")
	}
	s.omit("loss", "emit_note_megatron_loss")
	s.omit("loss-chunks", "emit_note_megatron_loss")
	env := exports(s) + megatronConnections(s)
	var b strings.Builder
	b.WriteString(s.comment("#"))
	b.WriteString("# " + s.text("emit_megatron_source") + "\n" + env + "MEMORY_ARGS=(\n")
	for _, f := range flags {
		b.WriteString("    " + f + "\n")
	}
	b.WriteString(")\n")
	return []File{{Name: "megatron_args.sh", Data: []byte(b.String())}}, nil
}

// megatronConnections sets how many queues of the card a process uses, which
// Megatron's own checks insist on: one under tensor and context parallelism, so
// that communication starts before the kernels it overlaps; more under its FSDP.
//
// Source: Megatron-LM megatron/training/arguments.py, validate_args; cards since
// Blackwell (sm_100) need nothing.
func megatronConnections(s *sheet) string {
	w := s.w
	switch w.Sharding {
	case workload.ZeRO2, workload.ZeRO3, workload.FSDP, workload.FSDP2:
		return "unset CUDA_DEVICE_MAX_CONNECTIONS  # " + s.text("emit_megatron_connections") + "\n"
	}
	if (w.Parallel.Tensor > 1 || w.Parallel.Context > 1) && w.GPU.Compute < 100 {
		return "export CUDA_DEVICE_MAX_CONNECTIONS=1  # " + s.text("emit_megatron_connections") + "\n"
	}
	return ""
}

// megatronStates writes the optimizer, its sharding and its offload.
func megatronStates(s *sheet, add func(...string)) error {
	w := s.w
	distributed := w.Optimizer.Distributed
	strategy := ""
	switch w.Sharding {
	case workload.NoSharding, workload.DDP, "":
	case workload.ZeRO1:
		distributed = true
	case workload.ZeRO2:
		strategy = "optim_grads"
	case workload.ZeRO3, workload.FSDP, workload.FSDP2:
		strategy = "optim_grads_params"
		if w.Sharding != workload.ZeRO3 {
			s.omit("sharding", "emit_note_megatron_fsdp")
		}
	default:
		return s.cannot("sharding")
	}
	if strategy != "" {
		if s.has("shard") {
			return s.cannot("shard")
		}
		add("--use-megatron-fsdp")
		add("--data-parallel-sharding-strategy", strategy)
		add("--ckpt-format", "fsdp_dtensor") // the only one it takes
		distributed = true
	}
	if distributed {
		add("--use-distributed-optimizer")
	}
	s.say("sharding", "distributed-optimizer")
	switch name := strings.ToLower(w.Optimizer.Name); {
	case strings.Contains(name, "8bit"), strings.Contains(name, "8-bit"):
		return s.cannot("optimizer")
	case name == "", strings.HasPrefix(name, "adam"), name == "torch_adamw":
		add("--optimizer", "adam") // decoupled decay, in one kernel
		if w.Optimizer.Impl == "fused" {
			s.say("optimizer-impl")
		}
		s.omit("optimizer-impl", "emit_note_megatron_impl")
	case strings.HasPrefix(name, "sgd"):
		add("--optimizer", "sgd")
	default:
		return s.cannot("optimizer")
	}
	s.say("optimizer")
	if w.Optimizer.NoDecay {
		add("--weight-decay", "0.0")
		s.say("no-decay")
	}
	switch w.Offload {
	case workload.NoOffload, "":
	case workload.OffloadOptimizer:
		if !distributed {
			return s.cannot("offload")
		}
		add("--optimizer-cpu-offload")
		add("--optimizer-offload-fraction", "1.0")
		add("--use-precision-aware-optimizer")
		s.say("offload")
	default:
		return s.cannot("offload")
	}
	return nil
}
