package workload

import (
	"slices"
	"strings"
)

// harmlessBegins are the beginnings of keys that have no part in the memory of
// the card: what is logged and saved where, the data, rates and schedules. A key
// is meant that is such a word, or goes on with an underscore.
var harmlessBegins = strings.Fields(`
	_wandb wandb mlflow comet swanlab trackio tensorboard hub push report run project logging log logger metric metrics metric_logger
	save saves output out overwrite resume load_best greater early_stopping aim jit profiler profiling visualization
	lr learning_rate min_lr max_lr cosine loraplus embedding_lr embedding_learning_rate warmup decay adam weight_decay weight_decouple
	max_grad_norm gradient_clipping clip max_norm
	num_train_epochs num_epochs epochs max_steps train_steps total_steps max_tokens max_time label_smoothing scheduler
	seed data_seed full_determinism debug deterministic
	dataset datasets data dataloader test_datasets pretraining_dataset shuffle train_file train_data validation test_file
	preprocessing num_proc template tokenizer special special_tokens tokens add_tokens chat eot train_on mask prompt user_prompt
	streaming mix interleave skip excess group_by length_column remove_unused remove_columns resize_vocab added_tokens sequence_bucket
	truncation padding_side image_dir media_dir tool_format reward completion pad_token eos_token bos_token strict trust token use_auth
	cache_dir model_revision revision ray steps_per disable_tqdm ignore_data hf local machine main rdzv same_network tpu use_cpu
	enable_cpu_affinity downcast_bf16 dynamo commands command_file xpu env num_workers pin_memory fault_tolerance comm validate
	evals eval_strategy evaluation_strategy eval_steps eval_delay eval_on eval_table eval_max eval_sample eval_causal do
	generate generation generation_config top_p top_k temperature plot ddp_timeout ddp_find_unused ddp_broadcast
	deepspeed_multinode deepspeed_hostfile deepspeed_moe deepspeed_exclusion deepspeed_inclusion wall_clock steps_per_print
	zero_allow_untested zero_force_ds include neftune rope low_cpu_mem nccl
	fsdp_sync_module fsdp_cpu_ram fsdp_backward fsdp_state_dict fsdp_auto_wrap fsdp_transformer_layer fsdp_forward_prefetch fsdp_limit_all
	fsdp_use_orig fsdp_min_num fsdp_final_state fsdp_ignored
	lora_alpha use_rslora init_lora inference_mode task_type auto_mapping layers_pattern layers_to_transform alpha_pattern rank_pattern
	megatron_config megatron_core lora_bias corda eva arrow qalora trainable_token exclude_modules peft_version peft_helper lora_on_cpu
	lora_fan_in lora_layers loftq is_preprocess is_falcon is_llama is_mistral is_qwen dora_x auto_resume
	sub_group hysteresis loss_scale initial_scale min_loss consecutive_hysteresis elastic aio autotuning flops_profiler
	stage3_max stage3_gather round_robin ignore_unused load_from_fp32 legacy memory_breakdown data_efficiency curriculum
	zero3_init zero3_save module_granularity checkpointer recipe_checkpoint model_type tie_word adapter_weights processor
	monitor custom_sharded use_deterministic gc_freq gc enable_wandb enable_tensorboard`)

// harmlessWhole are keys that are harmless only where they stand so.
var harmlessWhole = strings.Fields(`
	beta betas beta1 beta2 eps epsilon alpha device gpu_ids program help config config_version description id url type path split field role content name
	stream recipe dump_folder print_args version steps task mode interval max_iters max_new_tokens initial_validation
	final_validation backend flatten bias fan_in_fan_out amsgrad momentum nesterov dampening timeout checkpoint job tf32 lr_scheduler
	hostfile plugins experimental components compute_environment is_moe final_rewards ignore_index load_strategy
	train_on_input train_on_inputs num_cycles optim_beta nproc eval do_train do_eval do_predict group_by_length use_fast_tokenizer tokenizer_config`)

// harmless reports whether a key is of no matter for memory.
func harmless(key string) bool {
	key = strings.ToLower(key)
	if slices.Contains(harmlessWhole, key) {
		return true
	}
	return slices.ContainsFunc(harmlessBegins, func(w string) bool {
		rest, ok := strings.CutPrefix(key, w)
		return ok && (rest == "" || rest[0] == '_')
	})
}
