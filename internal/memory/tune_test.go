package memory

import (
	"testing"

	"unoom/internal/workload"
)

// tuneRun is a run of torchtune that the cases below change.
func tuneRun(t testing.TB) *workload.Workload {
	w := base(smallLlama(t))
	w.Framework, w.GPU = workload.Torchtune, workload.GPU{Compute: 80}
	w.Optimizer = workload.Optimizer{Name: "adamw", Impl: "fused"}
	return w
}

func adapted(m workload.Method) func(w *workload.Workload) {
	return func(w *workload.Workload) {
		w.Method, w.Adapter = m, workload.Adapter{Rank: 8, Targets: []string{"q_proj", "v_proj", "down_proj"}}
	}
}

func over(ranks int64) func(w *workload.Workload) {
	return func(w *workload.Workload) {
		w.Sharding, w.Parallel.World, w.Parallel.Data = workload.FSDP2, ranks, ranks
	}
}

func recomputed(w *workload.Workload) { w.Checkpointing = workload.FullCheckpoint }
func compiled(w *workload.Workload)   { w.Compile = true }
func offloaded(w *workload.Workload) {
	w.Checkpointing, w.Offload = workload.FullCheckpoint, workload.OffloadActivations
}

// Every recipe ends an iteration with the memory it began with, and leaves no
// weight gathered.
func TestTuneRecipesLeaveNothing(t *testing.T) {
	type change = func(w *workload.Workload)
	for name, changes := range map[string][]change{
		"full":                      {},
		"offloaded":                 {offloaded},
		"lora":                      {adapted(workload.LoRA)},
		"lora compiled, recomputed": {adapted(workload.LoRA), compiled, recomputed},
		"qlora":                     {adapted(workload.QLoRA), recomputed},
		"qlora compiled":            {adapted(workload.QLoRA), compiled},
		"dora":                      {adapted(workload.DoRA)},
		"qdora recomputed":          {adapted(workload.QDoRA), recomputed},
		"full on 4":                 {over(4)},
		"full on 4, recomputed":     {over(4), recomputed},
		"lora on 4":                 {over(4), adapted(workload.LoRA), offloaded},
		"qlora on 4":                {over(4), adapted(workload.QLoRA), recomputed, compiled},
		"full on 4, host":           {over(4), func(w *workload.Workload) { w.Offload = workload.OffloadParams }},
		"in backward":               {func(w *workload.Workload) { w.Optimizer.InBackward = true }},
	} {
		w := tuneRun(t)
		for _, c := range changes {
			c(w)
		}
		if run := playedRun(t, w); run.ends[0] != run.ends[1] {
			t.Errorf("%s: an iteration began with %d bytes and ended with %d", name, run.ends[0], run.ends[1])
		}
	}
}

// A checkpoint behind frozen embeddings keeps as little of the first layer as of
// the others, though its input needs no gradient.
func TestCheckpointBehindFrozenEmbeddings(t *testing.T) {
	peak := func(layers int, change func(w *workload.Workload)) int64 {
		w := tuneRun(t)
		w.Model = withLayers(w.Model, layers)
		adapted(workload.LoRA)(w)
		change(w)
		return playedRun(t, w).x.sections[1].allocated // forward
	}
	none := func(*workload.Workload) {}
	whole := peak(3, none) - peak(2, none)
	first, next := peak(1, recomputed), peak(2, recomputed)
	if grown := next - first; grown*4 > whole {
		t.Errorf("a recomputed layer adds %d bytes to the forward pass, a kept one %d", grown, whole)
	}
	if kept := peak(1, none) - first; kept < whole/2 {
		t.Errorf("recomputing the only layer saves %d bytes of the forward pass, want most of the %d that a layer keeps", kept, whole)
	}
}

// Four ranks hold a quarter of the weights and states each.
func TestShardsOfTune(t *testing.T) {
	alone, _ := heldBy(t, tuneRun(t))
	w := tuneRun(t)
	over(4)(w)
	shared, _ := heldBy(t, w)
	if got, want := shared[OptimizerState], alone[OptimizerState]/4; got < want || got > want+want/20 {
		t.Errorf("states of %d bytes on each of four, %d alone", got, alone[OptimizerState])
	}
}

// DoRA writes out the weight that it normalises, and keeps the results that the
// magnitude multiplies.
func TestDoRANeedsMoreThanLoRA(t *testing.T) {
	for _, f := range []workload.Framework{workload.Torchtune, workload.HFTrainer} {
		peak := func(m workload.Method) int64 {
			w := tuneRun(t)
			w.Framework = f
			adapted(m)(w)
			return playedRun(t, w).peak.allocated
		}
		lora, dora := peak(workload.LoRA), peak(workload.DoRA)
		// base and pair of down_proj of the last layer, 2 × 512 tokens × 256 × 2 bytes each
		if dora < lora+2*1024*256*2 {
			t.Errorf("%s: DoRA needs %d bytes, LoRA %d", f, dora, lora)
		}
	}
}
