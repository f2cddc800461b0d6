package diagnose

import (
	"unoom/internal/account"
	"unoom/internal/memory"
	"unoom/internal/remedy"
	"unoom/internal/units"
	"unoom/internal/workload"
)

// beside reports whether a phase lies beside the training steps.
func beside(p remedy.Phase) bool {
	return p == remedy.PhaseEvaluation || p == remedy.PhaseSave || p == remedy.PhaseResume
}

// peakIn is the peak of the phase in which the run failed, where that lies beside
// the training steps, else of the whole run.
func peakIn(est *memory.Estimate, phase remedy.Phase) units.Bytes {
	if beside(phase) {
		return phasePeak(est, phase).Allocated
	}
	return est.Allocated.Mid
}

// phasePeak is the peak of one phase, zero where the run has none.
func phasePeak(est *memory.Estimate, phase remedy.Phase) memory.Peak {
	for _, p := range est.Phases {
		if remedy.Phase(p.Phase) == phase {
			return p
		}
	}
	return memory.Peak{}
}

// passages makes the readings do what the run did when it failed, by its likeliest
// cause: evaluate with or without a graph, keep predictions, gather a checkpoint,
// load one beside the model.
func (p *predictor) passages(list []*workload.Workload) {
	s := p.sit
	for _, w := range list {
		switch s.Phase {
		case remedy.PhaseEvaluation:
			w.Eval = true
			w.Evaluation = workload.Evaluation{Batch: int64(s.EvalBatch), Keep: workload.KeepLoss}
			if s.EvalBatch == 0 {
				w.Evaluation.Batch = w.MicroBatch
				if s.Framework.Base() == remedy.HFTrainer {
					w.Evaluation.Batch = trainerEvalBatch
				}
			}
			switch likeliest(s, remedy.EvalAccumulatesPredictions, remedy.EvalNoGrad, remedy.EvalWorkloadLarger) {
			case remedy.EvalNoGrad:
				w.Evaluation.Graph = true
			case remedy.EvalAccumulatesPredictions:
				p.collects(w)
			}
		case remedy.PhaseSave:
			if w.Sharding.Sharded() {
				w.Save = workload.SaveFullGPU
			}
		case remedy.PhaseResume:
			if likeliest(s, remedy.ResumeDoubleLoad) != "" {
				w.Resume = workload.ResumeGPU
			}
		}
	}
}

// trainerEvalBatch is the batch of an evaluation of which nobody said anything.
// Source: transformers training_args.py, per_device_eval_batch_size.
const trainerEvalBatch = 8

// likeliest is the first of some causes that a situation ranks, "" if it ranks
// none.
func likeliest(s *remedy.Situation, of ...remedy.Cause) remedy.Cause {
	for _, c := range s.Causes {
		for _, one := range of {
			if c.Cause == one {
				return one
			}
		}
	}
	return ""
}

// collects makes a run keep its logits, of as many batches as fill what was
// allocated when it failed: nobody says how many there are.
func (p *predictor) collects(w *workload.Workload) {
	e := &w.Evaluation
	e.Keep = workload.KeepLogits
	if p.sit.Account == nil {
		return
	}
	ranks := max(w.Parallel.Data, 1)
	peak := func(batches int64) units.Bytes {
		e.Samples = batches * e.Batch * ranks
		est, err := p.estimate(w)
		if err != nil {
			return 0
		}
		return peakIn(est, remedy.PhaseEvaluation)
	}
	few, more := peak(8), peak(16)
	if more <= few {
		return
	}
	full := p.sit.Account.Of(account.Allocated) + p.sit.Account.Of(account.PrivatePools) + p.sit.Tried
	batches := 8 + int64((full-few)*8/(more-few))
	e.Samples = max(batches, 2) * e.Batch * ranks
}

// passageChanges are the remedies for what happens beside the training steps. Each
// is about a run that does so.
var passageChanges = map[remedy.Code]func(*workload.Workload, *remedy.Situation) bool{
	"release.eval_outputs": func(w *workload.Workload, _ *remedy.Situation) bool {
		kept := w.Eval && w.Evaluation.Keep == workload.KeepLogits
		w.Evaluation.Keep = workload.KeepIDs
		return kept
	},
	"release.eval_no_grad": func(w *workload.Workload, _ *remedy.Situation) bool {
		graph := w.Evaluation.Graph
		w.Evaluation.Graph = false
		return graph
	},
	"batch.eval": func(w *workload.Workload, s *remedy.Situation) bool {
		now := w.Evaluation.Batch
		w.Evaluation.Batch = int64(remedy.SmallerEvalBatch(int(now), s.MicroBatch))
		return w.Eval && now > 1
	},
	"release.load_on_cpu": func(w *workload.Workload, _ *remedy.Situation) bool {
		card := w.Resume == workload.ResumeGPU
		w.Resume = workload.ResumeHost
		return card
	},
	"parallel.sharded_checkpoint": func(w *workload.Workload, _ *remedy.Situation) bool {
		card := w.Save == workload.SaveFullGPU
		w.Save = workload.SaveSharded
		return card
	},
}
