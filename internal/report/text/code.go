package text

import (
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// Code writes lines to copy, of a language as Markdown's fences name it. A line
// that is wider than the page is continued as its language allows it; where that
// is nowhere, it stays whole.
func (p *Printer) Code(indent int, language, code string) {
	margin := strings.Repeat(" ", indent)
	for line := range strings.SplitSeq(code, "\n") {
		for _, part := range fit(line, language, p.width-indent) {
			p.Line(margin + Style(Code, part))
		}
	}
}

// fit continues a line of code so that its parts have at most width cells.
func fit(line, language string, width int) []string {
	if ansi.StringWidth(line) <= width {
		return []string{line}
	}
	blanks := line[:len(line)-len(strings.TrimLeft(line, " "))]
	if comment, ok := strings.CutPrefix(line[len(blanks):], "# "); ok {
		wrapped := Wrap(comment, width-len(blanks)-2)
		return strings.Split(blanks+"# "+strings.ReplaceAll(wrapped, "\n", "\n"+blanks+"# "), "\n")
	}
	if at := strings.LastIndex(line, "  # "); at > len(blanks) { // above what it is about
		return append(fit(blanks+line[at+2:], language, width), fit(strings.TrimRight(line[:at], " "), language, width)...)
	}
	var out []string
	hang, depth := blanks, 0
	for ansi.StringWidth(line) > width {
		at, end := breakBefore(line, len(hang), depth, language, width)
		if at < 0 {
			break
		}
		head, rest := strings.TrimRight(line[:at], " "), strings.TrimLeft(line[at:], " ")
		if statement, ok := strings.CutSuffix(head, ";"); ok {
			return append(append(out, statement), fit(blanks+rest, language, width)...)
		}
		out = append(out, head+end)
		hang, depth = blanks+"    ", 1 // within the brackets that were open
		line = hang + rest
	}
	return append(out, line)
}

// breakBefore finds the last place before which a line may end, and what the end
// must have there: in a shell any blank outside of quotes, with a backslash; else
// after a comma or an opening bracket within brackets, or after a semicolon. depth
// is that of the brackets at the start.
func breakBefore(line string, from, depth int, language string, width int) (at int, end string) {
	shell := language == "sh" || language == "bash"
	if shell {
		end = " \\"
	}
	at = -1
	whole := false // at is before an option or a command
	var quote byte
	for i := from; i < len(line) && ansi.StringWidth(line[:i])+len(end) <= width; i++ {
		c := line[i]
		switch {
		case quote != 0:
			if c == quote {
				quote = 0
			}
			continue
		case c == '"' || c == '\'':
			quote = c
			continue
		case c == '(' || c == '[' || c == '{':
			depth++
		case c == ')' || c == ']' || c == '}':
			depth--
		}
		rest := i+1 < len(line)
		switch {
		case shell && c == ' ' && i > from && rest:
			// Before an option or a command rather than between the two words of one.
			good := strings.HasPrefix(line[i+1:], "-") || strings.HasPrefix(line[i+1:], "python ")
			if good || !whole {
				at, whole = i, good
			}
		case shell:
		case c == ',' && depth > 0 && rest && line[i+1] == ' ', c == ';' && depth == 0 && rest:
			at = i + 1
		case at < 0 && depth > 0 && (c == '(' || c == '[' || c == '{') && rest && i > from:
			at = i + 1
		}
	}
	return at, end
}
