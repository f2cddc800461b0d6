package plan

import (
	"encoding/csv"
	"flag"
	"os"
	"strconv"
	"strings"
	"testing"

	"unoom/internal/memory"
	"unoom/internal/model"
	"unoom/internal/speed"
	"unoom/internal/units"
	"unoom/internal/workload"
)

// A recipe is one published run of testdata/recipes.csv: facts of the named
// source, of which the setting, the card and the outcome are kept.
type recipe struct {
	id, model, outcome, fix string
	capacity                units.Bytes
	gpus                    int
	values                  map[string]string
}

func recipes(t testing.TB) []recipe {
	t.Helper()
	f, err := os.Open("testdata/recipes.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var out []recipe
	for _, row := range rows[1:] {
		v := map[string]string{}
		for i, h := range rows[0] {
			v[h] = row[i]
		}
		gib, err := strconv.ParseFloat(v["capacity_gib"], 64)
		if err != nil {
			t.Fatalf("%s: capacity %q", v["id"], v["capacity_gib"])
		}
		out = append(out, recipe{id: v["id"], model: v["model"], outcome: v["outcome"], fix: v["fix"], capacity: units.FromGiB(gib), gpus: atoi(t, v["gpus"]), values: v})
	}
	return out
}

func atoi(t testing.TB, s string) int {
	t.Helper()
	if s == "" {
		return 0
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// workload writes the recipe with some values replaced ("micro=4 loss=liger").
func (r *recipe) workload(t testing.TB, changes string) *workload.Workload {
	t.Helper()
	v := map[string]string{}
	for k, x := range r.values {
		v[k] = x
	}
	for _, c := range strings.Fields(changes) {
		key, value, _ := strings.Cut(c, "=")
		v[key] = value
	}
	n := func(key string) int64 { return int64(atoi(t, v[key])) }
	m, err := model.FromDims(v["model"], model.Dims{Layers: n("layers"), Hidden: n("hidden"), Heads: n("heads"), KVHeads: n("kv_heads"), FFN: n("ffn"), Vocab: n("vocab"), Style: v["style"], MaxSeq: n("seq")})
	if err != nil {
		t.Fatalf("%s: %v", r.id, err)
	}
	world := n("gpus")
	w := &workload.Workload{
		Model: m, Name: v["model"], Framework: workload.Framework(v["framework"]), Precision: workload.Precision(v["precision"]),
		Method: workload.Method(v["method"]), Base: workload.Quantization(v["base"]), MicroBatch: n("micro"), Accumulation: max(n("accum"), 1), Seq: n("seq"),
		Checkpointing: workload.Checkpointing(v["checkpointing"]), Attention: workload.Attention(v["attention"]), Loss: workload.Loss(v["loss"]),
		Sharding: workload.Sharding(v["sharding"]), Offload: workload.Offload(v["offload"]), Optimizer: workload.Optimizer{Name: v["optimizer"]}, Compile: v["compile"] == "yes",
	}
	w.Adapter.Rank = n("rank")
	w.Adapter.Targets = strings.Fields(v["targets"])
	w.Adapter.KBit = v["kbit"] == "yes"
	if v["kernels"] == "fused" {
		w.Kernels = workload.Kernels{FusedNorm: "unsloth", FusedRope: "unsloth", FusedLoRA: "unsloth"}
		if w.Loss == workload.LossDefault {
			w.Loss = workload.LossInPlace
		}
	}
	w.Parallel = workload.Parallel{World: world, Data: world, Tensor: 1, Pipeline: 1, Virtual: 1, Context: 1, Expert: 1}
	return w
}

func (r *recipe) hardware() Hardware {
	d := *h100()
	if r.capacity < 40*units.GiB {
		d = speed.Device{Arch: speed.AmpereGA, BF16: 71, FP16: 71, FP32: 35, Bandwidth: 900, SMs: 82, PCIe: 25, PerNode: 8}
	}
	return Hardware{Name: r.values["capacity_gib"], Count: r.gpus, Capacity: r.capacity, Outside: 500 * units.MiB, Device: d}
}

var every = flag.Bool("every", false, "let the engine judge every published recipe (make recipes)")

// Known recipes are not rejected; known failures get a plan that fits, and the
// fix that is known to work is accepted. The engine takes a second for each, so
// that without -every the closed form judges all but every tenth.
func TestPublishedRecipes(t *testing.T) {
	engine, err := memory.New()
	if err != nil {
		t.Fatal(err)
	}
	outcomes := map[string]int{}
	for i, r := range recipes(t) {
		outcomes[r.outcome]++
		judge := Judge(engine.Estimate)
		if !*every && i%10 != 0 {
			judge = nil
		}
		t.Run(r.id, func(t *testing.T) {
			req := &Request{Workload: r.workload(t, ""), Hardware: r.hardware(), Judge: judge}
			if req.Workload.Framework == workload.HFTrainer {
				req.Targets = []Target{HF, DeepSpeed}
			}
			if r.outcome == "fits" {
				p, err := newPlanner(req)
				if err != nil {
					t.Fatal(err)
				}
				// The run reached its end, so the low end of the need is within the card.
				if now := p.present(); now.Need.Device.Low > r.capacity {
					t.Errorf("%s is known to fit %s, and is said to need %s", r.model, r.capacity, now.Need.Device)
				}
				return
			}
			fixed := &Request{Workload: r.workload(t, r.fix), Hardware: r.hardware(), Judge: judge}
			p, err := newPlanner(fixed)
			if err != nil {
				t.Fatal(err)
			}
			if now := p.present(); now.Need.Device.Low > r.capacity {
				t.Errorf("%s with %s is known to fit %s, and is said to need %s", r.model, r.fix, r.capacity, now.Need.Device)
			}
			req.Allow = Allow{PEFT: strings.Contains(r.fix, "method="), Sequence: strings.Contains(r.fix, "seq=")}
			res, err := Make(req)
			if err != nil {
				t.Fatal(err)
			}
			if len(res.Plans) == 0 {
				t.Errorf("%s ran out of memory, and no plan was found", r.model)
			}
		})
	}
	if outcomes["fits"] < 30 || outcomes["OOM"] < 30 {
		t.Errorf("%v: want 30 of each", outcomes)
	}
}
