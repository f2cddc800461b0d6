package memory

import (
	"testing"

	"unoom/internal/model"
	"unoom/internal/units"
	"unoom/internal/workload"
)

// passages are runs that do something beside their training steps.
func passages() map[string]func(w *workload.Workload) {
	evaluate := func(e workload.Evaluation) func(w *workload.Workload) {
		return func(w *workload.Workload) { w.Eval, w.Evaluation = true, e }
	}
	sharded := func(s workload.Sharding, then func(w *workload.Workload)) func(w *workload.Workload) {
		return func(w *workload.Workload) {
			w.Sharding, w.Parallel.World, w.Parallel.Data = s, 4, 4
			then(w)
		}
	}
	adapters := func(w *workload.Workload) {
		w.Method, w.Base = workload.QLoRA, workload.NF4Double
		w.Adapter = workload.Adapter{Rank: 8, Targets: []string{"q_proj", "down_proj"}}
	}
	logits := workload.Evaluation{Batch: 4, Samples: 100, Keep: workload.KeepLogits}
	all := func(w *workload.Workload) {
		evaluate(workload.Evaluation{Batch: 4, Samples: 40, Keep: workload.KeepIDs, NewTokens: 30, Beams: 2})(w)
		w.Save, w.Resume = workload.SaveSharded, workload.ResumeHost
	}
	return map[string]func(w *workload.Workload){
		"loss":         evaluate(workload.Evaluation{Batch: 4, Keep: workload.KeepLoss}),
		"logits":       evaluate(logits),
		"to the host":  evaluate(workload.Evaluation{Batch: 4, Samples: 100, Keep: workload.KeepLogits, Accumulation: 5}),
		"many batches": evaluate(workload.Evaluation{Batch: 1, Samples: 5000, Keep: workload.KeepIDs}),
		"with a graph": evaluate(workload.Evaluation{Batch: 4, Graph: true}),
		"generation":   evaluate(workload.Evaluation{Batch: 4, Keep: workload.KeepLoss, NewTokens: 64, Beams: 4}),
		"autocast":     func(w *workload.Workload) { w.Precision = workload.AMPBF16; evaluate(logits)(w) },
		"checkpointed": func(w *workload.Workload) {
			w.Checkpointing = workload.FullCheckpoint
			evaluate(workload.Evaluation{Batch: 4, Graph: true})(w)
		},
		"liger":         func(w *workload.Workload) { w.Loss = workload.LossLiger; evaluate(logits)(w) },
		"fsdp":          sharded(workload.FSDP, all),
		"fsdp graph":    sharded(workload.FSDP, evaluate(workload.Evaluation{Batch: 4, Graph: true})),
		"fsdp full":     sharded(workload.FSDP, func(w *workload.Workload) { w.Save = workload.SaveFull }),
		"fsdp full gpu": sharded(workload.FSDP, func(w *workload.Workload) { w.Save = workload.SaveFullGPU }),
		"zero3":         sharded(workload.ZeRO3, all),
		"zero3 full":    sharded(workload.ZeRO3, func(w *workload.Workload) { w.Save = workload.SaveFullGPU }),
		"zero2":         sharded(workload.ZeRO2, all),
		"merged":        func(w *workload.Workload) { adapters(w); w.Save = workload.SaveMerged },
		"resumed": func(w *workload.Workload) {
			w.Resume, w.Versions = workload.ResumeGPU, map[string]string{"torch": "2.0"}
		},
		"dpo": func(w *workload.Workload) {
			w.Objective = workload.DPO
			evaluate(workload.Evaluation{Batch: 4, Keep: workload.KeepLoss})(w)
		},
	}
}

