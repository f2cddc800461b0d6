package cli

import (
	"unoom/internal/account"
	"unoom/internal/diagnose"
	"unoom/internal/i18n"
	"unoom/internal/remedy"
	"unoom/internal/report"
	"unoom/internal/units"
)

// explainJSON is `data` of unoom/explain/v1. Keys are only added.
type explainJSON struct {
	IsOOM    bool   `json:"is_oom"`
	Verdict  string `json:"verdict"`
	Resource string `json:"resource"`
	Headline string `json:"headline"`
	Phase    string `json:"phase,omitempty"`

	Causes   []causeItem      `json:"causes"`
	Account  *account.Account `json:"account"`
	Tried    *units.Bytes     `json:"tried_bytes"`
	Slack    *units.Bytes     `json:"slack_bytes"`
	Remedies []remedyItem     `json:"remedies"`
	Next     *nextItem        `json:"next"`
	Notes    []string         `json:"notes"`
	Failure  *failureItem     `json:"failure"`
	Where    *whereItem       `json:"where"`
	Setting  settingItem      `json:"setting"`
	Other    *otherItem       `json:"other_error"`
	Later    []failureItem    `json:"later"`
	// Estimate is what the whole run needs at its peak, where model, batch and
	// length are known.
	Estimate *estimateItem `json:"estimate,omitempty"`
	// Snapshot is there if a memory snapshot was explained.
	Snapshot *snapshotItem `json:"snapshot,omitempty"`
}

type estimateItem struct {
	Peak  spanJSON       `json:"peak_allocated_bytes"`
	Phase remedy.Phase   `json:"phase"`
	Parts []account.Part `json:"parts"`
}

type spanJSON struct {
	Low  units.Bytes `json:"low"`
	Mid  units.Bytes `json:"mid"`
	High units.Bytes `json:"high"`
}

type causeItem struct {
	Label      remedy.Cause   `json:"label"`
	Confidence float64        `json:"confidence"`
	Evidence   []evidenceItem `json:"evidence"`
}

type evidenceItem struct {
	ID   string `json:"id"`
	Text string `json:"text"`
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"`
}

type remedyItem struct {
	Code         remedy.Code  `json:"code"`
	Title        string       `json:"title"`
	Why          string       `json:"why"`
	Saves        *units.Bytes `json:"saves_bytes"`
	SavesLow     *units.Bytes `json:"saves_low_bytes"`
	SavesHigh    *units.Bytes `json:"saves_high_bytes"`
	Slowdown     *float64     `json:"slowdown_ratio"`
	SlowdownLow  *float64     `json:"slowdown_low_ratio"`
	SlowdownHigh *float64     `json:"slowdown_high_ratio"`
	Exact        bool         `json:"exact"`
	Sufficient   *bool        `json:"sufficient"`
	// Predicted says that saving and sufficient are of the whole run, played with
	// this change.
	Predicted bool     `json:"predicted"`
	Drawback  string   `json:"drawback"`
	Framework string   `json:"framework"`
	Apply     []string `json:"apply"`
	// Values are the user's own numbers that Apply was filled with.
	Values map[string]string `json:"values"`
	Score  float64           `json:"score"`
}

type nextItem struct {
	Reason  string `json:"reason"`
	Command string `json:"command,omitempty"`
}

type failureItem struct {
	Pattern string `json:"pattern"`
	Class   string `json:"class"`
	Text    string `json:"text"`
	File    string `json:"file"`
	Line    int    `json:"line"`
	Rank    *int   `json:"rank"`
	Attempt int    `json:"attempt"`
	Repeats int    `json:"repeats"`
}

type whereItem struct {
	File string `json:"file"`
	Line int    `json:"line"`
	Func string `json:"func,omitempty"`
	Code string `json:"code,omitempty"`
}

type settingItem struct {
	Framework    string `json:"framework,omitempty"`
	Model        string `json:"model,omitempty"`
	GPU          string `json:"gpu,omitempty"`
	MicroBatch   int    `json:"micro_batch,omitempty"`
	Accumulation int    `json:"accumulation,omitempty"`
	Sequence     int    `json:"sequence,omitempty"`
	WorldSize    int    `json:"world_size,omitempty"`
	DType        string `json:"dtype,omitempty"`
	Optimizer    string `json:"optimizer,omitempty"`
}

type otherItem struct {
	Text string `json:"text"`
	File string `json:"file"`
	Line int    `json:"line"`
}

func (e *explain) printExplainJSON(d *diagnose.Diagnosis, v *report.Explanation) error {
	var warnings []warning
	for _, w := range v.Warnings {
		warnings = append(warnings, warning{Code: "input", Msg: w})
	}
	return e.printJSON("unoom/explain/v1", warnings, explainData(d, v))
}

