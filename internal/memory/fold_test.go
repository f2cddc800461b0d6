package memory

import (
	"errors"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"unoom/internal/model"
	"unoom/internal/units"
	"unoom/internal/workload"
)

// randomWorkload draws a run of one of the frameworks whose layers are folded.
func randomWorkload(t *rapid.T, m *model.Model) *workload.Workload {
	w := base(m)
	pick := func(name string, of ...string) string { return rapid.SampledFrom(of).Draw(t, name) }
	w.MicroBatch = rapid.Int64Range(1, 6).Draw(t, "micro")
	w.Accumulation = rapid.Int64Range(1, 3).Draw(t, "accumulation")
	w.Seq = rapid.SampledFrom([]int64{512, 1000, 2048, 4096}).Draw(t, "seq")
	w.Precision = workload.Precision(pick("precision", string(workload.BF16), string(workload.AMPBF16), string(workload.FP32)))
	w.Attention = workload.Attention(pick("attention", string(workload.SDPA), string(workload.Eager), string(workload.Flash)))
	w.Checkpointing = workload.Checkpointing(pick("checkpointing", string(workload.NoCheckpointing), string(workload.FullCheckpoint)))
	if rapid.Bool().Draw(t, "stated") {
		r := rapid.Bool().Draw(t, "reentrant")
		w.Reentrant = &r
	}
	w.Optimizer.Name = pick("optimizer", "adamw_torch", "adamw_torch_fused", "adamw_bnb_8bit", "adafactor", "sgd", "lion", "paged_adamw_8bit")
	w.Loss = workload.Loss(pick("loss", string(workload.LossDefault), string(workload.LossLiger)))
	many := func(s workload.Sharding) {
		w.Sharding = s
		w.Parallel.World = rapid.SampledFrom([]int64{2, 8, 64}).Draw(t, "ranks")
		w.Parallel.Data = w.Parallel.World
	}
	switch pick("kind", "plain", "lora", "qlora", "ddp", "fsdp", "fsdp lora", "torchtitan", "titan chunked") {
	case "lora":
		w.Method, w.Adapter = workload.LoRA, workload.Adapter{Rank: 16, Targets: []string{pick("targets", "all-linear", "q_proj")}}
	case "qlora":
		w.Method, w.Base, w.Precision = workload.QLoRA, workload.NF4Double, workload.BF16
		w.Adapter = workload.Adapter{Rank: 8, Targets: []string{"all-linear"}, KBit: rapid.Bool().Draw(t, "kbit")}
	case "ddp":
		many(workload.DDP)
	case "fsdp":
		many(workload.FSDP)
		if rapid.Bool().Draw(t, "upcast") {
			w.Precision, w.Options = workload.BF16, map[string]string{"upcast": "fp32"}
		}
	case "fsdp lora":
		many(workload.FSDP)
		w.Method, w.Precision, w.Adapter = workload.LoRA, workload.BF16, workload.Adapter{Rank: 16, Targets: []string{"q_proj", "down_proj"}}
	case "torchtitan", "titan chunked":
		many(workload.FSDP2)
		w.Framework, w.Precision, w.Loss, w.Optimizer.Name = workload.Torchtitan, workload.AMPBF16, workload.LossDefault, "adamw_torch_fused"
		w.Checkpointing = workload.Checkpointing(pick("selective", string(workload.NoCheckpointing), string(workload.Selective), string(workload.FullCheckpoint)))
		if rapid.Bool().Draw(t, "chunked") {
			w.Loss, w.Kernels.ChunkedLoss = workload.LossChunked, 8
		}
	}
	return w
}

// randomDecoder draws a network of many layers.
func randomDecoder(t *rapid.T, narrowest, widest int64) *model.Model {
	heads := rapid.Int64Range(narrowest, widest).Draw(t, "heads")
	kv := heads
	if heads%4 == 0 && rapid.Bool().Draw(t, "grouped") {
		kv = heads / 4
	}
	style := rapid.SampledFrom([]string{"llama", "gpt2"}).Draw(t, "style")
	m, err := model.FromDims("random", model.Dims{
		Layers: rapid.Int64Range(worthwhile, 40).Draw(t, "layers"), Hidden: heads * 128, Heads: heads, KVHeads: kv,
		FFN: heads * rapid.SampledFrom([]int64{256, 344, 448, 512}).Draw(t, "ffn"), Vocab: rapid.SampledFrom([]int64{32000, 50257, 128256}).Draw(t, "vocab"), Style: style, MaxSeq: 8192,
	})
	if err != nil {
		t.Skip(err)
	}
	return m
}

