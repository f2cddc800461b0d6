// Package accuracy compares predictions with measured runs, source by source.
//
// A row is compared with the quantity that it measured: allocated or active
// bytes with the predicted allocated, reserved with reserved, nvidia-smi with
// the device's. A row whose quantity is not named is not compared. A row that
// cannot be predicted is counted as not covered, with the reason; it is never
// guessed. The package reads and counts; predicting is its caller's.
package accuracy

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// A Metric is the quantity that a row measured.
type Metric string

// The metrics.
const (
	Allocated Metric = "allocated"
	Reserved  Metric = "reserved"
	Device    Metric = "device"
	Held      Metric = "held" // allocated when the forward pass has ended
	Unnamed   Metric = ""
)

// MetricOf reads the words of a table's measured_metric column.
func MetricOf(text string) Metric {
	low := strings.ToLower(text)
	switch {
	case strings.Contains(low, "after forward"):
		return Held
	case strings.Contains(low, "after backward"), strings.Contains(low, "unspecified"), strings.Contains(low, "approx"):
		return Unnamed
	case strings.Contains(low, "nvidia-smi"):
		return Device
	case strings.Contains(low, "reserved"):
		return Reserved
	case strings.Contains(low, "allocated"), strings.Contains(low, "active"):
		return Allocated
	}
	return Unnamed
}

// A Verdict is whether a run fits its card.
type Verdict string

// The verdicts.
const (
	Fits       Verdict = "fits"
	Tight      Verdict = "tight"
	DoesNotFit Verdict = "does_not_fit"
)

// A Case is one row with its prediction.
type Case struct {
	ID, Source, Model string
	Metric            Metric
	Strict            bool
	Vision            bool
	Measured          float64 // GiB; 0: no figure
	Predicted         float64 // GiB, of the metric; 0: not covered
	Low, High         float64
	WhyNot            string

	// Outcome is "fits" or "OOM"; Verdict what was predicted, "" if the card is
	// not known. Firm says that an OOM is neither inferred nor fragmentation.
	Outcome string
	Verdict Verdict
	Firm    bool
	Judged  bool // good enough for the verdict score
}

// Covered reports whether the row was predicted.
func (c *Case) Covered() bool { return c.WhyNot == "" }

// Error is (predicted − measured) / measured.
func (c *Case) Error() float64 { return (c.Predicted - c.Measured) / c.Measured }

// Inside reports whether the measured value lies in the interval, to the three
// decimals that tables give.
func (c *Case) Inside() bool {
	const half = 0.0005
	return c.Measured >= c.Low-half && c.Measured <= c.High+half
}

// A Group is the score of some rows.
type Group struct {
	Name                 string
	Rows, Covered        int
	Median, P95, Bias    float64 // of |error|, and signed
	Under                float64 // share below the measured value
	Inside, Width        float64 // share inside the interval, median width
	Verdicts, Right      int     // Right: "fits" and it ran, "does not fit" and it did not
	Tight                int     // neither right nor wrong: it may fit
	OOMs, FalseFits      int     // firm ones
	Inferred, FalseThere int     // OOMs that are not firm
}

// Score computes the figures of the compared rows of a group and the verdicts of
// the judged ones.
func Score(name string, cases []*Case) Group {
	g := Group{Name: name}
	var abs, width []float64
	for _, c := range cases {
		if c.Measured > 0 && c.Metric != Unnamed {
			g.Rows++
			if c.Covered() {
				g.Covered++
				e := c.Error()
				abs = append(abs, math.Abs(e))
				g.Bias += e
				if e < 0 {
					g.Under++
				}
				if c.Inside() {
					g.Inside++
				}
				width = append(width, (c.High-c.Low)/c.Predicted)
			}
		}
		if c.Judged && c.Covered() && c.Verdict != "" {
			g.Verdicts++
			oom := c.Outcome == "OOM"
			switch {
			case c.Verdict == Tight:
				g.Tight++
			case oom == (c.Verdict == DoesNotFit):
				g.Right++
			}
			switch {
			case oom && c.Firm:
				g.OOMs++
				if c.Verdict == Fits {
					g.FalseFits++
				}
			case oom:
				g.Inferred++
				if c.Verdict == Fits {
					g.FalseThere++
				}
			}
		}
	}
	if g.Covered > 0 {
		n := float64(g.Covered)
		g.Bias /= n
		g.Under /= n
		g.Inside /= n
		g.Median, g.P95 = Quantile(abs, 0.5), Quantile(abs, 0.95)
		g.Width = Quantile(width, 0.5)
	}
	return g
}

// Quantile returns the q-quantile of values by linear interpolation.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	v := slices.Sorted(slices.Values(values))
	at := q * float64(len(v)-1)
	i := int(at)
	if i+1 == len(v) {
		return v[i]
	}
	return v[i] + (at-float64(i))*(v[i+1]-v[i])
}

// BySource groups cases, the sources in the order of their names.
func BySource(cases []*Case) []Group {
	by := map[string][]*Case{}
	for _, c := range cases {
		by[c.Source] = append(by[c.Source], c)
	}
	var out []Group
	for name, cs := range by {
		out = append(out, Score(name, cs))
	}
	slices.SortFunc(out, func(a, b Group) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// MeanOfMedians weighs every source alike.
func MeanOfMedians(groups []Group) float64 {
	sum, n := 0.0, 0
	for _, g := range groups {
		if g.Covered > 0 {
			sum += g.Median
			n++
		}
	}
	if n == 0 {
		return math.NaN()
	}
	return sum / float64(n)
}

// Worst returns the n covered rows with the largest errors.
func Worst(cases []*Case, n int) []*Case {
	var list []*Case
	for _, c := range cases {
		if c.Covered() && c.Measured > 0 && c.Metric != Unnamed {
			list = append(list, c)
		}
	}
	slices.SortStableFunc(list, func(a, b *Case) int { return cmp.Compare(math.Abs(b.Error()), math.Abs(a.Error())) })
	return list[:min(n, len(list))]
}