// explainData is the view of a diagnosis as JSON.
func explainData(d *diagnose.Diagnosis, v *report.Explanation) *explainJSON {
	data := &explainJSON{
		IsOOM: d.IsOOM(), Verdict: string(d.Verdict), Resource: d.Resource, Headline: v.Headline, Phase: string(d.Phase),
		Causes: []causeItem{}, Account: d.Account, Slack: d.Slack, Remedies: []remedyItem{}, Notes: v.Notes, Later: []failureItem{},
	}
	if d.Tried > 0 {
		data.Tried = &d.Tried
	}
	if data.Notes == nil {
		data.Notes = []string{}
	}
	for i, c := range d.Causes {
		item := causeItem{c.Label, rounded(c.Confidence), []evidenceItem{}}
		for j, s := range c.Evidence {
			view := v.Causes[i].Evidence[j]
			file := view.In.Name
			if view.In.Line == 0 {
				file = ""
			}
			item.Evidence = append(item.Evidence, evidenceItem{s.ID, view.Text, file, view.In.Line})
		}
		data.Causes = append(data.Causes, item)
	}
	for _, r := range v.Remedies {
		data.Remedies = append(data.Remedies, remedyItemOf(r, d.Situation.Framework))
	}
	if v.Next != nil {
		data.Next = &nextItem{v.Next.Reason, v.Next.Command}
	}
	if d.Failure != nil {
		item := failureItemOf(d, 0)
		data.Failure = &item
	}
	for i := range d.Later {
		data.Later = append(data.Later, failureItemOf(d, i+1))
	}
	if w := d.Where; w != nil {
		data.Where = &whereItem{w.File, w.Line, w.Func, w.Code}
	}
	if o := d.OtherError; o != nil {
		data.Other = &otherItem{o.Text, o.Source.Name, o.Source.Line}
	}
	if p := v.Prediction; p != nil {
		data.Estimate = &estimateItem{spanJSON{p.Peak.Low, p.Peak.Mid, p.Peak.High}, p.Phase, p.Parts}
	}
	s := d.Situation
	data.Setting = settingItem{
		string(s.Framework), s.Model, s.GPU, s.MicroBatch, s.Accumulation, s.Sequence, s.WorldSize, s.DType, s.Optimizer,
	}
	return data
}

// failureItemOf returns the failure of a diagnosis: the first cause for 0, what
// came after it for more.
func failureItemOf(d *diagnose.Diagnosis, n int) failureItem {
	f := *d.Failure
	if n > 0 {
		f = d.Later[n-1]
	}
	item := failureItem{
		Pattern: f.Pattern, Class: string(f.Class), Text: f.Text, File: f.Source.Name, Line: f.Source.Line,
		Attempt: f.Attempt, Repeats: f.Repeats,
	}
	if f.Rank >= 0 {
		item.Rank = &f.Rank
	}
	return item
}

func remedyItemOf(r report.RemedyView, framework remedy.Framework) remedyItem {
	item := remedyItem{
		Code: r.Code, Title: r.Title, Why: r.WhyText, Exact: r.Exact, Sufficient: r.Sufficient, Predicted: r.Predicted,
		Drawback: r.Drawback, Framework: string(framework), Apply: r.Lines, Values: r.Fill, Score: rounded(r.Score),
	}
	if item.Values == nil {
		item.Values = map[string]string{}
	}
	if s := r.Saves; s != nil {
		item.Saves, item.SavesLow, item.SavesHigh = &s.Mid, &s.Low, &s.High
	}
	if s := r.Slowdown; s.Known() {
		mid := rounded(s.Mid())
		item.Slowdown, item.SlowdownLow, item.SlowdownHigh = &mid, &s.Low, &s.High
	}
	return item
}

// rounded keeps three decimals: more would only look exact.
func rounded(x float64) float64 { return float64(int(x*1000+0.5)) / 1000 }

// pageItem is `data` of unoom/remedy/v1.
type pageItem struct {
	Code     remedy.Code         `json:"code"`
	Title    string              `json:"title"`
	Summary  string              `json:"summary"`
	Helps    string              `json:"helps"`
	Not      string              `json:"does_not_help"`
	Cost     string              `json:"cost"`
	Drawback string              `json:"drawback"`
	Exact    bool                `json:"exact"`
	Slowdown []float64           `json:"slowdown_ratio_range"`
	Cures    []remedy.Cause      `json:"cures"`
	Eases    []remedy.Cause      `json:"eases"`
	Apply    map[string][]string `json:"apply"`
	Sources  string              `json:"sources"`
}

func remedyJSON(r remedy.Remedy, page remedy.Page) pageItem {
	item := pageItem{
		Code: r.Code, Title: page.Title, Summary: page.Summary, Helps: page.Helps, Not: page.Not,
		Cost: page.Cost, Drawback: page.Drawback, Exact: r.Exact, Slowdown: []float64{r.Slowdown.Low, r.Slowdown.High},
		Cures: r.Cures, Eases: r.Eases, Apply: map[string][]string{}, Sources: page.Sources,
	}
	for framework, how := range page.Ways() {
		name := string(framework)
		if name == "" {
			name = "any"
		}
		item.Apply[name] = remedy.Changes(remedy.Fill(how, nil))
	}
	return item
}

// causeItemPage is `data` of unoom/cause/v1.
type causeItemPage struct {
	Label    remedy.Cause  `json:"label"`
	Title    string        `json:"title"`
	Means    string        `json:"means"`
	Confirm  string        `json:"confirm"`
	Remedies []remedy.Code `json:"remedies"`
}

func causeJSON(c remedy.Cause, answers []remedy.Remedy) causeItemPage {
	words := english()
	item := causeItemPage{
		c, words.Text("remedy.cause." + string(c)), words.Text("remedy.means." + string(c)),
		words.Text("remedy.confirm." + string(c)), []remedy.Code{},
	}
	for _, r := range answers {
		item.Remedies = append(item.Remedies, r.Code)
	}
	return item
}

// remediesJSON is `data` of unoom/remedies/v1.
func remediesJSON(all []remedy.Remedy) any {
	type row struct {
		Code  remedy.Code    `json:"code"`
		Title string         `json:"title"`
		Exact bool           `json:"exact"`
		Cures []remedy.Cause `json:"cures"`
		Eases []remedy.Cause `json:"eases"`
	}
	list := []row{}
	for _, r := range all {
		page, err := remedy.ReadPage(r.Code, i18n.English)
		if err != nil {
			continue // a test reads every page
		}
		list = append(list, row{r.Code, page.Title, r.Exact, r.Cures, r.Eases})
	}
	return map[string]any{"remedies": list, "causes": remedy.Causes()}
}
