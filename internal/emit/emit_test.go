package emit

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"unoom/internal/i18n"
	"unoom/internal/model"
	"unoom/internal/units"
	"unoom/internal/workload"
)

func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

// someJob returns a job of a stack, the same one for the same number. Its
// dimensions multiply, and its settings are those that the stack's users set.
func someJob(t testing.TB, models []*model.Model, n int) *Job {
	t.Helper()
	r := rand.New(rand.NewPCG(uint64(n), 5))
	m := models[n%len(models)]
	w := &workload.Workload{
		Model: m, Name: m.Name, Framework: workload.HFTrainer, Method: workload.Full,
		Precision:  pick(r, workload.FP32, workload.AMPBF16, workload.BF16, workload.AMPFP16, workload.BF16),
		MicroBatch: pick[int64](r, 1, 2, 3, 4, 8), Accumulation: pick[int64](r, 1, 2, 4, 16), Seq: pick[int64](r, 512, 2048, 4096, 8192),
		Checkpointing: pick(r, workload.NoCheckpointing, workload.FullCheckpoint, workload.FullCheckpoint, workload.Selective),
		Attention:     pick(r, workload.SDPA, workload.Flash, workload.Eager, workload.Flex, workload.MemEfficient, workload.MathSDPA),
		Loss:          pick(r, workload.LossDefault, workload.LossPlain, workload.LossLiger, workload.LossChunked, workload.LossCCE, workload.LossMegatron, workload.LossInPlace),
		Compile:       r.IntN(4) == 0, Eval: r.IntN(3) == 0, Padded: r.IntN(4) == 0,
		Optimizer: workload.Optimizer{Name: pick(r, "adamw_torch", "adamw_torch_fused", "adamw", "adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit", "adafactor", "sgd", "lion", "galore_adamw", "lion_8bit")},
		Sharding:  pick(r, workload.NoSharding, workload.DDP, workload.ZeRO1, workload.ZeRO2, workload.ZeRO3, workload.FSDP, workload.FSDP2, workload.FSDP2),
		GPU:       workload.GPU{Name: pick(r, "H100-80GB-SXM", "RTX 4090", "A100-40GB-SXM", "L40S"), Capacity: 79 * units.GiB},
	}
	switch r.IntN(4) {
	case 0:
		w.Method = pick(r, workload.LoRA, workload.QLoRA, workload.DoRA, workload.QDoRA)
		w.Adapter = workload.Adapter{Rank: pick[int64](r, 8, 64), Targets: pick(r, []string{"all-linear"}, []string{"q_proj", "v_proj"}, nil), Dropout: pick(r, 0, 0.05)}
		if w.Method == workload.QLoRA || w.Method == workload.QDoRA {
			w.Base = pick(r, workload.NF4, workload.NF4Double, workload.Int8)
			w.Adapter.KBit = r.IntN(2) == 0
		}
	case 1:
		if r.IntN(4) == 0 {
			w.Method, w.FrozenLayers = workload.FrozenPart, 2
		}
	}
	if strings.HasPrefix(w.Optimizer.Name, "adamw") && r.IntN(3) == 0 {
		w.Optimizer.Impl = pick(r, "foreach", "fused", "loop")
	}
	if w.Checkpointing == workload.FullCheckpoint && r.IntN(5) == 0 {
		w.CheckpointLayers = 3
	}
	if w.Checkpointing != workload.NoCheckpointing && r.IntN(3) == 0 {
		on := r.IntN(2) == 0
		w.Reentrant = &on
	}
	p := &w.Parallel
	p.Data, p.Tensor, p.Pipeline, p.Context, p.Expert, p.Virtual = pick[int64](r, 1, 2, 4, 8, 16), 1, 1, 1, 1, 1
	switch r.IntN(4) {
	case 0:
		p.Tensor, p.Sequence = pick[int64](r, 2, 4), true
	case 1:
		p.Tensor, p.Pipeline, p.Virtual = 2, 2, pick[int64](r, 1, 2)
		w.Accumulation = 4
	case 2:
		if r.IntN(2) == 0 {
			p.Context = 2
		}
	}
	if w.Sharding != workload.NoSharding && p.Data == 1 {
		p.Data = 2
	}
	if w.Sharding == workload.NoSharding {
		p.Data = 1
	}
	p.World = p.Data * p.Tensor * p.Pipeline * p.Context
	if w.Sharding.Sharded() && p.Data >= 8 && r.IntN(2) == 0 {
		p.Shard = 8 * p.Context
	}
	if w.Sharding.Sharded() && r.IntN(3) == 0 {
		w.ReshardAfterForward = pick(r, "always", "never")
	}
	w.Offload = workload.NoOffload
	if r.IntN(3) == 0 {
		w.Offload = pick(r, workload.OffloadOptimizer, workload.OffloadParams, workload.OffloadActivations, workload.OffloadOptimizerAct)
	}
	if r.IntN(3) == 0 && w.Method == workload.Full {
		w.FP8 = pick(r, workload.FP8Tensorwise, workload.FP8Rowwise, workload.FP8Delayed, workload.MXFP8)
	}
	if n%5 == 4 { // pretraining, as torchtitan and Megatron do it
		w.Method, w.Adapter, w.Base, w.FrozenLayers = workload.Full, workload.Adapter{}, "", 0
		w.Optimizer = workload.Optimizer{Name: pick(r, "adamw", "adamw_torch_fused"), NoDecay: r.IntN(4) == 0}
		w.Precision = pick(r, workload.AMPBF16, workload.BF16, workload.FP32)
		w.Sharding, w.Offload = pick(r, workload.FSDP2, workload.FSDP2, workload.DDP), pick(r, workload.NoOffload, workload.NoOffload, workload.OffloadParams)
		w.FP8 = pick(r, workload.NoFP8, workload.NoFP8, workload.FP8Rowwise, workload.MXFP8)
	}
	if r.IntN(2) == 0 {
		w.AllocConf = "expandable_segments:True"
	}
	if r.IntN(4) == 0 {
		w.Kernels = workload.Kernels{FusedNorm: "liger", FusedRope: "liger", FusedMLP: "liger"}
	}
	if r.IntN(4) == 0 {
		w.BucketView = true
	}
	j := &Job{
		Workload: w, Command: "unoom plan --model '" + m.Name + "' --gpu 8xh100 # \"quoted\"", Text: i18n.Load(pick(r, i18n.English, i18n.Chinese)).Text,
		Peak: 61 * units.GiB, Capacity: w.GPU.Capacity, Script: pick(r, "", "train.py", "train.py --name 'two words' --lr 1e-5"),
		Steps: []Step{{Code: "batch.per_gpu", From: "8", To: "2", Saves: 20 * units.GiB}, {Code: "recompute.checkpointing", From: "none", To: "full"}},
	}
	if r.IntN(3) == 0 {
		j.Accelerators = []string{"H100-80GB-SXM", "A100-80GB-SXM", "RTX 4090"}
	}
	if r.IntN(3) == 0 {
		j.Queue = "gpu"
	}
	return j
}

