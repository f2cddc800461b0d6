package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"unoom/internal/account"
	"unoom/internal/diagnose"
	"unoom/internal/remedy"
	"unoom/internal/report"
	"unoom/internal/report/text"
	"unoom/internal/units"
)

// How much is printed without --all: what a person acts on.
const (
	causesShown   = 3
	evidenceShown = 3
	remediesShown = 4
	weakRemedy    = 0.3 // of the best one's score: not worth the reader's time
)

// printExplanation prints the view of a diagnosis: the answer, its evidence,
// what to change, and where all of it was found.
func (e *explain) printExplanation(d *diagnose.Diagnosis, v *report.Explanation) error {
	p := e.printer()
	role := text.Bad
	if d.Verdict == diagnose.NothingFound {
		role = text.Plain
	}
	p.Para(0, text.Style(role, v.Headline))
	if v.Lead != "" {
		p.Para(0, v.Lead)
	}
	if v.Account != nil {
		e.printAccount(p, v.Account)
	}
	if v.Predicted != "" {
		p.Blank()
		p.Para(0, v.Predicted)
	}
	e.printCauses(p, v)
	if v.Next != nil {
		p.Heading(e.msgs.Text("explain.next"))
		p.Para(2, v.Next.Reason)
		if v.Next.Command != "" {
			p.Code(4, "sh", v.Next.Command)
		}
	}
	e.printRemedies(p, v)
	e.printFound(p, v)
	for _, w := range v.Warnings {
		fmt.Fprintf(e.Err, "unoom: %s: %s\n", e.msgs.Text("warning"), w)
	}
	return p.Err()
}

func (e *explain) printAccount(p *text.Printer, a *report.AccountView) {
	p.Heading(a.Title)
	const bar = 24
	t := &text.Table{Indent: 2, Align: []text.Align{text.Left, text.Right, text.Right}}
	for _, r := range a.Rows {
		t.Row(r.Label, inGiB(r.Bytes), fmt.Sprintf("%.1f %%", 100*r.Share), text.Style(colourOf(r.Kind), strings.TrimRight(text.Bar(r.Share, bar), " ")))
	}
	total := a.TotalLabel
	if total == "" {
		total = e.msgs.Text("explain.total")
	}
	t.Row(text.Style(text.Strong, total), inGiB(a.Total), "100.0 %", "")
	p.Table(t)
	if a.Asked > 0 {
		p.Para(2, text.Style(text.Faint, e.msgs.Text("explain.asked", a.Asked)))
	}
}

// inGiB writes bytes in GiB whatever their size, so that a column has one unit.
func inGiB(b units.Bytes) string {
	if b > 0 && b.GiB() < 0.005 {
		return "<0.01 GiB"
	}
	return fmt.Sprintf("%.2f GiB", b.GiB())
}

// colourOf tells whose a part is: others' and unexplained memory stands out.
func colourOf(k account.Kind) text.Role {
	switch k {
	case account.OtherProcesses:
		return text.Bad
	case account.OutsideOrOther, account.Unknown, account.Cached:
		return text.Caution
	case account.Free:
		return text.Good
	}
	return text.Plain
}

func (e *explain) printCauses(p *text.Printer, v *report.Explanation) {
	if len(v.Causes) == 0 {
		return
	}
	p.Heading(e.msgs.Text("explain.causes"))
	causes := v.Causes
	if !e.full {
		causes = causes[:min(causesShown, len(causes))]
	}
	said := map[string]bool{} // evidence that several causes share is said once
	for i, c := range causes {
		role := text.Plain
		if i == 0 {
			role = text.Strong
		}
		share := e.msgs.Text("explain.percent", int(100*c.Confidence+0.5))
		p.Hanging("  "+text.Style(role, text.PadLeft(share, 5))+"  ", text.Style(role, string(c.Label))+"  "+c.Title)
		lines := 0
		for _, s := range c.Evidence {
			if said[s.Text] && (lines > 0 || len(c.Evidence) > 1 && !allSaid(said, c)) || lines == evidenceShown && !e.full {
				continue
			}
			said[s.Text] = true
			lines++
			at := ""
			if s.At != "" {
				at = " " + text.Style(text.Faint, "("+s.At+")")
			}
			p.Hanging("         - ", s.Text+at)
		}
	}
	for _, n := range v.Notes {
		p.Hanging("  "+text.Style(text.Caution, e.msgs.Text("explain.note")), n)
	}
}

// allSaid reports whether the evidence of a cause stands under earlier ones.
func allSaid(said map[string]bool, c report.CauseView) bool {
	return !slices.ContainsFunc(c.Evidence, func(s report.EvidenceView) bool { return !said[s.Text] })
}

