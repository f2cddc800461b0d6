package model

import "fmt"

// Dims are the plain dimensions of a decoder: what a user knows of a model that
// is in no catalogue, or what a table of measurements says.
type Dims struct {
	Layers, Hidden, Heads int64
	KVHeads               int64 // 0: as many as Heads
	HeadDim               int64 // 0: Hidden / Heads
	FFN                   int64 // 0: 4 * Hidden
	Vocab                 int64
	MaxSeq                int64 // 0: no limit

	// Style chooses the block: "llama" (RMSNorm, gated SiLU, rotary, no biases,
	// the default) or "gpt" (LayerNorm, GELU, learned positions, biases).
	Style string
	Tied  bool
	// Position is another way to tell positions apart than the style's, "": its own.
	Position Position
	// Positions is the length of a table of learned positions, 0: MaxSeq.
	Positions int64
	// QKVBias gives the "llama" block biases on queries, keys and values; NoBias
	// takes all biases from the "gpt" block; EmbedNorm puts a norm after the
	// embeddings.
	QKVBias, NoBias, EmbedNorm bool
}

// FromDims returns the decoder that dimensions describe.
func FromDims(name string, dims Dims) (*Model, error) {
	c := &config{name: name}
	for _, v := range []struct {
		key      string
		n        int64
		required bool
	}{
		{"layers", dims.Layers, true}, {"hidden", dims.Hidden, true}, {"heads", dims.Heads, true}, {"vocab", dims.Vocab, true},
		{"kv_heads", dims.KVHeads, false}, {"head_dim", dims.HeadDim, false}, {"ffn", dims.FFN, false}, {"max_seq", dims.MaxSeq, false},
	} {
		switch {
		case v.n == 0 && !v.required:
		case v.n == 0:
			c.fail(v.key, "is missing")
		case v.n < 1 || v.n > dimensionMost:
			c.fail(v.key, "%d is not a size a model can have", v.n)
		}
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	if dims.HeadDim == 0 && dims.Hidden%dims.Heads != 0 {
		return nil, &ConfigError{Name: name, Key: "heads", Msg: fmt.Sprintf("%d heads do not divide the hidden size %d", dims.Heads, dims.Hidden),
			Hint: "valid choices are " + divisors(dims.Hidden)}
	}
	d := &decoder{
		hidden: dims.Hidden, vocab: dims.Vocab, layers: dims.Layers, maxSeq: dims.MaxSeq, tied: dims.Tied,
		attn:  Attention{Heads: dims.Heads, KVHeads: dims.KVHeads, HeadDim: dims.HeadDim},
		mlp:   MLP{FFN: dims.FFN},
		names: llamaNames(),
	}
	if dims.FFN == 0 {
		d.mlp.FFN = 4 * dims.Hidden
	}
	switch dims.Style {
	case "", "llama":
		d.norm = Norm{Kind: RMSNorm, Affine: true}
		d.attn.Position = Rope
		d.qkvBias = dims.QKVBias
		d.mlp.Act, d.mlp.Gated = SiLU, true
	case "gpt":
		bias := !dims.NoBias
		d.norm = Norm{Kind: LayerNorm, Affine: true, Bias: bias}
		d.names = gptNames()
		d.attn.Position, d.attn.FusedQKV = Learned, true
		d.qkvBias, d.bias = bias, bias
		d.mlp.Act, d.mlp.Bias = GELU, bias
	default:
		return nil, &ConfigError{Name: name, Key: "style", Msg: fmt.Sprintf("%q is not known", dims.Style), Hint: "llama or gpt"}
	}
	if dims.Position != "" {
		d.attn.Position = dims.Position
	}
	if d.attn.Position == Learned {
		d.positions = dims.MaxSeq
		if dims.Positions > 0 {
			d.positions = dims.Positions
		}
	}
	d.embedNorm = dims.EmbedNorm
	m := d.model(c)
	m.Name, m.Type = name, "dims"
	return m, m.check()
}
