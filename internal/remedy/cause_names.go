package remedy

import "strings"

// Causes returns every label of the taxonomy, by family.
func Causes() []Cause {
	return []Cause{
		ActivationsNoCheckpointing, BatchTooLarge, GPUTooSmall, InputTooLarge, LogitsVocab,
		LongestBatch, OptimizerForeachPeak, OptimizerState, SequenceTooLong, TrainStateTooLarge,
		ExceptionHoldsTensors, LeakGraphRetained, LeakStateGrowth,
		EvalAccumulatesPredictions, EvalNoGrad, EvalWorkloadLarger,
		ExtraModelCopy, ResumeDoubleLoad, SaveGathersFullState,
		ColocatedEngine, DPImbalance, MixedGPUs, OrphanProcess, OtherProcess, RanksShareGPU,
		WorkerCUDAContexts, WrongGPU, WrongPlacement,
		CompileOrCUDAGraph, Fragmentation, MemoryCap, NCCLOutsideAllocator, Preallocation,
		PrecisionNotApplied, ShardingNotEffective,
		DriverOrHardware, HostRAMOrCommit, PinnedHostMemory, UnifiedMemoryBoard,
		CascadeFromOtherError, LibraryRegression, ShapeOrDataBug,
		MaskedIllegalAccess, MaskedLibraryInit, MaskedNVMLAssert,
		NotOOMDeviceAssert, NotOOMDeviceBusy, NotOOMDiskFull, NotOOMDriverMismatch,
		NotOOMHostMemory, NotOOMIllegalAccess, NotOOMNumerical, NotOOMSharedMemory, NotOOMTritonSMEM,
		Unknown,
	}
}

// NotOOM reports whether a cause means that the memory of the GPU did not run
// out at all.
func (c Cause) NotOOM() bool { return strings.HasPrefix(string(c), "not_oom_") }
