package cli

import (
	"io"
	"os"

	"github.com/charmbracelet/colorprofile"
	"golang.org/x/term"

	"unoom/internal/report/text"
)

// Streams is everything a command may touch of the process around it.
type Streams struct {
	In     io.Reader
	Out    io.Writer
	Err    io.Writer
	Getenv func(string) string
	// Width is the width of the terminal behind Out, 0 if there is none.
	Width int
	// InTerminal says that a person types at In.
	InTerminal bool
}

// System returns the streams of this process.
func System() Streams {
	s := Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv}
	if w, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil {
		s.Width = w
	}
	s.InTerminal = term.IsTerminal(int(os.Stdin.Fd()))
	return s
}

// Widths of a report: that of the terminal within bounds that read well, and a
// fixed one where there is no terminal, so that files and pipes look the same.
const (
	widthWithoutTerminal = 80
	widthMost            = 110
)

// printer returns the printer of reports for a person.
func (a *app) printer() *text.Printer {
	width := widthWithoutTerminal
	if a.Width > 0 {
		width = min(a.Width, widthMost)
	}
	return text.New(a.Out, width, a.profile())
}

// profile decides how many colours the output has: --color, then NO_COLOR and
// what the terminal can do.
func (a *app) profile() colorprofile.Profile {
	switch {
	case a.color == "always":
		return colorprofile.ANSI
	case a.color == "never", a.Width == 0, a.Getenv("NO_COLOR") != "", a.Getenv("TERM") == "dumb":
		return colorprofile.NoTTY
	}
	return colorprofile.ANSI
}
