package text

import "strings"

// Align is the side on which the cells of a column stand.
type Align int

// The alignments. Numbers stand right, so that their decimal points agree.
const (
	Left Align = iota
	Right
)

// Table collects rows and prints them in columns that are as wide as they need,
// without rules or frames. The last left-aligned column is wrapped to the width.
type Table struct {
	Indent int
	Align  []Align // one per column; missing ones are Left
	rows   [][]string
}

// Row adds a row.
func (t *Table) Row(cells ...string) { t.rows = append(t.rows, cells) }

// Len returns the number of rows.
func (t *Table) Len() int { return len(t.rows) }

// leastRoom is how many cells the last column needs to be wrapped in its place;
// with less a long cell goes below its row.
const leastRoom = 20

// Table prints t.
func (p *Printer) Table(t *Table) {
	var widths []int
	for _, row := range t.rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], Cells(c))
		}
	}
	for _, row := range t.rows {
		var b strings.Builder
		b.WriteString(strings.Repeat(" ", t.Indent))
		for i, c := range row {
			if i > 0 {
				b.WriteString("  ")
			}
			switch {
			case i < len(t.Align) && t.Align[i] == Right:
				b.WriteString(PadLeft(c, widths[i]))
			case i == len(row)-1:
				if room := p.width - Cells(b.String()); room < leastRoom && room < Cells(c) && i > 0 {
					p.Line(strings.TrimRight(b.String(), " "))
					b.Reset()
					b.WriteString(strings.Repeat(" ", t.Indent+4))
				}
				p.Hanging(b.String(), c)
				b.Reset()
			default:
				b.WriteString(PadRight(c, widths[i]))
			}
		}
		if b.Len() > 0 {
			p.Line(b.String())
		}
	}
}
