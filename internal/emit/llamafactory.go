package emit

import (
	"slices"
	"strings"

	"unoom/internal/workload"
)

// writeLLaMAFactory writes what a plan decides of LLaMA-Factory's YAML; data set
// and template are the user's.
//
// Source: LLaMA-Factory src/llamafactory/hparams/*.py, which extend
// transformers' Seq2SeqTrainingArguments.
func writeLLaMAFactory(s *sheet) ([]File, error) {
	w := s.w
	if err := s.refuse("tp", "pp", "cp", "ep", "fp8", "image", "target-seq"); err != nil {
		return nil, err
	}
	if w.Checkpointing == workload.Selective {
		return nil, s.cannot("checkpointing")
	}
	// Frozen weights are loaded in 16 bits, in the dtype of autocast or that of the
	// repository. Source: src/llamafactory/model/patcher.py, patch_config.
	if w.Method.Adapted() && (w.Precision == workload.FP32 || autocast(w) && w.Base == workload.NotQuantised) {
		return nil, s.cannot("dtype")
	}
	s.say("vpp", "sequence-parallel")
	var o object
	o.set("model_name_or_path", s.repository())
	o.set("stage", "sft")
	o.set("do_train", true)
	o.set("dataset", "REPLACE")
	o.set("template", "default")
	o.set("cutoff_len", w.Seq)
	o.set("output_dir", "out")
	o.set("learning_rate", learningRate)
	o.set("per_device_train_batch_size", w.MicroBatch)
	o.set("gradient_accumulation_steps", max(w.Accumulation, 1))
	s.say("seq", "micro-batch", "accum")
	n, err := hfNumbers(s)
	if err != nil {
		return nil, err
	}
	if err := llamaFactoryMethod(s, &o); err != nil {
		return nil, err
	}
	switch fsdp := usesFSDP(w); {
	case n.load == "bfloat16" && (fsdp || !w.Method.Adapted()) && !usesDeepSpeed(w) && w.Options["upcast"] != "fp32":
		o.set("pure_bf16", true) // the weights are loaded and stay in bfloat16
		o.set("bf16", !fsdp)
	default:
		o.set("bf16", n.bf16)
		o.set("fp16", n.fp16)
	}
	optim, err := hfOptimizer(s)
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(optim, "galore") {
		if w.Method != workload.Full || optim != "galore_adamw" && optim != "galore_adamw_layerwise" {
			return nil, s.cannot("optimizer")
		}
		o.set("use_galore", true)
		o.set("galore_layerwise", optim == "galore_adamw_layerwise")
		if w.Optimizer.Rank > 0 {
			o.set("galore_rank", w.Optimizer.Rank)
			s.say("optimizer-rank")
		}
	} else {
		o.set("optim", optim)
	}
	if w.Optimizer.NoDecay {
		o.set("weight_decay", 0.0)
		s.say("no-decay")
	}
	attention := map[string]string{"eager": "disabled", "sdpa": "sdpa", "flash_attention_2": "fa2"}[hfAttention(s)]
	if attention == "" {
		return nil, s.cannot("attention")
	}
	o.set("flash_attn", attention)
	modern := version(w, "transformers", "5.2", 5, 13)
	files, err := transformersSharding(s, &o, modern)
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(o, func(p pair) bool { return p.key == "parallelism_config" }); i >= 0 {
		return nil, s.cannot("shard")
	}
	full := w.Checkpointing == workload.FullCheckpoint
	fsdp := usesFSDP(w)
	// It checkpoints unless told otherwise.
	o.set("disable_gradient_checkpointing", !full || fsdp)
	if full {
		if !fsdp {
			o.set("use_reentrant_gc", w.Reentrant == nil || *w.Reentrant)
			s.say("reentrant")
		}
		s.say("checkpointing")
		s.omit("checkpointed-layers", "emit_note_layers")
	}
	if w.Compile {
		o.set("torch_compile", true)
		s.say("compile")
	}
	if k := liger(s); k != nil {
		o.set("enable_liger_kernel", true)
		ligerWhole(s)
	}
	lossNotes(s)
	if w.Eval {
		o.set("val_size", 0.02)
		o.set("eval_strategy", "epoch")
		o.set("per_device_eval_batch_size", w.MicroBatch)
		s.say("eval")
	}
	s.omit("gpus", "emit_note_gpus_launcher", "FORCE_TORCHRUN=1 llamafactory-cli train llamafactory.yaml")
	s.omit("alloc-conf", "emit_note_export", "PYTORCH_CUDA_ALLOC_CONF="+w.AllocConf)
	s.omit("bucket-view", "emit_note_bucket_view")
	return append([]File{{Name: "llamafactory.yaml", Data: []byte(s.comment("#") + s.yours() + yamlOf(o, 0))}}, files...), nil
}

func llamaFactoryMethod(s *sheet, o *object) error {
	w := s.w
	s.say("method")
	switch {
	case w.Method == workload.FrozenPart:
		layers := int64(0)
		if w.Model != nil {
			layers = int64(w.Model.Layers())
		}
		if layers <= w.FrozenLayers {
			return s.cannot("frozen-layers")
		}
		o.set("finetuning_type", "freeze")
		o.set("freeze_trainable_layers", layers-w.FrozenLayers) // the last ones
		s.omit("frozen-layers", "emit_note_freeze_embeddings")
		return nil
	case !w.Method.Adapted():
		o.set("finetuning_type", "full")
		return nil
	}
	o.set("finetuning_type", "lora")
	o.set("lora_rank", max(w.Adapter.Rank, 1))
	o.set("lora_alpha", 2*max(w.Adapter.Rank, 1))
	o.set("lora_dropout", w.Adapter.Dropout)
	targets := "all"
	if len(w.Adapter.Targets) > 0 && !slices.Contains(w.Adapter.Targets, "all-linear") {
		targets = strings.Join(w.Adapter.Targets, ",")
	}
	o.set("lora_target", targets)
	if w.Method == workload.DoRA || w.Method == workload.QDoRA {
		o.set("use_dora", true)
	}
	switch w.Base {
	case workload.NF4, workload.NF4Double:
		o.set("quantization_bit", int64(4))
		o.set("quantization_method", "bnb")
		o.set("quantization_type", "nf4")
		o.set("double_quantization", w.Base == workload.NF4Double)
		s.say("base")
	case workload.Int8:
		o.set("quantization_bit", int64(8))
		o.set("quantization_method", "bnb")
		s.say("base")
	case workload.GPTQ4:
		s.omit("base", "emit_note_gptq")
	}
	if w.Adapter.DType == "float32" {
		s.say("adapter-dtype") // it casts trained weights up unless pure_bf16
	}
	s.say("rank", "targets", "lora-dropout")
	return nil
}
