package emit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"unoom/internal/model"
	"unoom/internal/workload"
)

// numbers is how the stacks around transformers say a precision: what autocast
// or the sharding's mixed precision computes in, and what weights are loaded in.
type numbers struct {
	bf16, fp16 bool
	load       string
}

// hfNumbers translates a precision.
//
// accelerate's FSDP turns trained 16-bit weights into float32 wherever mixed
// precision is on, so weights that are to stay in 16 bits go without it.
// Source: accelerate accelerator.py, _prepare_fsdp2 and prepare_model.
func hfNumbers(s *sheet) (numbers, error) {
	w := s.w
	s.say("dtype")
	fsdp := usesFSDP(w)
	deepspeed := usesDeepSpeed(w)
	switch w.Precision {
	case workload.AMPBF16:
		return numbers{bf16: true, load: "float32"}, nil
	case workload.AMPFP16:
		return numbers{fp16: true, load: "float32"}, nil
	case workload.BF16:
		pure := fsdp && w.Options["upcast"] != "fp32"
		return numbers{bf16: !pure, load: "bfloat16"}, nil
	case workload.FP16:
		// The scaler refuses float16 gradients: only frozen float16 weights, or
		// DeepSpeed's own float16 training, are possible.
		// Source: pytorch torch/amp/grad_scaler.py, "Attempting to unscale FP16 gradients".
		if !w.Method.Adapted() && !deepspeed {
			return numbers{}, s.cannot("dtype")
		}
		return numbers{fp16: true, load: "float16"}, nil
	}
	return numbers{load: "float32"}, nil
}

func usesFSDP(w *workload.Workload) bool {
	return w.Sharding == workload.FSDP || w.Sharding == workload.FSDP2
}

// autocast reports whether weights are kept in float32 and cast for each
// operation.
func autocast(w *workload.Workload) bool {
	return w.Precision == workload.AMPBF16 || w.Precision == workload.AMPFP16
}

func usesDeepSpeed(w *workload.Workload) bool {
	switch w.Sharding {
	case workload.ZeRO1, workload.ZeRO2, workload.ZeRO3:
		return true
	}
	return false
}

// hfOptimizer returns the value of TrainingArguments' optim.
//
// Source: transformers training_args.py, OptimizerNames.
func hfOptimizer(s *sheet) (string, error) {
	o := &s.w.Optimizer
	name := strings.ReplaceAll(strings.ToLower(o.Name), "-", "_")
	switch name {
	case "", "adam", "adamw", "adamw_torch", "adamw_torch_fused", "adamw_hf", "torch_adamw":
		name = "adamw_torch"
		if o.Impl == "fused" || o.Impl == "" && strings.HasSuffix(o.Name, "fused") {
			name = "adamw_torch_fused"
		}
		if o.Impl != "loop" {
			s.say("optimizer-impl")
		}
	case "adamw8bit", "adamw_8bit", "adamw_bnb_8bit", "adam8bit", "adam_8bit":
		name = "adamw_bnb_8bit"
	case "paged_adamw", "paged_adamw_32bit":
		name = "paged_adamw_32bit"
	case "paged_adamw8bit", "paged_adamw_8bit":
		name = "paged_adamw_8bit"
	case "lion":
		name = "lion_32bit"
	case "galore":
		name = "galore_adamw"
	case "rmsprop", "sgd", "adafactor", "adagrad", "lion_8bit", "lion_32bit", "paged_lion_8bit", "paged_lion_32bit", "ademamix", "ademamix_8bit", "lomo", "adalomo",
		"galore_adamw", "galore_adamw_8bit", "galore_adafactor", "galore_adamw_layerwise", "galore_adamw_8bit_layerwise", "adamw_anyprecision", "grokadamw",
		"schedule_free_adamw", "schedule_free_sgd", "apollo_adamw", "apollo_adamw_layerwise", "stable_adamw":
	default:
		return "", s.cannot("optimizer")
	}
	if o.Paged && !strings.HasPrefix(name, "paged_") {
		switch name {
		case "adamw_torch", "adamw_torch_fused":
			name = "paged_adamw_32bit"
		case "adamw_bnb_8bit":
			name = "paged_adamw_8bit"
		case "lion_8bit", "lion_32bit":
			name = "paged_" + name
		default:
			return "", s.cannot("paged")
		}
	}
	s.say("optimizer", "paged")
	if strings.Contains(name, "layerwise") || name == "lomo" || name == "adalomo" {
		s.say("optimizer-in-backward")
	}
	s.omit("optimizer-impl", "emit_note_impl")
	return name, nil
}

