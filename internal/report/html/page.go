// Package html writes the report of a memory snapshot as one self-contained page:
// a timeline of what was allocated and reserved, the flame graph and the segment
// map of any moment, who holds the memory, what grows. It opens from the disk and
// asks the network for nothing; its content security policy forbids it to.
//
// The page holds all events as columns of numbers, gzipped, and draws on canvases
// what the view needs, so that a hundred thousand events stay smooth. What it
// says in words comes from the message catalogue, in both languages; the reader
// switches.
//
// It lays out; what the figures are is package lives', replay's and diagnose's.
package html

import (
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/base64"
	"fmt"
	stdhtml "html"
	"io"
	"path"
	"strings"

	"unoom/internal/i18n"
)

//go:embed assets
var assets embed.FS

// A Report is what a page shows.
type Report struct {
	Title   string    // the name of the file
	Lang    i18n.Lang // that the page opens in
	First   int       // the ordinal of the device that it opens with
	Devices []Device
	// Kinds and Phases are the names that tensors and phase runs refer to.
	Kinds, Phases []string
	Frames        []Frame
	Stacks        [][]uint32 // frames, innermost first; 0 is no stack
	Places        []string   // 0 is no place
}

// A Frame is an entry of a call stack.
type Frame struct {
	Name, File string
	Line       int
}

// A Device is one GPU.
type Device struct {
	Ordinal int
	TimesUs []int64 // of the events, in order; all 0 if they are not known
	Tensors []Tensor
	Ranges  []Range
	Runs    []Run
	// Steps and OOMs are the events at which a step ended or a request failed.
	Steps, OOMs []int32
	// Moment is the event after which the page opens; -1 is the start.
	Moment int32
	Growth []Growth
	Trials []Trial
	Texts  map[i18n.Lang]Texts
}

// never is the event of what does not happen in the trace.
const never = 1<<31 - 1

// A Tensor is memory that was held from one event to another: -1 and never are
// what lies outside the trace.
type Tensor struct {
	Addr        uint64
	Bytes       int64
	Asked       int64 // -1 if unknown
	Born, Freed int32
	Stack       uint32
	Place       uint32
	Kind, Phase uint8
}

// A Range is memory that the driver gave from one event to another.
type Range struct {
	Addr        uint64
	Bytes       int64
	Born, Freed int32
	Stream      uint64
	Small       bool
	Expandable  bool
}

// A Run is a stretch of events of one phase.
type Run struct {
	From  int32
	Phase uint8
}

// A Growth is a place from which more is held after each step.
type Growth struct {
	Place   string  `json:"place"`
	Kind    uint8   `json:"kind"`
	Held    []int64 `json:"held"`
	PerStep int64   `json:"perStep"`
	// Forever says that there are no steps: PerStep is what it grew by in all.
	Forever bool `json:"forever"`
}

// A Trial is the replay under one setting.
type Trial struct {
	Conf     string `json:"conf"`
	Recorded bool   `json:"recorded"`
	Reserved int64  `json:"reserved"`
	Failed   int    `json:"failed"`
	Retries  int64  `json:"retries"`
}

// Texts is what a page says in one language.
type Texts struct {
	Headline string   `json:"headline"`
	Lead     string   `json:"lead"`
	Figures  []Figure `json:"figures"`
	Causes   []Cause  `json:"causes"`
	Advice   []Advice `json:"advice"`
	Notes    []string `json:"notes"`
}

// A Figure is one number with its label. Tone is "good", "bad" or "".
type Figure struct {
	Value string `json:"value"`
	Label string `json:"label"`
	Tone  string `json:"tone"`
}

// A Cause is one reason of a failure, or of the peak.
type Cause struct {
	Title    string   `json:"title"`
	Share    string   `json:"share"` // how likely it is
	Evidence []string `json:"evidence"`
}

// Advice is a remedy.
type Advice struct {
	Title   string   `json:"title"`
	Code    string   `json:"code"`
	Effects string   `json:"effects"` // what it brings and costs
	Why     string   `json:"why"`
	Change  []string `json:"change"` // lines of code or settings
}

// Write writes the page.
func Write(w io.Writer, r *Report) error {
	data, err := r.encode()
	if err != nil {
		return err
	}
	var zipped bytes.Buffer
	z, err := gzip.NewWriterLevel(&zipped, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := z.Write(data); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	layout, err := assets.ReadFile("assets/page.html")
	if err != nil {
		return err
	}
	style, err := assets.ReadFile("assets/style.css")
	if err != nil {
		return err
	}
	script, err := scripts()
	if err != nil {
		return err
	}
	page := strings.NewReplacer(
		"{{.Lang}}", string(r.Lang),
		"{{.Title}}", stdhtml.EscapeString(r.Title),
		"{{.Style}}", string(style),
		"{{.Script}}", script,
		"{{.Data}}", base64.StdEncoding.EncodeToString(zipped.Bytes()),
	)
	_, err = page.WriteString(w, string(layout))
	return err
}

// scripts joins the files of the program in the order of their names.
func scripts() (string, error) {
	entries, err := assets.ReadDir("assets")
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, e := range entries {
		if path.Ext(e.Name()) != ".js" {
			continue
		}
		text, err := assets.ReadFile("assets/" + e.Name())
		if err != nil {
			return "", err
		}
		if bytes.Contains(text, []byte("</script")) {
			return "", fmt.Errorf("%s ends the script that it is put into", e.Name())
		}
		b.Write(text)
	}
	return b.String(), nil
}
