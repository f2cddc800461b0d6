package main

import (
	"fmt"
	"runtime"
	"time"

	"unoom/internal/gpu"
	"unoom/internal/model"
	"unoom/internal/plan"
	"unoom/internal/workload"
)

// comparePlanning measures the search of whole spaces on one core, without the
// runs of the memory engine that confirm what it finds. DeepSpeed's autotuner
// took 27.5 minutes on 16 V100 for one model (deepspeed/autotuning/README.md).
func comparePlanning(string, int64) error {
	runtime.GOMAXPROCS(1)
	defer runtime.GOMAXPROCS(runtime.NumCPU())
	models, err := model.Published()
	if err != nil {
		return err
	}
	cards, err := gpu.Published()
	if err != nil {
		return err
	}
	fmt.Println("plan: the search of a whole space, all training stacks, best of 5")
	for _, c := range []struct {
		model      string
		gpus       int
		batch, seq int64
		limit      time.Duration
		allow      plan.Allow
		what       string
	}{
		{"llama-3.1-8b", 8, 128, 8192, 100 * time.Millisecond, plan.Allow{}, ""},
		{"llama-3.1-8b", 8, 128, 8192, 0, plan.Allow{Precision: true, PEFT: true, Optimizer: true}, ", everything allowed"},
		{"llama-3.1-70b", 1024, 2048, 8192, time.Second, plan.Allow{}, ""},
		{"llama-3.1-70b", 1024, 2048, 8192, 0, plan.Allow{Precision: true, PEFT: true, Optimizer: true}, ", everything allowed"},
		{"llama-3.1-405b", 4096, 4096, 8192, 0, plan.Allow{}, ""},
		{"mixtral-8x7b", 256, 1024, 4096, 0, plan.Allow{}, ""},
	} {
		e, err := models.Find(c.model)
		if err != nil {
			return err
		}
		m, err := e.Model(model.Options{})
		if err != nil {
			return err
		}
		r, err := cards.Find(fmt.Sprintf("%dxh100-sxm-80gb", c.gpus))
		if err != nil {
			return err
		}
		n := int64(c.gpus)
		w := &workload.Workload{
			Model: m, Name: m.Name, Framework: workload.HFTrainer, Method: workload.Full, Precision: workload.AMPBF16, MicroBatch: 1, Accumulation: max(1, c.batch/n), Seq: c.seq,
			Checkpointing: workload.NoCheckpointing, Attention: workload.SDPA, Optimizer: workload.Optimizer{Name: "adamw_torch"}, Sharding: workload.DDP, Offload: workload.NoOffload,
			Parallel: workload.Parallel{World: n, Data: n, Tensor: 1, Pipeline: 1, Virtual: 1, Context: 1, Expert: 1},
		}
		req := &plan.Request{Workload: w, Batch: int(c.batch), Hardware: plan.HardwareOf(&r.Card, r.Count), Headroom: 0.05, Allow: c.allow}
		best := time.Duration(1<<63 - 1)
		for range 5 {
			start := time.Now()
			res, err := plan.Make(req)
			if err != nil {
				return err
			}
			best = min(best, time.Since(start))
			if len(res.Plans) == 0 {
				return fmt.Errorf("plan: nothing found for %s on %d cards", c.model, c.gpus)
			}
		}
		line := fmt.Sprintf("  %-15s %4d cards%-20s %9.1f ms", c.model, c.gpus, c.what, float64(best.Microseconds())/1e3)
		if c.limit > 0 {
			line += fmt.Sprintf("   (goal %v)", c.limit)
		}
		fmt.Println(line)
	}
	return nil
}
