package oomlog

import (
	"slices"
	"strings"
)

// A Phase is the part of a run that a traceback or a progress line shows.
type Phase string

// The phases.
const (
	PhaseUnknown       Phase = ""
	PhaseLoad          Phase = "load"
	PhaseData          Phase = "data"
	PhaseForward       Phase = "forward"
	PhaseLoss          Phase = "loss"
	PhaseBackward      Phase = "backward"
	PhaseStep          Phase = "optimizer_step"
	PhaseCommunication Phase = "communication"
	PhaseEvaluation    Phase = "evaluation"
	PhaseSave          Phase = "save"
	PhaseResume        Phase = "resume"
	PhaseEngine        Phase = "engine"
)

// A phaseRule recognises the phase of one call. A call matches if its function
// has one of the words and, where given, its file or its source line has one of the literals.
type phaseRule struct {
	phase Phase
	// words are whole function names; "word*" is one of a name's parts (between
	// underscores and capitals), "two_words*" is how it begins.
	words  []string
	file   []string // literals of the path
	code   []string // literals of the quoted source line
	unless []string // literals of function, file or code that rule it out
	// frame says that the phase holds for all calls inside this one (a save, an
	// evaluation); otherwise the innermost call decides.
	frame bool
}

// phaseRules are tried in order for every call. The names are those of PyTorch,
// transformers, accelerate, Lightning, DeepSpeed, FSDP, mmengine, fairseq,
// detectron2, Ultralytics, and what people call their own functions.
var phaseRules = [...]phaseRule{
	{phase: PhaseSave, frame: true,
		words:  []string{"save*", "saving*", "_save", "state_dict", "_state_dict", "consolidate*", "gather_full*", "full_state_dict", "_full_post_state_dict_hook", "_common_unshard_post_state_dict_hook", "get_state_dict", "zero_to_fp32", "dump_checkpoint", "export*"},
		code:   []string{".save_pretrained(", "save_checkpoint(", ".state_dict()", "torch.save(", "save_model(", "_state_dict_utils.py"},
		unless: []string{"save_for_backward", "saved_tensors", "save_on_cpu", "load_state_dict", "save_hyperparameters", "load_from", "set_model_state_dict", "set_optimizer_state_dict"}},
	{phase: PhaseResume, frame: true,
		words:  []string{"resume*", "load_checkpoint", "_load_checkpoint", "_load_from_checkpoint", "load_state", "load_state_dict", "_load_optimizer_and_scheduler", "load_optimizer*", "restore*", "restore_location", "load_ckpt", "load_from_checkpoint", "_load_optimizer_states", "persistent_load", "set_state_dict", "set_model_state_dict", "set_optimizer_state_dict", "_load_model_state_dict", "_load_optim_state_dict"},
		code:   []string{"load_state_dict(", "load_checkpoint(", "torch.load(", "restore_location(", "resume_from_checkpoint(", ".load_state("},
		unless: []string{"from_pretrained", "_load_state_dict_into", "load_tokenizer", "load_pretrained"}},
	{phase: PhaseEngine, frame: true,
		words: []string{"initialize_cache", "_initialize_kv_caches", "determine_num_available_blocks", "wake_up", "init_cache_engine", "capture_model", "_init_executor", "profile_run", "init_memory_pool", "determine_available_memory", "initialize_kv_cache*"},
		file:  []string{"vllm/engine/", "vllm/v1/engine", "vllm/worker", "vllm/executor", "vllm/entrypoints/llm", "sglang/srt/", "device_allocator/cumem"},
		code:  []string{"= LLM(", ".wake_up(", "create_and_map(", "initialize_cache("}},
	{phase: PhaseEvaluation, frame: true,
		words:  []string{"evaluate*", "evaluation*", "eval*", "validate*", "validation*", "valid*", "val*", "predict", "predict_step", "prediction_step", "prediction_loop", "predict_loop", "run_predict", "do_predict", "predict_epoch", "test*", "_run_sanity_check", "nested_concat", "run_evaluator", "inference_on_dataset", "sliding*", "slide_inference", "whole_inference", "run_validation", "tester*", "log_validation"},
		code:   []string{"trainer.evaluate(", "evaluate(", "validate(", "nested_concat(", "nested_gather(", ".validation_step(", "prediction_step(", "pad_across_processes(", "trainer.predict("},
		unless: []string{"validate_args", "validate_model", "validate_env", "evaluate_expression", "latest", "ast.literal_eval", "model.eval()", "valid_mask", "getvalue", "test_util", "validate_config", "validate_input", "is_valid", "check_valid", "exec_eval", "_validate_", "default_eval", "/test_", "/tests/", "test_util"}},
	{phase: PhaseLoad, frame: true,
		words: []string{"from_pretrained", "_load_pretrained_model", "load_model*", "_load_state_dict_into_model", "_load_state_dict_into_meta_model", "set_module_tensor_to_device", "dispatch_model", "_move_model_to_device", "_configure_distributed_model", "load_pretrained*", "build_model", "get_model", "init_model", "create_model", "load_pipeline", "prepare_model", "prepare_model_for_kbit_training", "prepare", "_prepare_fsdp", "prepare_fsdp_model", "_broadcast_model", "_materialize*", "replace_with_bnb_linear", "quantize*", "initialize_model", "setup_model", "create_reference_model", "init_parameters", "from_config", "model_load", "partially_load", "patch_model*", "patch_weight*", "load_checkpoint_and_dispatch", "_init_flat_param", "_init_flat_param_and_metadata", "_init_param_handle_from_module", "_convert_to_deepspeed_param", "_zero_init_param", "_ddp_init_helper"},
		code:  []string{".from_pretrained(", "self.module.to(", "model.to(", "model.cuda(", "model = model.to", ".to_empty(", "dispatch_model(", "deepspeed.initialize(", "accelerator.prepare(", "prepare_model_for_kbit_training(", "net.cuda(", "net.to("}},
	{phase: PhaseLoad,
		words: []string{"_apply", "convert", "cuda", "to", "half", "bfloat16", "_lazy_init"},
		file:  []string{"torch/nn/modules/module.py", "torch/cuda/__init__", "diffusers/pipelines"}},
	{phase: PhaseData,
		words:  []string{"collate*", "__getitem__", "pin_memory", "_pin_memory_loop", "vstack", "_worker_loop", "_try_get_data", "get_batch", "prefetch*", "preprocess*", "_process_data"},
		code:   []string{"pin_memory(", "collate_fn(", ".pin_memory()"},
		unless: []string{"torch/nn/", "modeling_"}},
	{phase: PhaseStep,
		words:  []string{"optimizer_step", "_optimizer_step", "init_group", "_init_group", "adamw", "adam", "sgd", "_multi_tensor_adam", "_multi_tensor_adamw", "_multi_tensor_sgd", "_single_tensor_adamw", "_single_tensor_adam", "_fused_adamw", "update_step", "_foreach*", "_take_model_step", "_optimizer_step*", "unscale_*", "unscale", "clip_grad_norm", "clip_grad_norm_", "update1", "update2", "_maybe_opt_step", "initialize_optimizer_states", "_initialize_optimizer_states"},
		code:   []string{"optimizer.step(", "self.optim.step(", "optim.step(", "exp_avg", "_foreach_", "momentum_buffer", "scaler.step(", "opt.step(", "exp_inf", "state_step", "scaler.unscale_(", "clip_grad_norm"},
		unless: []string{"zero_grad"}},
	{phase: PhaseStep, words: []string{"step"}, file: []string{"optim", "adam", "lion", "lamb", "sgd", "muon", "engine.py", "galore", "shampoo"}, unless: []string{"training_step", "lr_scheduler"}},
	{phase: PhaseBackward,
		words: []string{"backward", "_run_backward", "_engine_run_backward", "run_backward", "_backward", "backward_step", "unpack_hook", "recompute_fn", "manual_backward", "deprecate_backward"},
		file:  []string{"torch/autograd/"},
		code:  []string{".backward(", "run_backward(", "backward_fn("}},
	{phase: PhaseLoss,
		words: []string{"cross_entropy", "nll_loss", "loss_function", "ForCausalLMLoss", "fixed_cross_entropy", "log_softmax", "get_assignments", "compute_loss_func", "kl_div", "criterion*", "loss_fn", "selective_log_softmax", "get_per_token_logps", "_get_per_token_logps", "entropy_from_logits", "binary_cross_entropy_with_logits", "get_batch_logps", "assign", "bbox_overlaps", "box_iou"},
		file:  []string{"/loss.py", "/losses.py", "loss_utils.py", "/criterion", "cross_entropy", "_loss.py"},
		code:  []string{"cross_entropy", "loss_fct(", "criterion(", "logits.float()", "log_softmax(", "lm_head(", "loss_fn(", ".nll_loss(", "loss_func(", "logits = logits", "shift_logits"}},
	{phase: PhaseCommunication,
		words:  []string{"all_reduce", "all_gather", "reduce_scatter", "barrier", "broadcast", "all_gather_into_tensor", "_verify_param_shape_across_processes", "_sync_module_states", "init_process_group", "_sync_params_and_buffers", "all_to_all_single", "broadcast_object_list", "all_gather_object"},
		file:   []string{"distributed_c10d.py", "torch/distributed/utils.py"},
		unless: []string{"elastic", "launcher"}},
	{phase: PhaseForward,
		words:  []string{"forward", "__call__", "_call_impl", "training_step", "compute_loss", "_wrapped_call_impl", "train_step", "forward_step", "forward_train", "encode", "decode", "sdpa_attention_forward", "scaled_dot_product_attention", "linear", "embedding", "softmax", "dropout", "layer_norm", "matmul", "conv2d", "conv3d", "silu", "gelu", "relu"},
		file:   []string{"torch/nn/functional", "modeling_"},
		code:   []string{"model(**", "model(", "self.model(", "net(", "outputs = ", "torch.matmul(", "F.scaled_dot_product", "F.linear(", "self.conv", "self.attn(", "self.mlp("},
		unless: []string{"modeling_utils", "modeling_flax_utils", "modeling_tf_utils", "__init__"}},
}

