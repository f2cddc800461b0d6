package oomlog

import (
	"slices"
	"strings"
)

// A key is a name of a setting.
type key struct {
	kind FactKind
	rank int // its place among the names of the kind: the first is the most telling
	weak bool
}

// weakKeys are common words. They count as a flag (--batch 8), in quotes
// ("batch": 8), as name=value, or alone on a line of YAML; not within prose or a
// progress line.
var weakKeys = strings.Fields("batch bs model model_name cuda torch pytorch compile resume opt workers quantization offload arch precision dtype optimizer flash_attn adapter devices stage max_length input_size limit")

// counted kinds have numbers as values.
var counted = [...]FactKind{FactBatch, FactGlobalBatch, FactEvalBatch, FactAccumulation, FactSequence, FactWorldSize, FactWorkers, FactVocabulary, FactHidden, FactLayers, FactParameters, FactTrainable}

// keys maps the names of settings, lower-cased, with _ for -, to kinds. They
// are those of transformers, accelerate, DeepSpeed, Lightning, Axolotl,
// LLaMA-Factory, mmengine, detectron2, Ultralytics, Megatron, torchtune, and
// of argparse scripts.
func keys() map[string]key {
	m := map[string]key{}
	for kind, names := range map[FactKind]string{
		FactBatch:         "per_device_train_batch_size per_gpu_train_batch_size micro_batch_size train_micro_batch_size_per_gpu batch_size batchsize batch train_batch per_device_batch_size samples_per_gpu imgs_per_gpu bs batch_size_per_gpu train_bs mini_batch_size micro_train_batch_size ppo_micro_batch_size_per_gpu",
		FactGlobalBatch:   "global_batch_size train_batch_size total_batch_size ims_per_batch effective_batch_size",
		FactEvalBatch:     "per_device_eval_batch_size eval_batch_size val_batch_size valid_batch_size test_batch_size per_gpu_eval_batch_size val_batch",
		FactAccumulation:  "gradient_accumulation_steps accumulate_grad_batches grad_accum accumulation_steps update_freq grad_accumulation_steps accum_iter gradient_accumulate_every accumulate_grad",
		FactSequence:      "max_seq_length max_seq_len cutoff_len sequence_len seq_length seq_len block_size sequence_length context_length max_tokens_per_sample ctx_len n_ctx model_max_length max_source_length max_model_len max_prompt_length max_length",
		FactImage:         "img_size imgsz image_size resolution crop_size input_size img_scale train_size",
		FactDType:         "torch_dtype dtype param_dtype weight_dtype mixed_precision bf16 fp16 precision compute_dtype amp_dtype",
		FactOptimizer:     "optim optimizer optimizer_type optimizer_name optim_type opt",
		FactCheckpointing: "gradient_checkpointing activation_checkpointing activations_checkpoint use_checkpoint recompute recompute_granularity enable_gradient_checkpointing grad_checkpointing checkpoint_activations enable_activation_checkpointing use_gradient_checkpointing",
		FactModel:         "model_name_or_path pretrained_model_name_or_path model_name base_model model_id hf_model pretrained_model base_model_name_or_path model_path pretrained_model_name model arch",
		FactWorldSize:     "world_size nproc_per_node num_processes n_gpu num_gpus ngpus ngpus_per_node n_gpus_per_node",
		FactWorkers:       "num_workers dataloader_num_workers workers n_workers num_dataloader_workers workers_per_gpu",
		FactPinMemory:     "pin_memory dataloader_pin_memory",
		FactQuantization:  "load_in_4bit load_in_8bit quantization_bit quantization quant_method",
		FactLoRA:          "use_lora lora_r lora_rank peft_type finetuning_type lora_alpha use_peft adapter",
		FactZeROStage:     "zero_stage zero_optimization_stage stage",
		FactFSDP:          "fsdp fsdp_sharding_strategy sharding_strategy fsdp_config",
		FactOffload:       "offload_optimizer_device offload_param_device cpu_offload offload fsdp_offload_params",
		FactCompile:       "torch_compile compile use_compile torch_compile_mode compile_mode cuda_graphs use_cuda_graph enforce_eager",
		FactAttention:     "attn_implementation _attn_implementation use_flash_attn flash_attn flash_attention use_flash_attention_2",
		FactAllocConf:     "pytorch_cuda_alloc_conf pytorch_alloc_conf pytorch_hip_alloc_conf",
		FactVisible:       "cuda_visible_devices hip_visible_devices rocr_visible_devices ascend_rt_visible_devices",
		FactEngineShare:   "gpu_memory_utilization vllm_gpu_memory_utilization mem_fraction_static",
		FactPreallocation: "xla_python_client_mem_fraction xla_python_client_preallocate tf_force_gpu_allow_growth allow_growth per_process_gpu_memory_fraction",
		FactTorch:         "torch_version pytorch_version torch pytorch",
		FactCUDA:          "cuda_version cuda",
		FactDriver:        "driver_version",
		FactGPU:           "gpu_name device_name",
		FactResume:        "resume_from_checkpoint resume_from resume ckpt_path load_checkpoint",
		FactVocabulary:    "vocab_size padded_vocab_size",
		FactHidden:        "hidden_size d_model n_embd",
		FactLayers:        "num_hidden_layers n_layer num_layers",
		FactMaxSteps:      "max_steps train_iters max_iters total_steps",
		FactPool:          "limit",
	} {
		for i, n := range strings.Fields(names) {
			m[n] = key{kind, i, slices.Contains(weakKeys, n)}
		}
	}
	return m
}

