package diagnose

import (
	"strconv"
	"strings"

	"unoom/internal/oomlog"
	"unoom/internal/remedy"
	"unoom/internal/units"
)

func itoa(n int) string { return strconv.Itoa(n) }

func lowerFrame(f oomlog.Frame) string {
	return strings.ToLower(strings.ReplaceAll(f.File+" "+f.Func+" "+f.Code, "\\", "/"))
}

// firstSeen returns the line of the traceback that has one of the words.
func firstSeen(s *signals, words []string) string {
	for _, c := range s.code {
		low := strings.ToLower(c)
		for _, w := range words {
			if strings.Contains(low, w) {
				return c
			}
		}
	}
	return ""
}

// traceRules: what the traceback says. With a full card the figures are silent
// and the traceback decides.
func traceRules() []logRule {
	return []logRule{
		// Optimizer step.
		{"trace.step", []vote{{remedy.OptimizerState, strong}, {remedy.OptimizerForeachPeak, 2.4}, {remedy.TrainStateTooLarge, 2}}, ifPhase(oomlog.PhaseStep)},
		{"trace.state_created", []vote{{remedy.OptimizerState, strong}}, ifSees("exp_avg", "momentum_buffer", "_init_group", "init_state(", "square_avg", "state_step", "['sum']", "exp_inf", "initialize_optimizer_states")},
		{"trace.foreach", []vote{{remedy.OptimizerForeachPeak, strong + 2}}, ifSees("_foreach_", "_multi_tensor_", "foreach_sqrt", "multi_tensor_apply")},

		// Loss.
		{"trace.logits", []vote{{remedy.LogitsVocab, strong + 1}, {remedy.LongestBatch, 2.2}, {remedy.SequenceTooLong, 2}}, logits},
		{"trace.assignment", []vote{{remedy.LongestBatch, strong}, {remedy.InputTooLarge, weak}}, ifSees("get_assignments", "assigner", "bbox_overlaps", "box_iou", "iou_calculator", "simota", "simotaassigner", "task_aligned", "hungarian", "label assignment")},
		{"trace.vocabulary_shape", []vote{{remedy.LogitsVocab, strong}, {remedy.SequenceTooLong, weak}}, vocabularyShape},
		{"trace.backward", []vote{{remedy.ActivationsNoCheckpointing, trace}, {remedy.BatchTooLarge, 0.4}}, ifPhase(oomlog.PhaseBackward)},
		{"trace.backward_logits", []vote{{remedy.LogitsVocab, 1.2}}, backwardLarge},
		{"trace.attention", []vote{{remedy.SequenceTooLong, strong}, {remedy.InputTooLarge, 1.8}}, attention},
		{"trace.fused_attention", []vote{{remedy.SequenceTooLong, weak}, {remedy.BatchTooLarge, weak}}, ifSees("memory_efficient_attention", "flash_attn", "sdpa_attention")},
		{"trace.pairwise", []vote{{remedy.InputTooLarge, strong}, {remedy.LongestBatch, weak}}, ifSees("cdist", "pairwise", "torch.ones(n, n", "to_dense", "dense_adj", "kneighbors", "torch.outer", "knn_graph", "radius_graph", "distance_matrix", "interpolate(", "upsample")},

		// Evaluation.
		{"trace.gathers_predictions", []vote{{remedy.EvalAccumulatesPredictions, decisive}}, gathersPredictions},
		{"trace.collects", []vote{{remedy.EvalAccumulatesPredictions, 1.0}}, collectsResults},
		{"trace.appends", []vote{{remedy.EvalAccumulatesPredictions, fair}}, appendsResults},
		{"trace.joins_results", []vote{{remedy.EvalAccumulatesPredictions, fair}}, joinsResults},
		{"trace.metric_state", []vote{{remedy.LeakStateGrowth, strong + 1}, {remedy.EvalAccumulatesPredictions, 2.8}}, metricState},
		{"trace.evaluation", []vote{
			{remedy.EvalWorkloadLarger, 3.4}, {remedy.EvalNoGrad, 3.2}, {remedy.EvalAccumulatesPredictions, 2.6}, {remedy.ExtraModelCopy, trace}, {remedy.LeakStateGrowth, weak},
			{remedy.BatchTooLarge, -fair}, {remedy.ActivationsNoCheckpointing, -fair}, {remedy.GPUTooSmall, -weak}, {remedy.LongestBatch, -1}, {remedy.LeakGraphRetained, -1}, {remedy.InputTooLarge, -trace},
		}, ifPhase(oomlog.PhaseEvaluation)},
		{"trace.evaluation_before_no_grad", []vote{{remedy.EvalNoGrad, 1.0}}, evaluationOld},
		{"trace.evaluation_big", []vote{{remedy.EvalWorkloadLarger, weak}}, evaluationBig},
		{"trace.evaluation_backward", []vote{{remedy.EvalNoGrad, fair}}, evaluationBackward},
		{"trace.generate", []vote{{remedy.EvalWorkloadLarger, weak}, {remedy.SequenceTooLong, weak}}, generates},

		// Saving, resuming, loading.
		{"trace.save", []vote{{remedy.SaveGathersFullState, strong + 1.5}}, ifPhase(oomlog.PhaseSave)},
		{"trace.resume", []vote{{remedy.ResumeDoubleLoad, strong + 1}}, ifPhase(oomlog.PhaseResume)},
		{"trace.load", []vote{
			{remedy.GPUTooSmall, fair}, {remedy.TrainStateTooLarge, 1.8}, {remedy.WrongPlacement, 2}, {remedy.PrecisionNotApplied, 1.8}, {remedy.ExtraModelCopy, weak}, {remedy.ShardingNotEffective, weak},
			{remedy.BatchTooLarge, -strong}, {remedy.ActivationsNoCheckpointing, -strong}, {remedy.LongestBatch, -strong}, {remedy.LeakGraphRetained, -fair}, {remedy.InputTooLarge, -fair}, {remedy.SequenceTooLong, -fair}, {remedy.LogitsVocab, -fair},
		}, loading},
		{"trace.notebook_load", []vote{{remedy.ExtraModelCopy, fair}}, notebookLoad},
		{"trace.whole_model_to_gpu", []vote{{remedy.ShardingNotEffective, strong}}, wholeModel},
		{"trace.sharded_load", []vote{{remedy.ShardingNotEffective, fair}}, shardedLoad},
		{"trace.gradient_buckets", []vote{{remedy.TrainStateTooLarge, strong + 2}, {remedy.GPUTooSmall, weak}, {remedy.InputTooLarge, -weak}, {remedy.BatchTooLarge, -weak}}, ifSees("_ddp_init_helper", "dist.reducer(")},
		{"trace.shard_init", []vote{{remedy.TrainStateTooLarge, fair}, {remedy.ShardingNotEffective, fair}, {remedy.GPUTooSmall, 1.8}}, ifSees("_init_flat_param", "_init_param_handle", "_convert_to_deepspeed_param", "_zero_init_param", "partition_parameters.py", "_materialize_with_param_init_fn")},
		{"trace.kbit_upcast", []vote{{remedy.PrecisionNotApplied, strong + 1}}, ifSees("prepare_model_for_kbit_training", "prepare_model_for_int8_training", "param.data.to(torch.float32)", ".float()  # upcast", "param.data = param.data.to(torch.float32)", "cast_mixed_precision_params")},
		{"trace.device_map", []vote{{remedy.WrongPlacement, strong}}, deviceMapThenCUDA},
		{"trace.model_copy", []vote{{remedy.ExtraModelCopy, strong}}, modelCopy},
		{"trace.validation_pipeline", []vote{{remedy.ExtraModelCopy, strong}}, validationPipeline},

		// Placement.
		{"trace.data_parallel", []vote{{remedy.DPImbalance, fair + 0.5}}, dataParallel},
		{"trace.gathers_outputs", []vote{{remedy.DPImbalance, strong}}, ifSees("parallel/scatter_gather.py gather", "parallel/data_parallel.py gather", "parallel/comm.py gather", "comm.gather(", "gather(outputs", "parallel/comm.py reduce_add")},
		{"trace.engine", []vote{{remedy.ColocatedEngine, strong + 1}, {remedy.Preallocation, weak}}, ifPhase(oomlog.PhaseEngine)},
		{"trace.engine_in_trainer", []vote{{remedy.ColocatedEngine, fair}}, engineInTrainer},
		{"trace.worker", []vote{{remedy.WorkerCUDAContexts, strong + 1}}, workerCUDA},
		{"trace.first_touch", []vote{{remedy.OtherProcess, 1.2}, {remedy.WrongGPU, 1.2}}, firstTouch},
		{"trace.pin_memory", []vote{{remedy.PinnedHostMemory, strong + 1}}, pinMemory},

		{"trace.pin_bare", []vote{{remedy.PinnedHostMemory, 2}}, pinBare},

		// Allocator and others.
		{"trace.communication", []vote{{remedy.NCCLOutsideAllocator, strong}}, ifPhase(oomlog.PhaseCommunication)},
		{"trace.graphs", []vote{{remedy.CompileOrCUDAGraph, strong}}, ifSees("cudagraph_trees", "make_graphed_callables", "cuda/graphs.py", "capture_begin", "cudagraphify", "max_autotune", "autotune_process", "benchmark_all_configs")},
		{"trace.compiled", []vote{{remedy.CompileOrCUDAGraph, 1.8}}, ifSees("_inductor/", "torchinductor", "_dynamo/eval_frame", "aot_autograd")},
		{"trace.retain_graph", []vote{{remedy.LeakGraphRetained, strong + 1}}, ifSees("retain_graph=true", "create_graph=true", "loss_sum +=", "total_loss += loss", "running_loss += loss", "losses.append(loss)", "+= output.loss", "train_loss += loss", "epoch_loss += loss", "outputs.append(out", ".append(loss)")},
		{"trace.state_kept", []vote{{remedy.LeakStateGrowth, fair}}, ifSees("replay_buffer", "memory_bank", "memory.append(", "memory.push(", "buffer.append(", "buffer.push(", "self.history.append", "self.cache[", "training_epoch_end", "training_step_outputs")},
		{"trace.lora_trainer_load", []vote{{remedy.GPUTooSmall, trace}}, ifSees("load_lora", "add_adapter")},
	}
}

