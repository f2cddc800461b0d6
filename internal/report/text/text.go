// Package text is the printing kit of every report a person reads in a
// terminal: titles, paragraphs, tables and bars that keep to a width, count
// Chinese characters as two cells, and use colour only where it is wanted.
//
// It knows nothing of memory; what to print is decided by its callers.
package text

import (
	"fmt"
	"io"
	"strings"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/colorprofile"
	"github.com/charmbracelet/x/ansi"
)

// A Role is what a piece of text is, from which its colour follows.
type Role int

// The roles, from plain to loud.
const (
	Plain Role = iota
	Strong
	Faint
	Good
	Caution
	Bad
	Code
)

// Printer writes a report. The zero value is not usable; see New.
type Printer struct {
	w     io.Writer
	width int
	err   error
}

// New returns a printer that writes to w in at most width columns. With profile
// colorprofile.NoTTY the output has no escape sequences at all.
func New(w io.Writer, width int, profile colorprofile.Profile) *Printer {
	return &Printer{w: &colorprofile.Writer{Forward: w, Profile: profile}, width: max(width, 40)}
}

// Width returns the number of columns.
func (p *Printer) Width() int { return p.width }

// Err returns the first error that a write met.
func (p *Printer) Err() error { return p.err }

// Style returns text in the colours of a role.
func Style(role Role, text string) string {
	s := lipgloss.NewStyle()
	switch role {
	case Strong:
		s = s.Bold(true)
	case Faint:
		s = s.Faint(true)
	case Good:
		s = s.Foreground(lipgloss.Green)
	case Caution:
		s = s.Foreground(lipgloss.Yellow)
	case Bad:
		s = s.Foreground(lipgloss.Red).Bold(true)
	case Code:
		s = s.Foreground(lipgloss.Cyan)
	default:
		return text
	}
	return s.Render(text)
}

// Line writes one line as it is, without wrapping.
func (p *Printer) Line(line string) {
	if p.err == nil {
		_, p.err = fmt.Fprintln(p.w, strings.TrimRight(line, " "))
	}
}

// Blank writes an empty line.
func (p *Printer) Blank() { p.Line("") }

// Heading writes the title of a section, after an empty line.
func (p *Printer) Heading(title string) {
	p.Blank()
	p.Line(Style(Strong, title))
}

// Para writes text wrapped to the width, each line after indent spaces.
func (p *Printer) Para(indent int, text string) { p.Hanging(strings.Repeat(" ", indent), text) }

// Hanging writes text wrapped to the width; the first line begins with prefix,
// the others with as many blank cells.
func (p *Printer) Hanging(prefix, text string) {
	w := lipgloss.Width(prefix)
	rest := strings.Repeat(" ", w)
	for i, line := range strings.Split(Wrap(text, p.width-w), "\n") {
		if i == 0 {
			p.Line(prefix + line)
		} else {
			p.Line(rest + line)
		}
	}
}

// Cells returns the number of terminal cells that text takes.
func Cells(text string) int { return lipgloss.Width(text) }

// Cut shortens text to width cells; an ellipsis stands for what is gone.
func Cut(text string, width int) string { return ansi.Truncate(text, width, "…") }

// PadRight fills text with spaces to width cells.
func PadRight(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-Cells(text)))
}

// PadLeft puts spaces before text up to width cells.
func PadLeft(text string, width int) string {
	return strings.Repeat(" ", max(0, width-Cells(text))) + text
}

// Bar draws share (0 to 1) of width cells.
func Bar(share float64, width int) string {
	share = min(max(share, 0), 1)
	eighths := int(share*float64(width)*8 + 0.5)
	if eighths == 0 && share > 0 {
		eighths = 1 // something is never drawn as nothing
	}
	full, rest := eighths/8, eighths%8
	bar := strings.Repeat("█", full)
	if rest > 0 {
		bar += string([]rune(" ▏▎▍▌▋▊▉")[rest])
	}
	return PadRight(bar, width)
}
