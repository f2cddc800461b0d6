package plan

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"unoom/internal/memory"
	"unoom/internal/model"
)

// What a search finds, it has the engine's figure for wherever the engine plays
// the setting, and the closed form corrected by the engine is that figure.
func TestWhatIsFoundIsTheEnginesFigure(t *testing.T) {
	engine, err := memory.New()
	if err != nil {
		t.Fatal(err)
	}
	found, closed := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		heads := rapid.Int64Range(8, 48).Draw(t, "heads")
		m, err := model.FromDims("test", model.Dims{Layers: rapid.Int64Range(16, 60).Draw(t, "layers"), Hidden: heads * 128, Heads: heads, KVHeads: heads, FFN: heads * 384, Vocab: 32000, MaxSeq: 8192})
		if err != nil {
			t.Fatal(err)
		}
		n := rapid.SampledFrom([]int{1, 4, 8, 16}).Draw(t, "gpus")
		w := hfWorkload(m, 1, 1, 2048, int64(n))
		target := rapid.SampledFrom([]Target{HF, Torchtitan}).Draw(t, "target")
		p, err := newPlanner(&Request{Workload: w, Batch: n * rapid.SampledFrom([]int{1, 4, 16}).Draw(t, "per"), Hardware: h100s(n), Headroom: 0.05, Targets: []Target{target}, NoOffload: true, Judge: engine.Estimate, Quick: engine.Quick})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range p.best(p.space) {
			a, ok := p.asked[c.Choice]
			if !ok {
				t.Fatalf("nobody asked about %+v", c.Choice)
			}
			found++
			if !a.played {
				closed++
				continue
			}
			peak, err := engine.Quick(asMegatron(fewMicros(p.workloadOf(&c.Choice))))
			if err != nil {
				t.Fatal(err)
			}
			want := float64(peak.Allocated) + c.need.outside
			if math.Abs(c.need.total/want-1) > 0.005 || c.need.total > p.budget {
				t.Fatalf("found with %.2f GiB, the engine says %.2f", c.need.total/(1<<30), want/(1<<30))
			}
		}
	})
	t.Logf("%d candidates, %d of them by the closed form", found, closed)
	if closed > found/2 {
		t.Errorf("%d of %d candidates are the closed form's", closed, found)
	}
}