func modelCopy(s *signals) (hit, bool) {
	if s.phase == oomlog.PhaseResume || s.phase == oomlog.PhaseSave { // both copy state, not the model
		return hit{}, false
	}
	return ifSees("deepcopy", "ema_model", "create_reference_model", "ref_model", "modelema", "averagedmodel", "swa_model", "copy_model", "teacher")(s)
}

// notebookLoad: a model is loaded in a notebook while much is allocated: the one
// of the cell's last run is still there.
func notebookLoad(s *signals) (hit, bool) {
	return s.at(s.allocated), s.memory() && s.phase == oomlog.PhaseLoad && share(s.allocated, s.capacity) > 0.4 && s.sees("cell in[", "input in [", "ipykernel", "<ipython-input", "from_pretrained(") && s.sees("cell in[", "input in [", "ipykernel", "<ipython-input")
}

// dataParallel: nn.DataParallel over several cards fails on the first of them.
func dataParallel(s *signals) (hit, bool) {
	if s.fail != nil && s.fail.Figures.Device > 0 || s.sees("self.module(*inputs[0]") { // one card only
		return hit{}, false
	}
	return ifSees("parallel/data_parallel.py", "parallel/scatter_gather.py", "parallel/replicate.py", "parallel/parallel_apply.py", "dataparallel(")(s)
}

