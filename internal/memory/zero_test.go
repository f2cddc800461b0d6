package memory

import (
	"testing"

	"unoom/internal/model"
	"unoom/internal/workload"
)

// What stays between steps follows from the sizes alone: 16-bit weights, float32
// masters and two states, shared out as the stage says.
func TestZeROHeld(t *testing.T) {
	m, err := model.FromDims("test", model.Dims{Layers: 8, Hidden: 512, Heads: 8, FFN: 2048, Vocab: 8000})
	if err != nil {
		t.Fatal(err)
	}
	e, err := New()
	if err != nil {
		t.Fatal(err)
	}
	const ranks = 4
	p := float64(m.Params())
	bucket := 512.0 * 512
	for _, tc := range []struct {
		name     string
		sharding workload.Sharding
		offload  workload.Offload
		want     float64 // bytes
	}{
		{"stage 1", workload.ZeRO1, workload.NoOffload, 2*p + 12*p/ranks},
		{"stage 2", workload.ZeRO2, workload.NoOffload, 2*p + 12*p/ranks},
		{"stage 2, states on the host", workload.ZeRO2, workload.OffloadOptimizer, 2 * p},
		{"stage 3", workload.ZeRO3, workload.NoOffload, (2+12+2)*p/ranks + 2*bucket},
		{"stage 3, states on the host", workload.ZeRO3, workload.OffloadOptimizer, 2*p/ranks + 2*bucket},
		{"stage 3, everything on the host", workload.ZeRO3, workload.OffloadParams, 2 * bucket},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := &workload.Workload{
				Model: m, Framework: workload.HFTrainer, Method: workload.Full, Precision: workload.AMPBF16, MicroBatch: 2, Accumulation: 2, Seq: 128,
				Attention: workload.SDPA, Optimizer: workload.Optimizer{Name: "adamw", Impl: "fused"}, Sharding: tc.sharding, Offload: tc.offload,
				Parallel: workload.Parallel{World: ranks, Data: ranks, Tensor: 1, Pipeline: 1, Virtual: 1, Context: 1, Expert: 1},
				GPU:      workload.GPU{Compute: 80}, Options: map[string]string{"reduce_bucket_size": "1e6"},
			}
			if tc.sharding == workload.ZeRO3 {
				delete(w.Options, "reduce_bucket_size")
			}
			est, err := e.Estimate(w)
			if err != nil {
				t.Fatal(err)
			}
			// workspaces of cuBLAS, small weights that stay whole, the batch
			over := float64(est.Held) - tc.want
			if over < 0 || over > 18<<20 {
				t.Errorf("%.2f MiB are held, want %.2f and at most 18 more", float64(est.Held)/(1<<20), tc.want/(1<<20))
			}
			if float64(est.Allocated.Mid) < float64(est.Held) {
				t.Error("the peak lies below what is held")
			}
		})
	}
}

// A stage more needs no more where weights go as soon as a module has run.
func TestZeROStagesOrder(t *testing.T) {
	m, err := model.FromDims("test", model.Dims{Layers: 12, Hidden: 1024, Heads: 16, FFN: 4096, Vocab: 32000})
	if err != nil {
		t.Fatal(err)
	}
	e, err := New()
	if err != nil {
		t.Fatal(err)
	}
	last := int64(0)
	for i, s := range []workload.Sharding{workload.ZeRO3, workload.ZeRO2, workload.ZeRO1} {
		w := &workload.Workload{
			Model: m, Framework: workload.HFTrainer, Method: workload.Full, Precision: workload.AMPBF16, MicroBatch: 8, Accumulation: 1, Seq: 512,
			Attention: workload.SDPA, Optimizer: workload.Optimizer{Name: "adamw", Impl: "fused"}, Sharding: s,
			Parallel: workload.Parallel{World: 8, Data: 8, Tensor: 1, Pipeline: 1, Virtual: 1, Context: 1, Expert: 1},
			GPU:      workload.GPU{Compute: 80}, Options: map[string]string{"reduce_bucket_size": "1e7", "overlap_comm": "false", "stage3_max_reuse_distance": "0"},
		}
		est, err := e.Estimate(w)
		if err != nil {
			t.Fatal(err)
		}
		if n := int64(est.Allocated.Mid); n < last {
			t.Errorf("stage %d needs %d bytes, the stage above it %d", 3-i, n, last)
		} else {
			last = n
		}
	}
}

// A preference loss against a reference holds its weights, and runs two answers.
func TestReferenceModel(t *testing.T) {
	m, err := model.FromDims("test", model.Dims{Layers: 4, Hidden: 512, Heads: 8, FFN: 2048, Vocab: 8000})
	if err != nil {
		t.Fatal(err)
	}
	e, err := New()
	if err != nil {
		t.Fatal(err)
	}
	held := func(o workload.Objective, method workload.Method) (int64, int64) {
		w := &workload.Workload{
			Model: m, Framework: workload.HFTrainer, Method: method, Precision: workload.BF16, MicroBatch: 2, Accumulation: 1, Seq: 256, Objective: o,
			Adapter: workload.Adapter{Rank: 8, Targets: []string{"q_proj"}}, Attention: workload.SDPA, Optimizer: workload.Optimizer{Name: "adamw", Impl: "fused"},
			Parallel: workload.Parallel{World: 1, Data: 1, Tensor: 1, Pipeline: 1, Virtual: 1, Context: 1, Expert: 1}, GPU: workload.GPU{Compute: 80}, Sharding: workload.NoSharding,
		}
		est, err := e.Estimate(w)
		if err != nil {
			t.Fatal(err)
		}
		return int64(est.Held), int64(est.Allocated.Mid)
	}
	_, peak := held(workload.NextToken, workload.Full)
	simpo, simpoPeak := held(workload.SimPO, workload.Full)
	dpo, _ := held(workload.DPO, workload.Full)
	if simpoPeak <= peak {
		t.Error("two answers to each sample need no more than one")
	}
	if d := dpo - simpo - 2*m.Params(); max(d, -d) > 1<<20 {
		t.Errorf("the reference holds %d bytes, want %d", dpo-simpo, 2*m.Params())
	}
	lora, _ := held(workload.SimPO, workload.LoRA)
	loraDPO, _ := held(workload.DPO, workload.LoRA)
	if lora != loraDPO {
		t.Errorf("adapters need a reference of their own: %d bytes against %d", loraDPO, lora)
	}
}