// What happens beside the training steps leaves nothing behind, and changes no
// figure of the steps.
func TestPassagesLeaveTheStepsAlone(t *testing.T) {
	m := smallLlama(t)
	for name, change := range passages() {
		t.Run(name, func(t *testing.T) {
			w := base(m)
			change(w)
			e, err := New()
			if err != nil {
				t.Fatal(err)
			}
			lib, err := e.libraryOf(w)
			if err != nil {
				t.Fatal(err)
			}
			with, err := play(w, lib, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer with.done()
			alone, err := play(w.StepsAlone(), lib, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer alone.done()
			if with.x.cur != alone.x.cur {
				t.Errorf("%d bytes are allocated at the end, %d without", with.x.cur, alone.x.cur)
			}
			if n := len(alone.x.sections); len(with.x.sections) <= n || len(with.x.tape.nodes) != 0 {
				t.Errorf("%d sections, %d without; %d nodes in the graph", len(with.x.sections), n, len(with.x.tape.nodes))
			}
			for i, s := range alone.x.sections {
				if got := with.x.sections[i]; got.phase != s.phase || got.allocated != s.allocated {
					t.Errorf("section %d is %s with %d bytes, %s with %d without", i, got.phase, got.allocated, s.phase, s.allocated)
				}
			}
			for i := range with.x.params {
				if n := with.x.params[i].pending; n != 0 {
					t.Fatalf("parameter %d waits for %d gradients", i, n)
				}
			}
		})
	}
}

// peakOfPhase is the peak of one phase of an estimate.
func peakOfPhase(t testing.TB, w *workload.Workload, p Phase) units.Bytes {
	t.Helper()
	for _, peak := range estimated(t, w).Phases {
		if peak.Phase == p {
			return peak.Allocated
		}
	}
	t.Fatalf("no phase %s", p)
	return 0
}

// A Trainer that computes metrics holds the logits of all batches, and twice at the
// end: those so far, and those with the last batch.
func TestKeptLogitsAreHeldTwice(t *testing.T) {
	w := base(smallLlama(t))
	evaluation := func(e workload.Evaluation) units.Bytes {
		w.Eval, w.Evaluation = true, e
		return peakOfPhase(t, w, Evaluation)
	}
	batch := units.Bytes(4 * w.Seq * w.Model.Vocab * 4) // autocast makes outputs float32
	few := evaluation(workload.Evaluation{Batch: 4, Samples: 400, Keep: workload.KeepLogits})
	many := evaluation(workload.Evaluation{Batch: 4, Samples: 800, Keep: workload.KeepLogits})
	if got, want := many-few, 2*100*batch; max(got-want, want-got) > want/100 {
		t.Errorf("a hundred batches more hold %s more, want %s", got, want)
	}
	host := evaluation(workload.Evaluation{Batch: 4, Samples: 800, Keep: workload.KeepLogits, Accumulation: 10})
	if got, want := many-host, 2*190*batch; max(got-want, want-got) > want/50 {
		t.Errorf("to the host after ten batches saves %s, want %s", got, want)
	}
	ids := evaluation(workload.Evaluation{Batch: 4, Samples: 800, Keep: workload.KeepIDs})
	loss := evaluation(workload.Evaluation{Batch: 4, Samples: 800, Keep: workload.KeepLoss})
	if ids < loss || ids-loss > batch {
		t.Errorf("keeping one number a token takes %s more than keeping none", ids-loss)
	}
	// Every rank holds those of all.
	w.Sharding, w.Parallel.World, w.Parallel.Data = workload.DDP, 4, 4
	few = evaluation(workload.Evaluation{Batch: 4, Samples: 400, Keep: workload.KeepLogits})
	many = evaluation(workload.Evaluation{Batch: 4, Samples: 800, Keep: workload.KeepLogits})
	if got, want := many-few, 2*100*batch; max(got-want, want-got) > want/100 {
		t.Errorf("four hundred samples more of four ranks hold %s more, want %s", got, want)
	}
}

// Without no_grad two graphs are there at once: a batch's dies when the next has
// one.
func TestALoopWithoutNoGradHoldsTwoGraphs(t *testing.T) {
	w := base(smallLlama(t))
	w.Framework = workload.PyTorch
	w.Eval, w.Evaluation = true, workload.Evaluation{Batch: w.MicroBatch, Graph: true}
	est := estimated(t, w)
	held := est.Held
	graph := peakOfPhase(t, w, Loss) - held
	got := peakOfPhase(t, w, Evaluation) - held
	if ratio := float64(got) / float64(graph); ratio < 1.7 || ratio > 2.1 {
		t.Errorf("two graphs hold %s, one %s", got, graph)
	}
	w.Evaluation.Graph = false
	if without := peakOfPhase(t, w, Evaluation) - held; without > got/2 {
		t.Errorf("without gradients %s, with %s", without, got)
	}
}

// A generated token takes a key and a value in each layer, for each beam.
func TestTheCacheGrowsWithTokensAndBeams(t *testing.T) {
	w := base(smallLlama(t))
	w.Seq = 64
	generation := func(tokens, beams int64) units.Bytes {
		w.Eval, w.Evaluation = true, workload.Evaluation{Batch: 8, Keep: workload.KeepLoss, NewTokens: tokens, Beams: beams}
		return peakOfPhase(t, w, Evaluation)
	}
	const layers, kv, dim, size = 4, 2, 32, 2
	token := units.Bytes(2 * layers * kv * dim * size * 8)
	for _, beams := range []int64{1, 4} {
		got := generation(9000, beams) - generation(5000, beams)
		want := 4000 * token * units.Bytes(beams)
		// the layer that is copied has a quarter of it once more
		if float64(got) < float64(want) || float64(got) > 1.6*float64(want) {
			t.Errorf("%d beams: 4,000 tokens more hold %s more, want %s and a layer's copy", beams, got, want)
		}
	}
}

// Checkpoints: what is gathered follows from the sizes alone.
func TestCheckpointsGatherUnits(t *testing.T) {
	m := smallLlama(t)
	w := base(m)
	w.Precision = workload.FP32
	w.Sharding, w.Parallel.World, w.Parallel.Data = workload.FSDP, 4, 4
	held := estimated(t, w).Held
	layer, ends := units.Bytes(0), units.Bytes(0)
	for i := range m.Stacks[0].Layers[0].Modules {
		for _, p := range m.Stacks[0].Layers[0].Modules[i].Params {
			layer += units.Bytes(4 * p.Elements())
		}
	}
	all := units.Bytes(4 * m.Params())
	ends = all - 4*layer
	for _, tc := range []struct {
		name  string
		save  workload.Saving
		phase Phase
		want  units.Bytes
	}{
		{"one unit after the other", workload.SaveFull, Save, max(layer, ends) * 5 / 4}, // and the rank's own part
		{"all on every card", workload.SaveFullGPU, Save, all + ends},
		{"parts", workload.SaveSharded, Save, ends + layer + all/4},
		{"loaded whole", workload.SaveFull, Resume, ends + layer},
		{"loaded in parts", workload.SaveSharded, Resume, 2 * (ends + layer)},
	} {
		w.Save, w.Resume = tc.save, workload.ResumeHost
		got := peakOfPhase(t, w, tc.phase) - held
		if off := got - tc.want; max(off, -off) > tc.want/10 {
			t.Errorf("%s: %s beside what is held, want %s", tc.name, got, tc.want)
		}
	}
	w = base(m)
	w.Resume = workload.ResumeGPU
	held = estimated(t, w).Held
	if got, want := peakOfPhase(t, w, Resume)-held, units.Bytes(2*m.Params()); got < want*9/10 || got > want*11/10 {
		t.Errorf("torch.load on the card takes %s beside what is held, want %s", got, want)
	}
}

// What has no player says so, and the estimate of the steps stands.
func TestUnplayedPassagesAreNamed(t *testing.T) {
	w := titanRun(t)
	w.Eval, w.Evaluation = true, workload.Evaluation{Batch: 1, Keep: workload.KeepLoss}
	est := estimated(t, w)
	if len(est.Unplayed) != 1 || est.Allocated != estimated(t, w.StepsAlone()).Allocated {
		t.Errorf("not played: %q", est.Unplayed)
	}
}

// The verdict is of the whole run: an evaluation that does not fit is a run that
// does not fit.
func TestTheVerdictIsOfTheWholeRun(t *testing.T) {
	w := base(smallLlama(t))
	w.GPU = workload.GPU{Capacity: 2 * units.GiB, Context: 300 * units.MiB}
	if est := estimated(t, w); est.Verdict != Fits {
		t.Fatalf("the steps alone: %s", est.Verdict)
	}
	w.Eval, w.Evaluation = true, workload.Evaluation{Batch: 8, Samples: 800, Keep: workload.KeepLogits}
	est := estimated(t, w)
	if est.Verdict != DoesNotFit || est.Phase != Evaluation {
		t.Errorf("with its evaluation: %s, %s", est.Verdict, est.Phase)
	}
	var sum int64
	for _, s := range est.Items {
		sum += s.Bytes
	}
	if sum != int64(est.Allocated.Mid) {
		t.Errorf("items sum to %d, the peak is %d", sum, est.Allocated.Mid)
	}
	w.Evaluation.Accumulation = 4
	if est := estimated(t, w); est.Verdict == DoesNotFit {
		t.Errorf("to the host after four batches: %s", est.Verdict)
	}
}

// Of equal layers few are played in an evaluation too, and the rest follows.
func TestFoldedPassagesAreTheWholeOnes(t *testing.T) {
	m, err := model.FromDims("deep", model.Dims{Layers: 40, Hidden: 256, Heads: 8, KVHeads: 2, FFN: 768, Vocab: 1000})
	if err != nil {
		t.Fatal(err)
	}
	e, err := New()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for name, change := range passages() {
		w := base(m)
		change(w)
		lib, err := e.libraryOf(w)
		if err != nil {
			t.Fatal(err)
		}
		f, err := foldedPlay(w, lib)
		if err != nil {
			t.Fatal(err)
		}
		if f == nil {
			t.Logf("%s: played whole", name)
			continue
		}
		found++
		all := whole(t, w, lib)
		for i, s := range all.x.sections {
			if g := f.sections[i]; g.phase != s.phase || off(g.allocated, s.allocated) > 0.03 {
				t.Errorf("%s: %s %d bytes, folded %d", name, s.phase, s.allocated, g.allocated)
			}
		}
		all.done()
		f.close()
	}
	t.Logf("%d of %d runs were folded", found, len(passages()))
	if found < len(passages())/2 {
		t.Error("too few")
	}
}