// phrases are settings that are named in words. The value follows "=" or ":".
var phrases = [...]struct {
	words string
	kind  FactKind
}{
	{"Instantaneous batch size per device", FactBatch},
	{"Instantaneous batch size per GPU", FactBatch},
	{"batch size per device", FactBatch},
	{"Batch size per device", FactBatch}, // Unsloth
	{"gradient accumulation steps", FactAccumulation},
	{"Total train batch size", FactGlobalBatch},
	{"Gradient Accumulation steps", FactAccumulation},
	{"Total optimization steps", FactMaxSteps},
	{"Total steps", FactMaxSteps},
	{"Number of trainable parameters", FactTrainable},
	{"trainable params", FactTrainable},
	{"all params", FactParameters},
	{"number of parameters", FactParameters},
	{"Trainable params", FactTrainable},
	{"Total params", FactParameters},
	{"CUDA Version", FactCUDA},
	{"CUDA version", FactCUDA},
	{"Driver Version", FactDriver},
	{"PyTorch version", FactTorch},
	{"Torch version", FactTorch},
	{"torch version", FactTorch},
	{"GPU name", FactGPU},
	{"Zero stage", FactZeROStage},
}

// FrameworksOfFile says which training stacks a source file belongs to: those of
// the path of a frame.
func FrameworksOfFile(file string) Facts {
	var facts Facts
	for _, s := range &signs {
		if s.kind == FactFramework && strings.Contains(file, s.words) {
			facts = append(facts, Fact{Kind: s.kind, Key: s.words, Value: s.value})
		}
	}
	return facts
}

