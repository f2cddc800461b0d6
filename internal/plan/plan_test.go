package plan

import (
	"errors"
	"math"
	"testing"

	"pgregory.net/rapid"

	"unoom/internal/gpu"
	"unoom/internal/memory"
	"unoom/internal/model"
	"unoom/internal/remedy"
	"unoom/internal/speed"
	"unoom/internal/units"
	"unoom/internal/workload"
)

func rtx4090(n int) Hardware {
	return Hardware{Name: "rtx-4090", Count: n, Capacity: units.FromGiB(23.64), Outside: 430 * units.MiB,
		Device: speed.Device{Arch: speed.Ada, BF16: 165, FP16: 165, FP8: 330, TF32: 82, FP32: 82, Bandwidth: 1008, SMs: 128, PCIe: 25, PerNode: 8}}
}

func h100s(n int) Hardware {
	return Hardware{Name: "h100-80gb", Count: n, Capacity: units.FromGiB(79.19), Outside: 550 * units.MiB, Device: *h100()}
}

func hfWorkload(m *model.Model, micro, accum, seq, world int64) *workload.Workload {
	w := &workload.Workload{Model: m, Framework: workload.HFTrainer, Method: workload.Full, Precision: workload.AMPBF16, MicroBatch: micro, Accumulation: accum, Seq: seq,
		Checkpointing: workload.NoCheckpointing, Attention: workload.SDPA, Optimizer: workload.Optimizer{Name: "adamw_torch"}, Sharding: workload.DDP, Offload: workload.NoOffload}
	w.Parallel = workload.Parallel{World: world, Data: world, Tensor: 1, Pipeline: 1, Virtual: 1, Context: 1, Expert: 1}
	if world == 1 {
		w.Sharding = workload.NoSharding
	}
	return w
}

func TestAPlanKeepsTheBatchAndTheMathematics(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		heads := int64(1) << rapid.IntRange(2, 5).Draw(t, "heads")
		m, err := model.FromDims("test", model.Dims{
			Layers: int64(rapid.IntRange(2, 48).Draw(t, "layers")), Hidden: heads * 128, Heads: heads, KVHeads: heads / 2, FFN: heads * 384, Vocab: 32000,
		})
		if err != nil {
			t.Fatal(err)
		}
		n := rapid.SampledFrom([]int{1, 2, 4, 8, 16, 64}).Draw(t, "gpus")
		batch := rapid.IntRange(1, 256).Draw(t, "batch")
		w := hfWorkload(m, 1, 1, int64(rapid.SampledFrom([]int{512, 2048, 8192}).Draw(t, "seq")), int64(n))
		h := h100s(n)
		if rapid.Bool().Draw(t, "small") {
			h = rtx4090(n)
		}
		r, err := Make(&Request{Workload: w, Batch: batch, Hardware: h, Headroom: 0.05})
		if err != nil {
			t.Fatal(err)
		}
		for i := range r.Plans {
			p := &r.Plans[i]
			c := &p.Choice
			if c.Batch() != batch || p.Workload.GlobalBatch() != int64(batch) {
				t.Fatalf("plan %d trains %d samples a step, its workload %d; asked %d", i, c.Batch(), p.Workload.GlobalBatch(), batch)
			}
			if !p.Exact || c.Precision != Mixed16 || c.Method != FullTune || c.Seq != int(w.Seq) || c.Optimizer != AdamW && c.Optimizer != AdamWFused {
				t.Fatalf("plan %d changes the mathematics: %+v", i, c)
			}
			if c.GPUs > n {
				t.Fatalf("plan %d takes %d of %d GPUs", i, c.GPUs, n)
			}
			if float64(p.Need.Device.High) > 0.95*float64(h.Capacity)+1 {
				t.Fatalf("plan %d takes %s of %s", i, p.Need.Device, h.Capacity)
			}
			if code := r.planner.space.check(c); code != "" {
				t.Fatalf("plan %d breaks the rule %s: %+v", i, code, c)
			}
			if len(p.Targets) == 0 {
				t.Fatalf("plan %d is for no stack: %+v", i, c)
			}
			back := choiceOf(p.Workload)
			if back.Micro != c.Micro || back.Sharding != c.Sharding || back.Recompute != c.Recompute || back.Layers != c.Layers || back.Tensor != c.Tensor ||
				back.Pipeline != c.Pipeline || back.OffloadName() != c.OffloadName() || back.Loss != c.Loss || back.Precision != c.Precision || back.Shard != c.Shard {
				t.Fatalf("plan %d is not what its workload says:\n%+v\n%+v", i, c, back)
			}
		}
		if len(r.Plans) == 0 && r.Present.Fits && r.Present.Broken == "" && r.Present.Choice.Batch() == batch {
			t.Fatalf("the present setting fits, but there is no plan")
		}
	})
}