func logits(s *signals) (hit, bool) {
	if !s.memory() || s.phase == oomlog.PhaseSave || s.phase == oomlog.PhaseResume {
		return hit{}, false
	}
	if s.sees("convert_to_fp32") && (s.language || s.tried >= units.GiB/2) { // accelerate turns what a forward pass returns, which are logits, into fp32
		return ifSees("convert_to_fp32")(s)
	}
	if s.sees("binary_cross_entropy", "bce_with_logits", "bcewithlogits") { // one number for each label, no vocabulary
		return hit{}, false
	}
	return ifSees("cross_entropy", "log_softmax", "lm_head", "logits.float()", "forcausallmloss", "selective_log_softmax", "get_batch_logps", "per_token_logps", "shift_logits", "vocab_parallel", "nll_loss", "entropy_from_logits", "logits.to(", "logits / ", "log_prob", "logprob", "logits.clone(")(s)
}

// vocabularyShape: generated code allocates a tensor whose rows are as long as a
// vocabulary, or a shard of one: 30,000 (BERT) to 262,144 (Gemma).
func vocabularyShape(s *signals) (hit, bool) {
	for _, f := range s.frames {
		_, shape, ok := strings.Cut(f.Code, "empty_strided_cuda((")
		shape, _, _ = strings.Cut(shape, ")")
		dims := strings.Split(strings.TrimRight(shape, ", "), ",")
		if n, err := strconv.Atoi(strings.TrimSpace(dims[len(dims)-1])); ok && err == nil && n >= 30_000 && n <= 262_144 && len(dims) > 1 {
			return hit{args: []any{n}, at: f.At}, s.memory()
		}
	}
	return hit{}, false
}

