package memory

import (
	"strconv"
	"strings"
	"testing"

	"unoom/internal/alloc"
	"unoom/internal/model"
	"unoom/internal/workload"
)

// launch is a Megatron run described by its arguments: "name=value name …".
func launch(t testing.TB, arguments string, p workload.Parallel) *workload.Workload {
	t.Helper()
	options := map[string]string{}
	for _, f := range strings.Fields("num-layers=4 hidden-size=256 num-attention-heads=8 seq-length=512 max-position-embeddings=512 " +
		"micro-batch-size=2 bf16 disable-bias-linear swiglu normalization=RMSNorm position-embedding-type=rope " +
		"hidden-dropout=0 attention-dropout=0 untie-embeddings-and-output-weights transformer-impl=transformer_engine " + arguments) {
		k, v, _ := strings.Cut(f, "=")
		options[k] = v
	}
	for _, n := range []*int64{&p.World, &p.Data, &p.Tensor, &p.Pipeline, &p.Context, &p.Expert} {
		*n = max(*n, 1)
	}
	p.World = p.Data * p.Tensor * p.Pipeline * p.Context
	p.Sequence = p.Tensor > 1
	options["tensor-model-parallel-size"] = strconv.FormatInt(p.Tensor, 10)
	m, err := model.FromMegatron("small", 1000, func(k string) (string, bool) { v, ok := options[k]; return v, ok })
	if err != nil {
		t.Fatal(err)
	}
	return &workload.Workload{Model: m, Framework: workload.Megatron, Method: workload.Full, Precision: workload.BF16,
		MicroBatch: 2, Seq: 512, Accumulation: 4, Checkpointing: workload.NoCheckpointing, Attention: workload.Flash,
		Sharding: workload.DDP, Optimizer: workload.Optimizer{Name: "adamw"}, Parallel: p, Options: options,
		GPU: workload.GPU{Compute: 90}}
}

