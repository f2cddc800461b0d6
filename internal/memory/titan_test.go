package memory

import (
	"testing"

	"unoom/internal/workload"
)

// titanRun is a run of torchtitan that the cases below change.
func titanRun(t testing.TB) *workload.Workload {
	w := base(smallLlama(t))
	w.Framework, w.Sharding, w.Precision = workload.Torchtitan, workload.FSDP2, workload.AMPBF16
	w.Optimizer = workload.Optimizer{Name: "adamw", Impl: "fused"}
	w.Parallel.Data, w.Parallel.World = 2, 2
	w.GPU = workload.GPU{Compute: 90}
	w.Versions = map[string]string{"date": "2025-06", "torch": "2.8"}
	return w
}

// heldBy is what is allocated at the peak under each kind.
func heldBy(t testing.TB, w *workload.Workload) (map[Kind]int64, *played) {
	t.Helper()
	run := playedRun(t, w)
	sums := map[Kind]int64{}
	for _, s := range run.x.breakdown(run.peak.at) {
		sums[s.Kind] += s.Bytes
	}
	return sums, run
}

// Tensor parallel ranks divide weights, states and activations; an iteration
// leaves nothing behind.
func TestTitanTensorParallel(t *testing.T) {
	for _, kind := range []workload.Checkpointing{workload.NoCheckpointing, workload.Selective, workload.FullCheckpoint} {
		one := titanRun(t)
		one.Checkpointing = kind
		two := titanRun(t)
		two.Checkpointing = kind
		two.Parallel.Tensor, two.Parallel.World = 2, 4
		a, _ := heldBy(t, one)
		b, run := heldBy(t, two)
		if run.ends[0] != run.ends[1] {
			t.Errorf("%s: an iteration began with %d bytes and ended with %d", kind, run.ends[0], run.ends[1])
		}
		for _, k := range []Kind{OptimizerState, Activations} {
			least := 1.6
			if kind == workload.Selective {
				least = 1.2 // it keeps what is scattered, too
			}
			if ratio := float64(a[k]) / float64(b[k]); ratio < least || ratio > 2.4 {
				t.Errorf("%s: %s of %d bytes on one rank and %d on each of two", kind, k, a[k], b[k])
			}
		}
	}
}

// Where the head runs on pieces, logits are no longer what the peak is made of.
func TestChunkedHeadKeepsNoLogits(t *testing.T) {
	whole := titanRun(t)
	pieces := titanRun(t)
	pieces.Versions["date"] = "2026-06"
	_, a := heldBy(t, whole)
	_, b := heldBy(t, pieces)
	if b.ends[0] != b.ends[1] {
		t.Errorf("an iteration began with %d bytes and ended with %d", b.ends[0], b.ends[1])
	}
	logits := int64(4) * 2 * 512 * 1000
	if saved := a.peak.allocated - b.peak.allocated; saved < logits {
		t.Errorf("%d bytes less than with whole logits, want at least the %d of float32 logits", saved, logits)
	}
}
