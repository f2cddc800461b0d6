package text

import (
	"bytes"
	"strings"
	"testing"

	"github.com/charmbracelet/colorprofile"
)

func TestNoEscapesWithoutATerminal(t *testing.T) {
	var b bytes.Buffer
	p := New(&b, 80, colorprofile.NoTTY)
	p.Heading("Title")
	p.Line(Style(Bad, "bad") + " " + Style(Code, "code"))
	if got, want := b.String(), "\nTitle\nbad code\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestTableAlignsChineseByCells(t *testing.T) {
	var b bytes.Buffer
	p := New(&b, 40, colorprofile.NoTTY)
	tab := &Table{Indent: 2, Align: []Align{Left, Right, Left}}
	tab.Row("权重", "1.00 GiB", "x")
	tab.Row("grads", "10.00 GiB", "a long remark that has to be wrapped")
	p.Table(tab)
	want := "  权重    1.00 GiB  x\n" +
		"  grads  10.00 GiB  a long remark that\n" +
		"                    has to be wrapped\n"
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestNothingIsWiderThanTheWidth(t *testing.T) {
	var b bytes.Buffer
	p := New(&b, 40, colorprofile.NoTTY)
	p.Hanging("  1. ", strings.Repeat("显存不足，请减小批大小。", 9)+strings.Repeat("x", 90))
	for line := range strings.Lines(b.String()) {
		if n := Cells(strings.TrimSuffix(line, "\n")); n > 40 {
			t.Errorf("%d cells: %q", n, line)
		}
	}
}

func TestBar(t *testing.T) {
	for _, c := range []struct {
		share float64
		want  string
	}{{0, "    "}, {0.001, "▏   "}, {0.5, "██  "}, {1, "████"}, {7, "████"}} {
		if got := Bar(c.share, 4); got != c.want {
			t.Errorf("Bar(%v) = %q, want %q", c.share, got, c.want)
		}
	}
}

func TestALongCellGoesBelowItsRow(t *testing.T) {
	var b bytes.Buffer
	p := New(&b, 50, colorprofile.NoTTY)
	tab := &Table{Indent: 2}
	tab.Row("a first column of text", "activations", "model.py:27 forward_of_it")
	tab.Row("x", "y", "short")
	p.Table(tab)
	want := "  a first column of text  activations\n      model.py:27 forward_of_it\n  x                       y            short\n"
	if got := b.String(); got != want {
		t.Errorf("got\n%s", got)
	}
}