// The ladder ends where the plan is: what its steps save is the difference of
// the two peaks, and their slowdowns multiply to the ratio of the two times.
func TestStepsLeadFromThePresentSettingToThePlan(t *testing.T) {
	m := decoder(t, 32, 4096, 32, 8, 14336, 128256)
	for _, req := range []*Request{
		{Workload: hfWorkload(m, 8, 1, 4096, 8), Batch: 64, Hardware: h100s(8), Headroom: 0.05},
		{Workload: hfWorkload(m, 4, 4, 2048, 1), Hardware: rtx4090(1), Headroom: 0.05, Targets: []Target{DeepSpeed}},
		{Workload: hfWorkload(m, 4, 4, 2048, 1), Hardware: rtx4090(1), Allow: Allow{PEFT: true, Optimizer: true, Precision: true}},
	} {
		r, err := Make(req)
		if err != nil || len(r.Plans) == 0 {
			t.Fatal("no plan", err)
		}
		for i := range r.Plans {
			p := &r.Plans[i]
			saved, slow := r.Present.Need.Device.High, r.Present.Time.Mid
			for _, s := range p.Steps {
				saved -= s.Saves
				slow *= s.Slowdown
				if s.Peak != saved && (s.Peak-saved).GiB() > 0.01 {
					t.Errorf("plan %d: after %s the peak is %s, but what was saved leaves %s", i, s.Code, s.Peak, saved)
				}
				if _, known := remedy.Find(s.Code); !known && s.Code.Family() != "speed" && s.Code != ExpertParallel {
					t.Errorf("plan %d: no remedy has the code %s", i, s.Code)
				}
			}
			if d := (saved - p.Need.Device.High).GiB(); math.Abs(d) > 0.01 {
				t.Errorf("plan %d: the steps lead to %s, the plan takes %s", i, saved, p.Need.Device.High)
			}
			if math.Abs(slow/p.Time.Mid-1) > 0.01 {
				t.Errorf("plan %d: the steps lead to %.0f µs, the plan takes %.0f", i, slow, p.Time.Mid)
			}
			if i > 0 && p.Need.Device.High >= r.Plans[i-1].Need.Device.High && p.Exact == r.Plans[i-1].Exact {
				t.Errorf("plan %d is slower and leaves no more memory free than the one before", i)
			}
		}
	}
}

func TestATargetGetsOnlyWhatItCan(t *testing.T) {
	m := decoder(t, 80, 8192, 64, 8, 28672, 128256)
	for _, target := range Targets() {
		r, err := Make(&Request{Workload: hfWorkload(m, 1, 1, 4096, 64), Batch: 128, Hardware: h100s(64), Headroom: 0.05, Targets: []Target{target}})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Plans) == 0 {
			t.Errorf("%s: no plan for 70B on 64 cards", target)
		}
		a := target.abilities()
		for i := range r.Plans {
			c := &r.Plans[i].Choice
			if !a.can(c, r.planner.space.layersOfRank(c)) || len(r.Plans[i].Targets) != 1 || r.Plans[i].Targets[0] != target {
				t.Errorf("%s: %v cannot run %+v", target, r.Plans[i].Targets, c)
			}
		}
	}
}