// backwardLarge: on large cards, which train language models, the gradient of
// the logits is a usual peak of the backward pass.
func backwardLarge(s *signals) (hit, bool) {
	_, large := filledLargeCard(s)
	return s.at(), s.phase == oomlog.PhaseBackward && large
}

func attention(s *signals) (hit, bool) {
	return ifSees("attention_scores", "attn_weights", "attn_scores", "scaled_dot_product", "baddbmm", "q @ k", "softmax(scores", "torch.matmul(query", "torch.matmul(q", "attention_probs", "einsum('b i d, b j d", "get_attention_scores", "rel_pos", "alibi", "causal_mask", "attn = (q", "torch.bmm(q")(s)
}

func gathersPredictions(s *signals) (hit, bool) {
	if !s.memory() {
		return hit{}, false
	}
	if c, ok := collecting(s); ok && c.last && c.join && s.phase == oomlog.PhaseEvaluation {
		return hit{args: []any{c.code}, at: c.at}, true
	}
	words := []string{"nested_concat", "nested_truncate", "nested_gather", "pad_across_processes", "torch_pad_and_concatenate", "preds_host", "logits_host", "gather_for_metrics", "eval_preds", "concat_all", "distributed_concat"}
	return ifSees(words...)(s)
}

// A collection is a line of a traceback that adds results to those of earlier
// batches.
type collection struct {
	code string
	at   oomlog.Source
	last bool // it failed itself, not a model that it calls
	join bool // a concatenation: all that was collected is copied
}

// collecting finds such a line among the calls around the model.
func collecting(s *signals) (collection, bool) {
	var found collection
	for i, f := range s.frames {
		if f.Func == "forward" || strings.HasSuffix(f.Func, "_call_impl") || f.Func == "__call__" {
			break
		}
		if join, ok := collects(f.Code); ok {
			found = collection{f.Code, f.At, i == len(s.frames)-1, join}
		}
	}
	for i, c := range s.code {
		if join, ok := collects(c); ok && len(s.frames) == 0 {
			found = collection{code: c, last: i == len(s.code)-1, join: join}
		}
	}
	return found, found.code != ""
}

// resultWords are what people call what a model returned, in the names of lists
// and tensors: all_preds, val_outputs, embeddings.
var resultWords = map[string]bool{
	"pred": true, "preds": true, "prediction": true, "predictions": true, "logits": true, "logit": true, "output": true, "outputs": true, "outs": true, "results": true,
	"embedding": true, "embeddings": true, "embs": true, "features": true, "feats": true, "scores": true, "probs": true, "prob": true, "probabilities": true,
}

// collects reports whether a source line joins or appends results, and whether
// it joins.
func collects(code string) (join, ok bool) {
	low := strings.ToLower(code)
	before, args, called := "", "", false
	for _, verb := range []string{"cat(", "concat(", "concatenate(", "vstack(", "stack("} {
		if _, rest, ok := strings.Cut(low, verb); ok {
			args, called, join = rest, true, true
		}
	}
	for _, verb := range []string{".append(", ".extend("} {
		if name, _, ok := strings.Cut(low, verb); ok {
			before, called = name, true
		}
	}
	if !called {
		return false, false
	}
	name := before
	if join {
		name = args
	}
	for _, word := range strings.FieldsFunc(name, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }) {
		if resultWords[word] {
			return join, true
		}
	}
	return false, false
}

// collectsResults: results are kept while the model runs on.
func collectsResults(s *signals) (hit, bool) {
	c, ok := collecting(s)
	return hit{args: []any{c.code}, at: c.at}, ok && !c.last && s.memory() && s.phase == oomlog.PhaseEvaluation
}

// appendsResults: the line that failed in an evaluation appends to such a list.
func appendsResults(s *signals) (hit, bool) {
	c, ok := collecting(s)
	return hit{args: []any{c.code}, at: c.at}, ok && c.last && !c.join && s.memory() && s.phase == oomlog.PhaseEvaluation
}

// joinsResults: results of many batches are joined, outside of what is known to
// be an evaluation.
func joinsResults(s *signals) (hit, bool) {
	if !s.memory() || s.phase == oomlog.PhaseEvaluation {
		return hit{}, false
	}
	if c, ok := collecting(s); ok && c.last && c.join {
		return hit{args: []any{c.code}, at: c.at}, true
	}
	return ifSees("all_preds", "all_logits", "all_outputs")(s)
}

