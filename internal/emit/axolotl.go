package emit

import (
	"slices"
	"strings"

	"unoom/internal/workload"
)

// writeAxolotl writes what a plan decides of Axolotl's YAML; the data sets are
// the user's, and stand as a placeholder that Axolotl accepts.
//
// Source: axolotl utils/schemas/config.py, fsdp.py, peft.py, training.py;
// integrations/liger/args.py.
func writeAxolotl(s *sheet) ([]File, error) {
	w := s.w
	p := &w.Parallel
	if err := s.refuse("pp", "ep", "fp8", "image", "target-seq", "frozen-layers"); err != nil {
		return nil, err
	}
	if w.Checkpointing == workload.Selective {
		return nil, s.cannot("checkpointing")
	}
	if err := axolotlLimits(s); err != nil {
		return nil, err
	}
	s.say("vpp")
	sequenceNote(s)
	var o object
	o.set("base_model", s.repository())
	o.set("datasets", []object{{{"path", "REPLACE/with-your-data"}, {"type", "alpaca"}}})
	o.set("output_dir", "./out")
	o.set("sequence_len", w.Seq)
	// Packed samples fill the sequence, as the plan counts them.
	flash := w.Attention == workload.Flash || w.Attention == workload.Flex
	ring := p.Context > 1 && w.MicroBatch > 1 // which packs one sample only
	o.set("sample_packing", flash && !w.Padded && !ring)
	o.set("pad_to_sequence_len", true)
	o.set("micro_batch_size", w.MicroBatch)
	o.set("gradient_accumulation_steps", max(w.Accumulation, 1))
	o.set("num_epochs", int64(1))
	o.set("learning_rate", learningRate)
	s.say("seq", "micro-batch", "accum", "padded")
	n, err := hfNumbers(s)
	if err != nil {
		return nil, err
	}
	o.set("bf16", n.bf16 || n.load == "bfloat16")
	o.set("fp16", n.fp16)
	if pureBF16(w) {
		o.set("bfloat16", true)
		o[slices.IndexFunc(o, func(p pair) bool { return p.key == "bf16" })].value = false
	}
	optim, err := hfOptimizer(s)
	if err != nil {
		return nil, err
	}
	o.set("optimizer", optim)
	if strings.HasPrefix(optim, "galore") || strings.HasPrefix(optim, "apollo") {
		o.set("optim_target_modules", []string{"attn", "mlp"})
		if w.Optimizer.Rank > 0 {
			o.set("optim_args", object{{"rank", w.Optimizer.Rank}})
			s.say("optimizer-rank")
		}
	}
	if w.Optimizer.NoDecay {
		o.set("weight_decay", 0.0)
		s.say("no-decay")
	}
	o.set("attn_implementation", hfAttention(s))
	if err := axolotlMethod(s, &o); err != nil {
		return nil, err
	}
	files, err := axolotlSharding(s, &o)
	if err != nil {
		return nil, err
	}
	if w.Checkpointing == workload.FullCheckpoint {
		if fsdp := usesFSDP(w); !fsdp {
			o.set("gradient_checkpointing", true)
			reentrant := w.Reentrant != nil && *w.Reentrant
			o.set("gradient_checkpointing_kwargs", object{{"use_reentrant", reentrant}})
			s.say("reentrant")
		}
		s.say("checkpointing")
		s.omit("checkpointed-layers", "emit_note_layers")
	}
	if w.Offload == workload.OffloadActivations && w.Checkpointing == workload.FullCheckpoint {
		o.set("activation_offloading", true)
		s.unsay("offload")
		s.say("offload")
	}
	if w.Compile {
		o.set("torch_compile", true)
		s.say("compile")
	}
	axolotlLoss(s, &o)
	if p.Context > 1 {
		o.set("context_parallel_size", p.Context)
		s.say("cp")
	}
	if p.Tensor > 1 {
		o.set("tensor_parallel_size", p.Tensor)
		s.say("tp")
	}
	if w.Eval {
		o.set("val_set_size", 0.02)
		o.set("eval_batch_size", w.MicroBatch)
		s.say("eval")
	}
	s.omit("gpus", "emit_note_gpus_launcher", "axolotl train axolotl.yaml")
	s.omit("alloc-conf", "emit_note_export", "PYTORCH_CUDA_ALLOC_CONF="+w.AllocConf)
	s.omit("bucket-view", "emit_note_bucket_view")
	return append([]File{{Name: "axolotl.yaml", Data: []byte(s.comment("#") + s.yours() + yamlOf(o, 0))}}, files...), nil
}

// axolotlLimits refuses the combinations that Axolotl refuses.
// Source: axolotl utils/schemas/validation.py, integrations/liger/args.py,
// integrations/cut_cross_entropy/args.py; utils/config/__init__.py, torch_dtype.
func axolotlLimits(s *sheet) error {
	w := s.w
	k := &w.Kernels
	switch {
	case autocast(w) && w.Base == workload.NotQuantised && !usesDeepSpeed(w) && (w.Method.Adapted() || !usesFSDP(w)):
		return s.cannot("dtype") // bf16 and fp16 load the weights in 16 bits; FSDP makes trained ones float32
	case w.Parallel.Context > 1 && w.Attention != workload.Flash: // ring attention is flash's
		return s.cannot("attention")
	case w.Parallel.Tensor > 1 && (w.Loss == workload.LossLiger || k.FusedNorm == "liger"):
		return s.cannot("tp")
	case w.Loss == workload.LossCCE && (w.Precision == workload.FP32 || pureBF16(w)): // it wants autocast
		return s.cannot("loss")
	}
	return nil
}

