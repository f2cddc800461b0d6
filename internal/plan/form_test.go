package plan

import (
	"math"
	"slices"
	"testing"

	"unoom/internal/gpu"
	"unoom/internal/memory"
	"unoom/internal/model"
	"unoom/internal/workload"
)

// The search prunes with the closed form and the engine decides, so that the form
// has to order settings as the engine does: near it on average, and never far
// below it for long.
func TestFormAgreesWithTheEngine(t *testing.T) {
	engine, err := memory.New()
	if err != nil {
		t.Fatal(err)
	}
	catalogue, err := model.Published()
	if err != nil {
		t.Fatal(err)
	}
	cards, err := gpu.Published()
	if err != nil {
		t.Fatal(err)
	}
	card, err := cards.Find("8xa100-sxm-80gb")
	if err != nil {
		t.Fatal(err)
	}
	var ratios []float64
	for _, w := range formCases() {
		if w.Model, err = catalogue.Named(w.Name, model.Options{}); err != nil {
			t.Fatal(err)
		}
		est, err := engine.Estimate(asMegatron(w))
		if err != nil {
			t.Logf("%s %s: %v", w.Name, w.Framework, err)
			continue
		}
		p, err := newPlanner(&Request{Workload: w, Hardware: HardwareOf(&card.Card, int(w.Parallel.World))})
		if err != nil {
			t.Fatal(err)
		}
		n := p.space.form.peak(&p.base)
		got, want := n.total-n.outside, float64(est.Allocated.Mid)
		ratio := got / want
		ratios = append(ratios, ratio)
		t.Logf("%-14s %-10s %-6s %-8s %-9s %-9s micro %d × %d, seq %5d, tp %d pp %d: engine %5.1f GiB, form %5.1f (%+.0f %%) at %d, engine %s", w.Name, w.Framework, w.Method, w.Sharding, w.Checkpointing, w.Loss,
			w.MicroBatch, w.Accumulation, w.Seq, w.Parallel.Tensor, w.Parallel.Pipeline, want/(1<<30), got/(1<<30), 100*(ratio-1), n.at, est.Phase)
		if ratio < 0.75 || ratio > 1.4 {
			t.Errorf("%s %s %s: form %.2f of the engine", w.Name, w.Framework, w.Sharding, ratio)
		}
	}
	if len(ratios) < 20 {
		t.Fatalf("only %d settings are played", len(ratios))
	}
	var off []float64
	for _, r := range ratios {
		off = append(off, math.Abs(r-1))
	}
	slices.Sort(off)
	t.Logf("%d settings: median %.1f %%, 80 %% within %.1f %%", len(off), 100*off[len(off)/2], 100*off[len(off)*8/10])
	if off[len(off)/2] > 0.08 || off[len(off)*8/10] > 0.2 {
		t.Errorf("median %.1f %%, 80 %% within %.1f %%", 100*off[len(off)/2], 100*off[len(off)*8/10])
	}
}

// formCases are settings of the frameworks that the engine plays.
func formCases() []*workload.Workload {
	var out []*workload.Workload
	add := func(f workload.Framework, name string, change func(*workload.Workload)) {
		for _, ck := range []workload.Checkpointing{workload.NoCheckpointing, workload.FullCheckpoint} {
			for _, size := range [][2]int64{{1, 1024}, {4, 2048}} {
				w := &workload.Workload{
					Name: name, Framework: f, Method: workload.Full, Precision: workload.AMPBF16, MicroBatch: size[0], Accumulation: 1, Seq: size[1], Checkpointing: ck,
					Attention: workload.SDPA, Offload: workload.NoOffload, Sharding: workload.NoSharding, Optimizer: workload.Optimizer{Name: "adamw_torch_fused", Impl: "fused"},
					Parallel: workload.Parallel{World: 1, Data: 1, Tensor: 1, Pipeline: 1, Context: 1, Expert: 1},
				}
				change(w)
				out = append(out, w)
			}
		}
	}
	eight := func(w *workload.Workload) { w.Parallel.World, w.Parallel.Data = 8, 8 }
	add(workload.HFTrainer, "llama-3.2-1b", func(*workload.Workload) {})
	add(workload.HFTrainer, "qwen2.5-0.5b", func(w *workload.Workload) { w.Accumulation = 2 })
	add(workload.HFTrainer, "smollm2-360m", func(w *workload.Workload) { w.Precision = workload.FP32 })
	add(workload.HFTrainer, "llama-3.2-3b", func(w *workload.Workload) {
		eight(w)
		w.Sharding, w.Precision, w.Options = workload.FSDP, workload.BF16, map[string]string{upcastOption: "fp32"}
	})
	add(workload.HFTrainer, "llama-3.2-1b", func(w *workload.Workload) { eight(w); w.Sharding = workload.DDP })
	add(workload.HFTrainer, "llama-3.1-8b", func(w *workload.Workload) {
		w.Method, w.Precision = workload.LoRA, workload.BF16
		w.Adapter = workload.Adapter{Rank: 16, Targets: []string{"all-linear"}}
	})
	add(workload.HFTrainer, "llama-3.1-8b", func(w *workload.Workload) {
		w.Method, w.Precision, w.Base = workload.QLoRA, workload.BF16, workload.NF4Double
		w.Adapter = workload.Adapter{Rank: 16, Targets: []string{"all-linear"}, KBit: true}
	})
	add(workload.Torchtitan, "llama-3.1-8b", func(w *workload.Workload) { eight(w); w.Sharding = workload.FSDP2 })
	add(workload.Torchtitan, "llama-3.1-8b", func(w *workload.Workload) {
		eight(w)
		w.Sharding, w.Loss, w.Kernels.ChunkedLoss = workload.FSDP2, workload.LossChunked, 8
		if w.Checkpointing == workload.NoCheckpointing {
			w.Checkpointing = workload.Selective
		}
	})
	add(workload.Megatron, "llama-3.2-3b", func(w *workload.Workload) {
		eight(w)
		w.Precision, w.Sharding, w.Optimizer.Distributed = workload.BF16, workload.ZeRO1, true
	})
	add(workload.Megatron, "llama-3.1-8b", func(w *workload.Workload) {
		w.Precision, w.Sharding, w.Optimizer.Distributed = workload.BF16, workload.ZeRO1, true
		w.Parallel = workload.Parallel{World: 8, Data: 2, Tensor: 2, Pipeline: 2, Context: 1, Expert: 1, Sequence: true}
		w.Accumulation = 4
	})
	return out
}