// hfAttention returns attn_implementation.
func hfAttention(s *sheet) string {
	s.say("attention")
	switch s.w.Attention {
	case workload.Eager:
		return "eager"
	case workload.Flash:
		return "flash_attention_2"
	case workload.Flex:
		return "flex_attention"
	case workload.MemEfficient, workload.MathSDPA:
		s.instead("attention", "emit_note_sdp_backend", sdpBackend(s.w.Attention))
	}
	return "sdpa"
}

// sdpBackend is the name in torch.nn.attention.SDPBackend.
func sdpBackend(a workload.Attention) string {
	if a == workload.MathSDPA {
		return "MATH"
	}
	return "EFFICIENT_ATTENTION"
}

// liger returns the arguments of liger-kernel's patch, nil if nothing is
// patched.
//
// Source: transformers training_args.py, liger_kernel_config; liger-kernel
// _apply_liger_kernel_to_instance.
func liger(s *sheet) object {
	k := &s.w.Kernels
	loss := s.w.Loss == workload.LossLiger
	if !loss && k.FusedNorm != "liger" && k.FusedRope != "liger" && k.FusedMLP != "liger" {
		return nil
	}
	var o object
	o.set("rope", k.FusedRope == "liger")
	o.set("rms_norm", k.FusedNorm == "liger")
	o.set("swiglu", k.FusedMLP == "liger")
	o.set("cross_entropy", false)
	o.set("fused_linear_cross_entropy", loss)
	if loss {
		s.say("loss")
	}
	for name, value := range map[string]string{"norm-kernel": k.FusedNorm, "rope-kernel": k.FusedRope, "mlp-kernel": k.FusedMLP} {
		if value == "liger" {
			s.say(name)
		}
	}
	return o
}

// ligerWhole says that a switch turns all of liger-kernel's parts on, also those
// that the workload leaves alone.
func ligerWhole(s *sheet) {
	if s.w.Loss != workload.LossLiger {
		s.instead("loss", "emit_note_liger_whole")
	}
	for _, name := range []string{"loss", "norm-kernel", "rope-kernel", "mlp-kernel"} {
		if s.value(name) == "liger" {
			s.instead(name, "emit_note_liger_whole")
		}
	}
}

// lossNotes says what of the loss the stacks around transformers leave to the
// script.
func lossNotes(s *sheet) {
	switch s.w.Loss {
	case workload.LossPlain: // what the models do themselves
		s.say("loss")
	case workload.LossCCE:
		s.omit("loss", "emit_note_cce")
	case workload.LossChunked:
		s.omit("loss", "emit_note_chunked")
		s.omit("loss-chunks", "emit_note_chunked")
	}
	s.omit("loss", "emit_note_loss")
}

// version compares a library's version of a workload, with a default where it is
// not known.
func version(w *workload.Workload, library, otherwise string, major, minor int) bool {
	text := w.Version(library)
	if text == "" {
		text = otherwise
	}
	parts := strings.Split(text, ".")
	a, _ := strconv.Atoi(parts[0])
	b := 0
	if len(parts) > 1 {
		b, _ = strconv.Atoi(parts[1])
	}
	return a > major || a == major && b >= minor
}

