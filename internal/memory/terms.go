package memory

import "slices"

// A Term is one thing that an estimate counts: what it is and where the rule
// comes from that it is counted by. The list is complete: a test plays runs of
// every kind and finds each of their items here, and docs/how-it-estimates.md has
// the same rows.
type Term struct {
	Kind   Kind // "" where the moment decides: kept for backward, or only needed now
	Name   string
	What   string
	Source string
}

// Terms lists what an estimate can be made of.
func Terms() []Term {
	return []Term{
		{Weights, "weights", "every parameter in the dtype it is loaded in, each tensor rounded up to 512 bytes", "the model's shapes; c10/core/AllocatorConfig.h (before, c10/cuda/CUDACachingAllocator.cpp): kMinBlockSize"},
		{Weights, "weight shards", "this rank's part of each FSDP unit, padded to a multiple of the ranks", "torch/distributed/fsdp/_flat_param.py: _get_shard; _fully_shard/_fsdp_param.py"},
		{Weights, "scales of quantised weights", "absmax of each block of 64 (NF4), quantised again under double quantisation; scales and zeros of each group of 128 (GPTQ)", "bitsandbytes functional.py: quantize_4bit; QLoRA (arXiv:2305.14314) §3"},
		{Weights, "autocast copies of weights", "one 16-bit copy of every float32 weight that a matrix product reads; it lives until autocast ends or its backward is done", "aten/src/ATen/autocast_mode.cpp: cached_cast"},
		{Weights, "adapters", "LoRA's two matrices beside each target", "peft tuners/lora/layer.py"},
		{Weights, "buffers", "tensors that are no parameters: rotary tables, running statistics, masks", "the library's modules"},
		{Weights, "EMA copy", "a running average of the weights", "torch/optim/swa_utils.py"},
		{Gradients, "gradients", "one for each trained parameter, from its backward to zero_grad", "torch/csrc/autograd/functions/accumulate_grad.h"},
		{Gradients, "gradient shards", "this rank's part of the gradients after the reduce-scatter", "torch/distributed/fsdp/_runtime_utils.py"},
		{Gradients, "unsharded gradients", "gradients of one FSDP unit before their reduce-scatter", "torch/distributed/fsdp/_runtime_utils.py"},
		{Gradients, "gradient buffer", "Megatron's contiguous buffer of all gradients of a rank", "megatron/core/distributed/param_and_grad_buffer.py"},
		{OptimizerState, "optimizer state", "moments and whatever else the rule keeps, made at the first step", "torch/optim/adam.py and the optimizer's own code; docs/how-it-estimates.md, optimizers"},
		{OptimizerState, "float32 parameters", "the master copies of 16-bit weights", "megatron/core/optimizer/distrib_optimizer.py; DeepSpeed runtime/zero"},
		{"", "embedding", "the looked-up vectors, and the sort of embedding's backward", "aten/src/ATen/native/cuda/Embedding.cu"},
		{"", "attention", "projections, what the kernel keeps for backward (q, k, v, output, log-sum-exp), scores where they are stored", "tools/autograd/derivatives.yaml; transformers integrations/sdpa_attention.py"},
		{"", "cross-attention", "the same between decoder and encoder", "transformers models/t5; megatron/core/transformer/attention.py"},
		{"", "state-space mixer", "Mamba's projections, convolution and scan", "mamba_ssm ops/selective_scan_interface.py, ops/triton/ssd_combined.py"},
		{"", "image tower", "a vision-language model's patches, projector and the tokens they become; the tower's layers are counted as attention and MLP", "transformers models/qwen2_5_vl, models/llava"},
		{"", "MLP", "gate, up, activation and product, as far as autograd keeps them", "tools/autograd/derivatives.yaml"},
		{"", "experts", "the tokens in the order of their experts, and the experts' products", "megatron/core/transformer/moe; transformers models/mixtral"},
		{"", "norms", "inputs in float32 and what the kernel keeps", "the library's norm; aten/src/ATen/native/cuda/layer_norm_kernel.cu"},
		{"", "residual stream", "the hidden state between layers; under checkpointing, what is kept of each layer", "torch/utils/checkpoint.py"},
		{"", "logits and loss", "logits, their float32 copy, the log-probabilities and their gradient", "transformers loss/loss_utils.py; aten/src/ATen/native/LossNLL.cpp"},
		{"", "input batch", "tokens, labels, masks or images on the card", "transformers trainer.py: _prepare_inputs"},
		{"", "multi-token prediction", "the further layers that predict later tokens, and what they keep", "megatron/core/transformer/multi_token_prediction.py"},
		{Weights, "eight-bit copies of weights", "fp8 weights and their transposes, kept by Transformer Engine between micro-batches", "transformer_engine/pytorch/module/base.py: get_weight_workspace (from 2.15, quantize_weight)"},
		{Weights, "small weights", "parameters that ZeRO-3 keeps whole, below stage3_param_persistence_threshold", "DeepSpeed runtime/zero/parameter_offload.py: mark_persistent_parameters"},
		{OptimizerState, "float32 masters", "this rank's float32 copy of 16-bit weights under ZeRO", "DeepSpeed runtime/zero/stage_1_and_2.py: single_partition_of_fp32_groups"},
		{Buffers, "gathered weights", "weights that ZeRO-3 has gathered and not yet let go of", "DeepSpeed runtime/zero/partition_parameters.py, partitioned_param_coordinator.py"},
		{Weights, "reference model", "the frozen copy that DPO and KTO measure against; none beside adapters", "trl v0.20 trainer/dpo_trainer.py, kto_trainer.py: create_reference_model"},
		{Buffers, "buckets of gradients", "in which DeepSpeed and ColossalAI reduce gradients: reduce_bucket_size; in stages 1 and 2 twice with overlap_comm", "DeepSpeed 0.14.4 runtime/zero/stage_1_and_2.py: ipg_buffer; stage3.py; ColossalAI zero/low_level/bookkeeping/bucket_store.py"},
		{Temporaries, "kept predictions", "what an evaluation keeps of all batches until it is over, or eval_accumulation_steps: float32 logits under autocast, of all ranks; twice when a batch is appended", "transformers trainer.py: evaluation_loop; trainer_pt_utils.py: EvalLoopContainer, nested_concat; accelerate utils/operations.py: _gpu_gather"},
		{Temporaries, "key-value cache", "keys and values of every token so far, in each layer; a layer's are copied when a token is appended", "transformers cache_utils.py: DynamicCache; generation/utils.py"},
		{Buffers, "gathered checkpoint", "weights and optimizer states that are brought together to be written: one FSDP unit in the dtype of its shards, all of them without offload_to_cpu", "torch/distributed/fsdp/_state_dict_utils.py, _optim_utils.py; accelerate utils/fsdp_utils.py: save_fsdp_model"},
		{Temporaries, "merged adapters", "LoRA's product for one matrix, scaled and cast; a quantised base expanded and quantised again", "peft tuners/lora/layer.py: get_delta_weight; tuners/lora/bnb.py: merge"},
		{Temporaries, "loaded checkpoint", "weights that torch.load puts on the card beside the model's; optimizer states where load_state_dict copies them (torch before 2.1); FSDP units that are written into", "torch/serialization.py; torch/optim/optimizer.py: load_state_dict; torch/distributed/fsdp/_state_dict_utils.py"},
		{"", "other", "what belongs to none of these: clones of gradients, casts, bias sums", "torch/csrc/autograd/engine.cpp"},
		{Activations, "received activations", "what the pipeline stage before sent", "megatron/core/pipeline_parallel/p2p_communication.py"},
		{Temporaries, "optimizer step", "the step's own tensors: square roots of a whole group with foreach, none when fused", "torch/optim/adam.py: _multi_tensor_adam"},
		{Buffers, "DDP buckets", "a second copy of the gradients unless gradient_as_bucket_view", "torch/csrc/distributed/c10d/reducer.cpp"},
		{Buffers, "unsharded weights", "the FSDP units whose whole weights are here now", "torch/distributed/fsdp/_flat_param.py"},
		{Buffers, "all-gather buffers", "into which FSDP2 gathers a unit", "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py"},
		{Buffers, "reduce-scatter buffers", "from which FSDP2 reduces a unit's gradients", "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py"},
		{Buffers, "received gradients", "what the pipeline stage behind sent", "megatron/core/pipeline_parallel/p2p_communication.py"},
		{Buffers, "global memory buffer", "Megatron's buffer for gathered inputs of sequence parallelism", "megatron/core/utils.py: GlobalMemoryBuffer"},
		{Buffers, "dummy weight gradients", "tensors that stand for gradients that were added into the main buffer", "megatron/core/tensor_parallel/layers.py; transformer_engine/pytorch/module/base.py: get_dummy_wgrad"},
		{Workspace, "cuBLAS workspaces", "one for each thread that multiplies: 32 MiB from Hopper on, else 8.1 MiB", "aten/src/ATen/cuda/CublasHandlePool.cpp: parseChosenWorkspaceSize"},
		{Workspace, "Transformer Engine workspace", "cuBLASLt's: 32 MiB from Hopper on, else 4 MiB", "transformer_engine/pytorch/module/base.py (from 2.10, cpp_extensions/gemm.py): get_cublas_workspace_size_bytes"},
	}
}

// TermOf returns the term of an item; ok is false where the list lacks it.
func TermOf(kind Kind, name string) (t Term, ok bool) {
	terms := Terms()
	i := slices.IndexFunc(terms, func(t Term) bool { return t.Name == name && (t.Kind == kind || t.Kind == "") })
	if i < 0 { // convolutions and the like are counted under what they do
		i = slices.IndexFunc(terms, func(t Term) bool { return t.Name == name })
	}
	if i < 0 {
		return Term{Kind: kind, Name: name}, false
	}
	return terms[i], true
}
