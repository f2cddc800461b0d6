package diagnose

import (
	"testing"

	"unoom/internal/memory"
	"unoom/internal/model"
	"unoom/internal/remedy"
	"unoom/internal/units"
	"unoom/internal/workload"
)

// failing is tiny's run, failed beside its steps of a cause.
func failing(phase remedy.Phase, cause remedy.Cause, allocated units.Bytes) *remedy.Situation {
	s := tiny(allocated)
	s.MicroBatch, s.EvalBatch, s.Phase, s.Framework = 1, 4, phase, remedy.HFTrainer
	s.Causes = []remedy.Weighted{{Cause: cause, Confidence: 0.7}}
	return s
}

func TestAPredictionOfAnEvaluation(t *testing.T) {
	codes := []remedy.Code{"release.eval_outputs", "release.eval_no_grad", "batch.eval", "recompute.checkpointing"}

	// Kept logits fill the card: all that is beyond one batch would be saved.
	s := failing(remedy.PhaseEvaluation, remedy.EvalAccumulatesPredictions, 7*units.GiB)
	s.Tried = 3 * units.GiB
	p := predicted(t, s, codes...)
	if p == nil || p.Phase != remedy.PhaseEvaluation || p.Peak.Mid < 7*units.GiB || p.Peak.Mid > 14*units.GiB {
		t.Fatalf("predicted %+v", p)
	}
	var sum units.Bytes
	for _, part := range p.Parts {
		sum += part.Bytes
	}
	if sum != p.Peak.Mid {
		t.Errorf("the parts sum to %v, the peak is %v", sum, p.Peak.Mid)
	}
	if e := s.Saves["release.eval_outputs"]; e.Mid < 2*units.GiB || !s.Fits["release.eval_outputs"] {
		t.Errorf("moving predictions saves %v; fits %v", e, s.Fits)
	}
	for _, code := range []remedy.Code{"recompute.checkpointing", "accumulate.split", "release.eval_no_grad"} {
		if e, ok := s.Saves[code]; ok {
			t.Errorf("%s saves %v of an evaluation without a graph", code, e)
		}
	}
	a, ok := remedy.Assess(*s, "release.eval_outputs")
	if !ok || !a.Predicted || a.Sufficient == nil || !*a.Sufficient {
		t.Errorf("advice %+v", a)
	}

	// Two graphs of four samples, one of one in training.
	s = failing(remedy.PhaseEvaluation, remedy.EvalNoGrad, 7*units.GiB)
	if p = predicted(t, s, codes...); p == nil {
		t.Fatal("no prediction of a loop without no_grad")
	}
	if e := s.Saves["release.eval_no_grad"]; e.Mid < 4*units.GiB || !s.Fits["release.eval_no_grad"] {
		t.Errorf("no_grad saves %v; fits %v", e, s.Fits)
	}
	if e := s.Saves["batch.eval"]; e.Mid <= 0 || e.Mid >= s.Saves["release.eval_no_grad"].Mid {
		t.Errorf("half the batch saves %v, no_grad %v", e, s.Saves["release.eval_no_grad"])
	}
	if _, ok := s.Saves["release.eval_outputs"]; ok {
		t.Error("there are no kept predictions to save")
	}
}

func TestAPredictionOfAResumedRun(t *testing.T) {
	// 124.4 million float32 weights and two states; the checkpoint's weights once
	// more.
	s := failing(remedy.PhaseResume, remedy.ResumeDoubleLoad, 1900*units.MiB)
	if p := predicted(t, s, "release.load_on_cpu"); p == nil {
		t.Fatal("no prediction")
	}
	const weights = 475 * units.MiB
	if e := s.Saves["release.load_on_cpu"]; e.Mid < weights*9/10 || e.Mid > weights*11/10 {
		t.Errorf("loading on the CPU saves %v, the weights are %v", e, weights)
	}
}

// Of a public report: a full state dictionary of a 7B model under FSDP on cards of
// 39.59 GiB; the clone of the head, 32,001 × 4,096 float32, failed with 36,393 MiB
// allocated. The head is the root's, whose tensors are cloned last.
func TestTheSavedCheckpointOfAReport(t *testing.T) {
	models, err := model.Published()
	if err != nil {
		t.Fatal(err)
	}
	m, err := models.Named("llama-7b", model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	engine, err := memory.New()
	if err != nil {
		t.Fatal(err)
	}
	w := &workload.Workload{Model: m, Framework: workload.HFTrainer, Method: workload.Full, Precision: workload.BF16, MicroBatch: 1, Accumulation: 1, Seq: 512, Attention: workload.Eager,
		Checkpointing: workload.NoCheckpointing, Optimizer: workload.Optimizer{Name: "adamw_torch", Impl: "foreach"}, Sharding: workload.FSDP, Save: workload.SaveFullGPU,
		Parallel: workload.Parallel{World: 8, Data: 8, Tensor: 1, Pipeline: 1, Virtual: 1, Context: 1, Expert: 1}, Options: map[string]string{"upcast": "fp32"}}
	est, err := engine.Estimate(w)
	if err != nil {
		t.Fatal(err)
	}
	const head = 32000 * 4096 * 4
	got, want := phasePeak(est, remedy.PhaseSave).Allocated-head, units.Bytes(36393)*units.MiB
	t.Logf("before the clone of the head %v are allocated, the report has %v", got, want)
	if off := float64(got)/float64(want) - 1; max(off, -off) > 0.03 {
		t.Errorf("before the clone of the head %v are allocated, the report has %v (%+.1f %%)", got, want, 100*off)
	}
}
