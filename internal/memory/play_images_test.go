package memory

import (
	"testing"

	"unoom/internal/model"
	"unoom/internal/workload"
)

// seeing is a small vision-language model in a run of one card.
func seeing(t *testing.T) *workload.Workload {
	t.Helper()
	m, err := model.Parse("seeing", []byte(`{"model_type":"qwen2_5_vl","hidden_size":512,"intermediate_size":1024,"num_hidden_layers":4,"num_attention_heads":8,
		"num_key_value_heads":2,"vocab_size":1000,"vision_config":{"depth":4,"hidden_size":256,"intermediate_size":512,"num_heads":4,"out_hidden_size":512,"fullatt_block_indexes":[3]}}`), model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := &workload.Workload{Model: m, Framework: workload.HFTrainer, Method: workload.Full, Precision: workload.BF16, MicroBatch: 2, Accumulation: 1, Seq: 1024,
		Checkpointing: workload.NoCheckpointing, Attention: workload.Flash, Sharding: workload.NoSharding, Offload: workload.NoOffload,
		Optimizer: workload.Optimizer{Name: "adamw_torch"}, Parallel: workload.Parallel{World: 1, Data: 1, Tensor: 1, Pipeline: 1, Context: 1, Expert: 1}}
	return w
}

// Each of these changes moves the peak the way it does in a real run: images cost
// activations, checkpoints and a frozen tower take them away again.
func TestImagesOfAVisionLanguageModel(t *testing.T) {
	e, err := New()
	if err != nil {
		t.Fatal(err)
	}
	peak := func(change func(w *workload.Workload)) int64 {
		w := seeing(t)
		change(w)
		est, err := e.Estimate(w)
		if err != nil {
			t.Fatal(err)
		}
		return int64(est.Allocated.Mid)
	}
	images := func(w *workload.Workload) { w.Image, w.ImagesPerSample = [2]int64{560, 560}, 1 }
	alone := peak(func(*workload.Workload) {})
	seen := peak(images)
	twice := peak(func(w *workload.Workload) { images(w); w.ImagesPerSample = 2 })
	frozen := peak(func(w *workload.Workload) { images(w); w.Options = map[string]string{"freeze-vision": ""} })
	again := peak(func(w *workload.Workload) { images(w); w.Checkpointing = workload.FullCheckpoint })
	if alone >= seen || twice-seen < (seen-alone)/2 {
		t.Errorf("text alone %d, an image %d, two %d", alone, seen, twice)
	}
	if frozen >= seen || again >= seen {
		t.Errorf("an image %d, a frozen tower %d, checkpoints %d", seen, frozen, again)
	}
}