// whole plays all layers on the device of folded plays.
func whole(t testing.TB, w *workload.Workload, lib library) *stage {
	t.Helper()
	conf, err := allocatorOf(w, lib)
	if err != nil {
		t.Fatal(err)
	}
	st := newStage()
	st.x.reset(nominalFor(w, conf))
	if _, err := run(&st.x, w, lib); err != nil {
		t.Fatal(err)
	}
	return st
}

// A fold that was found is the run of all layers: every phase of it, and what its
// peak is made of.
func TestFoldedPlayIsTheWholePlay(t *testing.T) {
	e, err := New()
	if err != nil {
		t.Fatal(err)
	}
	tried, found := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		w := randomWorkload(rt, randomDecoder(rt, 2, 40))
		w.Accumulation = min(w.Accumulation, 2)
		lib, err := e.libraryOf(w)
		if err != nil {
			rt.Fatal(err)
		}
		f, err := foldedPlay(w, lib)
		if _, ok := errors.AsType[*NotModelled](err); ok {
			rt.Skip()
		}
		if err != nil {
			rt.Fatal(err)
		}
		tried++
		if f == nil {
			return
		}
		found++
		defer f.close()
		all := whole(t, w, lib)
		defer all.done()
		if len(all.x.sections) != len(f.sections) {
			rt.Fatalf("%d sections, folded %d", len(all.x.sections), len(f.sections))
		}
		for i, s := range all.x.sections {
			if g := f.sections[i]; g.phase != s.phase || off(g.allocated, s.allocated) > 1e-3 {
				rt.Errorf("%s of iteration %d: %d bytes, folded %d", s.phase, s.iteration, s.allocated, g.allocated)
			}
		}
		var sum int64
		for _, s := range f.breakdown() {
			sum += s.Bytes
		}
		if sum != f.allocated() {
			rt.Errorf("the parts of the peak make %d bytes, it is %d", sum, f.allocated())
		}
	})
	t.Logf("%d of %d runs were folded", found, tried)
	if found < tried*9/10 {
		t.Errorf("only %d of %d runs were folded", found, tried)
	}
}

func off(got, want int64) float64 { return math.Abs(float64(got)/float64(want) - 1) }

// What searches ask for is what the estimate says: the operations are the same to
// the byte, and what differs is where the allocator leaves a rest in a block.
func TestQuickIsTheEstimate(t *testing.T) {
	e, err := New()
	if err != nil {
		t.Fatal(err)
	}
	var apart []float64
	rapid.Check(t, func(rt *rapid.T) {
		w := randomWorkload(rt, randomDecoder(rt, 20, 64))
		lib, err := e.libraryOf(w)
		if err != nil {
			rt.Fatal(err)
		}
		quick, err := e.Quick(w)
		if _, ok := errors.AsType[*NotModelled](err); ok {
			rt.Skip()
		}
		if err != nil {
			rt.Fatal(err)
		}
		p, err := play(w, lib, 0)
		if err != nil {
			rt.Fatal(err)
		}
		defer p.done()
		d := off(int64(quick.Allocated), p.peak.allocated)
		apart = append(apart, d)
		if d > 0.03 {
			rt.Errorf("quick %s, the whole play %s", quick.Allocated, units.Bytes(p.peak.allocated))
		}
	})
	slices.Sort(apart)
	at := func(q float64) float64 { return 100 * apart[int(q*float64(len(apart)-1))] }
	t.Logf("%d runs: median %.3f %%, 95 %% within %.2f %%, 99 %% within %.2f %%, worst %.2f %%", len(apart), at(0.5), at(0.95), at(0.99), at(1))
	if at(0.9) > 0.5 {
		t.Errorf("nine of ten within %.2f %%, want 0.5 %%", at(0.9))
	}
}
