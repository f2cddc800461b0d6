package speed

import (
	"flag"
	"fmt"
	"math"
	"slices"
	"testing"
)

var fit = flag.Bool("fit", false, "refit the constants to testdata/throughput.csv and print them")

// A knob is a constant that is fitted: it may move by a factor from its value,
// at a price.
type knob struct {
	name  string
	get   func(*Constants) *float64 // nil: a map entry
	table func(*Constants) map[Arch]float64
	kern  func(*Constants) map[Kernels]float64
	arch  Arch
	kind  Kernels
	most  float64 // upper bound, 0: none
	stiff float64 // price of a change of e-fold
}

func (k *knob) value(c *Constants) float64 {
	switch {
	case k.get != nil:
		return *k.get(c)
	case k.table != nil:
		return k.table(c)[k.arch]
	}
	return k.kern(c)[k.kind]
}

func (k *knob) set(c *Constants, v float64) {
	if k.most > 0 {
		v = min(v, k.most)
	}
	switch {
	case k.get != nil:
		*k.get(c) = v
	case k.table != nil:
		k.table(c)[k.arch] = v
	default:
		k.kern(c)[k.kind] = v
	}
}

func knobs() []knob {
	sus := func(c *Constants) map[Arch]float64 { return c.Sustained }
	att := func(c *Constants) map[Arch]float64 { return c.Attention }
	pw := func(c *Constants) map[Kernels]float64 { return c.Pointwise }
	kn := func(c *Constants) map[Kernels]float64 { return c.Kernels }
	ks := []knob{
		{name: "FP8", get: func(c *Constants) *float64 { return &c.FP8 }, most: 1},
		{name: "Wave", get: func(c *Constants) *float64 { return &c.Wave }},
		{name: "Depth", get: func(c *Constants) *float64 { return &c.Depth }},
		{name: "ShortSequence", get: func(c *Constants) *float64 { return &c.ShortSequence }},
		{name: "NormTraffic", get: func(c *Constants) *float64 { return &c.NormTraffic }},
		{name: "InnerTraffic", get: func(c *Constants) *float64 { return &c.InnerTraffic }},
		{name: "LossTraffic", get: func(c *Constants) *float64 { return &c.LossTraffic }},
		{name: "RouteTraffic", get: func(c *Constants) *float64 { return &c.RouteTraffic }},
		{name: "AdapterTraffic", get: func(c *Constants) *float64 { return &c.AdapterTraffic }},
		{name: "Dequantise", get: func(c *Constants) *float64 { return &c.Dequantise }, most: 1},
		{name: "Launch", get: func(c *Constants) *float64 { return &c.Launch }},
		{name: "StepHost", get: func(c *Constants) *float64 { return &c.StepHost }},
		{name: "Link", get: func(c *Constants) *float64 { return &c.Link }, most: 0.9},
		{name: "PCIe", get: func(c *Constants) *float64 { return &c.PCIe }, most: 0.9},
		{name: "NIC", get: func(c *Constants) *float64 { return &c.NIC }, most: 0.95},
		{name: "HopInside", get: func(c *Constants) *float64 { return &c.HopInside }},
		{name: "HopAcross", get: func(c *Constants) *float64 { return &c.HopAcross }},
		{name: "Contention", get: func(c *Constants) *float64 { return &c.Contention }, most: 0.5},
		{name: "TensorOverlap", get: func(c *Constants) *float64 { return &c.TensorOverlap }, most: 1},
		{name: "PipelineExposed", get: func(c *Constants) *float64 { return &c.PipelineExposed }, most: 1},
		{name: "HeadImbalance", get: func(c *Constants) *float64 { return &c.HeadImbalance }, most: 1},
		{name: "HookHost", get: func(c *Constants) *float64 { return &c.HookHost }},
		{name: "TensorGather", get: func(c *Constants) *float64 { return &c.TensorGather }},
		{name: "HostBandwidth", get: func(c *Constants) *float64 { return &c.HostBandwidth }},
		{name: "AttentionBackward", get: func(c *Constants) *float64 { return &c.AttentionBackward }, most: 3.5, stiff: 0.2},
		{name: "PointwiseBackward", get: func(c *Constants) *float64 { return &c.PointwiseBackward }, most: 2.5, stiff: 0.2},
	}
	for _, a := range []Arch{Ampere, AmpereGA, Ada, Hopper, Blackwell} {
		ks = append(ks, knob{name: "Sustained " + string(a), table: sus, arch: a, most: 0.9, stiff: 0.1})
	}
	for _, a := range []Arch{Ampere, Hopper, Blackwell} {
		ks = append(ks, knob{name: "Attention " + string(a), table: att, arch: a, most: 1})
	}
	for _, k := range []Kernels{Fused, Compiled, Megatron} {
		ks = append(ks, knob{name: "Pointwise " + string(k), kern: pw, kind: k, most: 1.2})
	}
	for _, k := range []Kernels{Eager, Fused, Compiled, Megatron} {
		ks = append(ks, knob{name: "Kernels " + string(k), kern: kn, kind: k})
	}
	for i := range ks {
		if ks[i].stiff == 0 {
			ks[i].stiff = 0.02
		}
	}
	return ks
}

