package html

import (
	"encoding/binary"
	"encoding/json"
	"math"

	"unoom/internal/i18n"
)

// The data of a page: the length of a JSON header (4 bytes), the header, zeros up
// to a multiple of 8, and columns of numbers, little-endian, each at a multiple
// of 8. assets/1_data.js reads it.

type header struct {
	Title   string                          `json:"title"`
	Lang    i18n.Lang                       `json:"lang"`
	First   int                             `json:"first"`
	Words   map[i18n.Lang]map[string]string `json:"words"`
	Kinds   []string                        `json:"kinds"`
	Phases  []string                        `json:"phases"`
	Frames  [][3]any                        `json:"frames"`
	Stacks  [][]uint32                      `json:"stacks"`
	Places  []string                        `json:"places"`
	Devices []deviceHeader                  `json:"devices"`
}

type deviceHeader struct {
	Ordinal int                 `json:"ordinal"`
	Events  int                 `json:"events"`
	Timed   bool                `json:"timed"`
	Columns [][4]any            `json:"columns"` // name, type, offset, count
	Steps   []int32             `json:"steps"`
	OOMs    []int32             `json:"ooms"`
	Moment  int32               `json:"moment"` // a state: the event and one
	Growth  []Growth            `json:"growth"`
	Trials  []Trial             `json:"trials"`
	Texts   map[i18n.Lang]Texts `json:"texts"`
}

// columns collects the numbers behind the header.
type columns struct {
	data []byte
	list [][4]any
}

func (c *columns) begin(name, kind string, count int) {
	for len(c.data)%8 != 0 {
		c.data = append(c.data, 0)
	}
	c.list = append(c.list, [4]any{name, kind, len(c.data), count})
}

func addColumn[T any](c *columns, name, kind string, rows []T, put func(b []byte, row *T) []byte) {
	c.begin(name, kind, len(rows))
	for i := range rows {
		c.data = put(c.data, &rows[i])
	}
}

// float appends a whole number as a double, which holds it exactly up to 2^53:
// addresses have at most 57 bits, of which the lowest 9 are zero.
func float[N int64 | uint64](b []byte, n N) []byte {
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(n)))
}

func int32Of(b []byte, n int32) []byte { return binary.LittleEndian.AppendUint32(b, uint32(n)) }

func flag(b []byte, on bool) []byte {
	if on {
		return append(b, 1)
	}
	return append(b, 0)
}

// encode packs a report.
func (r *Report) encode() ([]byte, error) {
	h := header{
		Title: r.Title, Lang: r.Lang, First: r.First, Kinds: r.Kinds, Phases: r.Phases,
		Stacks: r.Stacks, Places: r.Places, Words: map[i18n.Lang]map[string]string{},
	}
	for _, lang := range []i18n.Lang{i18n.English, i18n.Chinese} {
		h.Words[lang] = i18n.Load(lang).Under("html.")
	}
	for _, f := range r.Frames {
		h.Frames = append(h.Frames, [3]any{f.Name, f.File, f.Line})
	}
	if len(h.Stacks) == 0 {
		h.Stacks = [][]uint32{{}}
	}
	if len(h.Places) == 0 {
		h.Places = []string{""}
	}
	var c columns
	for i := range r.Devices {
		h.Devices = append(h.Devices, r.Devices[i].encode(&c))
	}
	head, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	out := binary.LittleEndian.AppendUint32(nil, uint32(len(head)))
	out = append(out, head...)
	for len(out)%8 != 0 {
		out = append(out, 0)
	}
	return append(out, c.data...), nil
}

func (d *Device) encode(c *columns) deviceHeader {
	c.list = nil
	h := deviceHeader{
		Ordinal: d.Ordinal, Events: len(d.TimesUs), Steps: orEmpty(d.Steps), OOMs: orEmpty(d.OOMs), Moment: d.Moment + 1,
		Growth: orEmpty(d.Growth), Trials: orEmpty(d.Trials), Texts: d.Texts,
	}
	for _, t := range d.TimesUs {
		h.Timed = h.Timed || t != 0
	}
	addColumn(c, "time", "f64", d.TimesUs, func(b []byte, t *int64) []byte { return float(b, *t) })
	addColumn(c, "addr", "f64", d.Tensors, func(b []byte, t *Tensor) []byte { return float(b, t.Addr) })
	addColumn(c, "bytes", "f64", d.Tensors, func(b []byte, t *Tensor) []byte { return float(b, t.Bytes) })
	addColumn(c, "asked", "f64", d.Tensors, func(b []byte, t *Tensor) []byte { return float(b, t.Asked) })
	addColumn(c, "born", "i32", d.Tensors, func(b []byte, t *Tensor) []byte { return int32Of(b, t.Born) })
	addColumn(c, "freed", "i32", d.Tensors, func(b []byte, t *Tensor) []byte { return int32Of(b, t.Freed) })
	addColumn(c, "stack", "u32", d.Tensors, func(b []byte, t *Tensor) []byte { return int32Of(b, int32(t.Stack)) })
	addColumn(c, "place", "u32", d.Tensors, func(b []byte, t *Tensor) []byte { return int32Of(b, int32(t.Place)) })
	addColumn(c, "kind", "u8", d.Tensors, func(b []byte, t *Tensor) []byte { return append(b, t.Kind) })
	addColumn(c, "phase", "u8", d.Tensors, func(b []byte, t *Tensor) []byte { return append(b, t.Phase) })
	addColumn(c, "rangeFrom", "f64", d.Ranges, func(b []byte, r *Range) []byte { return float(b, r.Addr) })
	addColumn(c, "rangeBytes", "f64", d.Ranges, func(b []byte, r *Range) []byte { return float(b, r.Bytes) })
	addColumn(c, "rangeStream", "f64", d.Ranges, func(b []byte, r *Range) []byte { return float(b, r.Stream) })
	addColumn(c, "rangeBorn", "i32", d.Ranges, func(b []byte, r *Range) []byte { return int32Of(b, r.Born) })
	addColumn(c, "rangeFreed", "i32", d.Ranges, func(b []byte, r *Range) []byte { return int32Of(b, r.Freed) })
	addColumn(c, "rangeSmall", "u8", d.Ranges, func(b []byte, r *Range) []byte { return flag(b, r.Small) })
	addColumn(c, "rangeExpandable", "u8", d.Ranges, func(b []byte, r *Range) []byte { return flag(b, r.Expandable) })
	addColumn(c, "phaseFrom", "i32", d.Runs, func(b []byte, r *Run) []byte { return int32Of(b, r.From) })
	addColumn(c, "phaseIs", "u8", d.Runs, func(b []byte, r *Run) []byte { return append(b, r.Phase) })
	h.Columns = c.list
	return h
}

// orEmpty makes JSON write [] for no elements.
func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