func metricState(s *signals) (hit, bool) {
	return ifSees("torchmetrics/", "metrics/collections", "self.metric.update", ".metrics.update", "pixel_metrics", "metric_collection", "torcheval/", "dim_zero_cat")(s)
}

func evaluationBig(s *signals) (hit, bool) {
	return s.at(s.tried), s.phase == oomlog.PhaseEvaluation && s.hasTried && s.hasCapacity && share(s.tried, s.capacity) > 0.15
}

// evaluationOld: PyTorch 0.4 took volatile=True away, which had kept evaluations
// from recording; scripts of the time that still have it record every graph.
func evaluationOld(s *signals) (hit, bool) {
	return s.at(), s.phase == oomlog.PhaseEvaluation && s.fail != nil && s.memory() && (s.fail.Pattern == "torch.0.4" || s.fail.Pattern == "cuda.runtime_2")
}

func evaluationBackward(s *signals) (hit, bool) {
	return s.at(), s.phase == oomlog.PhaseEvaluation && s.memory() && s.sees(".backward(", "autograd/", "save_for_backward", "checkpointfunction")
}

func generates(s *signals) (hit, bool) {
	if !s.memory() || s.phase == oomlog.PhaseEngine {
		return hit{}, false
	}
	return ifSees("generation/utils.py", "generate(", "_beam_search", "greedy_search")(s)
}

func loading(s *signals) (hit, bool) {
	h, ok := ifPhase(oomlog.PhaseLoad)(s)
	if s.fail != nil && s.figuresKnown() && s.outsideShare() > 0.5 {
		return hit{}, false
	}
	return h, ok
}

// wholeModel: the engine that is meant to shard moves the whole module.
func wholeModel(s *signals) (hit, bool) {
	return ifSees("self.module.to(", "_configure_distributed_model", "self.module.bfloat16(", "self.module.half(")(s)
}

func shardedLoad(s *signals) (hit, bool) {
	_, fsdp := s.res.Facts.Get(oomlog.FactFSDP)
	_, zero := s.res.Facts.Get(oomlog.FactZeROStage)
	return s.at(), s.phase == oomlog.PhaseLoad && s.memory() && (fsdp || zero || s.sees("fsdp", "zero", "deepspeed"))
}

func deviceMapThenCUDA(s *signals) (hit, bool) {
	if !s.memory() {
		return hit{}, false
	}
	return ifSees("device_map=\"auto\").cuda", "device_map='auto').cuda", "device_map=\"auto\").to(", "dispatch_model", "infer_auto_device_map", "max_memory=")(s)
}

func validationPipeline(s *signals) (hit, bool) {
	return s.at(), s.memory() && s.phase == oomlog.PhaseEvaluation && s.sees("log_validation", "validation_pipeline", "pipeline.from_pretrained", "diffusers/pipelines")
}

func engineInTrainer(s *signals) (hit, bool) {
	if !s.memory() && s.class != oomlog.ClassEngine {
		return hit{}, false
	}
	engine := s.class == oomlog.ClassEngine || s.phase == oomlog.PhaseEngine || s.sees("vllm", "sglang")
	return s.at(), engine && s.sees("trl/", "verl/", "openrlhf", "grpo", "ppo_trainer", "trainer", "rollout")
}

func workerCUDA(s *signals) (hit, bool) {
	return s.at(), s.memory() && s.sees("_worker_loop", "worker_init_fn", "utils/data/_utils/worker.py") && s.sees("cuda", "set_device", ".to(device")
}

// firstTouch: the failure is at the first use of the card, when this process
// holds nothing yet.
func firstTouch(s *signals) (hit, bool) {
	bare, isBare := bareRuntime(s)
	return bare, isBare && (s.sees(".to(device", ".cuda(", "model.to(", "_lazy_init", "set_device", "torch.cuda.", "map_location") || s.phase == oomlog.PhaseLoad)
}

// pinBare: a bare runtime error while memory was pinned is of cudaHostAlloc.
func pinBare(s *signals) (hit, bool) {
	h, pinned := pinMemory(s)
	_, isBare := bareRuntime(s)
	return h, pinned && isBare
}

func pinMemory(s *signals) (hit, bool) {
	if !s.memory() {
		return hit{}, false
	}
	if f, ok := s.res.Facts.Get(oomlog.FactPinThread); ok {
		return hit{args: []any{f.Key}, at: f.Source}, true
	}
	return ifSees("pin_memory", "cachinghostallocator", "is_pinned", "pinned", "cudahost")(s)
}
