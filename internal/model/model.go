// Package model says what a network is: its modules and their parameter
// tensors, and the facts of its architecture that decide what training it
// needs. It does not depend on where the description came from: a Hugging Face
// config.json, safetensors headers, the catalogue, or plain dimensions.
//
// Invariants: a parameter is listed once, or marked as tied to the one whose
// storage it shares, so that the parameter count is the sum over the tensors.
// Layers that are equal are one *Layer, listed as often as it occurs. A Model
// is not changed after it is built, and may be shared.
//
// The package says nothing of bytes in a training run: that is package memory.
// An unknown architecture is an error that names the nearest known ones, never
// a guess.
package model

import (
	"iter"

	"unoom/internal/model/vision"
)

// A Family is the general form of a network.
type Family string

// The families.
const (
	Decoder        Family = "decoder"         // causal language models
	Encoder        Family = "encoder"         // BERT and its kin, ViT
	EncoderDecoder Family = "encoder-decoder" // T5, BART, Whisper
	Vision         Family = "vision"          // networks given as a graph of operations
	Diffusion      Family = "diffusion"       // U-Nets and diffusion transformers
)

// A HeadKind is what stands on top of the last stack.
type HeadKind string

// The heads.
const (
	HeadNone     HeadKind = ""
	HeadLM       HeadKind = "lm"       // next-token logits over the vocabulary
	HeadMaskedLM HeadKind = "masked"   // logits over the vocabulary at every position
	HeadClassify HeadKind = "classify" // a few logits for each sample
)

// A Model is one network.
type Model struct {
	Name   string // the catalogue's name, or where the description was read
	Type   string // config.json's model_type, or the name of a builder
	Family Family
	DType  DType // dtype the weights are published in, "" if the source does not say

	Vocab  int64
	MaxSeq int64 // longest sequence the model is made for, 0: no limit known
	// Hidden is the width of the residual stream of the last stack.
	Hidden int64

	// Embed has the modules before the first stack, Head those after the last.
	Embed []Module
	Head  []Module
	// Stacks are run in order; an encoder-decoder has two. A network that is
	// only a graph has none.
	Stacks   []*Stack
	HeadKind HeadKind
	// EmbedNorm says that the embeddings pass a norm (BERT, Bloom).
	EmbedNorm *Norm
	// EmbedDropout is the dropout on the embeddings.
	EmbedDropout float64
	// TiedHead says that the head's matrix is the input embedding's.
	TiedHead bool
	// LogitSoftcap is the bound that tanh puts on the logits, 0: none (Gemma 2).
	LogitSoftcap float64
	// LogitScaled says that the logits are multiplied by a number (Cohere, Granite).
	LogitScaled bool
	// HeadTransform says that a dense layer, an activation and a norm stand
	// before the vocabulary matrix (BERT).
	HeadTransform bool

	Position Position
	// Quantized is the quantisation of the published weights, by the name in
	// config.json ("gptq", "awq", "bitsandbytes", "fp8"), "" for none.
	Quantized string
	// Image has the settings of an image network, nil for others; see Graph.
	Image *vision.Spec
	// Sight is how the model sees images beside its text, nil: it does not. The
	// stack "vision" is its tower.
	Sight *Sight
	// Tower is the model as operations, where it is a stack of layers as well and
	// takes images of one size; nil for others.
	Tower *vision.Spec
}

// A Stack is a run of layers over one residual stream.
type Stack struct {
	Name   string // "decoder", "encoder"
	Hidden int64
	// Layers in order. Equal layers are the same pointer.
	Layers []*Layer
	// Tail has the modules after the last layer, usually one norm.
	Tail      []Module
	FinalNorm *Norm
	Causal    bool
}

// Heads returns the attention heads of the first layer that has attention, 0 if
// there is none.
func (s *Stack) Heads() int64 {
	for _, l := range s.Layers {
		if l.Attention != nil {
			return l.Attention.Heads
		}
	}
	return 0
}

// Main returns the stack that the model is known by: the one that generates text,
// else the last; nil if there is none.
func (m *Model) Main() *Stack {
	for _, s := range m.Stacks {
		if s.Causal {
			return s
		}
	}
	if n := len(m.Stacks); n > 0 {
		return m.Stacks[n-1]
	}
	return nil
}

// Layers returns the number of layers of all stacks.
func (m *Model) Layers() int {
	n := 0
	for _, s := range m.Stacks {
		n += len(s.Layers)
	}
	return n
}

// A Place is where a module stands.
type Place struct {
	Part  string // "embed", "head", or the name of a stack
	Layer int    // index within the stack, -1 outside of layers
	Times int64  // how many equal layers this place stands for
}

// Modules yields every module in forward order. With each, the run of equal
// neighbouring layers is given once, with its length in Times.
func (m *Model) Modules() iter.Seq2[Place, *Module] {
	return func(yield func(Place, *Module) bool) {
		list := func(part string, mods []Module) bool {
			for i := range mods {
				if !yield(Place{part, -1, 1}, &mods[i]) {
					return false
				}
			}
			return true
		}
		if !list("embed", m.Embed) {
			return
		}
		for _, s := range m.Stacks {
			for i := 0; i < len(s.Layers); {
				l, n := s.Layers[i], 1
				for i+n < len(s.Layers) && s.Layers[i+n] == l {
					n++
				}
				for k := range l.Modules {
					if !yield(Place{s.Name, i, int64(n)}, &l.Modules[k]) {
						return
					}
				}
				i += n
			}
			if !list(s.Name, s.Tail) {
				return
			}
		}
		list("head", m.Head)
	}
}

// Params returns the number of parameters: the sum over all tensors that have
// their own storage and are not buffers.
func (m *Model) Params() int64 {
	var sum int64
	for place, mod := range m.Modules() {
		sum += place.Times * mod.Count()
	}
	return sum
}

// ActiveParams returns the parameters that take part in the computation of one
// token: all of them, but of the routed experts only those chosen.
func (m *Model) ActiveParams() int64 {
	sum := m.Params()
	for _, s := range m.Stacks {
		for _, l := range s.Layers {
			if l.MoE == nil {
				continue
			}
			for i := range l.Modules {
				if mod := &l.Modules[i]; mod.Role.Expert() {
					sum -= mod.Count() / max(mod.Copies, 1) * (mod.Copies - l.MoE.TopK)
				}
			}
		}
	}
	return sum
}