// signs are words that settle a fact wherever they stand.
var signs = [...]struct {
	words string
	kind  FactKind
	value string
}{
	{"transformers/trainer.py", FactFramework, "hf_trainer"},
	{"transformers/trainer_seq2seq.py", FactFramework, "hf_trainer"},
	{"transformers/trainer_utils.py", FactFramework, "hf_trainer"},
	{"/trl/trainer/", FactFramework, "hf_trainer"},
	{"TrainingArguments(", FactFramework, "hf_trainer"},
	{"Seq2SeqTrainingArguments", FactFramework, "hf_trainer"},
	{"***** Running training *****", FactFramework, "hf_trainer"},
	{"llamafactory", FactFramework, "llamafactory"},
	{"LLaMA-Factory", FactFramework, "llamafactory"},
	{"llmtuner/", FactFramework, "llamafactory"},
	{"axolotl", FactFramework, "axolotl"},
	{"ms-swift", FactFramework, "ms_swift"},
	{"swift sft", FactFramework, "ms_swift"},
	{"swift rlhf", FactFramework, "ms_swift"},
	{"swift/llm/", FactFramework, "ms_swift"},
	{"swift/trainers/", FactFramework, "ms_swift"},
	{"[INFO:swift]", FactFramework, "ms_swift"},
	{"Unsloth", FactFramework, "unsloth"},
	{"unsloth", FactFramework, "unsloth"},
	{"sd-scripts", FactFramework, "sd_scripts"},
	{"kohya", FactFramework, "sd_scripts"},
	{"train_network.py", FactFramework, "sd_scripts"},
	{"library/train_util.py", FactFramework, "sd_scripts"},
	{"train_dreambooth", FactFramework, "diffusers"},
	{"train_text_to_image", FactFramework, "diffusers"},
	{"train_controlnet", FactFramework, "diffusers"},
	{"ultralytics", FactFramework, "ultralytics"},
	{"Ultralytics", FactFramework, "ultralytics"},
	{"mmengine", FactFramework, "mmengine"},
	{"mmdet/", FactFramework, "mmengine"},
	{"mmseg/", FactFramework, "mmengine"},
	{"detectron2/", FactFramework, "detectron2"},
	{"nnUNetv2", FactFramework, "nnunet"},
	{"nnunetv2/", FactFramework, "nnunet"},
	{"megatron/training/", FactFramework, "megatron"},
	{"Megatron-LM/", FactFramework, "megatron"},
	{"verl.trainer", FactFramework, "verl"},
	{"/verl/", FactFramework, "verl"},
	{"actor_rollout_ref.", FactFramework, "verl"},
	{"openrlhf", FactFramework, "openrlhf"},
	{"ComfyUI", FactFramework, "comfyui"},
	{"stable-diffusion-webui", FactFramework, "sd_webui"},
	{"pytorch_lightning/", FactFramework, "lightning"},
	{"lightning/pytorch/", FactFramework, "lightning"},
	{"lightning_fabric/", FactFramework, "lightning"},
	{"LOCAL_RANK: 0 - CUDA_VISIBLE_DEVICES", FactFramework, "lightning"},
	{"deepspeed/runtime/", FactFramework, "deepspeed"},
	{"[INFO] [config.py", FactFramework, "deepspeed"},
	{"accelerate/accelerator.py", FactFramework, "accelerate"},
	{"accelerate/utils/", FactFramework, "accelerate"},
	{"jaxlib", FactFramework, "jax"},
	{"jax.errors", FactFramework, "jax"},
	{"tensorflow/", FactFramework, "tensorflow"},
	{"paddle/", FactFramework, "paddle"},
	{"accelerate launch", FactLauncher, "accelerate"},
	{"accelerate/commands/launch.py", FactLauncher, "accelerate"},
	{"torchrun ", FactLauncher, "torchrun"},
	{"torch/distributed/run.py", FactLauncher, "torchrun"},
	{"torch.distributed.launch", FactLauncher, "torchrun"},
	{"torch/distributed/launch.py", FactLauncher, "torchrun"},
	{"torch.distributed.elastic", FactLauncher, "torchrun"},
	{"deepspeed/launcher/", FactLauncher, "deepspeed"},
	{"[launch.py:", FactLauncher, "deepspeed"},
	{"slurmstepd", FactLauncher, "slurm"},
	{"srun: ", FactLauncher, "slurm"},
	{"(RayWorker", FactLauncher, "ray"},
	{"(WorkerDict", FactLauncher, "ray"},
	{"ray/_private", FactLauncher, "ray"},
	{"microsoft-standard-WSL", FactPlatform, "wsl"},
	{"WSL2", FactPlatform, "wsl"},
	{"/usr/lib/wsl/", FactPlatform, "wsl"},
	{"/mnt/c/", FactPlatform, "wsl"},
	{"\\site-packages\\", FactPlatform, "windows"},
	{"\\lib\\site-packages", FactPlatform, "windows"},
	{"C:\\Users\\", FactPlatform, "windows"},
	{"ComfyUI_windows", FactPlatform, "windows"},
	{"Jetson", FactPlatform, "jetson"},
	{"jetson", FactPlatform, "jetson"},
	{"tegra", FactPlatform, "jetson"},
	{"NvMapMem", FactPlatform, "jetson"},
	{"GB10", FactPlatform, "gb10"},
	{"zero.Init", FactZeROStage, "3"},
	{"deepspeed/runtime/zero/stage3.py", FactZeROStage, "3"},
	{"deepspeed/runtime/zero/stage_1_and_2.py", FactZeROStage, "1_or_2"},
	{"torch/distributed/fsdp/", FactFSDP, "true"},
	{"FullyShardedDataParallel", FactFSDP, "true"},
	{"torch/utils/checkpoint.py", FactCheckpointing, "true"},
	{"`use_cache=True` is incompatible with gradient checkpointing", FactCheckpointing, "true"},
	{"bitsandbytes/", FactQuantization, "bitsandbytes"},
	{"/peft/", FactLoRA, "true"},
	{"Resuming from checkpoint", FactResume, "true"},
	{"Loading model from checkpoint", FactResume, "true"},
	{"Loading checkpoint from", FactResume, "true"},
	{"loading checkpoint '", FactResume, "true"},
	{"Resume training from", FactResume, "true"},
	{"Resuming training from", FactResume, "true"},               // nanoGPT
	{"Continuing training from", FactResume, "true"},             // the Trainer
	{"Restoring states from the checkpoint", FactResume, "true"}, // Lightning
	{"Resumed from checkpoint", FactResume, "true"},
	{"resumed epoch:", FactResume, "true"}, // mmengine
	{"resumed from epoch", FactResume, "true"},
	{"loaded checkpoint '", FactResume, "true"}, // examples of torch
	{"Loading states from", FactResume, "true"}, // accelerate
	{"There is an imbalance between your GPUs", FactImbalance, "true"},
	{"in pin memory thread", FactPinThread, "true"},
	{"During handling of the above exception, another exception occurred", FactNested, "true"},
	{"kipping batch", FactSkipped, "true"},
	{"kip batch", FactSkipped, "true"},
	{"kipping this batch", FactSkipped, "true"},
	{"kip this batch", FactSkipped, "true"},
	{"batch removed", FactSkipped, "true"},
	{"CPU Mode for This Batch", FactSkipped, "true"}, // YOLOX computes the assignment of a crowded batch on the CPU
	{"during validation", FactPhase, string(PhaseEvaluation)},
	{"during the validation", FactPhase, string(PhaseEvaluation)},
	{"during evaluation", FactPhase, string(PhaseEvaluation)},
	{"during the evaluation", FactPhase, string(PhaseEvaluation)},
	{"in evaluation loop", FactPhase, string(PhaseEvaluation)},
	{"in the validation", FactPhase, string(PhaseEvaluation)},
	{"while validating", FactPhase, string(PhaseEvaluation)},
	{"while evaluating", FactPhase, string(PhaseEvaluation)},
	{"开始验证", FactPhase, string(PhaseEvaluation)},
	{"验证阶段", FactPhase, string(PhaseEvaluation)},
	{"验证的时候", FactPhase, string(PhaseEvaluation)},
	{"验证时", FactPhase, string(PhaseEvaluation)},
	{"评估时", FactPhase, string(PhaseEvaluation)},
	{"评估阶段", FactPhase, string(PhaseEvaluation)},
	{"进行评估", FactPhase, string(PhaseEvaluation)},
	{"在val的时候", FactPhase, string(PhaseEvaluation)},
	{"when saving", FactPhase, string(PhaseSave)},
	{"while saving", FactPhase, string(PhaseSave)},
	{"during checkpoint saving", FactPhase, string(PhaseSave)},
	{"保存模型时", FactPhase, string(PhaseSave)},
	{"保存ckpt", FactPhase, string(PhaseSave)},
	{"保存checkpoint", FactPhase, string(PhaseSave)},
	{"保存权重时", FactPhase, string(PhaseSave)},
	{"when resuming", FactPhase, string(PhaseResume)},
	{"when I resume", FactPhase, string(PhaseResume)},
	{"resume the training from", FactPhase, string(PhaseResume)},
	{"断点续训", FactPhase, string(PhaseResume)},
	{"恢复训练", FactPhase, string(PhaseResume)},
	{"after update", FactVersionChange, "true"},
	{"after the update", FactVersionChange, "true"},
	{"after updating", FactVersionChange, "true"},
	{"after upgrading", FactVersionChange, "true"},
	{"after the upgrade", FactVersionChange, "true"},
	{"After updating", FactVersionChange, "true"},
	{"After upgrading", FactVersionChange, "true"},
	{"since the update", FactVersionChange, "true"},
	{"since upgrading", FactVersionChange, "true"},
	{"worked with version", FactVersionChange, "true"},
	{"works with version", FactVersionChange, "true"},
}