func TestWhatIsNeededWhereNothingFits(t *testing.T) {
	m := decoder(t, 80, 8192, 64, 8, 28672, 32000)
	h := h100s(1)
	h.Host = 64 * units.GiB // too little to offload 70B
	r, err := Make(&Request{Workload: hfWorkload(m, 1, 64, 2048, 1), Hardware: h, Headroom: 0.05, Targets: []Target{HF}})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Plans) != 0 {
		t.Fatalf("70B in full on one card of 80 GiB: %+v", r.Plans[0].Choice)
	}
	kinds := map[NeedKind]Need{}
	for _, n := range r.Needs {
		kinds[n.Kind] = n
	}
	if n, ok := kinds[NeedGPUs]; !ok || n.GPUs < 8 || n.GPUs > 32 {
		t.Errorf("more cards: %+v", n)
	}
	if n, ok := kinds[NeedPEFT]; !ok || n.Choice.Method != QLoRA {
		t.Errorf("adapters: %+v", n)
	}
}

func TestARequestThatContradictsItself(t *testing.T) {
	m := decoder(t, 4, 256, 4, 4, 1024, 1000)
	w := hfWorkload(m, 1, 1, 512, 1)
	for _, c := range []struct {
		code string
		req  Request
	}{
		{"no_gpus", Request{Workload: w}},
		{"headroom", Request{Workload: w, Hardware: h100s(1), Headroom: 1}},
		{"batch", Request{Workload: w, Hardware: h100s(1), Batch: -1}},
	} {
		_, err := Make(&c.req)
		if e, ok := errors.AsType[*RequestError](err); !ok || e.Code != c.code {
			t.Errorf("%s: %v", c.code, err)
		}
	}
}

// A Judge that finds more memory than the closed form is believed: the plan fits
// by its figures.
func TestTheEngineDecides(t *testing.T) {
	m := decoder(t, 32, 4096, 32, 8, 14336, 32000)
	w := hfWorkload(m, 8, 1, 4096, 8)
	for _, factor := range []float64{0.7, 0.9, 1, 1.15, 1.4} {
		runs := 0
		var planner *planner
		judge := func(w *workload.Workload) (*memory.Estimate, error) {
			runs++
			c := choiceOf(w)
			n := planner.space.form.peak(&c)
			peak := units.Exactly(units.Bytes(factor * n.total))
			return &memory.Estimate{Allocated: peak, Reserved: peak, Device: peak, Outside: []memory.Outside{{}}, Phase: memory.Backward}, nil
		}
		req := &Request{Workload: w, Hardware: h100s(8), Headroom: 0.05, Targets: []Target{HF}, Judge: judge}
		planner, _ = newPlanner(req)
		r, err := Make(req)
		if err != nil || len(r.Plans) == 0 {
			t.Fatalf("×%.2f: no plan: %v", factor, err)
		}
		// The same search with the budget that the judge's figures leave.
		want := *planner.space
		want.budget = planner.budget / factor
		list := want.search()
		if best := r.Plans[0].Time.Mid; best > list[0].time*1.07 {
			t.Errorf("×%.2f: the plan takes %.0f µs, the best that the judge allows %.0f", factor, best, list[0].time)
		}
		if runs > maxRuns {
			t.Errorf("×%.2f: %d runs of the engine", factor, runs)
		}
	}
}

