package remedy

func recomputeRemedies() []Remedy {
	pass := without(capacity, ActivationsNoCheckpointing, LogitsVocab)
	return []Remedy{{
		Code:     "recompute.checkpointing",
		Cures:    []Cause{ActivationsNoCheckpointing},
		Eases:    pass,
		Exact:    true,
		Slowdown: Range{1.20, 1.35}, // one more forward: 4/3 of the compute, less what is memory-bound
		Effort:   Setting,
		judge: func(f *facts) verdict {
			if is(f.Checkpointing, true) || !f.ownMemory() || f.beyondCard() {
				return never()
			}
			id := "recompute.checkpointing"
			if is(f.Checkpointing, false) {
				id = "recompute.checkpointing.off"
			}
			v := because(id)
			if act, ok := f.activations(); ok {
				// A layer keeps 2h of about 34h bytes for each token, but the
				// loss and one whole layer stay. Source: arXiv:2205.05198 §4-5.
				v = v.freeing(portion(act, 0.5, 0.9))
			}
			return v
		},
	}, {
		Code:     "recompute.selective",
		Eases:    append([]Cause{ActivationsNoCheckpointing}, pass...),
		Exact:    true,
		Slowdown: Range{1.05, 1.17}, // 3.3 to 3.5 instead of 3 forwards' worth of compute
		Effort:   Edit,
		judge: func(f *facts) verdict {
			if is(f.Checkpointing, true) || !f.ownMemory() || f.beyondCard() {
				return never()
			}
			v := because("recompute.selective")
			if act, ok := f.activations(); ok {
				v = v.freeing(portion(act, 0.25, 0.6))
			}
			return v.scaled(0.75)
		},
	}, {
		Code:     "recompute.make_effective",
		Cures:    []Cause{ActivationsNoCheckpointing},
		Exact:    true,
		Slowdown: Range{1.20, 1.35},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			if !is(f.Checkpointing, true) || !f.ownMemory() {
				return never()
			}
			return because("recompute.make_effective")
		},
	}}
}
