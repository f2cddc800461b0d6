package cli

import (
	"bytes"
	"strings"

	"unoom/internal/oomlog"
	"unoom/internal/supervise"
)

// readLog says what the end of a log is evidence of, in the supervisor's terms.
// The last attempt of the text counts, and in it the first failure that is not
// a consequence of another.
func readLog(text []byte) *supervise.LogFinding {
	res, err := oomlog.Scan("stderr", bytes.NewReader(text))
	if err != nil {
		return nil
	}
	var best *oomlog.Failure
	for i := range res.Failures {
		f := &res.Failures[i]
		if f.Class == oomlog.ClassHandled || f.Class == oomlog.ClassOther {
			continue
		}
		if best == nil || (best.Class.IsNoise() && !f.Class.IsNoise()) {
			best = f
		}
	}
	if best == nil {
		return nil
	}
	found := &supervise.LogFinding{
		Outcome: outcomeOf(*best), Certain: best.Certain, Evidence: best.Text, Rank: best.Rank, Phase: string(best.Phase),
	}
	g := best.Figures
	found.Figures = supervise.Figures{
		Tried: g.Tried.Bytes, Capacity: g.Capacity.Bytes, Free: g.Free.Bytes,
		Allocated: g.Allocated.Bytes, Reserved: g.Reserved.Bytes,
	}
	for _, p := range g.Processes {
		found.Figures.Others += p.Memory.Bytes
	}
	return found
}

func outcomeOf(f oomlog.Failure) supervise.Outcome {
	switch f.Class {
	case oomlog.ClassVRAM:
		// A library's own allocation, outside PyTorch's allocator.
		for _, library := range []string{"nccl.", "cublas", "cudnn"} {
			if strings.HasPrefix(f.Pattern, library) {
				return supervise.OutsideOOM
			}
		}
		return supervise.DeviceOOM
	case oomlog.ClassVRAMMasked, oomlog.ClassVRAMProbable, oomlog.ClassLimit:
		return supervise.DeviceOOM
	case oomlog.ClassHost, oomlog.ClassHostKilled, oomlog.ClassPinned:
		return supervise.HostOOM
	case oomlog.ClassSharedMemory:
		return supervise.SharedMemory
	case oomlog.ClassSecondary:
		return supervise.CascadeFailed
	}
	return supervise.Failed
}
