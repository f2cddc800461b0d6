package memory

import (
	"testing"

	"unoom/internal/model"
	"unoom/internal/workload"
)

type benchmark struct {
	name string
	w    *workload.Workload
}

// benchmarks are runs of 70B on 64 cards, one for each framework that
// shards, and smaller ones that are asked for most.
func benchmarks(tb testing.TB) []benchmark {
	tb.Helper()
	catalogue, err := model.Published()
	if err != nil {
		tb.Fatal(err)
	}
	make := func(name string, change func(w *workload.Workload)) *workload.Workload {
		m, err := catalogue.Named(name, model.Options{})
		if err != nil {
			tb.Fatal(err)
		}
		w := &workload.Workload{
			Name: name, Model: m, Framework: workload.HFTrainer, Method: workload.Full, Precision: workload.AMPBF16, MicroBatch: 1, Accumulation: 1, Seq: 4096,
			Attention: workload.SDPA, Checkpointing: workload.NoCheckpointing, Offload: workload.NoOffload, Sharding: workload.NoSharding,
			Optimizer: workload.Optimizer{Name: "adamw_torch_fused", Impl: "fused"},
			Parallel:  workload.Parallel{World: 1, Data: 1, Tensor: 1, Pipeline: 1, Context: 1, Expert: 1},
		}
		change(w)
		return w
	}
	n := func(w *workload.Workload, n int64) { w.Parallel.World, w.Parallel.Data = n, n }
	return []benchmark{
		{"8B-LoRA", make("llama-3.1-8b", func(w *workload.Workload) {
			w.Method, w.Precision = workload.LoRA, workload.BF16
			w.Adapter = workload.Adapter{Rank: 16, Targets: []string{"all-linear"}}
		})},
		{"70B-FSDP", make("llama-3.1-70b", func(w *workload.Workload) {
			n(w, 64)
			w.Sharding, w.Precision, w.Checkpointing = workload.FSDP, workload.BF16, workload.FullCheckpoint
			w.Options = map[string]string{"upcast": "fp32"}
		})},
		{"70B-torchtitan", make("llama-3.1-70b", func(w *workload.Workload) {
			n(w, 64)
			w.Framework, w.Sharding, w.Checkpointing = workload.Torchtitan, workload.FSDP2, workload.Selective
		})},
		{"70B-Megatron", make("llama-3.1-70b", func(w *workload.Workload) {
			w.Model = megatron70B(tb)
			w.Framework, w.Precision, w.Sharding, w.Optimizer.Distributed = workload.Megatron, workload.BF16, workload.ZeRO1, true
			w.Options = map[string]string{"bf16": "", "hidden-dropout": "0", "attention-dropout": "0"}
			w.Parallel = workload.Parallel{World: 64, Data: 4, Tensor: 4, Pipeline: 4, Context: 1, Expert: 1, Sequence: true}
			w.Accumulation = 16
		})},
	}
}

// megatron70B is Llama 3 70B by Megatron's launch arguments.
func megatron70B(tb testing.TB) *model.Model {
	tb.Helper()
	flags := map[string]string{
		"num-layers": "80", "hidden-size": "8192", "ffn-hidden-size": "28672", "num-attention-heads": "64", "group-query-attention": "", "num-query-groups": "8",
		"swiglu": "", "normalization": "RMSNorm", "position-embedding-type": "rope", "disable-bias-linear": "", "untie-embeddings-and-output-weights": "", "max-position-embeddings": "8192", "seq-length": "4096",
	}
	m, err := model.FromMegatron("70B", 128256, func(name string) (string, bool) { v, ok := flags[name]; return v, ok })
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

// One estimate of a 70B model on 64 cards, with the allocator and every choice of
// a library that nobody stated, is to take less than 20 ms.
func BenchmarkEstimate(b *testing.B) {
	engine, err := New()
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range benchmarks(b) {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := engine.Estimate(c.w); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "estimates/s")
		})
	}
}

// The peak alone, as searches ask for it, is to take less than 1 ms.
func BenchmarkQuick(b *testing.B) {
	engine, err := New()
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range benchmarks(b) {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := engine.Quick(c.w); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "estimates/s")
		})
	}
}