func someModels(t testing.TB) []*model.Model {
	t.Helper()
	c, err := model.Published()
	if err != nil {
		t.Fatal(err)
	}
	var out []*model.Model
	for _, name := range []string{"llama-3.1-8b", "qwen2.5-7b", "bert-base", "llama-3.1-70b", "gemma-2-9b", "mixtral-8x7b", "qwen3-8b"} {
		e, err := c.Find(name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		m, err := e.Model(model.Options{})
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, m)
	}
	return out
}

// body is a job's files without the comment that names the plan.
func body(files []File) string {
	var b strings.Builder
	for _, f := range files {
		b.WriteString(f.Name + "\n" + string(f.Data))
	}
	return b.String()
}

// mutations are changes of one setting, each of which a file has to show.
func mutations() map[string]func(*workload.Workload) {
	return map[string]func(*workload.Workload){
		"micro-batch": func(w *workload.Workload) { w.MicroBatch += 5 },
		"accum":       func(w *workload.Workload) { w.Accumulation += 3 },
		"seq":         func(w *workload.Workload) { w.Seq += 128 },
		"dtype": func(w *workload.Workload) {
			w.Precision = next(w.Precision, workload.FP32, workload.AMPBF16, workload.AMPFP16)
		},
		"checkpointing": func(w *workload.Workload) {
			w.Checkpointing = next(w.Checkpointing, workload.NoCheckpointing, workload.FullCheckpoint)
		},
		"attention": func(w *workload.Workload) {
			w.Attention = next(w.Attention, workload.SDPA, workload.Eager, workload.MathSDPA)
		},
		"loss": func(w *workload.Workload) {
			w.Loss = next(w.Loss, workload.LossCCE, workload.LossLiger, workload.LossMegatron)
		},
		"compile": func(w *workload.Workload) { w.Compile = !w.Compile },
		"optimizer": func(w *workload.Workload) {
			w.Optimizer = workload.Optimizer{Name: map[bool]string{true: "sgd", false: "adamw"}[strings.HasPrefix(w.Optimizer.Name, "adamw")]}
		},
		"sharding": func(w *workload.Workload) {
			w.Sharding = next(w.Sharding, workload.FSDP2, workload.DDP, workload.ZeRO1)
		},
		"offload":       func(w *workload.Workload) { w.Offload = next(w.Offload, workload.NoOffload, workload.OffloadParams) },
		"alloc-conf":    func(w *workload.Workload) { w.AllocConf += "max_split_size_mb:64" },
		"eval":          func(w *workload.Workload) { w.Eval = !w.Eval },
		"ema":           func(w *workload.Workload) { w.EMA = !w.EMA },
		"gpus":          func(w *workload.Workload) { w.Parallel.Data *= 2; w.Parallel.World *= 2 },
		"tp":            func(w *workload.Workload) { w.Parallel.Tensor *= 2; w.Parallel.World *= 2 },
		"cp":            func(w *workload.Workload) { w.Parallel.Context *= 2; w.Parallel.World *= 2 },
		"pp":            func(w *workload.Workload) { w.Parallel.Pipeline *= 2; w.Parallel.World *= 2 },
		"fp8":           func(w *workload.Workload) { w.FP8 = next(w.FP8, workload.NoFP8, workload.FP8Tensorwise) },
		"rank":          func(w *workload.Workload) { w.Adapter.Rank += 8 },
		"base":          func(w *workload.Workload) { w.Base = next(w.Base, workload.NF4, workload.NF4Double) },
		"norm-kernel":   func(w *workload.Workload) { w.Kernels.FusedNorm = next(w.Kernels.FusedNorm, "liger", "apex") },
		"bucket-view":   func(w *workload.Workload) { w.BucketView = !w.BucketView },
		"frozen-layers": func(w *workload.Workload) { w.FrozenLayers += 2 },
	}
}

