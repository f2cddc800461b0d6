package memory

import (
	"math"
	"testing"

	"unoom/internal/model"
	"unoom/internal/units"
	"unoom/internal/workload"
)

// Runs that others measured and published, worked through by hand in the design's
// memory model (§0). The engine has to give what they measured, within the error
// that the table admits.

func published(t testing.TB, name string) *model.Model {
	t.Helper()
	c, err := model.Published()
	if err != nil {
		t.Fatal(err)
	}
	m, err := c.Named(name, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func estimated(t testing.TB, w *workload.Workload) *Estimate {
	t.Helper()
	e, err := New()
	if err != nil {
		t.Fatal(err)
	}
	est, err := e.Estimate(w)
	if err != nil {
		t.Fatal(err)
	}
	return est
}

func near(t testing.TB, what string, got units.Bytes, gib, share float64) {
	t.Helper()
	if off := got.GiB()/gib - 1; math.Abs(off) > share {
		t.Errorf("%s: %.2f GiB, measured %.2f (%+.1f %%, admitted %.1f %%)", what, got.GiB(), gib, 100*off, 100*share)
	}
}

// torchtune 0.4's table of optimisation flags: Llama-3.2-3B, two packed samples of
// 4,096 tokens, peak active memory.
func TestWorkedTorchtune(t *testing.T) {
	w := &workload.Workload{Model: published(t, "llama-3.2-3b"), Framework: workload.Torchtune, Method: workload.Full, Precision: workload.BF16, MicroBatch: 2, Seq: 4096, Accumulation: 1,
		Attention: workload.SDPA, Checkpointing: workload.NoCheckpointing, Offload: workload.NoOffload, Sharding: workload.NoSharding, Optimizer: workload.Optimizer{Name: "adamw", Impl: "fused"},
		Versions: map[string]string{"torchtune": "0.4", "torch": "2.5"}, GPU: workload.GPU{Compute: 80},
		Parallel: workload.Parallel{World: 1, Data: 1, Tensor: 1, Pipeline: 1, Context: 1, Expert: 1}}
	near(t, "as it is", estimated(t, w).Allocated.Mid, 60.0, 0.015)
	w.Compile, w.Loss, w.Kernels.ChunkedLoss, w.Checkpointing = true, workload.LossChunked, 8, workload.FullCheckpoint
	near(t, "compiled, checkpointed, chunked loss", estimated(t, w).Allocated.Mid, 24.9, 0.02)
	w.Offload = workload.OffloadActivations
	w.Adapter = workload.Adapter{Rank: 64, Targets: []string{"q_proj", "v_proj", "o_proj", "mlp"}} // of llama3_2/3B_lora_single_device.yaml
	w.Method = workload.LoRA
	near(t, "LoRA, inputs of layers on the host", estimated(t, w).Allocated.Mid, 8.5, 0.04)
	w.Method, w.Base = workload.QLoRA, workload.NF4Double
	near(t, "QLoRA, inputs of layers on the host", estimated(t, w).Allocated.Mid, 4.6, 0.07)
}

// torchtune's table of recipes, with the chunked loss of its configurations:
// Llama-3.1-8B, two packed samples of 2,048 tokens, states of 8 bits in managed
// memory, stepped in backward.
func TestWorkedTorchtuneRecipe(t *testing.T) {
	w := &workload.Workload{Model: published(t, "llama-3.1-8b"), Framework: workload.Torchtune, Method: workload.Full, Precision: workload.BF16, MicroBatch: 2, Seq: 2048, Accumulation: 1,
		Attention: workload.SDPA, Checkpointing: workload.FullCheckpoint, Offload: workload.NoOffload, Sharding: workload.NoSharding, Compile: true, Loss: workload.LossChunked,
		Optimizer: workload.Optimizer{Name: "paged_adamw_8bit", InBackward: true}, Versions: map[string]string{"torchtune": "0.4", "torch": "2.5"}, GPU: workload.GPU{Compute: 89},
		Parallel: workload.Parallel{World: 1, Data: 1, Tensor: 1, Pipeline: 1, Context: 1, Expert: 1}}
	near(t, "full", estimated(t, w).Allocated.Mid, 18.9, 0.01)
}

// torchtitan's report of December 2024: Llama-3.1-8B under FSDP2, two samples of
// 8,192 tokens, every second product kept, peak reserved memory.
func TestWorkedTorchtitan(t *testing.T) {
	for gpus, gib := range map[int64]float64{8: 82.4, 128: 67.0} {
		w := &workload.Workload{Model: published(t, "llama-3.1-8b"), Framework: workload.Torchtitan, Method: workload.Full, Precision: workload.AMPBF16, MicroBatch: 2, Seq: 8192, Accumulation: 1,
			Attention: workload.SDPA, Checkpointing: workload.Selective, Offload: workload.NoOffload, Sharding: workload.FSDP2, Optimizer: workload.Optimizer{Name: "adamw_torch_fused", Impl: "fused"},
			Versions: map[string]string{"torch": "2.6", "date": "2024-12"}, GPU: workload.GPU{Compute: 90},
			Parallel: workload.Parallel{World: gpus, Data: gpus, Tensor: 1, Pipeline: 1, Context: 1, Expert: 1}}
		near(t, "8B", estimated(t, w).Reserved.Mid, gib, 0.05)
	}
}

// torchao's low-bit optimizers on Llama-2-7B in bfloat16: weights, gradients and
// states of fused, 8-bit and 4-bit AdamW are 50.2, 37.8 and 31.8 GiB by their
// sizes. The MLP's states of 43 MiB lie in blocks of 44 MiB, which is 0.2 GiB.
func TestWorkedOptimizers(t *testing.T) {
	states := func(optimizer string) float64 {
		w := base(published(t, "llama-2-7b"))
		w.Optimizer, w.Checkpointing = workload.Optimizer{Name: optimizer}, workload.FullCheckpoint
		w.MicroBatch, w.Seq = 1, 128
		sum := int64(0)
		for _, s := range estimated(t, w).Items {
			if s.Kind == OptimizerState {
				sum += s.Bytes
			}
		}
		return units.Bytes(sum).GiB()
	}
	fused, eight, four := states("adamw_torch_fused"), states("adamw_8bit"), states("adamw_4bit")
	for _, c := range []struct {
		what      string
		got, want float64
	}{{"fused less 8-bit", fused - eight, 50.2 - 37.8}, {"8-bit less 4-bit", eight - four, 37.8 - 31.8}} {
		if math.Abs(c.got-c.want) > 0.25 {
			t.Errorf("%s: %.2f GiB, measured %.2f", c.what, c.got, c.want)
		}
	}
}

// What one layer keeps for backward in transformers 4.48, in units of 2 bytes ×
// tokens × hidden size, as measured and published for six models. The measurement
// includes the layer's output, which autograd does not keep.
func TestWorkedResidueOfALayer(t *testing.T) {
	for name, want := range map[string]float64{"llama-3.1-8b": 28.0, "mistral-7b-v0.1": 28.0, "qwen3-8b": 29.8, "qwen3-4b": 38.0, "gemma-2b": 48.0, "smollm2-360m": 24.0} {
		m := published(t, name)
		kept := func(layers int) int64 {
			w := base(withLayers(m, layers))
			w.Versions = map[string]string{"transformers": "4.48.1", "torch": "2.5"}
			w.GPU.Compute, w.Seq = 80, 1024
			e, err := New()
			if err != nil {
				t.Fatal(err)
			}
			lib, err := e.libraryOf(w)
			if err != nil {
				t.Fatal(err)
			}
			lib.autocast = false
			p, err := play(w, lib, 0)
			if err != nil {
				t.Fatal(err)
			}
			var top section // of the first step's loss, when every layer's tensors are there
			for _, s := range p.x.sections {
				if s.phase == Loss && s.allocated > top.allocated {
					top = s
				}
			}
			sum := int64(0)
			for _, s := range p.x.breakdown(top.at) {
				if s.Kind == Activations {
					sum += s.Bytes
				}
			}
			return sum
		}
		got := float64(kept(5)-kept(4))/float64(2*2*1024*m.Hidden) + 1
		if math.Abs(got-want) > 1 { // published to a half
			t.Errorf("%s: %.2f, measured %.1f", name, got, want)
		}
	}
}

// withLayers is the model with so many of its layers.
func withLayers(m *model.Model, n int) *model.Model {
	short := *m
	stack := *m.Stacks[0]
	stack.Layers = stack.Layers[:n]
	short.Stacks = append([]*model.Stack{&stack}, m.Stacks[1:]...)
	return &short
}
