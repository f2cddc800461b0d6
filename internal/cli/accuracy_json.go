package cli

import "unoom/internal/accuracy"

// The keys of accuracy --json. They are stable.
type (
	accuracyDataJSON struct {
		Sources       []groupJSON  `json:"sources"`
		All           groupJSON    `json:"all"`
		Verdicts      verdictsJSON `json:"verdicts"`
		MeanOfMedians *float64     `json:"mean_of_medians_ratio"` // null: nothing is compared
	}
	groupJSON struct {
		Name    string  `json:"name"`
		Rows    int     `json:"rows"`
		Covered int     `json:"covered"`
		Median  float64 `json:"median_error_ratio"`
		P95     float64 `json:"p95_error_ratio"`
		Bias    float64 `json:"bias_ratio"`
		Under   float64 `json:"under_ratio"`
		Inside  float64 `json:"inside_ratio"`
		Width   float64 `json:"width_ratio"`
	}
	verdictsJSON struct {
		Judged            int `json:"judged"`
		Right             int `json:"right"`
		Tight             int `json:"tight"`
		OOMs              int `json:"ooms"`
		FalseFits         int `json:"false_fits"`
		Inferred          int `json:"inferred_ooms"`
		InferredFalseFits int `json:"inferred_false_fits"`
	}
)

func groupOf(g accuracy.Group) groupJSON {
	return groupJSON{g.Name, g.Rows, g.Covered, g.Median, g.P95, g.Bias, g.Under, g.Inside, g.Width}
}

// accuracyJSON prints the score of the compared rows, and the verdicts of all.
func (a *app) accuracyJSON(compared, all []*accuracy.Case) error {
	groups := accuracy.BySource(compared)
	v := accuracy.Score("", all)
	out := accuracyDataJSON{
		Sources: []groupJSON{}, All: groupOf(accuracy.Score("all", compared)),
		Verdicts: verdictsJSON{v.Verdicts, v.Right, v.Tight, v.OOMs, v.FalseFits, v.Inferred, v.FalseThere},
	}
	for _, g := range groups {
		out.Sources = append(out.Sources, groupOf(g))
	}
	if mean := accuracy.MeanOfMedians(groups); out.All.Covered > 0 {
		out.MeanOfMedians = &mean
	}
	return a.printJSON("unoom/accuracy/v1", nil, out)
}