// writeTransformers writes TrainingArguments as a module with the names of the
// workload's version of transformers; without one, those of 5.
func writeTransformers(s *sheet) ([]File, error) {
	w := s.w
	if err := s.refuse("tp", "pp", "ep", "cp", "fp8"); err != nil {
		return nil, err
	}
	if w.Checkpointing == workload.Selective {
		return nil, s.cannot("checkpointing")
	}
	s.say("vpp", "sequence-parallel") // of the dimensions refused above
	modern := version(w, "transformers", "5.24", 5, 13)
	s.about = "transformers " + map[bool]string{true: "5.13+", false: w.Version("transformers")}[modern]
	var args object
	args.set("per_device_train_batch_size", w.MicroBatch)
	args.set("gradient_accumulation_steps", max(w.Accumulation, 1))
	s.say("micro-batch", "accum")
	if w.Eval {
		args.set("per_device_eval_batch_size", w.MicroBatch)
		args.set("eval_strategy", "epoch")
		s.say("eval")
	}
	n, err := hfNumbers(s)
	if err != nil {
		return nil, err
	}
	args.set("bf16", n.bf16)
	args.set("fp16", n.fp16)
	optim, err := hfOptimizer(s)
	if err != nil {
		return nil, err
	}
	args.set("optim", optim)
	if strings.HasPrefix(optim, "galore") || strings.HasPrefix(optim, "apollo") {
		args.set("optim_target_modules", []string{"attn", "mlp"})
		if w.Optimizer.Rank > 0 {
			args.set("optim_args", "rank="+strconv.FormatInt(w.Optimizer.Rank, 10))
			s.say("optimizer-rank")
		}
	}
	if w.Optimizer.NoDecay {
		args.set("weight_decay", 0.0)
		s.say("no-decay")
	}
	files, err := transformersSharding(s, &args, modern)
	if err != nil {
		return nil, err
	}
	fsdp := usesFSDP(w)
	if w.Checkpointing == workload.FullCheckpoint {
		s.omit("checkpointed-layers", "emit_note_layers")
		if !fsdp { // there it is the sharding's own
			args.set("gradient_checkpointing", true)
			reentrant := false
			if w.Reentrant != nil {
				reentrant = *w.Reentrant
			}
			args.set("gradient_checkpointing_kwargs", object{{"use_reentrant", reentrant}})
			s.say("reentrant")
		}
		s.say("checkpointing")
	}
	if w.Compile {
		args.set("torch_compile", true)
		s.say("compile")
	}
	if k := liger(s); k != nil {
		args.set("use_liger_kernel", true)
		if version(w, "transformers", "5.24", 4, 54) { // liger_kernel_config came with 4.54
			args.set("liger_kernel_config", k)
		} else {
			ligerWhole(s)
		}
	}
	lossNotes(s)
	s.omit("bucket-view", "emit_note_bucket_view")
	var b strings.Builder
	body := transformersModel(s, n)
	b.WriteString(transformersImports(s))
	fmt.Fprintf(&b, "ARGS = %s\n\n", pythonOf(args, 0))
	b.WriteString(body)
	b.WriteString(`

def training_arguments(output_dir, **more):
    """The arguments of the plan; more adds what a plan does not decide."""
    from transformers import TrainingArguments

    return TrainingArguments(output_dir=output_dir, **{**ARGS, **more})
`)
	s.omit("seq", "emit_note_seq_constant")
	if !s.has("gpus") {
		s.say("gpus")
	} else {
		s.omit("gpus", "emit_note_gpus_launcher", launchHint(s))
	}
	head := s.comment("#") + "# " + s.text("emit_hf_use") + "\n#   from training_args import load_model, training_arguments\n"
	return append([]File{{Name: "training_args.py", Data: []byte(head + b.String())}}, files...), nil
}

// launchHint is the command that starts the processes.
func launchHint(s *sheet) string {
	if s.w.Sharding == workload.DataParallel {
		return "python " + s.script()
	}
	nodes, per, err := s.layout()
	if err != nil || nodes > 1 {
		return "unoom emit torchrun"
	}
	return fmt.Sprintf("torchrun --nproc-per-node %d %s", per, s.script())
}

func transformersImports(s *sheet) string {
	var b strings.Builder
	if s.w.AllocConf != "" {
		b.WriteString("import os\n\n")
		// Both names: torch 2.9 renamed the variable and still reads the old one.
		fmt.Fprintf(&b, "os.environ.setdefault(%q, %s)  # before torch\n\n", "PYTORCH_CUDA_ALLOC_CONF", quote(s.w.AllocConf))
		s.say("alloc-conf")
	}
	return b.String()
}