// phaseOf reads the phase from the calls of a traceback, outermost first, and
// the source lines quoted without a call. An enclosing save, resume, engine or
// evaluation decides over what runs inside it; otherwise the innermost call
// that says anything does, except that a backward pass stays one while it
// recomputes the forward.
func phaseOf(trace []Frame, code []string) Phase {
	var around, inner Phase
	order := map[Phase]int{PhaseLoad: 1, PhaseEvaluation: 2, PhaseEngine: 3, PhaseResume: 4, PhaseSave: 5}
	trained, pretrained := false, false
	visit := func(f Frame) {
		pretrained = pretrained || f.Func == "from_pretrained" || f.Func == "_load_pretrained_model"
		for i := range phaseRules {
			r := &phaseRules[i]
			if !r.matches(f) || pretrained && r.phase == PhaseResume { // a model's own files are no checkpoint of the run
				continue
			}
			if r.frame {
				if order[r.phase] > order[around] {
					around = r.phase
				}
				return
			}
			switch {
			case inner == PhaseBackward && (r.phase == PhaseForward || r.phase == PhaseLoss || r.phase == PhaseLoad):
			case r.phase == PhaseForward && inner == PhaseLoss:
			case r.phase == PhaseForward && inner == PhaseStep && !closure(f):
			default:
				inner = r.phase
			}
			if r.phase == PhaseForward || r.phase == PhaseBackward || r.phase == PhaseStep || r.phase == PhaseLoss {
				trained = true
			}
			return
		}
	}
	for _, f := range trace {
		visit(f)
	}
	for i, c := range code {
		visit(Frame{Code: c})
		if i == len(code)-1 {
			visit(Frame{Func: called(c)})
		}
	}
	if n := len(trace); n > 0 && len(code) == 0 && trace[n-1].Code != "" {
		visit(Frame{Func: called(trace[n-1].Code)})
	}
	if around == PhaseLoad && trained {
		return inner
	}
	if around != PhaseUnknown {
		return around
	}
	return inner
}

