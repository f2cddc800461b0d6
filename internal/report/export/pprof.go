package export

import (
	"io"
	"strconv"

	"github.com/google/pprof/profile"

	"unoom/internal/lives"
	"unoom/internal/snapshot"
)

// WritePprof writes a gzipped profile for `go tool pprof`: what was allocated at
// the moment of each view (inuse), and in all of the trace (alloc). Samples are
// labelled with the device, the kind and the phase.
func WritePprof(w io.Writer, views []View) error {
	p := &profile.Profile{
		SampleType: []*profile.ValueType{
			{Type: "alloc_objects", Unit: "count"}, {Type: "alloc_space", Unit: "bytes"},
			{Type: "inuse_objects", Unit: "count"}, {Type: "inuse_space", Unit: "bytes"},
		},
		DefaultSampleType: "inuse_space",
		PeriodType:        &profile.ValueType{Type: "space", Unit: "bytes"},
		Period:            1,
		Mapping:           []*profile.Mapping{{ID: 1, File: "python", HasFunctions: true, HasFilenames: true, HasLineNumbers: true}},
	}
	b := &profiling{profile: p, locations: map[uint32]*profile.Location{}, functions: map[[2]string]*profile.Function{}, named: map[string]*profile.Location{}}
	for i := range views {
		b.add(&views[i])
	}
	if err := p.CheckValid(); err != nil {
		return err
	}
	return p.Write(w)
}

type profiling struct {
	profile   *profile.Profile
	locations map[uint32]*profile.Location // by frame
	functions map[[2]string]*profile.Function
	named     map[string]*profile.Location // of memory without a stack
}

func (b *profiling) add(v *View) {
	type key struct {
		stack uint32
		kind  lives.Kind
		phase lives.Phase
	}
	samples := map[key]*profile.Sample{}
	h := v.History
	if first := firstTime(h); first > 0 && (b.profile.TimeNanos == 0 || first*1000 < b.profile.TimeNanos) {
		b.profile.TimeNanos = first * 1000
	}
	for i := range h.Tensors {
		t := &h.Tensors[i]
		k := key{t.Stack, t.Kind, t.Within}
		s := samples[k]
		if s == nil {
			s = &profile.Sample{Value: make([]int64, 4), Label: map[string][]string{
				"gpu": {strconv.Itoa(h.Device)}, "kind": {t.Kind.String()},
			}}
			if name := t.Within.String(); name != "" {
				s.Label["phase"] = []string{name}
			}
			for _, id := range h.Snapshot.FrameIDs(t.Stack) {
				s.Location = append(s.Location, b.location(id, h.Snapshot.Frame(id)))
			}
			if len(s.Location) == 0 {
				s.Location = []*profile.Location{b.nameless(stackless(t))}
			}
			samples[k] = s
			b.profile.Sample = append(b.profile.Sample, s)
		}
		n := v.bytes(t)
		if t.Born != lives.Before {
			s.Value[0]++
			s.Value[1] += n
		}
		if t.LivesAfter(v.Moment) {
			s.Value[2]++
			s.Value[3] += n
		}
	}
}

func firstTime(h *lives.History) int64 {
	if len(h.Events) == 0 {
		return 0
	}
	return h.Events[0].TimeUs
}

func (b *profiling) location(id uint32, f snapshot.Frame) *profile.Location {
	if l := b.locations[id]; l != nil {
		return l
	}
	l := b.newLocation(frameName(f), f.File, int64(f.Line))
	b.locations[id] = l
	return l
}

func (b *profiling) nameless(name string) *profile.Location {
	if l := b.named[name]; l != nil {
		return l
	}
	l := b.newLocation(name, "", 0)
	b.named[name] = l
	return l
}

func (b *profiling) newLocation(name, file string, line int64) *profile.Location {
	p := b.profile
	key := [2]string{name, file}
	fn := b.functions[key]
	if fn == nil {
		fn = &profile.Function{ID: uint64(len(p.Function) + 1), Name: name, SystemName: name, Filename: file}
		b.functions[key] = fn
		p.Function = append(p.Function, fn)
	}
	l := &profile.Location{ID: uint64(len(p.Location) + 1), Mapping: p.Mapping[0], Line: []profile.Line{{Function: fn, Line: line}}}
	p.Location = append(p.Location, l)
	return l
}
