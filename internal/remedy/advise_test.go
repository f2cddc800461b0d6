package remedy

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"unoom/internal/account"
	"unoom/internal/i18n"
	"unoom/internal/units"
)

func TestAnotherProcessBeatsTheBatch(t *testing.T) {
	s := caused(card(24, 17, 6, 0.2, 0.3, 1), OtherProcess, 0.7, BatchTooLarge, 0.15, OrphanProcess, 0.1)
	s.MicroBatch, s.Phase = 16, PhaseForward
	advice := Advise(s)
	if advice[0].Code != "release.other_process" {
		t.Errorf("first is %s, want release.other_process", advice[0].Code)
	}
	if a := advice[0]; a.Saves == nil || a.Saves.Mid != 17*gib || a.Sufficient == nil || !*a.Sufficient || a.Fill["pids"] != "4711" {
		t.Errorf("release.other_process = %+v, want 17 GiB of process 4711, sufficient", a)
	}
	for _, a := range advice {
		switch a.Code.Family() {
		case "batch", "accumulate", "recompute", "precision", "hardware", "allocator":
			t.Errorf("%s is offered although 71 %% of the card belong to another process", a.Code)
		}
	}
}

func TestFragmentationNeedsItsProof(t *testing.T) {
	for _, c := range []struct {
		name  string
		s     Situation
		offer bool
	}{
		{"much in pieces, enough in sum", card(24, 0, 12, 8, 2, 3), true},
		{"negative slack", card(24, 0, 20, 1, 0.2, 3), false},
		{"nothing cached", card(24, 0, 23, 0.01, 0.5, 0.3), false},
		{"already on", func() Situation { s := card(24, 0, 12, 8, 2, 3); on := true; s.ExpandableSegments = &on; return s }(), false},
		{"on in the configuration", func() Situation {
			s := card(24, 0, 12, 8, 2, 3)
			s.AllocatorConf = "expandable_segments:True"
			return s
		}(), false},
		{"a platform without support", func() Situation { s := card(24, 0, 12, 8, 2, 3); s.Platform = "wsl"; return s }(), false},
		{"no figures", Situation{}, false},
	} {
		advice := Advise(caused(c.s, Fragmentation, 0.6, BatchTooLarge, 0.3))
		if got := slices.Contains(codes(advice), "allocator.expandable_segments"); got != c.offer {
			t.Errorf("%s: offered %v, want %v (%v)", c.name, got, c.offer, codes(advice))
		}
	}
}

func TestOtherOptionsOfTheAllocatorAreKept(t *testing.T) {
	s := caused(card(24, 0, 12, 8, 2, 3), Fragmentation, 0.8)
	s.AllocatorConf = "garbage_collection_threshold:0.8, expandable_segments:False"
	a := find(t, Advise(s), "allocator.expandable_segments")
	page, err := ReadPage(a.Code, i18n.English)
	if err != nil {
		t.Fatal(err)
	}
	want := "export PYTORCH_CUDA_ALLOC_CONF=garbage_collection_threshold:0.8,expandable_segments:True"
	if how := page.How(PyTorch, a.Fill); !strings.Contains(how, want) {
		t.Errorf("how = %q, want %q in it", how, want)
	}
}

func TestTheSplitKeepsTheEffectiveBatch(t *testing.T) {
	s := caused(card(24, 0, 22, 0.3, 0.2, 2.5), BatchTooLarge, 0.8)
	s.MicroBatch, s.Accumulation, s.WorldSize, s.Phase, s.Framework = 16, 2, 4, PhaseForward, HFTrainer
	a := find(t, Advise(s), "accumulate.split")
	if a.Fill["micro_batch"] != "4" {
		t.Errorf("micro-batch %s in forward, want a quarter: the rest of the pass is still to come", a.Fill["micro_batch"])
	}
	s.Phase = PhaseBackward
	a = find(t, Advise(s), "accumulate.split")
	if a.Fill["effective_batch"] != "128" {
		t.Errorf("effective batch %s, want 16 × 2 × 4 = 128", a.Fill["effective_batch"])
	}
	page, _ := ReadPage(a.Code, i18n.English)
	want := []string{
		"per_device_train_batch_size=8,  # was 16",
		"gradient_accumulation_steps=4,  # was 2",
	}
	if got := Changes(page.How(HFTrainer, a.Fill)); !slices.Equal(got, want) {
		t.Errorf("changes = %q, want %q", got, want)
	}
	// Half of what is allocated and a tenth of that at most, and the message does not say how much
	// of it are activations.
	if a.Saves == nil || a.Saves.Low != 0 || a.Saves.High < 12*gib || a.Saves.High > 12*gib+gib/5 || a.Sufficient != nil {
		t.Errorf("saves %v, sufficient %v; want 0 to about 12.1 GiB, open", a.Saves, a.Sufficient)
	}
}