// makers are the first words of functions that make or fetch a model and do not
// run it: load_model, build_net, create_model_and_transforms.
var makers = []string{"load", "build", "create", "get", "init", "make", "prepare", "setup", "wrap", "instantiate"}

// makesModel reports whether a source line calls such a function.
func makesModel(code string) bool {
	name := called(code)
	first, rest, ok := strings.Cut(strings.TrimLeft(name, "_"), "_")
	return ok && slices.Contains(makers, first) && containsAny(rest, []string{"model", "net", "pipeline"})
}

// called returns the name of the function that a source line calls first:
// save_sharded in "ckpt.save_sharded(model, rank)".
func called(code string) string {
	before, _, ok := strings.Cut(code, "(")
	if !ok {
		return ""
	}
	if i := strings.LastIndexAny(before, " .=!"); i >= 0 {
		before = before[i+1:]
	}
	return before
}

// closure reports whether a call inside an optimizer's step runs the model
// again, as Lightning's closures do.
func closure(f Frame) bool {
	return strings.Contains(f.Func, "closure") || f.Func == "training_step" || f.Func == "forward"
}

func (r *phaseRule) matches(f Frame) bool {
	file := strings.ReplaceAll(f.File, "\\", "/")
	for _, u := range r.unless {
		if strings.Contains(f.Func, u) || strings.Contains(f.Code, u) || strings.Contains(file, u) {
			return false
		}
	}
	inFile := len(r.file) > 0 && containsAny(file, r.file)
	named := false
	for _, w := range r.words {
		if part, some := strings.CutSuffix(w, "*"); some && strings.Contains(part, "_") {
			named = named || strings.HasPrefix(f.Func, part)
		} else if some {
			named = named || hasWord(f.Func, strings.ToLower(part))
		} else {
			named = named || f.Func == w
		}
	}
	inCode := f.Code != "" && containsAny(f.Code, r.code) && !(r.phase == PhaseForward && makesModel(f.Code))
	switch {
	case len(r.words) > 0 && len(r.file) > 0 && len(r.code) == 0:
		return named && inFile
	case named, inCode:
		return true
	}
	return inFile
}

func containsAny(s string, literals []string) bool {
	for _, l := range literals {
		if strings.Contains(s, l) {
			return true
		}
	}
	return false
}

// hasWord reports whether a name has the word as one of its parts: eval in
// run_eval, evalLoop and eval_step, but not in retrieval.
func hasWord(name, word string) bool {
	start := 0
	for i := 0; i <= len(name); i++ {
		boundary := i == len(name) || name[i] == '_' || name[i] == '.' || name[i] == ' '
		upper := i < len(name) && i > start && name[i] >= 'A' && name[i] <= 'Z' && name[i-1] >= 'a' && name[i-1] <= 'z'
		if !boundary && !upper {
			continue
		}
		if strings.EqualFold(name[start:i], word) {
			return true
		}
		start = i
		if boundary {
			start++
		}
	}
	return false
}