// transformersSharding puts the sharding into the arguments.
func transformersSharding(s *sheet, args *object, modern bool) ([]File, error) {
	w := s.w
	switch w.Sharding {
	case workload.NoSharding, workload.DDP, workload.DataParallel, "":
		if err := s.refuse("offload"); err != nil && w.Offload != workload.OffloadActivations {
			return nil, err
		}
		s.omit("offload", "emit_note_offload_activations")
		s.say("sharding")
		return nil, nil
	case workload.ZeRO1, workload.ZeRO2, workload.ZeRO3:
		config, err := deepSpeedConfig(s, "hf")
		if err != nil {
			return nil, err
		}
		args.set("deepspeed", "ds_config.json")
		return []File{deepSpeedFile(config, s.origin())}, nil
	}
	two := w.Sharding == workload.FSDP2
	reshard := w.ReshardAfterForward != "never"
	hybrid := s.has("shard")
	offload, err := fsdpOffload(s)
	if err != nil {
		return nil, err
	}
	var c object
	words := "full_shard"
	switch {
	case hybrid && two:
		if !version(w, "transformers", "5.24", 4, 56) {
			return nil, s.cannot("shard")
		}
		args.set("parallelism_config", raw(fmt.Sprintf("ParallelismConfig(dp_replicate_size=%d, dp_shard_size=%d)", w.Parallel.Data/w.Parallel.Shard, w.Parallel.Shard)))
		s.say("shard")
	case hybrid:
		if _, per, err := s.layout(); err != nil || per != w.Parallel.Shard {
			return nil, s.cannot("shard") // FSDP1's hybrid shards within one machine
		}
		words = map[bool]string{true: "hybrid_shard", false: "hybrid_shard_zero2"}[reshard]
		s.say("shard")
	case !reshard:
		words = "shard_grad_op"
	}
	if modern {
		args.set("fsdp", true)
		c.set("version", map[bool]int{true: 2, false: 1}[two])
		if two {
			c.set("reshard_after_forward", reshard)
		} else {
			c.set("reshard_after_forward", words)
			c.set("use_orig_params", true)
		}
		c.put(offload, "cpu_offload", true)
		c.set("auto_wrap_policy", "TRANSFORMER_BASED_WRAP")
	} else {
		if two && !version(w, "transformers", "5.24", 4, 51) {
			return nil, s.cannot("sharding")
		}
		value := words + " auto_wrap"
		if two { // FSDP2 has one strategy; resharding is a flag
			value = "full_shard auto_wrap"
		}
		if offload {
			value += " offload"
		}
		args.set("fsdp", value)
		if two {
			c.set("fsdp_version", 2)
			c.set("reshard_after_forward", reshard)
		} else {
			c.set("use_orig_params", true)
			c.set("backward_prefetch", "backward_pre")
		}
	}
	c.set("state_dict_type", "SHARDED_STATE_DICT")
	if !modern { // read from the environment by accelerate there
		c = slices.DeleteFunc(c, func(p pair) bool { return p.key == "state_dict_type" })
	}
	c.set("cpu_ram_efficient_loading", loadsOnRankZero(w))
	if w.Checkpointing == workload.FullCheckpoint {
		c.set("activation_checkpointing", true)
		s.omit("reentrant", "emit_note_fsdp_reentrant")
	}
	args.set("fsdp_config", c)
	s.say("sharding", "reshard-after-forward")
	return nil, nil
}

// packed reports whether bitsandbytes stores the frozen weights.
func packed(w *workload.Workload) bool {
	switch w.Base {
	case workload.NF4, workload.NF4Double, workload.Int8:
		return true
	}
	return false
}

// loadsOnRankZero reports whether one rank may read the weights for all. Under
// FSDP2 the packed weights of bitsandbytes deadlock while they are handed out.
// Source: axolotl utils/schemas/validation.py, on load_in_4bit.
func loadsOnRankZero(w *workload.Workload) bool {
	return w.Sharding != workload.FSDP2 || !packed(w)
}

// fsdpOffload reports whether FSDP offloads: weights, gradients and optimizer
// together, or nothing.
func fsdpOffload(s *sheet) (bool, error) {
	switch s.w.Offload {
	case workload.OffloadParams:
		s.say("offload")
		return true, nil
	case workload.OffloadActivations:
		s.omit("offload", "emit_note_offload_activations")
		return false, nil
	case workload.NoOffload, "":
		return false, nil
	}
	return false, s.cannot("offload")
}