func TestAPrimeBatchIsSplitToOne(t *testing.T) {
	s := caused(card(24, 0, 22, 0.3, 0.2, 2.5), BatchTooLarge, 0.8)
	s.MicroBatch = 7
	if a := find(t, Advise(s), "accumulate.split"); a.Fill["micro_batch"] != "1" || a.Fill["accumulation"] != "7" {
		t.Errorf("fill = %v, want 1 × 7", a.Fill)
	}
}

func TestNothingIsSplitBelowOne(t *testing.T) {
	s := caused(card(24, 0, 22, 0.3, 0.2, 2.5), BatchTooLarge, 0.8, GPUTooSmall, 0.1)
	s.MicroBatch = 1
	for _, c := range []Code{"accumulate.split", "batch.reduce"} {
		if slices.Contains(codes(Advise(s)), c) {
			t.Errorf("%s is offered at micro-batch 1", c)
		}
	}
}

func TestEvaluationLeavesTheTrainingBatch(t *testing.T) {
	s := caused(card(24, 0, 22, 0.3, 0.2, 2.5), EvalWorkloadLarger, 0.4, EvalNoGrad, 0.3, BatchTooLarge, 0.2)
	s.Phase, s.MicroBatch, s.EvalBatch = PhaseEvaluation, 8, 32
	advice := Advise(s)
	for _, c := range []Code{"accumulate.split", "batch.reduce", "recompute.checkpointing"} {
		if slices.Contains(codes(advice), c) {
			t.Errorf("%s is offered for a failure in evaluation", c)
		}
	}
	if a := find(t, advice, "batch.eval"); a.Fill["eval_batch"] != "8" {
		t.Errorf("evaluation batch %q, want that of the training, 8", a.Fill["eval_batch"])
	}
}

func TestWhatIsOnIsNotOffered(t *testing.T) {
	on, off := true, false
	s := caused(card(24, 0, 22, 0.3, 0.2, 2.5), BatchTooLarge, 0.4, ActivationsNoCheckpointing, 0.3)
	s.Checkpointing, s.DType, s.Attention = &on, "bf16", "sdpa"
	for _, c := range []Code{"recompute.checkpointing", "recompute.selective", "precision.autocast", "attention.flash"} {
		if slices.Contains(codes(Advise(s)), c) {
			t.Errorf("%s is offered although it is on", c)
		}
	}
	find(t, Advise(s), "recompute.make_effective")
	s.Checkpointing = &off
	if a := find(t, Advise(s), "recompute.checkpointing"); a.Why.ID != "remedy.why.recompute.checkpointing.off" {
		t.Errorf("why = %s, want that the log says it is off", a.Why.ID)
	}
}

func TestEmptyCacheIsNoCureForABigJob(t *testing.T) {
	s := caused(card(24, 0, 12, 8, 2, 3), BatchTooLarge, 0.6, Fragmentation, 0.3)
	if slices.Contains(codes(Advise(s)), "release.empty_cache_once") {
		t.Error("empty_cache() is offered for a job that is too big")
	}
	s = caused(card(24, 0, 12, 8, 2, 0), NCCLOutsideAllocator, 0.9)
	find(t, Advise(s), "release.empty_cache_once")
	s = caused(card(24, 0, 23, 0.1, 0, 0), NCCLOutsideAllocator, 0.9)
	if slices.Contains(codes(Advise(s)), "release.empty_cache_once") {
		t.Error("empty_cache() is offered although next to nothing is cached")
	}
}

