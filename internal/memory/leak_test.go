package memory

import (
	"fmt"
	"testing"

	"unoom/internal/alloc"
	"unoom/internal/model"
	"unoom/internal/workload"
)

func TestLeak(t *testing.T) {
	m, _ := model.FromDims("x", model.Dims{Layers: 4, Hidden: 4096, Heads: 32, KVHeads: 8, FFN: 14336, Vocab: 32000})
	w := &workload.Workload{Model: m, Method: workload.QLoRA, Base: workload.NF4Double, Precision: workload.BF16, Framework: workload.HFTrainer, MicroBatch: 4, Seq: 4096, Accumulation: 1, Checkpointing: workload.FullCheckpoint, Adapter: workload.Adapter{Rank: 16, Targets: []string{"q", "k", "v", "o"}, Dropout: 0.1}, Parallel: workload.Parallel{World: 1}}
	x := &machine{dev: &cachingAllocator{a: alloc.New(alloc.Config{})}, training: true}
	x.begin(Load, "load", 0)
	x.newTape()
	lib := library{attn: attnFlash, reentrant: true, fusedLoRA: true, norm: normInPlace, rope: ropeUnsloth, sharedRope: true}
	p, err := newPlayer(x, w, lib)
	if err != nil {
		t.Fatal(err)
	}
	_ = fmt.Sprint
	b := p.microBatch(nil, "")
	x.drop(b...)
	for j := range x.sts {
		if x.sts[j].refs > 0 && x.sts[j].bytes > 20<<20 {
			fmt.Println("live", j, x.sts[j].bytes, x.items.keys[x.sts[j].item], x.sts[j].refs, x.sts[j].marks)
		}
	}
}