// pureBF16 reports whether trained weights stay in bfloat16 without autocast.
func pureBF16(w *workload.Workload) bool {
	return w.Precision == workload.BF16 && !w.Method.Adapted() && w.Options["upcast"] != "fp32" && !usesDeepSpeed(w)
}

func axolotlMethod(s *sheet, o *object) error {
	w := s.w
	s.say("method")
	if !w.Method.Adapted() {
		return nil
	}
	adapter := "lora"
	switch w.Base {
	case workload.NF4, workload.NF4Double:
		adapter = "qlora"
		o.set("load_in_4bit", true)
		o.set("bnb_config_kwargs", object{{"bnb_4bit_quant_type", "nf4"}, {"bnb_4bit_use_double_quant", w.Base == workload.NF4Double}})
		s.say("base")
	case workload.Int8:
		o.set("load_in_8bit", true)
		s.say("base")
	case workload.GPTQ4:
		o.set("gptq", true)
		s.say("base")
	}
	o.set("adapter", adapter)
	o.set("lora_r", max(w.Adapter.Rank, 1))
	o.set("lora_alpha", 2*max(w.Adapter.Rank, 1))
	o.set("lora_dropout", w.Adapter.Dropout)
	if len(w.Adapter.Targets) == 0 || slices.Contains(w.Adapter.Targets, "all-linear") {
		o.set("lora_target_linear", true)
	} else {
		o.set("lora_target_modules", w.Adapter.Targets)
	}
	if w.Method == workload.DoRA || w.Method == workload.QDoRA {
		o.set("peft_use_dora", true)
	}
	switch adapterCast(s) {
	case "":
	default:
		o.set("peft_autocast_adapter_dtype", false)
	}
	s.say("rank", "targets", "lora-dropout")
	return nil
}

func axolotlSharding(s *sheet, o *object) ([]File, error) {
	w := s.w
	p := &w.Parallel
	switch w.Sharding {
	case workload.NoSharding, workload.DDP, "":
		if w.Offload != workload.NoOffload && w.Offload != "" && w.Offload != workload.OffloadActivations {
			return nil, s.cannot("offload")
		}
		s.omit("offload", "emit_note_offload_activations")
		s.say("sharding")
		return nil, nil
	case workload.ZeRO1, workload.ZeRO2, workload.ZeRO3:
		if err := s.refuse("tp"); err != nil {
			return nil, err
		}
		if p.Context > 1 {
			return nil, s.cannot("cp")
		}
		config, err := deepSpeedConfig(s, "hf")
		if err != nil {
			return nil, err
		}
		o.set("deepspeed", "ds_config.json")
		return []File{deepSpeedFile(config, s.origin())}, nil
	case workload.FSDP, workload.FSDP2:
	default:
		return nil, s.cannot("sharding")
	}
	if w.Sharding == workload.FSDP {
		if err := s.refuse("shard", "tp", "cp"); err != nil {
			return nil, err
		}
	}
	offload, err := fsdpOffload(s)
	if err != nil {
		return nil, err
	}
	var c object
	two := w.Sharding == workload.FSDP2
	o.set("fsdp_version", map[bool]int{true: 2, false: 1}[two])
	c.set("offload_params", offload)
	c.set("auto_wrap_policy", "TRANSFORMER_BASED_WRAP")
	c.set("state_dict_type", "FULL_STATE_DICT")
	c.set("cpu_ram_efficient_loading", loadsOnRankZero(w))
	c.set("reshard_after_forward", w.ReshardAfterForward != "never")
	if !two {
		c.set("use_orig_params", true)
		c.set("sync_module_states", true)
	}
	if w.Checkpointing == workload.FullCheckpoint {
		c.set("activation_checkpointing", true)
		s.omit("reentrant", "emit_note_fsdp_reentrant")
	}
	o.set("fsdp_config", c)
	s.say("sharding", "reshard-after-forward")
	if two && (s.has("shard") || p.Tensor > 1 || p.Context > 1) {
		shard := p.Data
		if s.has("shard") {
			shard = p.Shard / max(p.Context, 1)
			if shard < 1 || p.Data%shard != 0 {
				return nil, s.cannot("shard")
			}
		}
		o.set("dp_shard_size", shard)
		o.set("dp_replicate_size", p.Data/shard)
		s.say("shard")
	}
	return nil, nil
}

// axolotlLoss names the plugin of the loss and of the kernels.
func axolotlLoss(s *sheet, o *object) {
	w := s.w
	var plugins []string
	if k := liger(s); k != nil {
		plugins = append(plugins, "axolotl.integrations.liger.LigerPlugin")
		for _, p := range k {
			names := map[string]string{"rope": "liger_rope", "rms_norm": "liger_rms_norm", "swiglu": "liger_glu_activation", "fused_linear_cross_entropy": "liger_fused_linear_cross_entropy"}
			if name, ok := names[p.key]; ok && p.value == true {
				o.set(name, true)
			}
		}
	}
	switch w.Loss {
	case workload.LossCCE:
		plugins = append(plugins, "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin")
		o.set("cut_cross_entropy", true)
		s.say("loss")
	case workload.LossChunked:
		o.set("chunked_cross_entropy", true)
		s.say("loss")
		if w.Kernels.ChunkedLoss > 0 {
			o.set("chunked_cross_entropy_num_chunks", w.Kernels.ChunkedLoss)
			s.say("loss-chunks")
		}
	default:
		lossNotes(s)
	}
	if len(plugins) > 0 {
		o.set("plugins", plugins)
	}
}
