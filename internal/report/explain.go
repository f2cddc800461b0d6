// Package report holds the view models: what a result says to a reader, in the
// words of one language and in the order in which it is read, before it is laid
// out as text, HTML or anything else.
//
// It decides which facts are shown and how they are phrased; it measures and
// concludes nothing itself, and it knows nothing of terminals.
package report

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"unoom/internal/account"
	"unoom/internal/diagnose"
	"unoom/internal/i18n"
	"unoom/internal/oomlog"
	"unoom/internal/remedy"
	"unoom/internal/units"
)

// An Explanation is one failure, explained.
type Explanation struct {
	// Headline says what happened; Lead says why, or what is most likely.
	Headline string
	Lead     string
	Account  *AccountView // nil where the message has no figures
	Causes   []CauseView
	Next     *NextView
	Notes    []string
	Setting  []SettingView // what the text says of the setting, as far as it was used
	Remedies []RemedyView  // best first
	// Measured says that what the memory holds is known, so that wide intervals
	// have other reasons.
	Measured bool
	Found    []FoundView // where it was found
	// Predicted says what the whole run would need, "" where nobody could say;
	// Prediction has it for programs.
	Predicted  string
	Prediction *diagnose.Prediction
	Warnings   []string
}

// An AccountView is the account of a card as a table.
type AccountView struct {
	Title string
	Rows  []AccountRow
	Total units.Bytes
	// TotalLabel says what the total is where it is not the card's capacity.
	TotalLabel string
	// Asked is the request that failed; 0 unknown.
	Asked units.Bytes
}

// An AccountRow is one part of a card.
type AccountRow struct {
	Kind  account.Kind
	Label string
	Bytes units.Bytes
	Share float64 // 0 to 1
}

// A CauseView is a possible cause.
type CauseView struct {
	Label      remedy.Cause
	Title      string
	Confidence float64
	Evidence   []EvidenceView
}

// An EvidenceView is what speaks for a cause, and where it stands.
type EvidenceView struct {
	Text string
	At   string // "train.log:812", "" for none
	In   oomlog.Source
}

// A NextView is what would settle the doubt.
type NextView struct {
	Reason  string
	Command string
}

// A SettingView is a fact of the user's setting.
type SettingView struct{ Name, Value, At string }

// A RemedyView is a remedy in this situation.
type RemedyView struct {
	remedy.Advice
	Title    string
	WhyText  string
	Drawback string // "" for none
	// Runs says that it is for a program that runs models and does not train them.
	Runs bool
	// Change is what to change, as Markdown, with the user's own numbers.
	Change string
	// Lines are the changes alone, for programs.
	Lines []string
}

// A FoundView is a place in the text.
type FoundView struct{ What, At, Text string }

// Explain makes the view of a diagnosis and of what can be done about it.
// Advice is as remedy.Advise returns it for the diagnosis's situation.
func Explain(d *diagnose.Diagnosis, advice []remedy.Advice, res *oomlog.Result, words *i18n.Catalogue) (*Explanation, error) {
	w := wording{words, shortNames(res.Names)}
	e := &Explanation{Headline: w.headline(d), Lead: w.lead(d)}
	if d.Account != nil {
		e.Account = w.account(d)
	}
	for _, c := range d.Causes {
		e.Causes = append(e.Causes, w.cause(c))
	}
	if d.Next != nil {
		e.Next = &NextView{w.sentence(d.Next.Reason), d.Next.Command}
	}
	for _, n := range d.Notes {
		e.Notes = append(e.Notes, w.sentence(n))
	}
	for _, n := range d.Warnings {
		e.Warnings = append(e.Warnings, w.sentence(n))
	}
	e.Setting = w.setting(d, res.Facts)
	for _, a := range advice {
		v, err := w.remedy(a, d.Situation.Framework)
		if err != nil {
			return nil, err
		}
		e.Remedies = append(e.Remedies, v)
	}
	e.Found = w.found(d, res)
	return e, nil
}

// Predict adds what the run that failed would need at its peak; nil: not known.
func (e *Explanation) Predict(p *diagnose.Prediction, words *i18n.Catalogue) {
	if p == nil {
		return
	}
	e.Prediction = p
	var parts []string
	for _, part := range p.Parts {
		parts = append(parts, words.Text("explain.part."+string(part.Kind))+" "+part.Bytes.String())
	}
	w := wording{Catalogue: words}
	e.Predicted = words.Text("explain.predicted", interval(p.Peak), w.phase(oomlog.Phase(p.Phase)), strings.Join(parts, words.Text("explain.separator")))
	e.Measured = true
}

// interval writes an estimate as a reader takes it: "31.40 GiB" or "31.40–44.02
// GiB".
func interval(e units.Estimate) string {
	low, high := e.Low.String(), e.High.String()
	if low == high {
		return high
	}
	if n, unit, ok := strings.Cut(low, " "); ok && strings.HasSuffix(high, " "+unit) {
		low = n
	}
	return low + "–" + high
}