// loss is the mean over the sources of the mean error in the logarithm, with
// outliers counted by their size, not its square.
func loss(rows []Row, c *Constants, skip string) float64 {
	sum, n := map[string]float64{}, map[string]float64{}
	for i := range rows {
		r := &rows[i]
		if r.Source == skip {
			continue
		}
		_, mid, _ := r.Predicted(c)
		e := math.Abs(math.Log(mid / r.Measured))
		const knee = 0.1
		if e < knee {
			e = e * e / (2 * knee)
		} else {
			e -= knee / 2
		}
		sum[r.Source] += e
		n[r.Source]++
	}
	// In a fixed order, so that the same table gives the same constants.
	names := make([]string, 0, len(sum))
	for s := range sum {
		names = append(names, s)
	}
	slices.Sort(names)
	total := 0.0
	for _, s := range names {
		total += sum[s] / n[s]
	}
	return total / float64(len(names))
}

// refit moves the constants to fit all sources but one.
func refit(rows []Row, skip string) *Constants {
	c, prior := Prior(), Prior()
	ks := knobs()
	price := func() float64 {
		p := 0.0
		for i := range ks {
			l := math.Log(ks[i].value(c) / ks[i].value(prior))
			p += ks[i].stiff * l * l
		}
		return p
	}
	best := loss(rows, c, skip) + price()
	for step := 0.3; step > 0.01; step /= 2 {
		for improved := true; improved; {
			improved = false
			for i := range ks {
				old := ks[i].value(c)
				for _, f := range []float64{math.Exp(step), math.Exp(-step)} {
					ks[i].set(c, old*f)
					if l := loss(rows, c, skip) + price(); l < best-1e-6 {
						best, improved, old = l, true, ks[i].value(c)
						break
					}
					ks[i].set(c, old)
				}
			}
		}
	}
	return c
}

// TestFit prints the constants that fit the published table, and how well the
// sources left out of a fit are predicted by it.
func TestFit(t *testing.T) {
	if !*fit {
		t.Skip("go test ./internal/speed -run TestFit -v -fit refits the constants")
	}
	rows := table(t)
	c := refit(rows, "")
	ks := knobs()
	for i := range ks {
		fmt.Printf("%-22s %8.3f -> %8.3f\n", ks[i].name, ks[i].value(Prior()), ks[i].value(c))
	}
	for _, s := range Score(rows, c) {
		fmt.Printf("%-18s %4d rows  spearman %.3f  kendall %.3f (%d pairs)  median error %.1f %%  bias %+.1f %%  inside %.0f %%\n",
			s.Source, s.Rows, s.Spearman, s.Kendall, s.Pairs, 100*s.Median, 100*s.Bias, 100*s.Inside)
	}
	var all []float64
	for _, s := range Score(rows, c) {
		if s.Source == "all" {
			continue
		}
		left := refit(rows, s.Source)
		for _, o := range Score(rows, left) {
			if o.Source == s.Source {
				fmt.Printf("left out: %-18s spearman %.3f  kendall %.3f  median error %.1f %%  bias %+.1f %%\n", s.Source, o.Spearman, o.Kendall, 100*o.Median, 100*o.Bias)
			}
		}
		for i := range rows {
			if rows[i].Source == s.Source {
				_, mid, _ := rows[i].Predicted(left)
				all = append(all, math.Abs(math.Log(mid/rows[i].Measured)))
			}
		}
	}
	slices.Sort(all)
	fmt.Printf("left out, factor of error: median %.2f  80 %% %.2f  90 %% %.2f\n", math.Exp(all[len(all)/2]), math.Exp(all[len(all)*8/10]), math.Exp(all[len(all)*9/10]))
}
