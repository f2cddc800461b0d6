package export

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"

	"unoom/internal/lives"
)

// Speedscope's file format: https://www.speedscope.app/file-format-schema.json

type speedscopeFile struct {
	Schema   string              `json:"$schema"`
	Exporter string              `json:"exporter"`
	Name     string              `json:"name"`
	Shared   speedscopeShared    `json:"shared"`
	Profiles []speedscopeProfile `json:"profiles"`
}

type speedscopeShared struct {
	Frames []speedscopeFrame `json:"frames"`
}

type speedscopeFrame struct {
	Name string `json:"name"`
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"`
}

type speedscopeProfile struct {
	Type       string  `json:"type"`
	Name       string  `json:"name"`
	Unit       string  `json:"unit"`
	StartValue int64   `json:"startValue"`
	EndValue   int64   `json:"endValue"`
	Samples    [][]int `json:"samples"`
	Weights    []int64 `json:"weights"`
}

// WriteSpeedscope writes what was allocated at the moment of each view, a profile
// for each device.
func WriteSpeedscope(w io.Writer, name string, views []View) error {
	f := speedscopeFile{
		Schema: "https://www.speedscope.app/file-format-schema.json", Exporter: "unoom", Name: name,
		Profiles: []speedscopeProfile{}, Shared: speedscopeShared{Frames: []speedscopeFrame{}},
	}
	frames := map[speedscopeFrame]int{}
	frame := func(x speedscopeFrame) int {
		n, known := frames[x]
		if !known {
			n = len(f.Shared.Frames)
			frames[x] = n
			f.Shared.Frames = append(f.Shared.Frames, x)
		}
		return n
	}
	for i := range views {
		v := &views[i]
		h := v.History
		type key struct {
			stack uint32
			kind  lives.Kind // where there is no stack
		}
		held := map[key]int64{}
		for j := range h.Tensors {
			t := &h.Tensors[j]
			if !t.LivesAfter(v.Moment) {
				continue
			}
			k := key{stack: t.Stack}
			if len(h.Snapshot.FrameIDs(t.Stack)) == 0 {
				k = key{kind: t.Kind}
			}
			held[k] += v.bytes(t)
		}
		p := speedscopeProfile{
			Type: "sampled", Unit: "bytes", Samples: [][]int{}, Weights: []int64{},
			Name: fmt.Sprintf("GPU %d: allocated after event %d", h.Device, v.Moment),
		}
		order := slices.SortedFunc(maps.Keys(held), func(a, b key) int {
			return cmp.Or(cmp.Compare(held[b], held[a]), cmp.Compare(a.stack, b.stack), cmp.Compare(a.kind, b.kind))
		})
		for _, k := range order {
			var sample []int
			for _, id := range slices.Backward(h.Snapshot.FrameIDs(k.stack)) { // outermost first
				fr := h.Snapshot.Frame(id)
				sample = append(sample, frame(speedscopeFrame{frameName(fr), fr.File, fr.Line}))
			}
			if sample == nil {
				sample = []int{frame(speedscopeFrame{Name: stackless(&lives.Tensor{Kind: k.kind})})}
			}
			p.Samples = append(p.Samples, sample)
			p.Weights = append(p.Weights, held[k])
			p.EndValue += held[k]
		}
		f.Profiles = append(f.Profiles, p)
	}
	return json.NewEncoder(w).Encode(f)
}