// wording phrases facts in one language.
type wording struct {
	*i18n.Catalogue
	short map[string]string // of the names of the texts
}

// shortNames returns the last element of each path or, where two would then be
// the same, as many elements as tell them apart.
func shortNames(names []string) map[string]string {
	short := map[string]string{}
	for keep := 1; keep < 8; keep++ {
		seen := map[string]int{}
		for _, n := range names {
			parts := strings.Split(strings.ReplaceAll(n, "\\", "/"), "/")
			short[n] = path.Join(parts[max(0, len(parts)-keep):]...)
			seen[short[n]]++
		}
		if len(seen) == len(short) {
			break
		}
	}
	return short
}

func (w wording) sentence(s diagnose.Sentence) string { return w.Text(s.ID, s.Args...) }

// Percent writes a share without decimals, as the language does.
func (w wording) percent(share float64) string {
	return w.Text("explain.percent", int(share*100+0.5))
}

func (w wording) headline(d *diagnose.Diagnosis) string {
	switch d.Verdict {
	case diagnose.NothingFound:
		if d.OtherError != nil {
			return w.Text("explain.nothing.but", shorten(d.OtherError.Text, 160), d.OtherError.Source)
		}
		return w.Text("explain.nothing")
	case diagnose.TraceOnly:
		return w.Text("explain.trace_only", w.phase(d.Phase))
	}
	what := w.Text("explain.out." + d.Resource)
	if d.Verdict == diagnose.NotOutOfMemory && (d.Resource == "none" || d.Resource == "vram" || d.Resource == "limit") {
		what = w.Text("explain.out.not")
	}
	if d.Verdict == diagnose.OutOfMemory && (d.Resource == "vram" || d.Resource == "limit") {
		what = w.vram(d)
	}
	return what
}

// vram says how the memory of a card ran out, with what the message knows.
func (w wording) vram(d *diagnose.Diagnosis) string {
	device := ""
	if d.Failure != nil && d.Failure.Figures.Device >= 0 {
		device = " " + strconv.Itoa(d.Failure.Figures.Device)
	}
	text := w.Text("explain.vram", device, w.phase(d.Phase))
	if d.Failure != nil && d.Failure.Rank >= 0 {
		text = w.Text("explain.vram.rank", device, w.phase(d.Phase), d.Failure.Rank)
	}
	f := oomlog.Figures{}
	if d.Failure != nil {
		f = d.Failure.Figures
	}
	switch {
	case d.Tried > 0 && f.Free.Known && f.Capacity.Known:
		text += w.Text("explain.vram.asked_free", d.Tried, f.Free.Bytes, f.Capacity.Bytes)
	case d.Tried > 0:
		text += w.Text("explain.vram.asked", d.Tried)
	default:
		text += w.Text("explain.vram.no_figures")
	}
	return text
}

// phase is the part of the sentence that names the phase, "" if not known.
func (w wording) phase(p oomlog.Phase) string {
	if p == "" {
		return ""
	}
	return w.Text("explain.in." + string(p))
}

func (w wording) lead(d *diagnose.Diagnosis) string {
	if d.Verdict == diagnose.NothingFound {
		return ""
	}
	if len(d.Causes) == 0 || d.Causes[0].Label == remedy.Unknown {
		return w.Text("explain.lead.open")
	}
	c := d.Causes[0]
	id := "explain.lead.doubtful"
	switch {
	case c.Confidence >= 0.85:
		id = "explain.lead.sure"
	case c.Confidence >= 0.5:
		id = "explain.lead.likely"
	}
	return w.Text(id, w.Text("remedy.cause."+string(c.Label)), w.percent(c.Confidence))
}

func (w wording) account(d *diagnose.Diagnosis) *AccountView {
	a := d.Account
	v := &AccountView{Title: w.Text("explain.account", a.Device), Total: a.Capacity, Asked: d.Tried}
	kindsKnown := a.Of(account.Weights)+a.Of(account.Activations)+a.Of(account.Temporaries)+a.Of(account.OptimizerState)+a.Of(account.Gradients) > 0
	for _, p := range a.Parts {
		label := w.Text("explain.part." + string(p.Kind))
		if p.Kind == account.Allocated && kindsKnown {
			label = w.Text("explain.part.allocated.rest")
		}
		if p.PID > 0 {
			label = w.Text("explain.part.pid", label, p.PID)
		}
		row := AccountRow{Kind: p.Kind, Label: label, Bytes: p.Bytes}
		if a.Capacity > 0 {
			row.Share = float64(p.Bytes) / float64(a.Capacity)
		}
		v.Rows = append(v.Rows, row)
	}
	return v
}

func (w wording) cause(c diagnose.Cause) CauseView {
	v := CauseView{Label: c.Label, Title: w.Text("remedy.cause." + string(c.Label)), Confidence: c.Confidence}
	for _, s := range c.Evidence {
		v.Evidence = append(v.Evidence, EvidenceView{w.sentence(s), w.place(s.At), s.At})
	}
	return v
}

