package plan

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"unoom/internal/memory"
	"unoom/internal/model"
	"unoom/internal/speed"
)

func decoder(t testing.TB, layers, hidden, heads, kv, ffn, vocab int64) *model.Model {
	t.Helper()
	m, err := model.FromDims("test", model.Dims{Layers: layers, Hidden: hidden, Heads: heads, KVHeads: kv, FFN: ffn, Vocab: vocab})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func h100() *speed.Device {
	return &speed.Device{Arch: speed.Hopper, BF16: 989, FP16: 989, FP8: 1979, TF32: 495, FP32: 67, Bandwidth: 3350, SMs: 132, Link: 450, PCIe: 55, NIC: 50, PerNode: 8}
}

// newSpace is a space of a model on n accelerators of 80 GiB.
func newSpace(m *model.Model, n, batch, seq int) *space {
	s := &space{
		shape: newShape(m, nil, nil), net: speed.FromModel(m), device: h100(), consts: speed.Default(),
		batch: batch, perNode: 8, budget: 78 * (1 << 30), stacks: stacksOf(Targets()), offload: true, slowest: 2,
		methods: []Method{FullTune}, precisions: []Precision{Mixed16}, optimizers: []Optimizer{AdamW, AdamWFused},
		losses: []Loss{PlainLoss, ChunkedLoss, FusedLoss}, attentions: []Attention{SDPAAttention}, seqs: []int{seq},
	}
	for g := n; g >= 1; g /= 2 {
		s.gpus = append(s.gpus, g)
		if g%2 != 0 {
			break
		}
	}
	s.form = &form{s: s.shape, outside: 600 << 20, link: true, packed: 0.52}
	s.base = Choice{Seq: seq, Precision: Mixed16, Method: FullTune, Optimizer: AdamW, Loss: PlainLoss, Attention: SDPAAttention, Kernels: speed.Eager}
	return s
}

// brute tries every value of every field and keeps what the front keeps, with
// none of the search's shortcuts.
func (s *space) brute() []candidate {
	var all []candidate
	upto := func(n int) []int {
		var l []int
		for i := 1; i <= n; i++ {
			l = append(l, i)
		}
		return l
	}
	bools := []bool{false, true}
	s.variants(func(v Choice) {
		for _, gpus := range s.gpus {
			for _, tp := range upto(gpus) {
				for _, pp := range upto(gpus / tp) {
					for _, cp := range upto(gpus / tp / pp) {
						data := gpus / tp / pp / cp
						if data*tp*pp*cp != gpus || s.batch%data != 0 || (tp&(tp-1)) != 0 || (cp&(cp-1)) != 0 || (cp > 1 && v.Seq/cp < 2048) {
							continue
						}
						for _, sh := range []speed.Sharding{speed.NoSharding, speed.DDP, speed.ZeRO1, speed.ZeRO2, speed.ZeRO3, speed.FSDP} {
							for _, g := range upto(data) {
								node := s.perNode / (tp * cp)
								if g != data && !(sh == speed.FSDP && g == node && node > 1) && !((sh == speed.NoSharding || sh == speed.DDP) && g == 1) {
									continue
								}
								if (sh == speed.NoSharding || sh == speed.DDP) && g != 1 {
									continue
								}
								for _, ch := range []int{1, 2, 4} {
									for _, ow := range bools {
										for _, oo := range bools {
											for _, oa := range bools {
												if ow && !oo && v.Method == FullTune || oo && v.Method != FullTune || oa && (oo || ow) {
													continue
												}
												alone := data == 1 && cp == 1 && sh != speed.NoSharding
												if alone && !ow && !oo || (ow || oo || oa) && !s.offload {
													continue
												}
												for _, m := range upto(s.batch / data) {
													for _, r := range []Recompute{RecomputeNone, RecomputeSelective, RecomputeFull} {
														c := v
														c.GPUs, c.Tensor, c.Pipeline, c.Context, c.Data, c.Expert = gpus, tp, pp, cp, data, 1
														c.Sharding, c.Shard, c.Chunks = sh, g, ch
														c.OffloadWeights, c.OffloadOptimizer, c.OffloadActivations = ow, oo, oa
														c.Micro, c.Accumulation = m, s.batch/data/m
														c.Recompute, c.Expandable = r, true
														per := s.layersOfRank(&c)
														ks := []int{0}
														if r == RecomputeSelective || oa {
															ks = []int{per}
														} else if r == RecomputeFull {
															ks = upto(per)
														}
														if oa && r != RecomputeFull {
															continue
														}
														for _, k := range ks {
															c.Layers = k
															if s.check(&c) != "" {
																continue
															}
															if n := s.form.peak(&c); s.fits(&n) {
																all = append(all, candidate{c, n, s.rank(&c)})
															}
														}
													}
												}
											}
										}
									}
								}
							}
						}
					}
				}
			}
		}
	})
	var out []candidate
	best := math.Inf(1)
	for i := range all {
		best = min(best, all[i].time)
	}
	for i := range all {
		beaten := all[i].time > best*s.slowest
		for j := range all {
			if all[j].time <= all[i].time && all[j].need.total <= all[i].need.total && (all[j].time < all[i].time || all[j].need.total < all[i].need.total) {
				beaten = true
				break
			}
		}
		if !beaten {
			out = append(out, all[i])
		}
	}
	return out
}

// The search prunes; trying everything finds the same front.
func TestSearchFindsWhatBruteForceFinds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		heads := int64(1) << rapid.IntRange(1, 3).Draw(t, "heads")
		layers := int64(rapid.IntRange(2, 8).Draw(t, "layers"))
		m, err := model.FromDims("test", model.Dims{Layers: layers, Hidden: heads * 64, Heads: heads, KVHeads: heads / 2, FFN: heads * 128, Vocab: 5000})
		if err != nil {
			t.Fatal(err)
		}
		n := rapid.SampledFrom([]int{1, 2, 3, 4, 6, 8}).Draw(t, "gpus")
		s := newSpace(m, n, rapid.IntRange(1, 16).Draw(t, "batch"), rapid.SampledFrom([]int{512, 4096, 8192}).Draw(t, "seq"))
		s.perNode = rapid.SampledFrom([]int{1, 2, 4, 8}).Draw(t, "node")
		s.device.PerNode = s.perNode
		targets := rapid.SampledFrom([][]Target{Targets(), {HF}, {Megatron}, {Torchtitan}, {DeepSpeed}}).Draw(t, "targets")
		s.stacks = stacksOf(targets)
		s.losses = s.losses[:rapid.IntRange(1, 2).Draw(t, "losses")]
		s.optimizers = s.optimizers[:1]
		if len(targets) == 1 && targets[0] == Megatron {
			s.optimizers[0] = AdamWFused
		}
		s.offload = rapid.Bool().Draw(t, "offload")
		s.form.outside = 0
		// A budget that some of the space fits and some does not.
		s.budget = rapid.Float64Range(0.1, 4).Draw(t, "budget") * (1 << 30)
		got, want := s.search(), s.brute()
		points := func(l []candidate) map[[2]float64]bool {
			p := map[[2]float64]bool{}
			for i := range l {
				p[[2]float64{l[i].time, l[i].need.total}] = true
			}
			return p
		}
		g, w := points(got), points(want)
		for p := range w {
			if !g[p] {
				t.Fatalf("the search misses %.0f µs, %.0f bytes; found %d of %d", p[0], p[1], len(g), len(w))
			}
		}
		for p := range g {
			if !w[p] {
				t.Fatalf("the search has %.0f µs, %.0f bytes that does not belong to the front", p[0], p[1])
			}
		}
	})
}

