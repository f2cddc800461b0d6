package remedy

import (
	"strconv"

	"unoom/internal/units"
)

// modelRemedies change how the model computes: its attention, its loss, what
// of it is trained.
func modelRemedies() []Remedy {
	return []Remedy{{
		Code:     "attention.flash",
		Cures:    []Cause{},
		Eases:    []Cause{SequenceTooLong, InputTooLarge, BatchTooLarge, LongestBatch},
		Exact:    true,
		Slowdown: Range{0.5, 1.0},
		Effort:   Setting,
		judge: func(f *facts) verdict {
			if f.elsewhere() || f.Cap > 0 || !f.training() && f.Phase != PhaseEvaluation {
				return never()
			}
			switch f.Attention {
			case "flash", "flash_attention_2", "flash_attention_3", "sdpa":
				return never()
			case "eager":
				return because("attention.flash")
			}
			// Without a word on the attention in the log, only where the length
			// is the suspect.
			if f.weight(SequenceTooLong, InputTooLarge) < 0.25 {
				return never()
			}
			return because("attention.flash.unknown")
		},
	}, {
		Code:     "attention.no_padding",
		Eases:    []Cause{SequenceTooLong, LongestBatch},
		Exact:    true,
		Slowdown: Range{0.6, 1.0},
		Effort:   Edit,
		judge: func(f *facts) verdict {
			if !f.ownMemory() || f.weight(SequenceTooLong, LongestBatch) < 0.2 {
				return never()
			}
			return because("attention.no_padding").scaled(0.7)
		},
	}, {
		Code:     "loss.fused_linear",
		Cures:    []Cause{LogitsVocab},
		Eases:    []Cause{SequenceTooLong},
		Exact:    true,
		Slowdown: Range{0.9, 1.10},
		Effort:   Setting,
		judge:    func(f *facts) verdict { return f.judgeLogits("loss.fused_linear") },
	}, {
		Code:     "loss.chunked",
		Cures:    []Cause{LogitsVocab},
		Exact:    true,
		Slowdown: Range{1.0, 1.10},
		Effort:   Edit,
		judge:    func(f *facts) verdict { return f.judgeLogits("loss.chunked").scaled(0.75) },
	}, {
		Code:     "loss.in_model",
		Cures:    []Cause{DPImbalance},
		Exact:    true,
		Slowdown: Range{0.9, 1},
		Effort:   Edit,
		judge:    always("loss.in_model"),
	}, {
		Code:     "peft.lora",
		Eases:    state,
		Exact:    false,
		Slowdown: Range{0.7, 0.95},
		Effort:   Rework,
		judge: func(f *facts) verdict {
			if !f.full() || f.elsewhere() || f.Cap > 0 {
				return never()
			}
			v := because("peft.lora")
			if p, ok := f.params(); ok && !f.sharded() {
				// Gradients and states of the base go: 6 bytes (all bf16) to 12 (fp32).
				v = v.freeing(&units.Estimate{Low: units.Bytes(6 * p), Mid: units.Bytes(12 * p), High: units.Bytes(14 * p)})
			}
			return v
		},
	}, {
		Code:     "peft.qlora",
		Eases:    append([]Cause{PrecisionNotApplied}, state...),
		Exact:    false,
		Slowdown: Range{0.8, 1.3},
		Effort:   Rework,
		judge: func(f *facts) verdict {
			if f.Method == "qlora" || f.elsewhere() || f.Cap > 0 {
				return never()
			}
			v := because("peft.qlora")
			if p, ok := f.params(); ok && !f.sharded() {
				low, high := 1.4, 15.4
				if f.Method == "lora" {
					low, high = 1.4, 3.5
				}
				v = v.freeing(&units.Estimate{Low: units.Bytes(low * p), Mid: units.Bytes((low + high) / 2 * p), High: units.Bytes(high * p)})
			}
			return v.scaled(0.8)
		},
	}}
}

// judgeLogits judges the losses that never hold tokens x vocabulary at once.
func (f *facts) judgeLogits(id string) verdict {
	if f.elsewhere() || f.Cap > 0 || f.Phase == PhaseStep || f.Phase == PhaseLoad || f.Phase == PhaseSave {
		return never()
	}
	v := because(id)
	if f.MicroBatch > 0 && f.Sequence > 0 && f.Vocabulary > 0 {
		// Tokens x vocabulary at 10 to 12 bytes: the logits in 16 bits, their
		// fp32 copy, the log-probabilities and the gradient.
		// Source: transformers loss/loss_utils.py; torch log_softmax and nll_loss.
		cells := int64(f.MicroBatch) * int64(f.Sequence) * int64(f.Vocabulary)
		if low, ok := units.Mul(8, units.Bytes(cells)); ok && cells < 1<<40 {
			mid, high := low/8*10, low/8*12
			v = because("loss.logits", strconv.Itoa(f.MicroBatch*f.Sequence), strconv.Itoa(f.Vocabulary), mid)
			return v.freeing(&units.Estimate{Low: low, Mid: mid, High: high})
		}
	}
	if f.Tried > 0 && f.weight(LogitsVocab) >= 0.2 {
		// The failed request is one of the two or three copies.
		v = v.freeing(&units.Estimate{Low: f.Tried, Mid: 2 * f.Tried, High: 3 * f.Tried})
	}
	return v
}