// place writes a source as editors understand it, "" for none.
func (w wording) place(s oomlog.Source) string {
	if s.Line == 0 {
		return ""
	}
	if short, ok := w.short[s.Name]; ok {
		s.Name = short
	}
	return s.String()
}

// shown are the facts that a reader should check, in this order.
var shown = []oomlog.FactKind{
	oomlog.FactModel, oomlog.FactBatch, oomlog.FactAccumulation, oomlog.FactSequence, oomlog.FactEvalBatch,
	oomlog.FactWorldSize, oomlog.FactDType, oomlog.FactOptimizer, oomlog.FactCheckpointing, oomlog.FactAttention,
	oomlog.FactAllocConf,
}

// setting lists what the text says of the setting. A flag of the user overrules
// the text and is not repeated.
func (w wording) setting(d *diagnose.Diagnosis, facts oomlog.Facts) []SettingView {
	var list []SettingView
	if f := d.Situation.Framework; f.Name() != "" && d.Failure != nil && d.Resource == "vram" {
		list = append(list, SettingView{Name: w.Text("explain.setting.framework"), Value: f.Name()})
	}
	before := int64(0)
	if d.Failure != nil {
		before = d.Failure.Source.Offset
	}
	for _, kind := range shown {
		v, ok := facts.Last(kind, before)
		if !ok {
			v, ok = facts.Get(kind)
		}
		if ok {
			list = append(list, SettingView{Name: v.Key, Value: shorten(v.Value, 48), At: w.place(v.Source)})
		}
	}
	return list
}

func (w wording) remedy(a remedy.Advice, framework remedy.Framework) (RemedyView, error) {
	page, err := remedy.ReadPage(a.Code, w.Lang())
	if err != nil {
		return RemedyView{}, fmt.Errorf("explain: %w", err)
	}
	change := page.How(framework, a.Fill)
	if page.Drawback == w.Text("explain.no_drawback") {
		page.Drawback = ""
	}
	v := RemedyView{
		Advice: a, Title: page.Title, WhyText: w.Text(a.Why.ID, a.Why.Args...),
		Drawback: page.Drawback, Change: change, Lines: remedy.Changes(change),
	}
	if id := "remedy.run." + string(a.Code); !framework.Trains() && w.Has(id) { // the page speaks of training
		v.Runs, v.Title, v.WhyText, v.Drawback = true, w.Text(id), w.Text("remedy.run.why", framework.Name()), ""
	}
	return v, nil
}

func (w wording) found(d *diagnose.Diagnosis, res *oomlog.Result) []FoundView {
	var list []FoundView
	if f := d.Failure; f != nil {
		list = append(list, FoundView{w.Text("explain.found.message"), f.Source.String(), shorten(f.Text, 110)})
	}
	if f := d.Where; f != nil {
		at := f.File
		if f.Line > 0 {
			at += ":" + strconv.Itoa(f.Line)
		}
		text := f.Code
		if text == "" {
			text = f.Func
		}
		list = append(list, FoundView{w.Text("explain.found.yours"), at, shorten(text, 160)})
	}
	if d.Failure != nil && d.Failure.At != nil {
		if text := w.progress(*d.Failure.At); text != "" {
			list = append(list, FoundView{w.Text("explain.found.progress"), w.place(d.Failure.At.Source), text})
		}
	}
	if d.Failure != nil && res.Attempts > 1 {
		list = append(list, FoundView{w.Text("explain.found.attempt"), "", w.Text("explain.step.of", d.Failure.Attempt+1, res.Attempts)})
	}
	return append(list, w.others(d)...)
}

func (w wording) progress(p oomlog.Progress) string {
	var parts []string
	switch {
	case p.Step >= 0 && p.Total > 0:
		parts = append(parts, w.Text("explain.step.of", p.Step, p.Total))
	case p.Step >= 0:
		parts = append(parts, w.Text("explain.step", p.Step))
	}
	if p.Epoch >= 0 && p.Step < 0 {
		parts = append(parts, w.Text("explain.epoch", strconv.FormatFloat(p.Epoch, 'g', 4, 64)))
	}
	return strings.Join(parts, ", ")
}

// others sums up what else failed: other ranks and consequences.
func (w wording) others(d *diagnose.Diagnosis) []FoundView {
	if len(d.Later) == 0 || d.Failure == nil {
		return nil
	}
	ranks := map[int]bool{}
	for _, f := range d.Later {
		if f.Rank >= 0 && f.Rank != d.Failure.Rank {
			ranks[f.Rank] = true
		}
	}
	text := w.Text("explain.later", len(d.Later))
	if len(ranks) > 0 {
		text = w.Text("explain.later.ranks", len(d.Later), len(ranks))
	}
	return []FoundView{{w.Text("explain.found.later"), d.Later[0].Source.String(), text}}
}

// shorten cuts a text to at most n characters.
func shorten(text string, n int) string {
	text = strings.TrimSpace(text)
	if r := []rune(text); len(r) > n {
		return strings.TrimSpace(string(r[:n-1])) + "…"
	}
	return text
}
