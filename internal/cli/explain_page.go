package cli

import (
	"slices"

	"unoom/internal/i18n"
	"unoom/internal/remedy"
	"unoom/internal/report/text"
)

// english returns the catalogue of what is never translated: the sentences in
// JSON.
func english() *i18n.Catalogue { return i18n.Load(i18n.English) }

// explainRemedy prints the page of a remedy.
func (e *explain) explainRemedy(r remedy.Remedy) error {
	if e.json {
		page, err := remedy.ReadPage(r.Code, i18n.English)
		if err != nil {
			return err
		}
		return e.printJSON("unoom/remedy/v1", nil, remedyJSON(r, page))
	}
	source, err := remedy.PageText(r.Code, e.msgs.Lang())
	if err != nil {
		return err
	}
	p := e.printer()
	p.Line(text.Style(text.Faint, string(r.Code)))
	p.Markdown(0, remedy.Fill(source, nil))
	p.Heading(e.msgs.Text("explain.answers"))
	t := &text.Table{Indent: 2}
	for _, c := range slices.Concat(r.Cures, r.Eases) {
		t.Row(string(c), e.msgs.Text("remedy.cause."+string(c)))
	}
	p.Table(t)
	return p.Err()
}

// explainCause prints what a cause means, how to confirm it, and what answers it.
func (e *explain) explainCause(c remedy.Cause) error {
	answers := remedy.For(c)
	if e.json {
		return e.printJSON("unoom/cause/v1", nil, causeJSON(c, answers))
	}
	p := e.printer()
	p.Line(text.Style(text.Faint, string(c)))
	p.Para(0, text.Style(text.Strong, e.msgs.Text("remedy.cause."+string(c))))
	p.Blank()
	p.Para(0, e.msgs.Text("remedy.means."+string(c)))
	p.Heading(e.msgs.Text("explain.confirm"))
	p.Para(2, e.msgs.Text("remedy.confirm."+string(c)))
	if len(answers) > 0 {
		p.Heading(e.msgs.Text("explain.answered_by"))
		if err := e.tableOfRemedies(p, answers); err != nil {
			return err
		}
	}
	return p.Err()
}

// listCodes prints every remedy by family.
func (e *explain) listCodes() error {
	all := remedy.All()
	if e.json {
		return e.printJSON("unoom/remedies/v1", nil, remediesJSON(all))
	}
	p := e.printer()
	p.Para(0, e.msgs.Text("explain.list", len(all), len(remedy.Causes())))
	for len(all) > 0 {
		family := all[0].Code.Family()
		n := slices.IndexFunc(all, func(r remedy.Remedy) bool { return r.Code.Family() != family })
		if n < 0 {
			n = len(all)
		}
		p.Heading(family)
		if err := e.tableOfRemedies(p, all[:n]); err != nil {
			return err
		}
		all = all[n:]
	}
	p.Heading(e.msgs.Text("explain.causes"))
	t := &text.Table{Indent: 2}
	for _, c := range remedy.Causes() {
		t.Row(string(c), e.msgs.Text("remedy.cause."+string(c)))
	}
	p.Table(t)
	return p.Err()
}

func (e *explain) tableOfRemedies(p *text.Printer, list []remedy.Remedy) error {
	t := &text.Table{Indent: 2}
	for _, r := range list {
		page, err := remedy.ReadPage(r.Code, e.msgs.Lang())
		if err != nil {
			return err
		}
		t.Row(string(r.Code), page.Title)
	}
	p.Table(t)
	return nil
}