func TestTheOptimizerStepIsNotAboutTheBatch(t *testing.T) {
	s := caused(card(80, 0, 77, 0.5, 0.5, 2), OptimizerState, 0.6, BatchTooLarge, 0.2)
	s.Phase, s.MicroBatch, s.Model, s.WorldSize = PhaseStep, 4, "Llama-2-7b-hf", 2
	advice := Advise(s)
	if slices.Contains(codes(advice), "accumulate.split") {
		t.Error("a smaller batch is offered in the optimizer step")
	}
	a := find(t, advice, "optimizer.8bit")
	if a.Saves == nil || a.Saves.High != units.Bytes(5.97*7e9) || a.Sufficient == nil || !*a.Sufficient {
		t.Errorf("optimizer.8bit saves %v, sufficient %v; want up to 5.97 bytes × 7e9, enough", a.Saves, a.Sufficient)
	}
}

func TestACapIsNotAboutTheJob(t *testing.T) {
	s := caused(card(256, 0, 1, 0.05, 244, 0.002), MemoryCap, 0.9, BatchTooLarge, 0.1)
	s.Cap = units.FromGiB(1.05)
	advice := Advise(s)
	if advice[0].Code != "allocator.raise_cap" || advice[0].Sufficient == nil || !*advice[0].Sufficient {
		t.Errorf("first is %+v, want allocator.raise_cap, sufficient", advice[0])
	}
	if len(advice) != 1 {
		t.Errorf("also offered: %v", codes(advice[1:]))
	}
}

func TestARequestBeyondTheCard(t *testing.T) {
	s := caused(card(24, 0, 6.7, 2, 13, 128), InputTooLarge, 0.6, ShapeOrDataBug, 0.3, BatchTooLarge, 0.05)
	s.MicroBatch = 4
	advice := Advise(s)
	if !slices.Contains(codes(advice[:2]), "fix.request_size") || !slices.Contains(codes(advice[:2]), "sequence.tile_input") {
		t.Errorf("offered %v, want the shape and the tiling first", codes(advice))
	}
	if slices.Contains(codes(advice), "hardware.bigger_gpu") {
		t.Error("a bigger card is offered for a request of 128 GiB")
	}
}

func TestExactSavingsOfTheCallerStand(t *testing.T) {
	s := caused(card(24, 0, 22, 0.3, 0.2, 2.5), BatchTooLarge, 0.8)
	s.MicroBatch, s.Phase = 16, PhaseBackward
	s.Saves = map[Code]units.Estimate{"accumulate.split": units.Exactly(6 * gib)}
	a := find(t, Advise(s), "accumulate.split")
	if *a.Saves != units.Exactly(6*gib) || a.Sufficient == nil || !*a.Sufficient {
		t.Errorf("saves %v, sufficient %v; want the 6 GiB given, enough", a.Saves, a.Sufficient)
	}
}

func TestKnownActivationsMakeTheSavingExact(t *testing.T) {
	a := account.Balance(0, 24*gib, 0, []account.Part{
		{Kind: account.Weights, Bytes: 8 * gib}, {Kind: account.Activations, Bytes: 14 * gib}, {Kind: account.Free, Bytes: 1 * gib},
	})
	s := caused(Situation{Account: &a, Tried: 2 * gib, MicroBatch: 4, Phase: PhaseBackward}, BatchTooLarge, 0.9)
	if got := find(t, Advise(s), "accumulate.split"); *got.Saves != units.Exactly(7*gib) {
		t.Errorf("saves %v, want exactly 7 GiB", got.Saves)
	}
}