func next[T comparable](now T, of ...T) T {
	i := slices.Index(of, now)
	return of[(i+1)%len(of)]
}

// A change of one setting changes what is written or is refused: nothing is
// dropped without a word. The line that names the plan in words is left out, so
// that it does not stand in for the file.
func TestNoSettingIsDroppedSilently(t *testing.T) {
	models := someModels(t)
	summary := regexp.MustCompile(`(?m)^.*(Plan:|方案：).*$`)
	checked := 0
	for n := range 60 {
		job := someJob(t, models, n)
		for _, target := range Targets() {
			files, err := Write(job, target)
			if err != nil {
				continue
			}
			before := summary.ReplaceAllString(body(files), "")
			for name, change := range mutations() {
				if name == "sharding" && job.Workload.Parallel.Data == 1 {
					continue // one rank holds everything either way
				}
				if name == "rank" && !job.Workload.Method.Adapted() {
					continue // says nothing then
				}
				other := *job
				other.Workload = job.Workload.Clone()
				change(other.Workload)
				files, err := Write(&other, target)
				if err != nil {
					continue
				}
				checked++
				if summary.ReplaceAllString(body(files), "") == before {
					t.Errorf("job %d, %s: --%s %v changes nothing in\n%s", n, target.Name, name, settings(other.Workload), before)
					return
				}
			}
		}
	}
	if checked < 1000 {
		t.Errorf("only %d changes could be checked", checked)
	}
}

func TestTheSameJobMakesTheSameBytes(t *testing.T) {
	models := someModels(t)
	for n := range 20 {
		for _, target := range Targets() {
			a, errA := Write(someJob(t, models, n), target)
			b, errB := Write(someJob(t, models, n), target)
			if fmt.Sprint(errA) != fmt.Sprint(errB) || body(a) != body(b) {
				t.Fatalf("job %d, %s: two runs differ", n, target.Name)
			}
		}
	}
}

func TestEachTargetWritesSomeJobs(t *testing.T) {
	models := someModels(t)
	for _, target := range Targets() {
		written := 0
		for n := range 200 {
			_, err := Write(someJob(t, models, n), target)
			if err == nil {
				written++
				continue
			}
			if _, ok := errors.AsType[*Unsupported](err); !ok && !strings.Contains(err.Error(), "machines of") {
				t.Errorf("job %d, %s: %v", n, target.Name, err)
			}
		}
		if written < 3 {
			t.Errorf("%s wrote %d of 200 jobs", target.Name, written)
		}
	}
}

func TestWhatATargetCannotDoNamesThoseThatCan(t *testing.T) {
	job := someJob(t, someModels(t), 0)
	job.Workload = &workload.Workload{
		Model: job.Workload.Model, Method: workload.Full, Precision: workload.BF16, MicroBatch: 1, Accumulation: 8, Seq: 4096, Optimizer: workload.Optimizer{Name: "adamw"},
		Parallel: workload.Parallel{World: 16, Data: 4, Tensor: 4, Pipeline: 1, Context: 1, Expert: 1, Virtual: 1}, Sharding: workload.FSDP2,
	}
	target, _ := Find("hf")
	_, err := Write(job, target)
	u, ok := errors.AsType[*Unsupported](err)
	if !ok || u.Setting != "--tp 4" || !slices.Contains(u.Instead, "torchtitan") || slices.Contains(u.Instead, "hf") {
		t.Fatalf("%v %+v", err, u)
	}
}

func TestControlCharactersAreRefused(t *testing.T) {
	job := someJob(t, someModels(t), 0)
	job.Command = "unoom plan\nrm -rf /"
	for _, target := range Targets() {
		if _, err := Write(job, target); err == nil {
			t.Errorf("%s wrote a command with a line break", target.Name)
		}
	}
}

func TestFindKnowsTheNamesPeopleUse(t *testing.T) {
	for name, want := range map[string]string{"HF": "hf", "k8s": "kubernetes", " sky ": "skypilot", "sbatch": "slurm", "megatron-lm": "megatron"} {
		if got, err := Find(name); err != nil || got.Name != want {
			t.Errorf("%q: %v, %v", name, got.Name, err)
		}
	}
	if _, err := Find("nothing"); err == nil {
		t.Error("nothing is a target")
	}
}
