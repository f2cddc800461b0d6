package remedy

import (
	"strconv"
)

func sequenceRemedies() []Remedy {
	return []Remedy{{
		Code:     "sequence.shorter",
		Cures:    []Cause{SequenceTooLong},
		Eases:    []Cause{LogitsVocab, BatchTooLarge, LongestBatch, ActivationsNoCheckpointing},
		Exact:    false,
		Slowdown: Range{0.4, 0.9},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			if !f.ownMemory() || (f.Sequence == 0 && f.weight(SequenceTooLong, LongestBatch) < 0.1) {
				return never()
			}
			act, known := f.activations()
			v := because("sequence.shorter.unknown").with("sequence", "S/2")
			if f.Sequence > 0 {
				v = because("sequence.shorter", f.Sequence, f.Sequence/2).
					with("sequence", f.Sequence/2, "sequence_now", f.Sequence)
			}
			if known {
				// Linear in the length with flash attention, quadratic where
				// the scores are materialised: half or three quarters.
				v = v.freeing(portion(act, 0.5, 0.75))
			}
			return v.scaled(0.8)
		},
	}, {
		Code:     "sequence.filter_long",
		Cures:    []Cause{LongestBatch},
		Eases:    []Cause{SequenceTooLong, EvalWorkloadLarger},
		Exact:    false,
		Slowdown: Range{0.9, 1.0},
		Effort:   Edit,
		judge: func(f *facts) verdict {
			if f.elsewhere() || f.Cap > 0 {
				return never()
			}
			v := because("sequence.filter_long")
			if f.Sequence > 0 {
				return v.with("sequence", strconv.Itoa(f.Sequence))
			}
			return v
		},
	}, {
		Code:     "sequence.tile_input",
		Cures:    []Cause{InputTooLarge},
		Eases:    []Cause{EvalWorkloadLarger, ShapeOrDataBug},
		Exact:    false,
		Slowdown: Range{1.0, 1.5},
		Effort:   Edit,
		judge: func(f *facts) verdict {
			if f.elsewhere() || f.Cap > 0 {
				return never()
			}
			if f.beyondCard() {
				return because("sequence.tile_input.beyond", f.Tried, f.Account.Capacity)
			}
			return because("sequence.tile_input")
		},
	}}
}
