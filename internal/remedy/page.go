package remedy

import (
	"fmt"
	"regexp"
	"strings"

	"unoom/catalog"
	"unoom/internal/i18n"
)

// A Page is what a person reads of a remedy: catalog/remedies/CODE.LANG.md.
type Page struct {
	code    Code
	Title   string
	Summary string
	Helps   string
	Not     string
	Cost    string
	// Drawback is what the change takes away, as one line.
	Drawback string
	Sources  string
	how      []section
}

// A section is a way to apply a remedy; the framework is "" for any.
type section struct {
	framework Framework
	body      string
}

// names are the headings of a page, by language.
var names = map[i18n.Lang]struct{ helps, not, cost, drawback, apply, sources, any string }{
	i18n.English: {"When it helps", "When it does not", "Cost", "Drawback", "How to apply", "Sources", "Any framework"},
	i18n.Chinese: {"什么时候有用", "什么时候没用", "代价", "缺点", "怎么做", "来源", "任何框架"},
}

// FrameworkNames are the names by which frameworks are called in headings. They
// are not translated.
var frameworkNames = map[string]Framework{
	"PyTorch":              PyTorch,
	"Hugging Face Trainer": HFTrainer,
	"accelerate":           Accelerate,
	"Lightning":            Lightning,
	"DeepSpeed":            DeepSpeed,
}

// Name returns the framework as its users call it, "" for none.
func (f Framework) Name() string {
	if s, ok := stacks()[f]; ok {
		return s.name
	}
	for name, framework := range frameworkNames {
		if framework == f {
			return name
		}
	}
	return ""
}

// Frameworks returns the frameworks in the order in which pages list them.
func Frameworks() []Framework {
	return []Framework{PyTorch, HFTrainer, Accelerate, Lightning, DeepSpeed}
}

// ReadPage returns the page of a code.
func ReadPage(code Code, lang i18n.Lang) (Page, error) {
	text, err := PageText(code, lang)
	if err != nil {
		return Page{}, err
	}
	p, err := parsePage(text, lang)
	p.code = code
	return p, err
}

// PageText returns the page of a code as it is written, in Markdown.
func PageText(code Code, lang i18n.Lang) (string, error) {
	data, err := catalog.Remedies.ReadFile("remedies/" + string(code) + "." + string(lang) + ".md")
	if err != nil {
		return "", fmt.Errorf("remedy %q: there is no page in %s", code, lang)
	}
	return string(data), nil
}

func parsePage(text string, lang i18n.Lang) (Page, error) {
	var p Page
	want := names[lang]
	body := &p.Summary
	fenced := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		if title, ok := strings.CutPrefix(line, "# "); ok && p.Title == "" && !fenced {
			p.Title = title
			continue
		}
		if title, ok := strings.CutPrefix(line, "## "); ok && !fenced {
			switch title {
			case want.helps:
				body = &p.Helps
			case want.not:
				body = &p.Not
			case want.cost:
				body = &p.Cost
			case want.drawback:
				body = &p.Drawback
			case want.sources:
				body = &p.Sources
			case want.apply:
				body = new(string)
			default:
				return Page{}, fmt.Errorf("section %q is not one of a remedy's page", title)
			}
			continue
		}
		if title, ok := strings.CutPrefix(line, "### "); ok && !fenced {
			framework, known := frameworkNames[title]
			if !known && title != want.any {
				return Page{}, fmt.Errorf("framework %q is not known", title)
			}
			p.how = append(p.how, section{framework: framework})
			body = &p.how[len(p.how)-1].body
			continue
		}
		*body += line + "\n"
	}
	for _, part := range []*string{&p.Summary, &p.Helps, &p.Not, &p.Cost, &p.Drawback, &p.Sources} {
		if *part = strings.TrimSpace(*part); *part == "" {
			return Page{}, fmt.Errorf("%q: a section is missing", p.Title)
		}
	}
	p.Drawback = strings.Join(strings.Fields(p.Drawback), " ")
	if p.Title == "" || len(p.how) == 0 {
		return Page{}, fmt.Errorf("%q: the title or the way to apply it is missing", p.Title)
	}
	return p, nil
}

// How returns the way to apply the remedy in a framework, with values filled
// in, as Markdown: what a stack calls it, what the page has for any framework,
// for this one, or else for plain PyTorch.
func (p Page) How(framework Framework, fill map[string]string) string {
	if own, ok := stacks()[framework].apply[p.code]; ok {
		return Fill(own, fill)
	}
	framework = framework.Base()
	var plain string
	for _, s := range p.how {
		if s.framework == framework && framework != "" || s.framework == "" {
			return Fill(s.body, fill)
		}
		if s.framework == PyTorch {
			plain = s.body
		}
	}
	if framework == OtherStack {
		return ""
	}
	return Fill(plain, fill)
}

// Ways returns every framework of the page with its text, as it is written.
func (p Page) Ways() map[Framework]string {
	ways := map[Framework]string{}
	for _, s := range p.how {
		ways[s.framework] = s.body
	}
	return ways
}

// placeholder is a value that the page leaves open, {micro_batch}. The names
// are those of Placeholders; other braces are code.
var placeholder = regexp.MustCompile(`\{([a-z_]+)\}`)

// placeholders are the values that a page may leave open.
var placeholders = map[string]bool{
	"micro_batch": true, "micro_batch_now": true, "accumulation": true, "accumulation_now": true,
	"effective_batch": true, "eval_batch": true, "eval_batch_now": true, "sequence": true,
	"sequence_now": true, "gpus": true, "device": true, "pids": true, "max_split_mb": true, "other_options": true,
	"cards": true, "fraction": true, "min_gib": true, "workers": true, "workers_now": true,
}

// Fill puts values into the placeholders of a page's text. A placeholder
// without a value is shown as <name>; in a comment at the end of a line it
// takes the comment with it, since "was <unknown>" says nothing.
func Fill(text string, values map[string]string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		out.WriteString(fillLine(line, values))
	}
	return strings.TrimSpace(out.String())
}

func fillLine(line string, values map[string]string) string {
	if cut := strings.Index(line, "  # "); cut > 0 && strings.TrimSpace(line[:cut]) != "" && hasOpen(line[cut:], values) {
		line = line[:cut] + "\n"
	}
	return placeholder.ReplaceAllStringFunc(line, func(m string) string {
		name := m[1 : len(m)-1]
		switch v, ok := values[name]; {
		case !placeholders[name]:
			return m
		case ok:
			return v
		case name == "other_options": // there are none
			return ""
		}
		return "<" + name + ">"
	})
}

func hasOpen(text string, values map[string]string) bool {
	for _, m := range placeholder.FindAllStringSubmatch(text, -1) {
		if _, ok := values[m[1]]; placeholders[m[1]] && !ok && m[1] != "other_options" {
			return true
		}
	}
	return false
}

// Changes returns the lines to change from a text of How: the code without its
// fences, or the sentences where there is no code.
func Changes(how string) []string {
	var code, prose []string
	fenced := false
	for line := range strings.Lines(how) {
		line = strings.TrimRight(line, "\n ")
		switch {
		case strings.HasPrefix(line, "```"):
			fenced = !fenced
		case fenced:
			code = append(code, line)
		case line != "":
			prose = append(prose, line)
		}
	}
	return append(prose, code...)
}