// Whatever the situation: intervals are ordered, no saving exceeds the card
// unless it is a bigger one, reasons have words, placeholders have values.
func TestAdviceIsSoundInAnySituation(t *testing.T) {
	words := i18n.Load(i18n.English)
	left := regexp.MustCompile(`\{\d\}`)
	rapid.Check(t, func(t *rapid.T) {
		s := anySituation(t)
		last := 1e9
		for _, a := range Advise(s) {
			if a.Score > last {
				t.Errorf("%s ranks above a better one", a.Code)
			}
			last = a.Score
			if !words.Has(a.Why.ID) {
				t.Errorf("%s: %s has no text", a.Code, a.Why.ID)
			}
			if text := words.Text(a.Why.ID, a.Why.Args...); left.MatchString(text) {
				t.Errorf("%s: %q lacks an argument", a.Code, text)
			}
			if e := a.Saves; e != nil {
				if e.Low < 0 || e.Low > e.Mid || e.Mid > e.High {
					t.Errorf("%s: saves %v–%v–%v", a.Code, e.Low, e.Mid, e.High)
				}
			}
			for name := range a.Fill {
				if !placeholders[name] {
					t.Errorf("%s fills %q, which no page may use", a.Code, name)
				}
			}
		}
	})
}

func anySituation(t *rapid.T) Situation {
	var s Situation
	if rapid.Bool().Draw(t, "figures") {
		g := func(name string) float64 { return rapid.Float64Range(0, 40).Draw(t, name) }
		s = card(rapid.Float64Range(1, 200).Draw(t, "capacity"), g("others"), g("allocated"), g("cached"), g("free"), g("tried"))
	}
	for _, c := range Causes() {
		if p := rapid.Float64Range(-3, 1).Draw(t, string(c)); p > 0 {
			s.Causes = append(s.Causes, Weighted{c, p})
		}
	}
	n := func(name string) int { return rapid.IntRange(0, 64).Draw(t, name) }
	s.MicroBatch, s.Accumulation, s.Sequence, s.WorldSize, s.EvalBatch, s.Workers = n("b"), n("a"), n("s"), n("w"), n("e"), n("k")
	s.Vocabulary = n("v") * 1000
	s.Params = int64(n("p")) * 1e9
	s.Phase = rapid.SampledFrom([]Phase{PhaseUnknown, PhaseLoad, PhaseForward, PhaseLoss, PhaseBackward, PhaseStep, PhaseEvaluation, PhaseSave, PhaseResume}).Draw(t, "phase")
	s.Method = rapid.SampledFrom([]string{"", "full", "lora", "qlora"}).Draw(t, "method")
	s.Sharding = rapid.SampledFrom([]string{"", "none", "dp", "ddp", "zero1", "zero2", "zero3", "fsdp"}).Draw(t, "sharding")
	s.DType = rapid.SampledFrom([]string{"", "fp32", "bf16"}).Draw(t, "dtype")
	s.Model = rapid.SampledFrom([]string{"", "gpt2", "Llama-2-7b-hf", "qwen-0.5B", "bert-350M-x"}).Draw(t, "model")
	if rapid.Bool().Draw(t, "capped") {
		s.Cap = gib
	}
	return s
}

func TestTheSizeInAModelsName(t *testing.T) {
	for name, want := range map[string]float64{
		"meta-llama/Llama-2-7b-hf": 7e9, "Qwen2.5-0.5B": 0.5e9, "opt-350m": 350e6, "gpt2": 0, "llama3": 0, "t5-3b": 3e9, "model_13B.bin": 13e9,
	} {
		f := &facts{Situation{Model: name}}
		if got, ok := f.params(); got != want || ok != (want > 0) {
			t.Errorf("%s: %g, %v; want %g", name, got, ok, want)
		}
	}
}

func TestFillLeavesNoHoles(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"a={micro_batch},  # was {micro_batch_now}", "a=4,"},
		{"a={micro_batch}  # b", "a=4  # b"},
		{"a={sequence}", "a=<sequence>"},
		{"{\"stage\": 2}", "{\"stage\": 2}"},
		{"# {sequence} tokens", "# <sequence> tokens"},
		{"x={other_options}y", "x=y"},
	} {
		if got := Fill(c.text, map[string]string{"micro_batch": "4"}); got != c.want {
			t.Errorf("Fill(%q) = %q, want %q", c.text, got, c.want)
		}
	}
}
