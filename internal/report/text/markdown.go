package text

import (
	"regexp"
	"strings"
)

// spans are the marks inside a line of Markdown that a terminal shows otherwise.
var spans = regexp.MustCompile("`([^`]+)`")

// Markdown writes the little Markdown that the pages use: headings, paragraphs,
// lists, fenced code and `code`. Code is indented, and continued only as its
// language allows it, so that it can be copied.
func (p *Printer) Markdown(indent int, source string) {
	margin := strings.Repeat(" ", indent)
	fenced, heading, language := false, false, ""
	for _, line := range paragraphs(source) {
		if line == "" && heading {
			continue // the text stands right below its heading
		}
		heading = !fenced && strings.HasPrefix(line, "#")
		switch {
		case strings.HasPrefix(line, "```"):
			fenced, language = !fenced, line[3:]
		case fenced:
			p.Code(indent+2, language, line)
		case strings.HasPrefix(line, "#"):
			p.Line(margin + Style(Strong, strings.TrimLeft(line, "# ")))
		case strings.HasPrefix(line, "- "):
			p.Hanging(margin+"- ", inline(line[2:]))
		case line == "":
			p.Blank()
		default:
			p.Hanging(margin, inline(line))
		}
	}
}

func inline(line string) string {
	return spans.ReplaceAllStringFunc(line, func(m string) string { return Style(Code, m[1:len(m)-1]) })
}

// paragraphs joins the lines of a paragraph or a list item into one; code stays
// as it is.
func paragraphs(source string) []string {
	var out []string
	fenced, running := false, false
	for line := range strings.Lines(source) {
		line = strings.TrimRight(line, "\n ")
		fence := strings.HasPrefix(line, "```")
		if fence {
			fenced = !fenced
		}
		switch {
		case fence || fenced || line == "" || strings.HasPrefix(line, "#"):
			out = append(out, line)
			running = false
		case running && !strings.HasPrefix(line, "- "):
			out[len(out)-1] += " " + strings.TrimSpace(line)
		default:
			out = append(out, line)
			running = true
		}
	}
	return out
}
