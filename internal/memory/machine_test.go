package memory

import (
	"testing"

	"unoom/internal/model"
	"unoom/internal/workload"
)

func smallLlama(t testing.TB) *model.Model {
	t.Helper()
	m, err := model.FromDims("small", model.Dims{Layers: 4, Hidden: 256, Heads: 8, KVHeads: 2, FFN: 768, Vocab: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// base is a workload that the cases below change.
func base(m *model.Model) *workload.Workload {
	return &workload.Workload{Model: m, Framework: workload.HFTrainer, Method: workload.Full, Precision: workload.BF16,
		MicroBatch: 2, Seq: 512, Accumulation: 1, Checkpointing: workload.NoCheckpointing, Attention: workload.SDPA,
		Sharding: workload.NoSharding, Optimizer: workload.Optimizer{Name: "adamw_torch"},
		Parallel: workload.Parallel{World: 1, Data: 1, Tensor: 1, Pipeline: 1, Context: 1, Expert: 1}}
}

// An iteration ends with the memory it began with: whatever an operation makes,
// something lets go of.
func TestNothingLeaksOverIterations(t *testing.T) {
	m := smallLlama(t)
	yes, no := true, false
	for name, change := range map[string]func(w *workload.Workload){
		"plain":         func(*workload.Workload) {},
		"fp32":          func(w *workload.Workload) { w.Precision = workload.FP32 },
		"amp":           func(w *workload.Workload) { w.Precision = workload.AMPBF16 },
		"eager":         func(w *workload.Workload) { w.Attention = workload.Eager },
		"reentrant":     func(w *workload.Workload) { w.Checkpointing, w.Reentrant = workload.FullCheckpoint, &yes },
		"non-reentrant": func(w *workload.Workload) { w.Checkpointing, w.Reentrant = workload.FullCheckpoint, &no },
		"lora": func(w *workload.Workload) {
			w.Method, w.Adapter = workload.LoRA, workload.Adapter{Rank: 8, Targets: []string{"q_proj", "down_proj"}, Dropout: 0.1}
		},
		"qlora checkpointed": func(w *workload.Workload) {
			w.Method, w.Base, w.Checkpointing = workload.QLoRA, workload.NF4, workload.FullCheckpoint
			w.Adapter = workload.Adapter{Rank: 8, Targets: []string{"all-linear"}}
		},
		"fused": func(w *workload.Workload) {
			w.Method, w.Base = workload.QLoRA, workload.GPTQ4
			w.Adapter = workload.Adapter{Rank: 8, Targets: []string{"q", "k", "v", "o"}, Dropout: 0.1}
			w.Kernels = workload.Kernels{FusedNorm: "unsloth", FusedRope: "unsloth", FusedLoRA: "unsloth"}
			w.Loss = workload.LossInPlace
		},
		"liger": func(w *workload.Workload) {
			w.Loss, w.Kernels = workload.LossLiger, workload.Kernels{FusedNorm: "liger", FusedRope: "liger", FusedMLP: "liger"}
		},
		"fsdp": func(w *workload.Workload) {
			w.Sharding, w.Parallel.World, w.Parallel.Data = workload.FSDP, 4, 4
		},
		"fsdp lora checkpointed": func(w *workload.Workload) {
			w.Sharding, w.Parallel.World, w.Parallel.Data, w.Checkpointing = workload.FSDP, 4, 4, workload.FullCheckpoint
			w.Method, w.Adapter = workload.LoRA, workload.Adapter{Rank: 8, Targets: []string{"q_proj", "down_proj"}}
		},
		"accumulation": func(w *workload.Workload) { w.Accumulation = 3 },
	} {
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
			run, err := play(w, lib, 0)
			if err != nil {
				t.Fatal(err)
			}
			var after []int64
			for _, s := range run.ends {
				after = append(after, s)
			}
			if len(after) != 2 || after[0] != after[1] {
				t.Errorf("allocated after each iteration: %v", after)
			}
		})
	}
}

func TestTheItemsOfAPeakSumToIt(t *testing.T) {
	e, err := New()
	if err != nil {
		t.Fatal(err)
	}
	est, err := e.Estimate(base(smallLlama(t)))
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, s := range est.Items {
		sum += s.Bytes
	}
	if sum != int64(est.Allocated.Mid) {
		t.Errorf("items sum to %d, the peak is %d", sum, est.Allocated.Mid)
	}
}
