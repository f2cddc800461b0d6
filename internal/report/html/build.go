package html

import (
	"unoom/internal/i18n"
	"unoom/internal/lives"
	"unoom/internal/replay"
	"unoom/internal/snapshot"
)

// A Source is what is known of one device.
type Source struct {
	History *lives.History
	Case    *replay.Case
	// Bytes returns the exact size of a tensor's block; nil for what History has.
	Bytes  func(*lives.Tensor) int64
	Trials []replay.Trial
	Moment int32 // the event after which the page opens
	Texts  map[i18n.Lang]Texts
}

// Build lays out the report of a snapshot. first is the ordinal of the device that
// the page opens with.
func Build(title string, lang i18n.Lang, s *snapshot.Snapshot, first int, sources []Source) *Report {
	r := &Report{Title: title, Lang: lang, First: first, Stacks: [][]uint32{{}}, Places: []string{""}}
	for k := range lives.Kinds {
		r.Kinds = append(r.Kinds, lives.Kind(k).String())
	}
	for p := lives.PhaseUnknown; p <= lives.PhaseEvaluation; p++ {
		r.Phases = append(r.Phases, p.String())
	}
	b := &builder{report: r, texts: &s.Texts, stacks: map[uint32]uint32{0: 0}, frames: map[uint32]uint32{}, places: map[string]uint32{"": 0}}
	for i := range sources {
		r.Devices = append(r.Devices, b.device(&sources[i]))
	}
	return r
}

// builder numbers the stacks, frames and places that the page needs: a snapshot
// can hold many more.
type builder struct {
	report *Report
	texts  *snapshot.Texts
	stacks map[uint32]uint32
	frames map[uint32]uint32
	places map[string]uint32
	placed map[[2]uint32]uint32 // by stack and forward stack, of the current device
	// forward has the stack of the forward operation of each event, if the file
	// tells it.
	forward []uint32
}

func (b *builder) device(s *Source) Device {
	h := s.History
	b.placed, b.forward = map[[2]uint32]uint32{}, nil
	if h.Device < len(h.Snapshot.Traces) {
		b.forward = h.Snapshot.Traces[h.Device].Forward
	}
	d := Device{Ordinal: h.Device, Steps: h.Steps.Ends, OOMs: h.OOMs, Moment: s.Moment, Texts: s.Texts}
	d.TimesUs = make([]int64, len(h.Events))
	for i := range h.Events {
		d.TimesUs[i] = h.Events[i].TimeUs
		phase := uint8(h.PhaseAt(int32(i)))
		if n := len(d.Runs); n == 0 || d.Runs[n-1].Phase != phase {
			d.Runs = append(d.Runs, Run{int32(i), phase})
		}
	}
	for i := range h.Tensors {
		t := &h.Tensors[i]
		out := Tensor{
			Addr: t.Addr, Bytes: t.Bytes, Asked: t.Asked, Born: t.Born, Freed: t.Freed,
			Stack: b.stack(t.Stack), Place: b.place(h, t), Kind: uint8(t.Kind), Phase: uint8(t.Within),
		}
		if s.Bytes != nil {
			out.Bytes = s.Bytes(t)
		}
		d.Tensors = append(d.Tensors, out)
	}
	for _, m := range s.Case.Memory() {
		d.Ranges = append(d.Ranges, Range{
			Addr: m.Addr, Bytes: m.Bytes, Born: m.Born, Freed: m.Freed,
			Stream: m.Stream, Small: m.Small, Expandable: m.Expandable,
		})
	}
	for _, g := range h.Growing() {
		d.Growth = append(d.Growth, Growth{Place: g.String(), Kind: uint8(g.Kind), Held: g.Held, PerStep: g.PerStep, Forever: g.Forever})
	}
	for _, t := range s.Trials {
		d.Trials = append(d.Trials, Trial{
			Conf: t.Conf, Recorded: t.Recorded, Reserved: t.Peaks.Reserved,
			Failed: t.OOMs + t.StartOOMs, Retries: t.Stats.NumAllocRetries,
		})
	}
	return d
}

// stack returns the page's number of a stack.
func (b *builder) stack(id uint32) uint32 {
	if n, known := b.stacks[id]; known {
		return n
	}
	ids := b.texts.FrameIDs(id)
	if len(ids) == 0 {
		b.stacks[id] = 0
		return 0
	}
	frames := make([]uint32, len(ids))
	for i, f := range ids {
		n, known := b.frames[f]
		if !known {
			frame := b.texts.Frame(f)
			n = uint32(len(b.report.Frames))
			b.frames[f] = n
			b.report.Frames = append(b.report.Frames, Frame{frame.Name, frame.File, frame.Line})
		}
		frames[i] = n
	}
	n := uint32(len(b.report.Stacks))
	b.stacks[id] = n
	b.report.Stacks = append(b.report.Stacks, frames)
	return n
}

// place returns the page's number of the place that asked for a tensor.
func (b *builder) place(h *lives.History, t *lives.Tensor) uint32 {
	at := [2]uint32{t.Stack, 0}
	if b.forward != nil && t.Born >= 0 {
		at[1] = b.forward[t.Born]
	}
	if n, known := b.placed[at]; known {
		return n
	}
	name := h.PlaceOfTensor(t).String()
	n, known := b.places[name]
	if !known {
		n = uint32(len(b.report.Places))
		b.places[name] = n
		b.report.Places = append(b.report.Places, name)
	}
	b.placed[at] = n
	return n
}
