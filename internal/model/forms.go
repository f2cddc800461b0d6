package model

import (
	"fmt"
	"strings"
)

// A Form is what a decoder is beside its dimensions: the choices that change how
// many parameters the same dimensions make.
type Form struct {
	Dims
	// Off is by how much the form's parameters differ from the stated number.
	Off int64
}

// String names the choices, for a list of assumptions.
func (f *Form) String() string {
	parts := []string{"RMSNorm, gated MLP"}
	if f.Style == "gpt" {
		parts = []string{"LayerNorm, MLP of two matrices"}
		if f.NoBias {
			parts = append(parts, "no biases")
		} else {
			parts = append(parts, "biases")
		}
	} else if f.QKVBias {
		parts = append(parts, "biases on q, k and v")
	}
	if f.Position == Learned {
		parts = append(parts, fmt.Sprintf("%d learned positions", f.Positions))
	} else {
		parts = append(parts, string(f.Position))
	}
	if f.EmbedNorm {
		parts = append(parts, "a norm after the embeddings")
	}
	if f.Tied {
		return strings.Join(append(parts, "tied head"), ", ")
	}
	return strings.Join(append(parts, "head of its own"), ", ")
}

// FromCount returns the decoder whose dimensions make the stated number of
// parameters, trying the usual blocks with and without biases, tied or not, with
// each way to tell positions apart. A number that was rounded may differ by what
// the rounding hides; the nearest form is taken. nil: none agrees.
func FromCount(name string, dims Dims, params int64) (*Model, *Form) {
	var best *Model
	var form *Form
	allowed := roundingOf(params)
	for _, d := range forms(dims) {
		m, err := FromDims(name, d)
		if err != nil {
			return nil, nil
		}
		rest := params - m.Params()
		if d.Position == Learned && allowed < dims.Hidden && rest > 0 && rest%dims.Hidden == 0 && rest/dims.Hidden < dimensionMost {
			// What the rest of the network leaves is the table of positions.
			d.Positions += rest / dims.Hidden
			if m, err = FromDims(name, d); err != nil {
				continue
			}
			rest = 0
		}
		off := max(rest, -rest)
		if off <= allowed && (form == nil || off < form.Off) {
			best, form = m, &Form{d, off}
		}
	}
	return best, form
}

// shortestPositions is the smallest table of positions that the search takes for
// one.
const shortestPositions = 128

// forms lists the variants, likelier ones first.
func forms(dims Dims) []Dims {
	var out []Dims
	add := func(change func(*Dims)) {
		d := dims
		change(&d)
		out = append(out, d)
	}
	for _, tied := range []bool{false, true} {
		for _, qkv := range []bool{false, true} {
			add(func(d *Dims) { d.Style, d.Position, d.Tied, d.QKVBias = "llama", Rope, tied, qkv })
		}
	}
	for _, noBias := range []bool{false, true} {
		add(func(d *Dims) { d.Style, d.Position, d.NoBias = "gpt", Rope, noBias })
		for _, norm := range []bool{false, true} {
			add(func(d *Dims) { d.Style, d.Position, d.Tied, d.NoBias, d.EmbedNorm = "gpt", Alibi, true, noBias, norm })
		}
		add(func(d *Dims) { d.Style, d.Position, d.Tied, d.NoBias = "gpt", Rope, true, noBias })
		for _, tied := range []bool{true, false} {
			add(func(d *Dims) {
				d.Style, d.Position, d.Tied, d.NoBias, d.Positions = "gpt", Learned, tied, noBias, shortestPositions
			})
		}
	}
	return out
}

// roundingOf is how far a number may be from what was counted: half a unit of its
// last digit that is not zero, a fiftieth at most.
func roundingOf(n int64) int64 {
	unit := int64(1)
	for n > 0 && n%(unit*10) == 0 {
		unit *= 10
	}
	return min(unit/2, n/50)
}
