package diagnose

import (
	"testing"

	"unoom/internal/account"
	"unoom/internal/memory"
	"unoom/internal/model"
	"unoom/internal/remedy"
	"unoom/internal/units"
	"unoom/internal/workload"
)

// tiny is a run of GPT-2 on a small card, of which the message says that it had
// this much allocated.
func tiny(allocated units.Bytes) *remedy.Situation {
	a := account.Balance(0, 8*units.GiB, 0, []account.Part{{Kind: account.Allocated, Bytes: allocated}, {Kind: account.Free, Bytes: 100 * units.MiB}})
	return &remedy.Situation{Account: &a, Tried: 200 * units.MiB, Model: "gpt2", MicroBatch: 16, Sequence: 1024, Phase: remedy.PhaseForward, DType: "float32", Optimizer: "torch.optim.AdamW"}
}

func predicted(t *testing.T, s *remedy.Situation, codes ...remedy.Code) *Prediction {
	t.Helper()
	engine, err := memory.New()
	if err != nil {
		t.Fatal(err)
	}
	models, err := model.Published()
	if err != nil {
		t.Fatal(err)
	}
	entry, err := models.Find("gpt2")
	if err != nil {
		t.Fatal(err)
	}
	m, err := entry.Model(model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return Predict(engine, m, workload.GPU{}, s, codes)
}

func TestAPredictionSaysWhatEachChangeLeaves(t *testing.T) {
	s := tiny(7 * units.GiB)
	p := predicted(t, s, "recompute.checkpointing", "release.other_process")
	if p == nil || p.Peak.Mid <= 8*units.GiB {
		t.Fatalf("a run that failed on 8 GiB is predicted as %v", p)
	}
	var sum units.Bytes
	for _, part := range p.Parts {
		sum += part.Bytes
	}
	if sum != p.Peak.Mid {
		t.Errorf("the parts sum to %v, the peak is %v", sum, p.Peak.Mid)
	}
	if e := s.Saves["recompute.checkpointing"]; e.Low <= units.GiB || e.High >= p.Peak.High {
		t.Errorf("checkpointing saves %v of %v", e, p.Peak)
	}
	if _, ok := s.Saves["release.other_process"]; ok {
		t.Error("a saving was made up for what the engine cannot play")
	}
	// The batch is divided as far as needed and no further.
	if !s.Fits["accumulate.split"] || s.SplitBy < 2 || s.SplitBy > 8 {
		t.Errorf("split by %d, fits %v", s.SplitBy, s.Fits)
	}
	a, ok := remedy.Assess(*s, "accumulate.split")
	if !ok || !a.Predicted || a.Sufficient == nil || !*a.Sufficient || a.Fill["micro_batch"] == "" {
		t.Errorf("advice %+v", a)
	}
}

func TestAPredictionThatContradictsTheMessageIsNone(t *testing.T) {
	for name, s := range map[string]*remedy.Situation{
		"more was allocated than the run needs": tiny(79 * units.GiB),
		"the length is not known":               func() *remedy.Situation { s := tiny(7 * units.GiB); s.Sequence = 0; return s }(),
		"far less at the peak": func() *remedy.Situation {
			s := tiny(2 * units.GiB)
			s.Phase = remedy.PhaseBackward
			return s
		}(),
		"ZeRO is not played": func() *remedy.Situation {
			s := tiny(7 * units.GiB)
			s.WorldSize, s.Sharding = 4, "zero3"
			return s
		}(),
	} {
		if p := predicted(t, s, "recompute.checkpointing"); p != nil || len(s.Saves) > 0 {
			t.Errorf("%s: predicted %v", name, p)
		}
	}
}