func TestHardware(t *testing.T) {
	cards, err := gpu.Published()
	if err != nil {
		t.Fatal(err)
	}
	var kinds []Hardware
	for i := range cards {
		if cards[i].MIG == "" && !cards[i].Laptop {
			kinds = append(kinds, HardwareOf(&cards[i], 1))
		}
	}
	w := hfWorkload(decoder(t, 32, 4096, 32, 8, 14336, 128256), 1, 16, 2048, 1)
	o, err := Choose(&Request{Workload: w, Headroom: 0.05, Targets: []Target{HF}}, &Market{Kinds: kinds})
	if err != nil {
		t.Fatal(err)
	}
	if o.Smallest == nil || o.Cheapest == nil || o.Fastest == nil {
		t.Fatalf("8B in full: %+v", o)
	}
	if o.Smallest.Hardware.Count > o.Fastest.Hardware.Count || o.Fastest.Plan.Time.Mid > o.Smallest.Plan.Time.Mid {
		t.Errorf("smallest %d × %s in %.0f µs, fastest %d × %s in %.0f", o.Smallest.Hardware.Count, o.Smallest.Hardware.Name, o.Smallest.Plan.Time.Mid,
			o.Fastest.Hardware.Count, o.Fastest.Hardware.Name, o.Fastest.Plan.Time.Mid)
	}
	if o.Cheapest.USDPerStep > o.Fastest.USDPerStep {
		t.Errorf("cheapest $%.5f a step, fastest $%.5f", o.Cheapest.USDPerStep, o.Fastest.USDPerStep)
	}
	capped, err := Choose(&Request{Workload: w, Headroom: 0.05}, &Market{Kinds: kinds, MaxPrice: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []*Offer{capped.Smallest, capped.Cheapest, capped.Fastest} {
		if x != nil && x.USDPerHour > 2 {
			t.Errorf("%d × %s for $%.2f an hour, more than $2", x.Hardware.Count, x.Hardware.Name, x.USDPerHour)
		}
	}
}

func TestWhyHasTheNumbers(t *testing.T) {
	w := hfWorkload(decoder(t, 32, 4096, 32, 8, 14336, 128256), 4, 4, 2048, 1)
	r, err := Make(&Request{Workload: w, Batch: 32, Hardware: h100s(1), Targets: []Target{HF}, Allow: Allow{PEFT: true}})
	if err != nil || len(r.Plans) == 0 {
		t.Fatal("no plan", err)
	}
	why := r.Explain()
	if why.Sample <= 0 || why.Token <= 0 || why.Fixed <= 0 || why.RecomputeSaves <= 0 || why.RecomputeSlowdown < 1.1 || why.RecomputeSlowdown > 1.5 {
		t.Errorf("%+v", why)
	}
	if why.Rate == nil || why.Rate.Linear != 2 || math.Abs(why.Rate.Sqrt-math.Sqrt2) > 1e-9 || !why.Rate.Adaptive {
		t.Errorf("the batch doubles: %+v", why.Rate)
	}
}

// What does not have to live in host memory is not put there for a gain that the
// prediction of time does not tell apart.
func TestHostMemoryIsUsedWhereItIsWorthIt(t *testing.T) {
	small, large := decoder(t, 32, 4096, 32, 8, 14336, 128256), decoder(t, 80, 8192, 64, 8, 28672, 128256)
	adapters := func(m *model.Model, micro, accum, seq, world int64) *workload.Workload {
		w := hfWorkload(m, micro, accum, seq, world)
		w.Method, w.Precision, w.Base, w.Checkpointing = workload.QLoRA, workload.BF16, workload.NF4Double, workload.FullCheckpoint
		w.Adapter = workload.Adapter{Rank: 16, Targets: []string{"all-linear"}}
		return w
	}
	engine, err := memory.New()
	if err != nil {
		t.Fatal(err)
	}
	without := 0
	for name, req := range map[string]Request{
		"8B on 8 large cards":         {Workload: hfWorkload(small, 1, 16, 8192, 8), Hardware: h100s(8)},
		"8B adapters on one card":     {Workload: adapters(small, 1, 16, 2048, 1), Hardware: rtx4090(1)},
		"70B adapters on large cards": {Workload: adapters(large, 1, 8, 4096, 8), Hardware: h100s(8)},
		"70B on 8 large cards":        {Workload: hfWorkload(large, 1, 8, 4096, 8), Hardware: h100s(8)},
	} {
		req.Headroom, req.Judge, req.Quick = 0.05, engine.Estimate, engine.Quick
		free, err := Make(&req)
		if err != nil {
			t.Fatal(err)
		}
		if len(free.Plans) == 0 {
			t.Fatalf("%s: no plan", name)
		}
		for i := range free.Plans {
			if p := &free.Plans[i]; p.Time.Mid < free.Plans[0].Time.Mid {
				t.Errorf("%s: plan %d takes %.3g µs, the recommended one %.3g", name, i+1, p.Time.Mid, free.Plans[0].Time.Mid)
			}
		}
		req.NoOffload = true
		bound, err := Make(&req)
		if err != nil {
			t.Fatal(err)
		}
		if len(bound.Plans) == 0 {
			continue
		}
		without++
		best := &free.Plans[0]
		if best.Choice.OffloadName() != "none" && best.Time.Mid*1.1 > bound.Plans[0].Time.Mid {
			t.Errorf("%s: %s for %.3g µs, without %.3g", name, best.Choice.OffloadName(), best.Time.Mid, bound.Plans[0].Time.Mid)
		}
	}
	if without < 3 {
		t.Errorf("%d of 4 requests have a plan without host memory", without)
	}
}
