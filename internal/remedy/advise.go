package remedy

import (
	"cmp"
	"slices"

	"unoom/internal/units"
)

// Advice is a remedy in one situation.
type Advice struct {
	Remedy
	Why   Reason
	Saves *units.Estimate // nil: not known, or not a matter of bytes
	// Sufficient says whether the remedy alone covers the shortfall of this
	// failure; nil where the message does not decide it.
	Sufficient *bool
	// Predicted says that Saves and Sufficient are of the whole run, played with
	// this change, and not of the failed request alone.
	Predicted bool
	// Fill holds the user's own numbers for the placeholders of the page.
	Fill map[string]string
	// Score ranks the advice; it is the share of the confidence that the remedy
	// answers, weighted by what it costs and whether it is enough.
	Score float64
}

// Assess judges one remedy in a situation whatever the causes: what it saves
// there, what it costs, and whether it covers the shortfall. It is false where
// the remedy cannot apply, as for plan, which asks before anything has failed.
func Assess(s Situation, code Code) (Advice, bool) {
	r, ok := Find(code)
	if !ok {
		return Advice{}, false
	}
	return assess(r, &facts{s}, 1)
}

// relevant is the least score at which a remedy still follows from the
// situation and not just from a remote possibility.
const relevant = 0.08

// Advise returns the remedies that follow from a situation, best first:
// sufficient before doubtful, exact before approximate, cheap before dear, and
// those that cure a likely cause before those that only make room.
func Advise(s Situation) []Advice {
	f := &facts{s}
	var out []Advice
	for _, r := range All() {
		if !s.Framework.suits(r.Code) {
			continue
		}
		answered := f.weight(r.Cures...) + 0.5*f.weight(r.Eases...)
		if answered == 0 {
			continue
		}
		if a, ok := assess(r, f, answered); ok && answered >= relevant {
			out = append(out, a)
		}
	}
	slices.SortStableFunc(out, func(a, b Advice) int { return cmp.Compare(b.Score, a.Score) })
	return out
}

// assess judges a remedy that answers a share of the causes.
func assess(r Remedy, f *facts, answered float64) (Advice, bool) {
	v := r.judge(f)
	if !v.applies {
		return Advice{}, false
	}
	if e, ok := f.Saves[r.Code]; ok {
		v.saves = &e
	}
	fits, predicted := f.Fits[r.Code]
	if predicted {
		v.enough = &fits
	}
	a := Advice{Remedy: r, Why: v.why, Saves: v.saves, Sufficient: v.enough, Predicted: predicted, Fill: v.fill}
	if a.Sufficient == nil {
		a.Sufficient = f.enough(v.saves)
	}
	a.Score = answered * a.worth(v.weight)
	return a, true
}

// worth is what a remedy's cost leaves of its rank.
func (a Advice) worth(weight float64) float64 {
	w := 1.0
	if weight > 0 {
		w = weight
	}
	if a.Sufficient != nil {
		if *a.Sufficient {
			w *= 1.3
		} else {
			w *= 0.35
		}
	}
	if !a.Exact {
		w *= 0.7
	}
	if a.Slowdown.Known() && a.Slowdown.Mid() > 1 {
		w /= 1 + (a.Slowdown.Mid() - 1)
	}
	return w * [...]float64{Setting: 1, Edit: 0.95, Rework: 0.8, Purchase: 0.4}[a.Effort]
}
