// Package export writes the memory of a snapshot in the formats of other tools:
// pprof (go tool pprof), Chrome's trace events (ui.perfetto.dev), speedscope, and
// CSV. It converts; what a tensor is and when it lived is package lives's.
package export

import (
	"cmp"
	"slices"
	"strings"

	"unoom/internal/lives"
	"unoom/internal/snapshot"
)

// A Format is one of those that are written.
type Format string

// The formats.
const (
	HTML       Format = "html" // by package html
	Pprof      Format = "pprof"
	Perfetto   Format = "perfetto"
	Speedscope Format = "speedscope"
	CSV        Format = "csv"
)

// Formats lists them in the order of their importance.
func Formats() []Format { return []Format{HTML, Pprof, Perfetto, Speedscope, CSV} }

// FormatOf tells the format from the name of a file. A plain .json could be two of
// them.
func FormatOf(name string) (Format, bool) {
	name = strings.ToLower(name)
	for _, f := range []struct {
		ending string
		format Format
	}{
		{".html", HTML}, {".htm", HTML},
		{".pb.gz", Pprof}, {".pprof", Pprof}, {".pb", Pprof},
		{".speedscope.json", Speedscope},
		{".perfetto.json", Perfetto}, {".trace.json", Perfetto},
		{".csv", CSV},
	} {
		if strings.HasSuffix(name, f.ending) {
			return f.format, true
		}
	}
	return "", false
}

// A View is one device with what is looked at.
type View struct {
	History *lives.History
	// Moment is the event after which the living tensors are shown.
	Moment int32
	// Bytes returns the size of a tensor's block; nil for what History has.
	Bytes func(*lives.Tensor) int64
}

func (v *View) bytes(t *lives.Tensor) int64 {
	if v.Bytes == nil {
		return t.Bytes
	}
	return v.Bytes(t)
}

// sums adds up what each kind, and all, and the driver had after every event, and
// calls each with the figures that an event changed.
func (v *View) sums(each func(event int, kind lives.Kind, allocated [lives.Kinds]int64, total int64)) {
	h := v.History
	type change struct {
		event int32
		kind  lives.Kind
		bytes int64
	}
	var changes []change
	var sum [lives.Kinds]int64
	var total int64
	for i := range h.Tensors {
		t := &h.Tensors[i]
		n := v.bytes(t)
		if t.Born == lives.Before {
			sum[t.Kind] += n
			total += n
		} else {
			changes = append(changes, change{t.Born, t.Kind, n})
		}
		if t.Freed != lives.Never {
			changes = append(changes, change{t.Freed, t.Kind, -n})
		}
	}
	slices.SortStableFunc(changes, func(a, b change) int { return cmp.Compare(a.event, b.event) })
	for k := range sum {
		each(-1, lives.Kind(k), sum, total)
	}
	for _, c := range changes {
		sum[c.kind] += c.bytes
		total += c.bytes
		each(int(c.event), c.kind, sum, total)
	}
}

// stackless names what holds memory without a stack.
func stackless(t *lives.Tensor) string {
	return "(no stack recorded: " + strings.ReplaceAll(t.Kind.String(), "_", " ") + ")"
}

// frameName writes a frame's function; a bare line of text is its own name.
func frameName(f snapshot.Frame) string {
	if f.Name == "" {
		return "?"
	}
	return f.Name
}
