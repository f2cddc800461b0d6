package speed

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"unoom/internal/model"
)

func table(t testing.TB) []Row {
	t.Helper()
	var files []*os.File
	for _, name := range []string{"throughput.csv", "models.csv", "gpus.csv"} {
		f, err := os.Open(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files = append(files, f)
	}
	rows, err := ReadTable(files[0], files[1], files[2])
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// The figures are those of docs/how-it-plans.md; a change that makes the
// predictions worse fails here.
func TestPublishedThroughput(t *testing.T) {
	rows := table(t)
	scores := Score(rows, Default())
	for _, s := range scores {
		t.Logf("%-18s %4d rows  spearman %.3f  kendall(same model) %.3f (%d pairs)  median error %.1f %%  bias %+.1f %%  inside %.0f %%",
			s.Source, s.Rows, s.Spearman, s.Kendall, s.Pairs, 100*s.Median, 100*s.Bias, 100*s.Inside)
		if s.Spearman < 0.75 || s.Median > 0.15 {
			t.Errorf("%s: rank correlation %.3f, median error %.1f %%", s.Source, s.Spearman, 100*s.Median)
		}
	}
	all := scores[len(scores)-1]
	if all.Rows < 500 || all.Spearman < 0.985 || all.Median > 0.09 || all.Inside < 0.9 {
		t.Errorf("over all: %+v", all)
	}
}

func TestReadTableSaysWhatIsWrong(t *testing.T) {
	const models = "name,layers,hidden,heads,kv_heads,head_dim,ffn,gated,experts,topk,expert_ffn,vocab,params\nm,2,64,4,4,16,256,0,0,0,0,100,200000\n"
	const gpus = "name,arch,bf16,fp16,fp8,tf32,fp32,bandwidth,sms,link,pcie,nic,power\ng,ampere,312,312,0,156,19.5,2039,108,300,25,25,\n"
	const head = "source,url,model,gpu,gpus,per_node,micro,accum,seq,method,rank,targets,dtype,state,kernels,checkpointing,sharding,shard_size,tp,pp,vp,cp,ep,offload,optimizer,tokens_per_second_per_gpu,note\n"
	row := func(model, micro string) string {
		return "s,u," + model + ",g,1,8," + micro + ",1,512,full,,,bf16,amp,eager,none,none,,1,1,1,1,1,none,adamw,100,\n"
	}
	read := func(body string) error {
		_, err := ReadTable(strings.NewReader(head+body), strings.NewReader(models), strings.NewReader(gpus))
		return err
	}
	if err := read(row("m", "1")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ body, want string }{
		{row("m", "1") + row("other", "1"), `throughput: line 3: no model "other"`},
		{row("m", "many"), `line 2: micro: "many" is not a number`},
		{"s,u\n", "wrong number of fields"},
	} {
		if err := read(c.body); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want one with %q", err, c.want)
		}
	}
}

// decoder is a network of ordinary shape for the rules below.
func decoder(t testing.TB) *Net {
	m, err := model.FromDims("test", model.Dims{Layers: 32, Hidden: 4096, Heads: 32, KVHeads: 8, FFN: 14336, Vocab: 32000})
	if err != nil {
		t.Fatal(err)
	}
	return FromModel(m)
}

func a100() *Device {
	return &Device{Arch: Ampere, BF16: 312, FP16: 312, TF32: 156, FP32: 19.5, Bandwidth: 2039, SMs: 108, Link: 300, PCIe: 25, NIC: 25, PerNode: 8}
}

func TestWorkOfAModel(t *testing.T) {
	n := decoder(t)
	// 2 operations for each parameter of a matrix and each token, and attention.
	matrices := float64(n.Params - 4096*(2*32+1) - 32000*4096)
	want := 2*matrices*2048 + 32*2048*(2*1024*2*4096)
	if got := n.ForwardFLOPs(2048); math.Abs(got/want-1) > 1e-9 {
		t.Errorf("forward FLOPs of 2048 tokens = %g, want %g", got, want)
	}
}

func TestTheModelFollowsItsRules(t *testing.T) {
	n, d := decoder(t), a100()
	base := Setting{MicroBatch: 4, Accumulation: 4, Seq: 2048, Compute: BF16, Kernels: Fused, Data: 8, Sharding: FSDP}
	with := func(change func(*Setting)) Step {
		s := base
		change(&s)
		return Estimate(n, d, &s)
	}
	mid := with(func(*Setting) {})
	slower := map[string]Step{
		"full recomputation":      with(func(s *Setting) { s.Full = 1 }),
		"half of it":              with(func(s *Setting) { s.Full = 0.5 }),
		"selective recomputation": with(func(s *Setting) { s.Selective = 1 }),
		"plain kernels":           with(func(s *Setting) { s.Kernels = Eager }),
		"float32":                 with(func(s *Setting) { s.Compute = FP32 }),
		"a smaller micro-batch":   with(func(s *Setting) { s.MicroBatch, s.Accumulation = 1, 16 }),
		"optimizer in host RAM":   with(func(s *Setting) { s.OffloadOptimizer = true }),
		"ZeRO-3 by tensors":       with(func(s *Setting) { s.Sharding = ZeRO3 }),
		"tensor parallelism":      with(func(s *Setting) { s.Tensor, s.Data, s.Accumulation = 4, 2, 16 }),
		"a pipeline":              with(func(s *Setting) { s.Pipeline, s.Data, s.Accumulation = 4, 2, 16 }),
	}
	for name, s := range slower {
		if s.TokensStep != mid.TokensStep {
			t.Fatalf("%s changes the tokens of a step: %d", name, s.TokensStep)
		}
		if s.Mid <= mid.Mid {
			t.Errorf("%s takes %.0f µs, no more than %.0f without", name, s.Mid, mid.Mid)
		}
	}
	if f, h := slower["full recomputation"].Mid, slower["half of it"].Mid; !(h < f) {
		t.Errorf("half of the layers recomputed: %.0f, all: %.0f", h, f)
	}
	if s := with(func(s *Setting) { s.Frozen, s.Adapter, s.Targets, s.Trainable = true, 8, 1, n.Params/200 }); s.Mid >= mid.Mid {
		t.Errorf("frozen weights take %.0f µs, no less than %.0f", s.Mid, mid.Mid)
	}
	if s := with(func(s *Setting) { s.Chunks, s.Pipeline, s.Data, s.Accumulation = 4, 4, 2, 16 }); s.Mid >= slower["a pipeline"].Mid {
		t.Errorf("interleaving takes %.0f µs, no less than %.0f", s.Mid, slower["a pipeline"].Mid)
	}
}

// The parts are what the time is made of, and the interval holds the time, for
// any setting.
func TestPartsSum(t *testing.T) {
	n := decoder(t)
	rapid.Check(t, func(t *rapid.T) {
		of := func(name string, most int) int { return rapid.IntRange(1, most).Draw(t, name) }
		d := a100()
		if rapid.Bool().Draw(t, "pcie") {
			d.Link = 0
		}
		s := Setting{
			MicroBatch: of("micro", 8), Accumulation: of("accumulation", 64), Seq: 64 * of("seq", 64),
			Kernels:  rapid.SampledFrom([]Kernels{Eager, Fused, Compiled, Megatron}).Draw(t, "kernels"),
			Compute:  rapid.SampledFrom([]Compute{BF16, FP16, FP8, FP32}).Draw(t, "compute"),
			Sharding: rapid.SampledFrom([]Sharding{NoSharding, DDP, ZeRO1, ZeRO2, ZeRO3, FSDP}).Draw(t, "sharding"),
			Data:     of("data", 64), Shard: of("shard", 64), Tensor: 1 << of("tensor", 3), Pipeline: 1 << of("pipeline", 3), Chunks: of("chunks", 4), Context: 1 << of("context", 2),
			Full:             rapid.Float64Range(0, 1).Draw(t, "full"),
			OffloadOptimizer: rapid.Bool().Draw(t, "offload"), OffloadWeights: rapid.Bool().Draw(t, "weights"), OffloadActivations: rapid.Bool().Draw(t, "activations"),
		}
		r := Estimate(n, d, &s)
		sum := r.Compute + r.Recompute + r.Launch + r.Data + r.Tensor + r.Context + r.Expert + r.Bubble + r.Offload + r.Optimizer
		if math.Abs(sum/r.Mid-1) > 1e-6 {
			t.Fatalf("the parts sum to %f, the time is %f: %+v", sum, r.Mid, r)
		}
		if !(0 < r.Low && r.Low <= r.Mid && r.Mid <= r.High) || math.IsInf(r.High, 0) {
			t.Fatalf("interval %+v", r)
		}
	})
}

func BenchmarkEstimate(b *testing.B) {
	rows := table(b)
	c := Default()
	i := 0
	for b.Loop() {
		r := &rows[i%len(rows)]
		c.Estimate(r.Net, r.Device, &r.Setting)
		i++
	}
}

func FuzzReadTable(f *testing.F) {
	f.Add("source,url,model\ns,u,m\n", "name,layers\nm,2\n", "name,arch\ng,ampere\n")
	f.Fuzz(func(t *testing.T, throughput, models, gpus string) {
		if len(throughput)+len(models)+len(gpus) > 1<<16 {
			t.Skip()
		}
		rows, err := ReadTable(strings.NewReader(throughput), strings.NewReader(models), strings.NewReader(gpus))
		if err == nil && len(rows) > strings.Count(throughput, "\n")+1 {
			t.Fatalf("%d rows of %d lines", len(rows), strings.Count(throughput, "\n"))
		}
	})
}
