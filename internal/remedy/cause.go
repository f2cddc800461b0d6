package remedy

// A Cause is why memory ran out, or what the failure is if it did not. The
// labels are stable: they are what `explain --json` prints.
type Cause string

// The taxonomy, by family.
const (
	// Capacity: the job needs more than the card has.
	ActivationsNoCheckpointing Cause = "activations_no_checkpointing" // checkpointing is off, or silently ineffective
	BatchTooLarge              Cause = "batch_too_large"              // activations of the batch exceed the card
	GPUTooSmall                Cause = "gpu_too_small"                // the recipe is written for a bigger card
	InputTooLarge              Cause = "input_too_large"              // one sample is too big, whatever the batch
	LogitsVocab                Cause = "logits_vocab"                 // tokens x vocabulary is the peak
	LongestBatch               Cause = "longest_batch"                // usual batches fit; a rare long one does not
	OptimizerForeachPeak       Cause = "optimizer_foreach_peak"       // multi-tensor temporaries of the optimizer step
	OptimizerState             Cause = "optimizer_state"              // state that appears at the first step
	SequenceTooLong            Cause = "sequence_too_long"            // sequence length drives activations or attention
	TrainStateTooLarge         Cause = "train_state_too_large"        // weights + gradients + optimizer state alone exceed the card

	// Growth: memory rises from step to step.
	ExceptionHoldsTensors Cause = "exception_holds_tensors" // after a caught OOM the exception keeps tensors alive
	LeakGraphRetained     Cause = "leak_graph_retained"     // loss or outputs kept with their graph
	LeakStateGrowth       Cause = "leak_state_growth"       // metric, cache or library state grows on the GPU

	// Evaluation.
	EvalAccumulatesPredictions Cause = "eval_accumulates_predictions"
	EvalNoGrad                 Cause = "eval_no_grad"
	EvalWorkloadLarger         Cause = "eval_workload_larger"

	// Loading and saving.
	ExtraModelCopy       Cause = "extra_model_copy"
	ResumeDoubleLoad     Cause = "resume_double_load"
	SaveGathersFullState Cause = "save_gathers_full_state"

	// Placement: the memory is held by somebody else, or the job is on the wrong card.
	ColocatedEngine    Cause = "colocated_engine"
	DPImbalance        Cause = "dp_imbalance"
	MixedGPUs          Cause = "mixed_gpus"
	OrphanProcess      Cause = "orphan_process"
	OtherProcess       Cause = "other_process"
	RanksShareGPU      Cause = "ranks_share_gpu"
	WorkerCUDAContexts Cause = "worker_cuda_contexts"
	WrongGPU           Cause = "wrong_gpu"
	WrongPlacement     Cause = "wrong_placement"

	// Allocator.
	CompileOrCUDAGraph   Cause = "compile_or_cudagraph"
	Fragmentation        Cause = "fragmentation"
	MemoryCap            Cause = "memory_cap"
	NCCLOutsideAllocator Cause = "nccl_outside_allocator"
	Preallocation        Cause = "preallocation"

	// A setting that was meant to save memory has no effect.
	PrecisionNotApplied  Cause = "precision_not_applied"
	ShardingNotEffective Cause = "sharding_not_effective"

	// Host or platform.
	DriverOrHardware   Cause = "driver_or_hardware"
	HostRAMOrCommit    Cause = "host_ram_or_commit"
	PinnedHostMemory   Cause = "pinned_host_memory"
	UnifiedMemoryBoard Cause = "unified_memory_board"

	// Software defect.
	CascadeFromOtherError Cause = "cascade_from_other_error"
	LibraryRegression     Cause = "library_regression"
	ShapeOrDataBug        Cause = "shape_or_data_bug"

	// An out-of-memory that shows as another error.
	MaskedIllegalAccess Cause = "masked_oom_illegal_access"
	MaskedLibraryInit   Cause = "masked_oom_library_init"
	MaskedNVMLAssert    Cause = "masked_oom_nvml_assert"

	// Not an out-of-memory of the GPU.
	NotOOMDeviceAssert   Cause = "not_oom_device_assert"
	NotOOMDeviceBusy     Cause = "not_oom_device_busy"
	NotOOMDiskFull       Cause = "not_oom_disk_full"
	NotOOMDriverMismatch Cause = "not_oom_driver_mismatch"
	NotOOMHostMemory     Cause = "not_oom_host_memory"
	NotOOMIllegalAccess  Cause = "not_oom_illegal_access"
	NotOOMNumerical      Cause = "not_oom_numerical"
	NotOOMSharedMemory   Cause = "not_oom_shared_memory"
	NotOOMTritonSMEM     Cause = "not_oom_triton_smem"

	Unknown Cause = "unknown"
)
