package memory

import (
	"math"

	"unoom/internal/units"
	"unoom/internal/workload"
)

// How far published measurements lie from what is played, where every setting
// is known: the half-width that holds nineteen of twenty. Fitted on all strict
// rows of the published measurements together, by what is played and what is
// reported, never by model or source (`make score` prints the check).
const (
	scatterAllocated      = 0.025 // transformers
	scatterReserved       = 0.060 // what the allocator takes depends on the order of frees
	scatterImageAllocated = 0.065 // published in tenths of a "GB"; convolution workspaces
	scatterBatchAllocated = 0.100 // of images whose batches differ in size and in their objects
	scatterImageReserved  = 0.080 // cuDNN's search for an algorithm; 100 device readings of GPUMemNet
	scatterExperts        = 0.060 // how tokens choose their experts is not known beforehand
	scatterZeRO           = 0.10  // buckets and prefetches have many settings; no strict row states them
	scatterPreference     = 0.20  // what of both models' outputs is kept differs by trainer
	scatterDeepSpeed      = 0.30  // Megatron-DeepSpeed, published as whole "GB" of nvidia-smi
)

// scattered widens the figures that are played to what measurements scatter by.
func (est *Estimate) scattered(w *workload.Workload) {
	allocated, reserved := scatterAllocated, scatterReserved
	if w.Model.Image != nil {
		allocated, reserved = scatterImageAllocated, scatterImageReserved
		if len(w.Model.Image.Least) > 0 {
			allocated = scatterBatchAllocated
		}
	}
	if hasExperts(w) {
		allocated, reserved = scatterExperts, max(reserved, scatterExperts)
	}
	if zeroSharded(w) && w.Framework != workload.Megatron {
		allocated, reserved = max(allocated, scatterZeRO), max(reserved, scatterZeRO)
	}
	if w.Objective != workload.NextToken {
		allocated, reserved = max(allocated, scatterPreference), max(reserved, scatterPreference)
	}
	if w.Framework == workload.MegatronDeepSpeed {
		reserved = scatterDeepSpeed
	}
	est.Allocated = widen(est.Allocated, allocated)
	est.Reserved = widen(est.Reserved, reserved)
	est.Reserved.High = max(est.Reserved.High, est.Allocated.High)
}

func hasExperts(w *workload.Workload) bool {
	for _, s := range w.Model.Stacks {
		for _, l := range s.Layers {
			if l.MoE != nil {
				return true
			}
		}
	}
	return false
}

// widen moves each bound by a share of the middle.
func widen(e units.Estimate, share float64) units.Estimate {
	d := units.Bytes(math.Round(share * float64(e.Mid)))
	return units.Estimate{Low: max(e.Low-d, 0), Mid: e.Mid, High: e.High + d}
}
