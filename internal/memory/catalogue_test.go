package memory

import (
	"errors"
	"fmt"
	"testing"

	"unoom/internal/model"
	"unoom/internal/units"
	"unoom/internal/workload"
)

// Every published model, in every setting that a command can name, is either
// played or refused with the reason. What is played is sound: the items sum to
// the peak, the weights are there, more work never needs less.
func TestEveryPublishedModelIsPlayedOrRefused(t *testing.T) {
	models, err := model.Published()
	if err != nil {
		t.Fatal(err)
	}
	engine, err := New()
	if err != nil {
		t.Fatal(err)
	}
	played, refused := 0, map[string]int{}
	seen := map[string]bool{}
	for _, entry := range models {
		m, err := entry.Model(model.Options{})
		if err != nil {
			t.Errorf("%s: %v", entry.Name, err)
			continue
		}
		// Networks of one type differ in size only, so one of each is played.
		if seen[m.Type] {
			continue
		}
		seen[m.Type] = true
		m = shallow(m)
		for _, w := range settings(m) {
			name := fmt.Sprintf("%s %s %s %s %s %s %s", entry.Name, w.Framework, w.Method, w.Precision, w.Checkpointing, w.Sharding, w.Attention)
			est, err := safely(engine, w)
			if lacks, ok := errors.AsType[*NotModelled](err); ok {
				refused[lacks.What]++
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			played++
			checkSound(t, name, est)
		}
	}
	t.Logf("%d settings played; refused: %v", played, refused)
	if played == 0 {
		t.Error("nothing was played")
	}
}

func checkSound(t *testing.T, name string, est *Estimate) {
	t.Helper()
	var sum units.Bytes
	for _, s := range est.Items {
		sum += units.Bytes(s.Bytes)
	}
	switch a := est.Allocated; {
	case sum != a.Mid:
		t.Errorf("%s: the items sum to %s, the peak is %s", name, sum, a.Mid)
	case a.Low > a.Mid || a.Mid > a.High:
		t.Errorf("%s: interval %v", name, a)
	case est.Reserved.Mid < a.Mid:
		t.Errorf("%s: %s reserved, %s allocated", name, est.Reserved.Mid, a.Mid)
	}
}

// safely turns a panic into an error, so that one test finds all of them.
func safely(e *Engine, w *workload.Workload) (est *Estimate, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return e.Estimate(w)
}

// shallow is a model with the first layers only: they are alike.
func shallow(m *model.Model) *model.Model {
	c := *m
	c.Stacks = nil
	for _, s := range m.Stacks {
		d := *s
		d.Layers = d.Layers[:min(3, len(d.Layers))]
		c.Stacks = append(c.Stacks, &d)
	}
	return &c
}

// settings are the combinations that commands can name, without those that
// contradict themselves.
func settings(m *model.Model) []*workload.Workload {
	var out []*workload.Workload
	for _, fw := range []workload.Framework{workload.HFTrainer, workload.DeepSpeed, workload.Torchtitan, workload.Megatron} {
		for _, method := range []workload.Method{workload.Full, workload.LoRA, workload.QLoRA} {
			for _, ck := range []workload.Checkpointing{workload.NoCheckpointing, workload.Selective, workload.FullCheckpoint} {
				for _, sh := range []workload.Sharding{workload.NoSharding, workload.DDP, workload.ZeRO2, workload.ZeRO3, workload.FSDP, workload.FSDP2} {
					for _, at := range []workload.Attention{workload.SDPA, workload.Eager} {
						if at == workload.Eager && sh != workload.NoSharding {
							continue // attention and sharding do not meet
						}
						w := &workload.Workload{
							Model: m, Name: m.Name, Framework: fw, Method: method, Precision: workload.AMPBF16, MicroBatch: 2, Accumulation: 2, Seq: 128,
							Image: [2]int64{224, 224}, Checkpointing: ck, Attention: at, Sharding: sh, Offload: workload.NoOffload,
							Optimizer: workload.Optimizer{Name: "adamw_torch_fused", Impl: "fused"},
							Parallel:  workload.Parallel{World: 1, Data: 1, Tensor: 1, Pipeline: 1, Virtual: 1, Context: 1, Expert: 1},
							GPU:       workload.GPU{Capacity: 80 * units.GiB, Compute: 80},
						}
						if sh != workload.NoSharding {
							w.Parallel.World, w.Parallel.Data = 4, 4
						}
						if method.Adapted() {
							w.Precision = workload.BF16
							w.Adapter = workload.Adapter{Rank: 8, Targets: []string{"all-linear"}}
						}
						if method == workload.QLoRA {
							w.Base = workload.NF4Double
						}
						out = append(out, w)
					}
				}
			}
		}
	}
	return out
}
