package text

import (
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// Wrap breaks text into lines of at most width cells: at spaces and beside
// Chinese characters where it can, inside a word where it must. A line does not
// begin with closing punctuation nor end with opening punctuation, as Chinese
// typesetting asks. Escape sequences take no cells and are never cut.
func Wrap(text string, width int) string {
	width = max(width, 10)
	var out []string
	for line := range strings.SplitSeq(text, "\n") {
		out = append(out, wrapLine(line, width)...)
	}
	return strings.Join(out, "\n")
}

// An atom is a run of characters that stays together.
type atom struct {
	text  string
	cells int
	space bool // blank: dropped where the line breaks
	glue  bool // stays with what stands before it
}

func wrapLine(line string, width int) []string {
	var lines []string
	var cur strings.Builder
	used := 0
	pending := atom{} // blanks between words, written only if a word follows
	flush := func() {
		lines = append(lines, strings.TrimRight(cur.String(), " "))
		cur.Reset()
		used, pending = 0, atom{}
	}
	for _, word := range words(line) {
		if word.space {
			if used > 0 || len(lines) == 0 {
				pending.text += word.text
				pending.cells += word.cells
			}
			continue
		}
		if used+pending.cells+word.cells > width && used > 0 {
			flush()
		}
		// A word longer than a line is cut, unless it is an address or a path,
		// which has to stay whole to be of use.
		for word.cells > width-used-pending.cells && !strings.Contains(word.text, "/") {
			cut := ansi.Truncate(word.text, width-used-pending.cells, "")
			n := ansi.StringWidth(cut)
			if n == 0 {
				break
			}
			cur.WriteString(pending.text + cut)
			word.text, word.cells = ansi.TruncateLeft(word.text, n, ""), word.cells-n
			flush()
		}
		cur.WriteString(pending.text + word.text)
		used += pending.cells + word.cells
		pending = atom{}
	}
	return append(lines, strings.TrimRight(cur.String(), " "))
}

// words joins the atoms of a line into runs between which it may break.
func words(line string) []atom {
	var list []atom
	open := false // the last atom forbids a break after it
	wide := false
	for _, a := range atoms(line) {
		n := len(list) - 1
		isWide := a.cells > 1
		if n >= 0 && !a.space && !list[n].space && (a.glue || open || a.cells == 0 || !isWide && !wide) {
			list[n].text += a.text
			list[n].cells += a.cells
		} else {
			list = append(list, a)
		}
		if a.cells > 0 {
			open, wide = opening(a.text), isWide
		}
	}
	return quantities(list)
}

// measures are what a number keeps beside it on its line.
var measures = []string{"%", "bytes", "KiB", "MiB", "GiB", "TiB"}

// quantities joins a number, the blank after it and its unit: "69 %" and
// "2.00 GiB" stay whole.
func quantities(list []atom) []atom {
	out := list[:0]
	for i := 0; i < len(list); i++ {
		a := list[i]
		if i+2 < len(list) && list[i+1].text == " " && number(a.text) && slices.ContainsFunc(measures, func(m string) bool {
			rest, ok := strings.CutPrefix(list[i+2].text, m)
			return ok && strings.Trim(rest, closers) == ""
		}) {
			a.text += " " + list[i+2].text
			a.cells += 1 + list[i+2].cells
			i += 2
		}
		out = append(out, a)
	}
	return out
}

// number reports whether a word ends in a figure: 69, 2.00, (1.5, 4–9.80.
func number(word string) bool {
	return word != "" && word[len(word)-1] >= '0' && word[len(word)-1] <= '9'
}

func atoms(line string) []atom {
	var list []atom
	var state byte
	for len(line) > 0 {
		seq, cells, n, next := ansi.DecodeSequence(line, state, nil)
		if n <= 0 {
			break
		}
		state, line = next, line[n:]
		list = append(list, atom{text: seq, cells: cells, space: seq == " ", glue: closing(seq)})
	}
	return list
}

const (
	closers = "，。；：、！？）》】」』”’…％,.;:!?)]}%"
	openers = "（《【「『“‘([{"
)

func closing(s string) bool { return s != "" && strings.Contains(closers, s) }
func opening(s string) bool { return s != "" && strings.Contains(openers, s) }