// transformersModel writes how the model is loaded and adapted.
func transformersModel(s *sheet, n numbers) string {
	w := s.w
	var b strings.Builder
	name := "dtype"
	if !version(w, "transformers", "5.24", 4, 56) { // renamed in 4.56
		name = "torch_dtype"
	}
	fmt.Fprintf(&b, "MODEL = dict(\n    %s=%q,\n    attn_implementation=%q,\n)\n\nMAX_LENGTH = %d  # tokens of one sample\n", name, n.load, hfAttention(s), w.Seq)
	s.say("seq", "method")
	if q := quantization(s); len(q) > 0 {
		fmt.Fprintf(&b, "\nQUANTIZATION = %s\n", pythonOf(q, 0))
	}
	if w.Method.Adapted() {
		fmt.Fprintf(&b, "\nLORA = %s\n", pythonOf(loraConfig(s), 0))
	}
	classes := []string{autoClass(w)}
	if packed(w) {
		classes = append(classes, "BitsAndBytesConfig")
	}
	b.WriteString("\n\ndef load_model(name=" + quote(s.repository()) + "):\n    from transformers import " + strings.Join(classes, ", ") + "\n")
	if w.Method.Adapted() {
		b.WriteString("    from peft import LoraConfig, get_peft_model")
		if w.Adapter.KBit {
			b.WriteString(", prepare_model_for_kbit_training")
		}
		b.WriteString("\n")
	}
	args := ", **MODEL"
	if packed(w) {
		args += ", quantization_config=BitsAndBytesConfig(**QUANTIZATION)"
	}
	b.WriteString("\n    model = " + autoClass(w) + ".from_pretrained(name" + args + ")\n")
	if w.Method == workload.FrozenPart && w.FrozenLayers > 0 {
		fmt.Fprintf(&b, "    for layer in model.base_model.layers[:%d]:\n        layer.requires_grad_(False)\n", w.FrozenLayers)
		s.say("frozen-layers")
	}
	if w.Method.Adapted() {
		if w.Adapter.KBit {
			b.WriteString("    model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)\n")
			s.say("kbit")
		}
		b.WriteString("    model = get_peft_model(model, LoraConfig(**LORA)" + adapterCast(s) + ")\n")
		if w.Checkpointing == workload.FullCheckpoint {
			// Without it nothing that enters a checkpointed layer asks for gradients.
			b.WriteString("    model.enable_input_require_grads()  # for checkpointed layers over frozen embeddings\n")
		}
	}
	b.WriteString("    return model\n")
	return b.String()
}

// autoClass is the class of transformers that loads the model with its head.
func autoClass(w *workload.Workload) string {
	switch {
	case w.Image[0] > 0:
		return "AutoModelForImageClassification"
	case w.Model == nil || len(w.Model.Stacks) == 0:
		return "AutoModelForCausalLM"
	case len(w.Model.Stacks) > 1 && !w.Model.Stacks[0].Causal:
		return "AutoModelForSeq2SeqLM"
	case !w.Model.Stacks[len(w.Model.Stacks)-1].Causal:
		return "AutoModelForMaskedLM"
	}
	return "AutoModelForCausalLM"
}

// adapterCast says in what adapters are kept: peft makes 16-bit ones float32.
// Source: peft mapping_func.py, get_peft_model(autocast_adapter_dtype=True).
func adapterCast(s *sheet) string {
	switch s.w.Adapter.DType {
	case model.Float32:
		s.say("adapter-dtype")
	case model.BFloat16, model.Float16:
		s.say("adapter-dtype")
		return ", autocast_adapter_dtype=False"
	}
	return ""
}

// loraConfig returns the arguments of peft's LoraConfig.
func loraConfig(s *sheet) object {
	a := &s.w.Adapter
	var o object
	o.set("r", max(a.Rank, 1))
	o.set("lora_alpha", 2*max(a.Rank, 1))
	o.set("lora_dropout", a.Dropout)
	if len(a.Targets) == 0 || slices.Contains(a.Targets, "all-linear") {
		o.set("target_modules", "all-linear")
	} else {
		o.set("target_modules", a.Targets)
	}
	dora := s.w.Method == workload.DoRA || s.w.Method == workload.QDoRA
	o.put(dora, "use_dora", true)
	switch autoClass(s.w) {
	case "AutoModelForCausalLM":
		o.set("task_type", "CAUSAL_LM")
	case "AutoModelForSeq2SeqLM":
		o.set("task_type", "SEQ_2_SEQ_LM")
	}
	s.say("method", "rank", "targets", "lora-dropout")
	return o
}

// quantization returns the arguments of BitsAndBytesConfig.
func quantization(s *sheet) object {
	var o object
	switch s.w.Base {
	case workload.NF4, workload.NF4Double:
		compute := "bfloat16"
		if s.w.Precision == workload.FP16 || s.w.Precision == workload.AMPFP16 {
			compute = "float16"
		}
		o.set("load_in_4bit", true)
		o.set("bnb_4bit_quant_type", "nf4")
		o.set("bnb_4bit_use_double_quant", s.w.Base == workload.NF4Double)
		o.set("bnb_4bit_compute_dtype", compute)
		if s.w.Sharding.Sharded() { // so that a shard can be flattened
			o.set("bnb_4bit_quant_storage", compute)
		}
		s.say("base")
	case workload.Int8:
		o.set("load_in_8bit", true)
		s.say("base")
	case workload.GPTQ4:
		s.omit("base", "emit_note_gptq")
	}
	return o
}