func playedRun(t testing.TB, w *workload.Workload) *played {
	t.Helper()
	e, err := New()
	if err != nil {
		t.Fatal(err)
	}
	lib, err := e.libraryOf(w)
	if err != nil {
		t.Fatal(err)
	}
	run, err := play(w, lib, 0)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// playedMegatron plays a run, and loads its rank once more to look at it.
func playedMegatron(t testing.TB, w *workload.Workload) (*megatron, *played) {
	t.Helper()
	e, err := New()
	if err != nil {
		t.Fatal(err)
	}
	lib, err := e.libraryOf(w)
	if err != nil {
		t.Fatal(err)
	}
	run := playedRun(t, w)
	conf, err := allocatorOf(w, lib)
	if err != nil {
		t.Fatal(err)
	}
	dev := &cachingAllocator{a: alloc.New(conf)}
	x := &machine{dev: dev, training: true}
	x.begin(Load, "load", 0)
	x.newTape()
	m, err := prepareMegatron(x, w, lib)
	if err != nil {
		t.Fatal(err)
	}
	return m, run
}

const mixture = "num-experts=8 moe-ffn-hidden-size=384 moe-router-topk=2 moe-grouped-gemm moe-token-dispatcher-type=alltoall "

const latent = "multi-latent-attention q-lora-rank=96 kv-lora-rank=64 qk-head-dim=32 qk-pos-emb-head-dim=16 v-head-dim=32 qk-layernorm "

// An iteration ends with the memory it began with, whatever the layers are.
func TestMegatronLeaksNothing(t *testing.T) {
	for name, c := range map[string]struct {
		arguments string
		p         workload.Parallel
	}{
		"dense":                {"", workload.Parallel{Tensor: 2}},
		"experts":              {mixture, workload.Parallel{Data: 4, Expert: 4}},
		"experts one by one":   {strings.Replace(mixture, "moe-grouped-gemm", "", 1), workload.Parallel{Data: 2, Expert: 2}},
		"gathered":             {strings.Replace(mixture, "alltoall", "allgather", 1), workload.Parallel{Data: 2, Expert: 2, Tensor: 2}},
		"float32 router":       {mixture + "moe-router-dtype=fp32 no-bias-swiglu-fusion", workload.Parallel{Data: 2, Expert: 2, Tensor: 2}},
		"shared and balanced":  {mixture + "moe-shared-expert-intermediate-size=256 moe-aux-loss-coeff=0.01", workload.Parallel{Data: 2, Expert: 2}},
		"latent":               {latent, workload.Parallel{Tensor: 2}},
		"latent, not fused":    {latent + "no-rope-fusion", workload.Parallel{Tensor: 2, Pipeline: 2}},
		"deterministic":        {mixture + "deterministic-mode", workload.Parallel{Data: 2, Expert: 2}},
		"no gradient fusion":   {mixture + latent + "no-gradient-accumulation-fusion", workload.Parallel{Data: 2, Expert: 2}},
		"prediction":           {mixture + "mtp-num-layers=2", workload.Parallel{Data: 2, Expert: 2, Tensor: 2}},
		"latent prediction":    {latent + "mtp-num-layers=1", workload.Parallel{Tensor: 2, Pipeline: 2}},
		"fsdp":                 {mixture + "use-megatron-fsdp data-parallel-sharding-strategy=optim_grads_params", workload.Parallel{Data: 4, Expert: 2}},
		"fsdp, grads alone":    {"use-megatron-fsdp data-parallel-sharding-strategy=optim_grads", workload.Parallel{Data: 4, Tensor: 2}},
		"recomputed fsdp":      {"use-megatron-fsdp data-parallel-sharding-strategy=optim_grads_params", workload.Parallel{Data: 4}},
		"eight bits":           {mixture + latent, workload.Parallel{Data: 2, Expert: 2, Tensor: 2}},
		"selective":            {mixture + latent + "moe-shared-expert-intermediate-size=256 recompute-modules=core_attn,mlp,shared_experts,layernorm,mla_up_proj,moe_act", workload.Parallel{Data: 2, Expert: 2, Tensor: 2}},
		"selective moe":        {mixture + "recompute-modules=[core_attn,moe]", workload.Parallel{Data: 2, Expert: 2, Pipeline: 2}},
		"selective dense":      {"", workload.Parallel{Tensor: 2}},
		"recomputed, block":    {"recompute-method=block recompute-num-layers=2", workload.Parallel{Tensor: 2}},
		"recomputed, uniform":  {"recompute-method=uniform recompute-num-layers=2", workload.Parallel{Tensor: 2}},
		"recomputed, pipeline": {mixture, workload.Parallel{Data: 2, Expert: 2, Pipeline: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			w := launch(t, c.arguments, c.p)
			if strings.HasPrefix(name, "recomputed") {
				w.Checkpointing = workload.FullCheckpoint
			}
			if strings.HasPrefix(name, "selective") {
				w.Checkpointing = workload.Selective
			}
			if name == "eight bits" {
				w.FP8 = workload.FP8Tensorwise
			}
			_, run := playedMegatron(t, w)
			if n := len(run.ends); run.ends[n-1] != run.ends[n-2] {
				t.Errorf("an iteration began with %d bytes and ended with %d", run.ends[n-2], run.ends[n-1])
			}
		})
	}
}

// Expert parallelism divides the experts and nothing else; tensor parallel ranks
// of experts divide them further.
func TestExpertsAreDivided(t *testing.T) {
	one, _ := playedMegatron(t, launch(t, mixture, workload.Parallel{Data: 8}))
	for _, ep := range []int64{2, 4, 8} {
		m, _ := playedMegatron(t, launch(t, mixture, workload.Parallel{Data: 8, Expert: ep}))
		if m.params != one.params || m.expertParams*ep != one.expertParams {
			t.Errorf("EP%d: %d dense and %d expert parameters, of %d and %d", ep, m.params, m.expertParams, one.params, one.expertParams)
		}
	}
	m, _ := playedMegatron(t, launch(t, mixture+"expert-tensor-parallel-size=2", workload.Parallel{Data: 4, Tensor: 2, Expert: 2}))
	if m.expertParams*4 != one.expertParams {
		t.Errorf("EP2·ETP2: %d expert parameters, of %d", m.expertParams, one.expertParams)
	}
}

// The stages of a pipeline have the model's parameters between them.
func TestStagesSumToTheModel(t *testing.T) {
	for _, arguments := range []string{"", mixture, latent, mixture + latent} {
		whole, _ := playedMegatron(t, launch(t, arguments, workload.Parallel{}))
		for _, stages := range []int64{2, 4} {
			var sum int64
			for rank := range stages {
				w := launch(t, arguments, workload.Parallel{Pipeline: stages})
				w.Parallel.Rank = strconv.FormatInt(rank, 10)
				m, _ := playedMegatron(t, w)
				sum += m.params + m.expertParams
			}
			counted := whole.w.Model.Params()
			if want := whole.params + whole.expertParams; sum != want || want != counted {
				t.Errorf("%q over %d stages: %d parameters, want %d (the model has %d)", arguments, stages, sum, want, counted)
			}
		}
	}
}

// In eight bits the inputs of products take half of what they took; parameters
// that are eight-bit themselves take half, too, and need no copies.
func TestEightBits(t *testing.T) {
	kinds := func(fp8 workload.FP8, arguments string) (map[Kind]int64, int64) {
		w := launch(t, arguments, workload.Parallel{Data: 2})
		w.Sharding, w.FP8 = workload.ZeRO1, fp8
		sums, run := heldBy(t, w)
		var copies int64
		for _, s := range run.x.breakdown(run.peak.at) {
			if s.Name == "eight-bit copies of weights" {
				copies += s.Bytes
			}
		}
		return sums, copies
	}
	plain, _ := kinds(workload.NoFP8, "")
	eight, copies := kinds(workload.FP8Tensorwise, "")
	own, transposes := kinds(workload.FP8Tensorwise, "fp8-param-gather")
	if eight[Activations] >= plain[Activations] {
		t.Errorf("activations of %d bytes, %d in 16 bits", eight[Activations], plain[Activations])
	}
	if copies != 2*transposes {
		t.Errorf("%d bytes of copies in both layouts, %d of transposes alone", copies, transposes)
	}
	if saved := (eight[Weights] - copies) - (own[Weights] - transposes); saved != transposes {
		t.Errorf("eight-bit parameters save %d bytes, want one for each of %d", saved, transposes)
	}
}

// Megatron-FSDP divides what it keeps, and holds whole layers only while it
// computes.
func TestMegatronFSDPDivides(t *testing.T) {
	end := func(data int64) int64 {
		w := launch(t, "use-megatron-fsdp data-parallel-sharding-strategy=optim_grads_params", workload.Parallel{Data: data})
		run := playedRun(t, w)
		var sum int64
		for _, s := range run.x.breakdown(len(run.x.log)) {
			switch s.Name {
			case "weight shards", "gradient shards", "float32 parameters", "optimizer state":
				sum += s.Bytes
			}
		}
		return sum
	}
	two, eight := end(2), end(8)
	if ratio := float64(two) / float64(eight); ratio < 3.7 || ratio > 4.1 { // blocks keep rests of up to 1 MiB
		t.Errorf("%d bytes of shards on two replicas, %d on eight", two, eight)
	}
}

// Each module that is recomputed leaves less to keep.
func TestRecomputedModulesSave(t *testing.T) {
	arguments := mixture + latent + "moe-shared-expert-intermediate-size=256 "
	peak := func(modules string, attention workload.Attention) int64 {
		w := launch(t, arguments+"recompute-modules="+modules, workload.Parallel{Data: 2, Expert: 2, Tensor: 2})
		w.Attention = attention
		if modules != "" {
			w.Checkpointing = workload.Selective
		}
		return playedRun(t, w).peak.allocated
	}
	for _, modules := range []string{"core_attn", "moe", "shared_experts", "layernorm", "mla_up_proj", "moe_act", "layernorm,mla_up_proj,moe_act"} {
		if all, less := peak("", workload.Eager), peak(modules, workload.Eager); less >= all {
			t.Errorf("%s: %d bytes, %d without", modules, less, all)
		}
	}
}

// A layout divides the layers as it says.
func TestPipelineLayout(t *testing.T) {
	for text, want := range map[string]string{
		"Et*2|(tt|)*5t|tmL": "Ett|tt|tt|tt|tt|tt|t|tmL",
		"Ettt|t*3mL":        "Ettt|tttmL",
		"E|(t|)*4,L":        "E|t|t|t|t|L",
	} {
		stages, err := pipelineLayout(text)
		if got := strings.Join(stages, "|"); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"Et*2|(tt|*5tL", "Etx", "Et*|L", "(((t)*9999)*9999)*9999", "t)L"} {
		if stages, err := pipelineLayout(text); err == nil {
			t.Errorf("%s was read as %d stages", text, len(stages))
		}
	}
	for rank, want := range []int64{3, 1} {
		w := launch(t, "pipeline-model-parallel-layout=Et*3|tL", workload.Parallel{Pipeline: 2})
		w.Parallel.Rank = strconv.Itoa(rank)
		m, _ := playedMegatron(t, w)
		if n := int64(len(m.chunks[0])); n != want {
			t.Errorf("rank %d has %d layers, want %d", rank, n, want)
		}
	}
}

// Sequence and tensor parallelism over twice the ranks halves the activations
// that both divide; only the statistics of norms and what every rank has in full
// stay.
func TestTensorParallelHalvesActivations(t *testing.T) {
	kept := func(tensor int64, arguments string) int64 {
		w := launch(t, arguments, workload.Parallel{Tensor: tensor})
		_, run := playedMegatron(t, w)
		var sum int64
		for _, s := range run.x.breakdown(run.peak.at) {
			if s.Kind == Activations {
				sum += s.Bytes
			}
		}
		return sum
	}
	for _, arguments := range []string{"", latent} {
		a, b := kept(2, arguments), kept(4, arguments)
		if ratio := float64(a) / float64(b); ratio < 1.85 || ratio > 2.15 {
			t.Errorf("%q: activations of %d bytes at TP2 and %d at TP4, a ratio of %.3f", arguments, a, b, ratio)
		}
	}
}

// DeepSpeed's replicas divide the float32 parameters and the moments, and nothing
// of the 16-bit ones.
func TestDeepSpeedDividesTheOptimizer(t *testing.T) {
	kinds := func(data int64) map[Kind]int64 {
		w := launch(t, "", workload.Parallel{Data: data, Tensor: 2, Pipeline: 2})
		w.Framework, w.Sharding, w.Attention, w.Parallel.Rank = workload.MegatronDeepSpeed, workload.ZeRO1, workload.Eager, "first"
		run := playedRun(t, w)
		sums := map[Kind]int64{}
		for _, s := range run.x.breakdown(run.peak.at) {
			sums[s.Kind] += s.Bytes
		}
		return sums
	}
	one, four := kinds(1), kinds(4)
	if one[Weights] != four[Weights] || one[Gradients] != four[Gradients] {
		t.Errorf("weights %d and %d, gradients %d and %d: replicas do not divide them", one[Weights], four[Weights], one[Gradients], four[Gradients])
	}
	if ratio := float64(one[OptimizerState]) / float64(four[OptimizerState]); ratio < 3.99 || ratio > 4.01 {
		t.Errorf("states of %d bytes on one replica and %d on four", one[OptimizerState], four[OptimizerState])
	}
}

// Where no rank is asked for, the figures are those of the fullest stage.
func TestTheFullestStageIsReported(t *testing.T) {
	e, err := New()
	if err != nil {
		t.Fatal(err)
	}
	estimate := func(rank string) *Estimate {
		w := launch(t, "", workload.Parallel{Pipeline: 4})
		w.Parallel.Rank, w.Accumulation = rank, 16
		est, err := e.Estimate(w)
		if err != nil {
			t.Fatal(err)
		}
		return est
	}
	most := estimate("")
	if len(most.Stages) != 3 {
		t.Fatalf("stages %v: want the first, the second and the last", most.Stages)
	}
	for i, s := range most.Stages {
		one := estimate(strconv.FormatInt(s.Rank, 10))
		if one.Allocated.Mid != s.Allocated || one.Allocated.Mid > most.Allocated.Mid || i == 0 && one.Allocated.Mid != most.Allocated.Mid {
			t.Errorf("stage %d: %s, reported as %s of at most %s", s.Rank, one.Allocated.Mid, s.Allocated, most.Allocated.Mid)
		}
		if len(one.Stages) != 0 {
			t.Errorf("stage %d was asked for, others are reported: %v", s.Rank, one.Stages)
		}
	}
}