func (e *explain) printRemedies(p *text.Printer, v *report.Explanation) {
	if len(v.Remedies) == 0 {
		return
	}
	p.Heading(e.msgs.Text("explain.remedies"))
	list := v.Remedies
	if !e.full {
		list = best(list)
	}
	for i, r := range list {
		if i > 0 {
			p.Blank()
		}
		e.printRemedy(p, i+1, r)
	}
	var last []string
	if !v.Measured && slices.ContainsFunc(list, func(r report.RemedyView) bool { return r.Saves != nil && wide(*r.Saves) }) {
		last = append(last, e.msgs.Text("explain.wide"))
	}
	if n := len(v.Remedies) - len(list); n > 0 {
		last = append(last, e.msgs.Text("explain.more", n))
	}
	if len(last) > 0 {
		p.Blank()
	}
	for _, line := range last {
		p.Para(2, text.Style(text.Faint, line))
	}
}

// wide reports whether an interval is so wide that the reader is owed a reason.
func wide(e units.Estimate) bool { return float64(e.High) > 2*float64(e.Low) }

// best returns the remedies that are printed unasked.
func best(list []report.RemedyView) []report.RemedyView {
	cut := slices.IndexFunc(list, func(r report.RemedyView) bool { return r.Score < weakRemedy*list[0].Score })
	if cut < 0 {
		cut = len(list)
	}
	return list[:min(cut, remediesShown)]
}

func (e *explain) printRemedy(p *text.Printer, n int, r report.RemedyView) {
	number := strconv.Itoa(n) + ". "
	indent := 2 + len(number)
	p.Hanging("  "+number, text.Style(text.Strong, r.Title)+"  "+text.Style(text.Faint, string(r.Code)))
	p.Para(indent, strings.Join(e.effects(r), e.msgs.Text("explain.separator")))
	p.Para(indent, e.msgs.Text("explain.why", r.WhyText))
	p.Markdown(indent, r.Change)
	if r.Drawback != "" {
		p.Para(indent, text.Style(text.Faint, e.msgs.Text("explain.drawback", r.Drawback)))
	}
}

// effects says what a remedy brings and costs, in a line.
func (e *explain) effects(r report.RemedyView) []string {
	var list []string
	if r.Saves != nil {
		id := "explain.saves"
		if r.Effort == remedy.Purchase {
			id = "explain.adds"
		}
		list = append(list, text.Style(text.Good, e.msgs.Text(id, saving(*r.Saves))))
	}
	switch {
	case r.Runs: // the ranges are of training steps
	case !r.Slowdown.Known(), r.Slowdown.Low == 1 && r.Slowdown.High == 1:
		list = append(list, e.msgs.Text("explain.same_speed"))
	case r.Slowdown.High <= 1:
		list = append(list, e.msgs.Text("explain.faster"))
	case r.Slowdown.High >= 2:
		list = append(list, e.msgs.Text("explain.times", ratio(r.Slowdown.Low), ratio(r.Slowdown.High)))
	default:
		list = append(list, e.msgs.Text("explain.slower", per(max(r.Slowdown.Low, 1)), per(r.Slowdown.High)))
	}
	switch {
	case r.Exact:
		list = append(list, e.msgs.Text("explain.exact"))
	case r.Runs:
		list = append(list, text.Style(text.Caution, e.msgs.Text("explain.other_result")))
	default:
		list = append(list, text.Style(text.Caution, e.msgs.Text("explain.not_exact")))
	}
	if r.Sufficient != nil {
		id, role := "explain.not_enough", text.Caution
		if *r.Sufficient {
			id, role = "explain.enough", text.Good
		}
		if r.Predicted {
			id += ".predicted"
		}
		list = append(list, text.Style(role, e.msgs.Text(id)))
	}
	return list
}

// saving writes an interval as a reader takes it: "4.10 GiB", "≤ 9.97 GiB",
// "5.00–9.97 GiB".
func saving(e units.Estimate) string {
	low, high := e.Low.String(), e.High.String()
	switch {
	case low == high:
		return high
	case float64(e.Low) < 0.02*float64(e.High):
		return "≤ " + high
	}
	if n, unit, ok := strings.Cut(low, " "); ok && strings.HasSuffix(high, " "+unit) {
		low = n
	}
	return low + "–" + high
}

func per(r float64) string   { return strconv.Itoa(int((r-1)*100 + 0.5)) }
func ratio(r float64) string { return strconv.FormatFloat(r, 'g', 2, 64) }

func (e *explain) printFound(p *text.Printer, v *report.Explanation) {
	if len(v.Found)+len(v.Setting) == 0 {
		return
	}
	p.Heading(e.msgs.Text("explain.found"))
	t := &text.Table{Indent: 2}
	for _, f := range v.Found {
		if f.At != "" {
			f.At = text.Style(text.Strong, f.At) + "  "
		}
		t.Row(f.What, f.At+f.Text)
	}
	defer p.Table(t)
	if len(v.Setting) == 0 {
		return
	}
	var parts []string
	for _, s := range v.Setting {
		part := s.Name + " = " + s.Value
		if s.At != "" {
			part += " " + text.Style(text.Faint, "("+s.At+")")
		}
		parts = append(parts, part)
	}
	t.Row(e.msgs.Text("explain.setting"), strings.Join(parts, ", "))
}
