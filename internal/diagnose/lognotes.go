package diagnose

import (
	"unoom/internal/oomlog"
	"unoom/internal/remedy"
)

// notes are what readers of the message often get wrong about it, where it
// applies here.
func notes(s *signals) []Sentence {
	var list []Sentence
	say := func(id string, args ...any) {
		h := s.at()
		list = append(list, Sentence{ID: "diagnose.note." + id, Args: args, At: h.at})
	}
	if s.fail == nil {
		if s.verdict == TraceOnly {
			say("cut")
		}
		return list
	}
	if s.platform == "wsl" && s.hasTotals() {
		say("wsl_figure")
	}
	if s.spilled {
		say("spilled", max(s.reserved, s.allocated), s.capacity)
	}
	if s.hasSlack && s.slack < 0 && s.memory() {
		say("hint_cannot_help", -s.slack)
	}
	if s.class == oomlog.ClassHandled {
		say("checkpoint_broken")
	}
	if i := selfAsForeign(&s.fail.Figures); i >= 0 {
		say("own_process", s.fail.Figures.Processes[i].PID)
	}
	if s.fail.Figures.Device >= 0 && s.hasTotals() {
		if v, ok := s.res.Facts.Get(oomlog.FactVisible); ok {
			say("relative_index", s.fail.Figures.Device, v.Value)
		}
	}
	return list
}

// next names the one thing that would settle the doubt between the first causes.
func next(s *signals, causes []Cause) *Check {
	if len(causes) == 0 {
		return nil
	}
	first := causes[0]
	check := func(id, command string, args ...any) *Check {
		return &Check{Reason: Sentence{ID: "diagnose.next." + id, Args: args}, Command: command}
	}
	if first.Confidence >= 0.9 {
		return nil
	}
	switch first.Label {
	case remedy.OtherProcess, remedy.OrphanProcess, remedy.WrongGPU, remedy.RanksShareGPU, remedy.WorkerCUDAContexts, remedy.MixedGPUs, remedy.NCCLOutsideAllocator, remedy.DriverOrHardware, remedy.DPImbalance:
		return check("holders", "nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory,process_name --format=csv")
	case remedy.PinnedHostMemory, remedy.HostRAMOrCommit, remedy.NotOOMHostMemory:
		return check("host", "free -m; ulimit -l; dmesg | grep -i 'killed process'")
	case remedy.NotOOMSharedMemory:
		return check("shm", "df -h /dev/shm")
	case remedy.NotOOMIllegalAccess, remedy.MaskedIllegalAccess, remedy.NotOOMDeviceAssert:
		return check("blocking", "CUDA_LAUNCH_BLOCKING=1 python …")
	case remedy.MaskedLibraryInit, remedy.MaskedNVMLAssert, remedy.NotOOMDeviceBusy, remedy.NotOOMDriverMismatch:
		return check("busy", "nvidia-smi")
	case remedy.UnifiedMemoryBoard:
		return check("unified", "free -m")
	case remedy.LongestBatch, remedy.LeakGraphRetained, remedy.LeakStateGrowth, remedy.Fragmentation, remedy.CompileOrCUDAGraph, remedy.ExceptionHoldsTensors:
		return check("history", "unoom run -- python …")
	case remedy.EvalNoGrad, remedy.EvalWorkloadLarger, remedy.EvalAccumulatesPredictions, remedy.ExtraModelCopy:
		return check("eval_code", `grep -nE 'no_grad|inference_mode|append\(' train.py`)
	case remedy.CascadeFromOtherError, remedy.ShapeOrDataBug:
		return check("first_error", "grep -n -i -m 5 'error\\|timeout' LOG")
	}
	if !s.framework.Trains() {
		return nil
	}
	return check("estimate", s.estimateCommand())
}
