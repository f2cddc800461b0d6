package memory

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"testing"

	"unoom/internal/model"
	"unoom/internal/workload"
)

// What a compiled layer keeps for backward is what torch's min-cut partitioner
// keeps.
func TestCompiledLayersSaveWhatTorchSaves(t *testing.T) {
	python := torchPython(t)
	const batch, seq = 2, 512
	for _, c := range []struct{ hidden, ffn, heads, kv int64 }{{256, 768, 8, 2}, {128, 512, 4, 4}} {
		cfg := map[string]any{"hidden_size": c.hidden, "intermediate_size": c.ffn, "num_attention_heads": c.heads, "num_key_value_heads": c.kv, "vocab_size": 100}
		in, _ := json.Marshal(map[string]any{"config": cfg, "batch": batch, "seq": seq})
		cmd := exec.Command(python, "testdata/compiled.py")
		cmd.Stdin = bytes.NewReader(in)
		raw, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		var torch struct{ Bytes int64 }
		if err := json.Unmarshal(raw, &torch); err != nil {
			t.Fatalf("compiled.py printed %q: %v", raw, err)
		}
		m, err := model.FromDims("small", model.Dims{Layers: 1, Hidden: c.hidden, Heads: c.heads, KVHeads: c.kv, FFN: c.ffn, Vocab: 100})
		if err != nil {
			t.Fatal(err)
		}
		got := savedCompiled(m, batch, seq)
		if off := got - torch.Bytes; max(off, -off)*200 > torch.Bytes {
			t.Errorf("%v: a compiled layer keeps %d bytes, torch keeps %d", c, got, torch.Bytes)
		}
	}
}

// savedCompiled plays a compiled layer in 16 bits and sums what its nodes hold.
func savedCompiled(m *model.Model, batch, seq int64) int64 {
	x := &machine{dev: &plainDevice{}, training: true}
	x.item = x.items.id("", "other")
	x.begin(Forward, "forward", 0)
	x.newTape()
	p := &player{x: x, batch: batch, seq: seq, lib: library{attn: attnFlash}}
	one := func(*model.Module) int64 { return 1 }
	p.net = x.load(m, &plainLoader{dt: bf16, train: func(place) bool { return true }}, func(int, int) bool { return true }, func(string) bool { return true }, one)
	own := len(x.sts)
	x.grad = true
	in := x.newParam("input", batch*seq*m.Hidden, 1, 1, bf16, true)
	p.compiledLayer(p.net.stacks[0].blocks[0], in)
	return x.savedSince(own)
}

// Compiled, a run of the Trainer needs less, and leaves nothing behind.
func TestTheTrainerCompiled(t *testing.T) {
	plain := base(smallLlama(t))
	c := base(smallLlama(t))
	c.Compile = true
	a, b := playedRun(t, plain), playedRun(t, c)
	if b.ends[0] != b.ends[1] {
		t.Errorf("an iteration began with %d bytes and ended with %d", b.ends[0], b.ends[1])
	}
	if b.peak.allocated >= a.peak.allocated {
		t.Errorf("compiled it needs %d bytes, else %d", b.peak.allocated, a.peak.allocated)
	}
	c.Checkpointing = workload.FullCheckpoint
	if d := playedRun(t, c); d.peak.allocated >= b.peak.allocated {
		t.Errorf("recomputed it needs %d bytes, else %d", d.peak.allocated, b.peak.allocated)
	}
}
