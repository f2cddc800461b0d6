package cli

import (
	"fmt"
	"strings"

	"github.com/charmbracelet/colorprofile"

	"unoom/internal/i18n"
	"unoom/internal/oomlog"
	"unoom/internal/replay"
	"unoom/internal/report"
	"unoom/internal/report/html"
	"unoom/internal/report/text"
)

// Limits of what a page lists: more is said by `unoom explain`.
const (
	pageCauses   = 4
	pageRemedies = 8
	pageEvidence = 4
)

// texts writes what a page says of a device, in every language.
func (d *shown) texts() (map[i18n.Lang]html.Texts, error) {
	out := map[i18n.Lang]html.Texts{}
	for _, lang := range []i18n.Lang{i18n.English, i18n.Chinese} {
		words := i18n.Load(lang)
		view, err := report.Explain(&d.Diagnosis, d.Advise(), &oomlog.Result{}, words)
		if err != nil {
			return nil, err
		}
		w := heldWords{words, d.Held}
		t := html.Texts{
			Headline: w.headline(), Lead: w.lead(view.Lead), Figures: d.figures(words),
			Causes: []html.Cause{}, Advice: []html.Advice{}, Notes: d.notes(words, view),
		}
		for _, c := range view.Causes[:min(pageCauses, len(view.Causes))] {
			cause := html.Cause{Title: c.Title, Share: words.Text("explain.percent", int(100*c.Confidence+0.5)), Evidence: []string{}}
			for _, e := range c.Evidence[:min(pageEvidence, len(c.Evidence))] {
				cause.Evidence = append(cause.Evidence, e.Text)
			}
			t.Causes = append(t.Causes, cause)
		}
		e := &explain{app: &app{msgs: words}}
		for _, r := range view.Remedies[:min(pageRemedies, len(view.Remedies))] {
			effects := plain(strings.Join(e.effects(r), words.Text("explain.separator")))
			change := r.Lines
			if change == nil {
				change = []string{}
			}
			t.Advice = append(t.Advice, html.Advice{Title: r.Title, Code: string(r.Code), Effects: effects, Why: r.WhyText, Change: change})
		}
		out[lang] = t
	}
	return out, nil
}

func (d *shown) figures(m *i18n.Catalogue) []html.Figure {
	out := []html.Figure{
		{Value: d.PeakAllocated.String(), Label: m.Text("report.peak_allocated")},
		{Value: d.PeakReserved.String(), Label: m.Text("report.peak_reserved")},
	}
	if d.PeakReserved > 0 {
		idle := float64(d.PeakReserved-d.PeakAllocated) / float64(d.PeakReserved)
		tone := ""
		if idle > 0.15 {
			tone = "bad"
		}
		out = append(out, html.Figure{Value: fmt.Sprintf("%.1f %%", 100*idle), Label: m.Text("report.idle"), Tone: tone})
	}
	h, r := d.History, d.Check
	if n := len(h.OOMs); n > 0 {
		out = append(out, html.Figure{Value: thousands(n), Label: m.Text("report.failed"), Tone: "bad"})
	}
	out = append(out, html.Figure{Value: thousands(len(h.Events)), Label: m.Text("report.events")})
	if n := h.Steps.Whole(); n > 0 {
		out = append(out, html.Figure{Value: thousands(n), Label: m.Text("report.steps")})
	}
	switch {
	case len(h.Events) == 0:
	case !r.Reproducible:
		out = append(out, html.Figure{Value: m.Text("report.not_reproducible"), Label: m.Text("report.replay", r.Torch)})
	case r.Mismatches() > 0:
		out = append(out, html.Figure{Value: m.Text("report.differs", thousands(r.Mismatches())), Label: m.Text("report.replay", r.Torch), Tone: "bad"})
	default:
		out = append(out, html.Figure{Value: m.Text("report.reproduced"), Label: m.Text("report.replay", r.Torch), Tone: "good"})
	}
	return out
}

func (d *shown) notes(m *i18n.Catalogue, view *report.Explanation) []string {
	out := append([]string{}, view.Notes...)
	for _, w := range d.Check.Why {
		out = append(out, m.Text("replay.why."+w.Code, thousands(w.Count)))
	}
	asked := replayed{Case: d.Case, check: d.Check, ask: replay.Question{Capacity: d.Check.Usable.Bytes()}, trials: d.Trials}
	for _, s := range asked.assumptions(&replayQuestion{}) {
		out = append(out, m.Text("replay.assumed."+s.code, s.args...))
	}
	out = append(out, m.Text("report.deduced"))
	if by := d.History.Steps.By; by != "" {
		out = append(out, m.Text("report.steps_by."+by))
	}
	return out
}

// plain takes the colours out of a text.
func plain(styled string) string {
	var b strings.Builder
	text.New(&b, len(styled)+1, colorprofile.NoTTY).Line(styled)
	return strings.TrimSuffix(b.String(), "\n")
}
