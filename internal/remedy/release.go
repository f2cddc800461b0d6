package remedy

import (
	"slices"
	"strconv"
	"strings"

	"unoom/internal/account"
	"unoom/internal/units"
)

func releaseRemedies() []Remedy {
	return []Remedy{{
		Code:     "release.other_process",
		Cures:    []Cause{OtherProcess},
		Eases:    []Cause{OrphanProcess, WrongGPU, ColocatedEngine, MaskedLibraryInit, MaskedNVMLAssert},
		Exact:    true,
		Slowdown: Range{1, 1},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			held := f.held()
			if held == 0 && f.of(account.Outside) > 0 && f.of(account.OutsideOrOther) == 0 && f.share(f.of(account.Allocated)) > 0.5 {
				return never() // the message accounts for the card, and this process has it
			}
			v := because("release.other_process.unknown")
			if held > 0 {
				v = because("release.other_process", held, percent(f.share(held)))
			} else if o := f.of(account.OutsideOrOther); f.share(o) > 0.18 {
				v, held = because("release.other_process.outside", o, percent(f.share(o))), o
				// An upper bound: this process's own context is in the figure.
				return v.freeing(&units.Estimate{Low: 0, Mid: held, High: held}).with(f.where()...)
			}
			return v.freeing(exactly(held)).surely(f.covers(held)).with(f.where()...)
		},
	}, {
		Code:     "release.orphan_process",
		Cures:    []Cause{OrphanProcess},
		Eases:    []Cause{OtherProcess},
		Exact:    true,
		Slowdown: Range{1, 1},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			held := f.of(account.OtherProcesses, account.OutsideOrOther)
			if held == 0 {
				return because("release.orphan_process.unknown").with(f.where()...)
			}
			return because("release.orphan_process", held).
				freeing(&units.Estimate{Low: f.held(), Mid: held, High: held}).with(f.where()...)
		},
	}, {
		Code:     "release.graph",
		Cures:    []Cause{LeakGraphRetained},
		Exact:    true,
		Slowdown: Range{1, 1},
		Effort:   Edit,
		judge:    always("release.graph"),
	}, {
		Code:     "release.state",
		Cures:    []Cause{LeakStateGrowth},
		Exact:    true,
		Slowdown: Range{1, 1},
		Effort:   Edit,
		judge:    always("release.state"),
	}, {
		Code:     "release.exception",
		Cures:    []Cause{ExceptionHoldsTensors},
		Exact:    true,
		Slowdown: Range{1, 1},
		Effort:   Edit,
		judge:    always("release.exception"),
	}, {
		Code:     "release.eval_no_grad",
		Cures:    []Cause{EvalNoGrad},
		Eases:    []Cause{EvalWorkloadLarger, EvalAccumulatesPredictions},
		Exact:    true,
		Slowdown: Range{0.9, 1},
		Effort:   Edit,
		judge: func(f *facts) verdict {
			if f.elsewhere() {
				return never()
			}
			v := because("release.eval_no_grad")
			if a, ok := f.allocated(); ok {
				// The graph is some part of what is allocated, which one is unknown.
				v = v.freeing(&units.Estimate{Low: 0, Mid: a / 3, High: a})
			}
			return v
		},
	}, {
		Code:     "release.eval_outputs",
		Cures:    []Cause{EvalAccumulatesPredictions},
		Eases:    []Cause{EvalWorkloadLarger},
		Exact:    true,
		Slowdown: Range{1, 1.1},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			if f.elsewhere() {
				return never()
			}
			return because("release.eval_outputs")
		},
	}, {
		Code:     "release.extra_model",
		Cures:    []Cause{ExtraModelCopy},
		Exact:    true,
		Slowdown: Range{1, 1.1},
		Effort:   Edit,
		judge: func(f *facts) verdict {
			v := because("release.extra_model")
			if p, ok := f.params(); ok {
				v = v.freeing(&units.Estimate{Low: units.Bytes(2 * p), Mid: units.Bytes(2 * p), High: units.Bytes(4 * p)})
			}
			return v
		},
	}, {
		Code:     "release.load_on_cpu",
		Cures:    []Cause{ResumeDoubleLoad},
		Eases:    []Cause{RanksShareGPU, WrongPlacement},
		Exact:    true,
		Slowdown: Range{1, 1},
		Effort:   Edit,
		judge: func(f *facts) verdict {
			if f.Phase != PhaseLoad && f.Phase != PhaseResume && f.Phase != PhaseUnknown {
				return never()
			}
			return because("release.load_on_cpu")
		},
	}, {
		Code:     "release.engine_share",
		Cures:    []Cause{ColocatedEngine},
		Exact:    true,
		Slowdown: Range{1, 1.3},
		Effort:   Setting,
		judge:    always("release.engine_share"),
	}, {
		Code:     "release.workers_cuda",
		Cures:    []Cause{WorkerCUDAContexts},
		Eases:    []Cause{RanksShareGPU},
		Exact:    true,
		Slowdown: Range{1, 1},
		Effort:   Edit,
		judge: func(f *facts) verdict {
			if f.Workers > 0 {
				return because("release.workers_cuda.count", f.Workers)
			}
			return because("release.workers_cuda")
		},
	}, {
		Code:     "release.empty_cache_once",
		Cures:    []Cause{NCCLOutsideAllocator},
		Eases:    []Cause{ColocatedEngine, MaskedLibraryInit},
		Exact:    true,
		Slowdown: Range{1, 1.01},
		Effort:   Edit,
		judge: func(f *facts) verdict {
			cached := f.of(account.Cached)
			switch {
			case f.Account == nil:
				return because("release.empty_cache_once.unknown")
			case f.share(cached) < 0.02:
				return never() // there is next to nothing to give back
			}
			return because("release.empty_cache_once", cached).
				freeing(&units.Estimate{Low: 0, Mid: cached / 2, High: cached})
		},
	}}
}

// where returns what a page needs to name the card and who holds it.
func (f *facts) where() []any {
	var pids []string
	if f.Account == nil {
		return nil
	}
	for _, p := range f.Account.Parts {
		if p.Kind == account.OtherProcesses && p.PID > 0 && !slices.Contains(pids, strconv.Itoa(p.PID)) {
			pids = append(pids, strconv.Itoa(p.PID))
		}
	}
	return []any{"device", strconv.Itoa(f.Account.Device), "pids", strings.Join(pids, ",")}
}

// covers reports whether freeing bytes that are known exactly covers the
// shortfall; nil where that is not known.
func (f *facts) covers(b units.Bytes) *bool {
	low, high, ok := f.shortfall()
	switch {
	case !ok || b <= 0:
		return nil
	case b >= high:
		return yes()
	case b < low:
		return no()
	}
	return nil
}

// percent prints a share with no decimals.
func percent(share float64) string { return strconv.Itoa(int(share*100+0.5)) + " %" }
