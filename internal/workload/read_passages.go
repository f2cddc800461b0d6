package workload

import "strings"

// trainerPassages reads when a Trainer evaluates, writes a checkpoint and reads
// one, and how.
// Source: transformers training_args.py; trainer.py, evaluation_loop, _save_checkpoint
// and _load_from_checkpoint; trainer_seq2seq.py.
func (r *reader) trainerPassages(n *node) {
	if r.evaluates(n) {
		if _, said := r.number(FieldEvalBatch, n, "per_device_eval_batch_size", "per_gpu_eval_batch_size"); !said {
			r.assume(FieldEvalBatch, "8", "per_device_eval_batch_size", "TrainingArguments: per_device_eval_batch_size is 8")
		}
		r.number(FieldEvalAccumulation, n, "eval_accumulation_steps")
		r.number(FieldEvalSamples, n, "max_eval_samples")
		// Metrics of each batch by itself keep nothing either.
		r.either(FieldEvalKeep, n, string(KeepLoss), "", "batch_eval_metrics")
		r.either(FieldEvalKeep, n, string(KeepLoss), "", "prediction_loss_only")
		if generates, _, _, _ := r.flag(n, "predict_with_generate"); generates {
			r.number(FieldNewTokens, n, "generation_max_length", "max_new_tokens", "val_max_target_length", "max_target_length")
			r.number(FieldBeams, n, "generation_num_beams", "num_beams")
		}
	}
	r.quiet(n, "per_device_eval_batch_size", "per_gpu_eval_batch_size", "eval_accumulation_steps", "prediction_loss_only", "predict_with_generate", "generation_max_length", "generation_num_beams")
	if v, key := r.use(n, "save_strategy"); v != nil && off(v) {
		r.put(FieldSave, "none", key, v)
	}
	if v, key := r.use(n, "resume_from_checkpoint"); v != nil && !off(v) {
		r.put(FieldResume, string(ResumeHost), key, v)
	}
}

// evaluates states that there is an evaluation: at intervals, before the first
// step, or when the training has ended, with its optimizer still there.
func (r *reader) evaluates(n *node) bool {
	for _, k := range []string{"eval_strategy", "evaluation_strategy", "do_eval", "eval_on_start", "evaluate_during_training"} {
		if v, key := r.use(n, k); v != nil && !off(v) {
			r.put(FieldEval, "true", key, v)
		}
	}
	return r.out.Settings[FieldEval].Value == "true"
}

// off reports whether a value says no, in the ways of YAML, JSON and a command.
func off(v *node) bool {
	s, _ := v.str()
	switch strings.ToLower(s) {
	case "no", "false", "0", "none", "null", "":
		return true
	}
	return false
}

// stateDictType states what FSDP gathers for a checkpoint.
// Source: accelerate utils/dataclasses.py, set_state_dict_type: full under FSDP1,
// sharded under FSDP2; utils/fsdp_utils.py, save_fsdp_model: a full one goes to the
// first rank's host.
func (r *reader) stateDictType(c *node, sharding string, keys ...string) {
	if r.words(FieldSave, c, map[string]string{"full_state_dict": string(SaveFull), "1": string(SaveFull), "sharded_state_dict": string(SaveSharded), "3": string(SaveSharded), "local_state_dict": "none", "2": "none"}, keys...) != "" {
		return
	}
	if sharding == string(FSDP) {
		r.assume(FieldSave, string(SaveFull), "fsdp_state_dict_type", "accelerate: fsdp_state_dict_type is FULL_STATE_DICT under FSDP1")
	}
}