// A plan over the whole space, with the engine's answers: 8 accelerators in less
// than 100 ms, 1,024 in less than a second on one core.
func BenchmarkPlan8GPUs(b *testing.B) {
	benchmarkPlan(b, decoder(b, 32, 4096, 32, 8, 14336, 128256), 8, 128, Allow{})
}

func BenchmarkPlan8GPUsEverythingAllowed(b *testing.B) {
	benchmarkPlan(b, decoder(b, 32, 4096, 32, 8, 14336, 128256), 8, 128, Allow{Precision: true, PEFT: true, Optimizer: true})
}

func BenchmarkPlan1024GPUs(b *testing.B) {
	benchmarkPlan(b, decoder(b, 80, 8192, 64, 8, 28672, 128256), 1024, 2048, Allow{})
}

func BenchmarkPlan1024GPUsEverythingAllowed(b *testing.B) {
	benchmarkPlan(b, decoder(b, 80, 8192, 64, 8, 28672, 128256), 1024, 2048, Allow{Precision: true, PEFT: true, Optimizer: true})
}

func BenchmarkPlan4096GPUs(b *testing.B) {
	benchmarkPlan(b, decoder(b, 126, 16384, 128, 8, 53248, 128256), 4096, 4096, Allow{})
}

func benchmarkPlan(b *testing.B, m *model.Model, n, batch int, allow Allow) {
	engine, err := memory.New()
	if err != nil {
		b.Fatal(err)
	}
	w := hfWorkload(m, 1, int64(max(1, batch/n)), 8192, int64(n))
	req := &Request{Workload: w, Batch: batch, Hardware: h100s(n), Headroom: 0.05, Allow: allow, Judge: engine.Estimate, Quick: engine.Quick}
	b.ReportAllocs()
	var r *Result
	for b.Loop() {
		r, err = Make(req)
		if err != nil || len(r.Plans) == 0 {
			b.Fatal("no plan", err)
		}
	}
	b.ReportMetric(float64(r.planner.looks), "looks")
	b.ReportMetric(float64(r.Judged), "estimates")
}
